"""User text in figures and on the terminal is text; results do not depend on the drawing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.paper.experiments import plots
from mlmcgrad.paper.experiments.plots import log_axes, panels, print_path, print_text, save

HOSTILE = "[/about] [bold] $g_$0 :smile: \x1b[31m"


def test_a_dollar_in_a_figure_is_a_dollar(tmp_path: Path) -> None:
    for parse, refused in ((False, False), (True, True)):  # the twin reads it as mathematics
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(plots.STYLE, "text.parse_math", parse)
            try:
                with panels(1, tmp_path / "figure") as (_, (axes,)):
                    axes.set_title("[/about] $g_$0")
                    axes.plot([1.0, 2.0], label="$g_$0")
                    axes.legend()
            except ValueError:
                assert refused
            else:
                assert not refused


@pytest.mark.parametrize("formulas", [False, True])
def test_the_log_axes_of_others_have_formulas(formulas: bool, tmp_path: Path) -> None:
    """Ticks are made when the figure is saved; without formulas they would be the text $10^{2}$."""
    figure, axes = plt.subplots()
    axes.loglog([1.0, 1e3], [1.0, 1e3])
    save(figure, tmp_path / "figure", formulas=formulas)
    plt.close(figure)
    assert all(label.get_parse_math() for label in axes.get_xticklabels()) == formulas


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.0, 100.0, ["1", "2", "5", "10", "20", "50", "100"]),
        (2.0, 5.0, ["2", "3", "4", "5"]),
        (1e-3, 1e3, ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]),
        (1e-5, 1e-4, ["10⁻⁵", "2·10⁻⁵", "5·10⁻⁵", "10⁻⁴"]),
        (1e6, 1e7, ["10⁶", "2·10⁶", "5·10⁶", "10⁷"]),
    ],
)
def test_log_axes_have_plain_numbers(
    low: float, high: float, expected: list[str], tmp_path: Path
) -> None:
    """Without mathematics: the labels of matplotlib are formulas, $10^{2}$."""
    with panels(1, tmp_path / "figure") as (figure, (axes,)):
        axes.plot([1.0, 2.0], [low, high])
        axes.set_ylim(low, high)
        log_axes(axes, "y")
        figure.canvas.draw()
        shown = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        texts = [label.get_text() for y, label in shown if 0.999 * low < y < 1.001 * high]
    assert texts == expected


def test_text_is_printed_as_it_is() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, color_system=None)
    print_text(f"{HOSTILE}\nsecond line", console)
    print_path(Path(HOSTILE), console, "report")
    visible = HOSTILE.replace("\x1b", "\\x1b")
    assert text.getvalue() == f"{visible}\nsecond line\nreport: {visible}\n"


def test_folders_may_have_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / HOSTILE.replace("/", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlmcgrad.paper.experiments.bound.draw", lambda folder, _: folder / "b.png")
        assert main(["bound", "--preset", "smoke", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "[bold] $g_$0" in said.splitlines()[-1]


SMALL: dict[str, tuple[str, ...]] = {
    "bound": (),
    "demo": ("--chains=100", "--truncation=4", "--budget=4", "--seeds=1"),
    "boltzmann": ("--data=bars", "--jobs=1"),
    "rates": ("--jobs=1",),
    "scaling": ("--jobs=1",),
}


@pytest.mark.parametrize("name", SMALL)
def test_results_are_written_and_shown_before_figures_are_drawn(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlmcgrad.paper.experiments import boltzmann, rates, scaling

    def fails(*_: Any) -> None:
        raise ValueError("cannot be drawn")

    effort = scaling.ScalingEffort(200, 20, 4)
    monkeypatch.setattr(scaling, "KERNELS", ("finite",))
    monkeypatch.setattr(scaling, "_STEPS", 20)
    monkeypatch.setitem(scaling.EFFORT, "smoke", {"finite": effort})
    monkeypatch.setitem(rates.EFFORT, "smoke", (20, 8))
    monkeypatch.setitem(boltzmann.EFFORT["smoke"], "bars", boltzmann.BoltzmannEffort(2, 1, 1, 5))
    monkeypatch.setattr(f"mlmcgrad.paper.experiments.{name}.draw", fails)
    preset = () if name == "demo" else ("--preset", "smoke")
    assert main([name, *preset, *SMALL[name], "--out", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert "cannot be drawn" in output.err
    assert len(output.out.splitlines()) > 5  # the table
    assert json.loads((tmp_path / "summary.json").read_text())
    assert (tmp_path / "metrics.jsonl").read_text()
    assert (tmp_path / "table.md").exists() == (name == "boltzmann")
