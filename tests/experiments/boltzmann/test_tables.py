from __future__ import annotations

from mlmcgrad.experiments.boltzmann import findings, settings, tables


def test_every_column_has_its_numbers() -> None:
    """Two points of a curve by hand: totals over 32 rows, differences from MLMC seed by seed."""
    parts = {}
    for method in settings.LABELS:
        last, averaged = {"mlmc": (-4.0, -3.0), "ucd": (-5.0, -2.75)}.get(method, (-6.0, -6.0))
        for seed in range(2):
            curve = [
                {
                    "iteration": n,
                    "steps": (7.0 if method == "mlmc" else 3.5) * n,
                    "seconds": 0.25 * n,
                    "last": last / n,
                    "averaged": averaged / n,
                }
                for n in (1, 2)
            ]
            parts[f"{method} {seed}"] = {
                "data": "bars",
                "method": method,
                "seed": seed,
                "curve": curve,
                "samples": [[0] * 16],
            }
    lines = tables.markdown(findings.summarise(parts).summary).splitlines()
    (row,) = [line for line in lines if line.startswith("| UCD |")]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "UCD",
        "3.5",
        "-80.0±0.0",  # 32 · −5/2
        "-44.0±0.0",  # 32 · −2.75/2
        "16.0±0.0",  # 32 · (−4/2 + 5/2)
        "-48.0±0.0",  # MLMC has made the 7 steps after one iteration: 32 · (−4 + 5/2)
        "-52.0±0.0",  # 32 · (−3 + 2.75/2)
        "250.0",
    ]
    (ours,) = [line for line in lines if line.startswith("| MLMC |")]
    assert ours.count("| –") == 3  # no differences from itself
    header = next(line for line in lines if line.startswith("| method"))
    assert header.count("|") == row.count("|")
