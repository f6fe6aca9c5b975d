"""`mlmcgrad fit`: a table on the terminal, files in a folder."""

import io
import json
import shutil
import signal
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mlmcgrad import mixed
from mlmcgrad.cli import commands, main
from mlmcgrad.mixed.result import Fit, FitStep
from mlmcgrad.paper.runs.process import Stopped
from tests.mixed.test_fit_published import SEEDS

FORMULA = "germinated | trials(n) ~ extract + (1 | plate)"
LINE = ["fit", str(SEEDS), FORMULA, "--family", "binomial"]


def test_a_table_is_printed_and_nothing_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(LINE) == 0
    said = capsys.readouterr().out
    assert "extract[cucumber]" in said
    assert "Certificate holds" in said
    assert list(tmp_path.iterdir()) == []


def test_files_hold_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fit"
    assert main([*LINE, "--seed", "3", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    loaded = mixed.load(out / "fit.json")
    assert str(loaded) in said
    assert (out / "table.txt").read_text(encoding="utf-8") == f"{loaded}\n"
    effects = pd.read_csv(out / "random_effects.csv")
    assert effects.columns.tolist() == ["factor", "group", "term", "mean", "sd"]
    assert len(effects) == 21
    assert (out / "fit.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((out / "config.json").read_text(encoding="utf-8"))["experiment"] == "fit"


def test_a_folder_belongs_to_one_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fit"
    assert main([*LINE, "--out", str(out)]) == 0
    assert main([*LINE, "--out", str(out)]) == 0  # the same one again
    assert main([*LINE, "--seed", "1", "--out", str(out)]) == 2
    assert "seed must be 0" in capsys.readouterr().err
    before = (out / "fit.json").read_bytes()
    assert main([*LINE, "--seed", "1", "--out", str(out), "--force"]) == 0
    assert (out / "old-1" / "fit.json").read_bytes() == before
    assert main(["bound", "--preset", "smoke", "--out", str(out)]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: "nowhere.csv"}, "nowhere.csv"),
        ({2: "germinated ~ extrakt + (1 | plate)"}, "did you mean 'extract'"),
        ({4: "poisson"}, "trials"),
        ({2: "germinated | trials(n) ~ "}, "formula"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    change: dict[int, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([change.get(i, word) for i, word in enumerate(LINE)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mlmcgrad: ")
    assert message in said
    assert said.count("\n") == 1


def test_a_link_of_another_family_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE[:-1], "gamma", "--link", "probit"]) == 2
    assert "link is for bernoulli and binomial only" in capsys.readouterr().err


def test_an_interrupted_fit_is_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = mixed.fit

    def interrupted(*arguments: object, **options: object) -> object:
        def stop(step: FitStep) -> None:
            if step.iteration == 3:
                raise Stopped(signal.SIGTERM, "stopped")

        return original(*arguments, **{**options, "progress": stop})  # type: ignore[arg-type]

    monkeypatch.setattr(mixed, "fit", interrupted, raising=False)
    assert main([*LINE, "--out", str(tmp_path / "fit")]) == 143
    said = capsys.readouterr()
    assert "interrupted after 3 iterations" in said.out
    assert mixed.load(tmp_path / "fit" / "fit.json").interrupted


def test_the_csv_may_have_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my data.txt"
    shutil.copy(SEEDS, path)
    assert main(["fit", str(path), *LINE[2:]]) == 0
    assert "21 groups of plate" in capsys.readouterr().out


HOSTILE = [
    "/about", "[bold]", "[/bold]", "$g_$0", "$\\undefined{", '=HYPERLINK("http://x","y")', "-5",
    "@SUM(1)", "\x1b]0;owned\x07", "two\nlines", "<script>", "{task}", "%(s)s", "\\frac", "+1-1",
]  # fmt: skip


def _hostile(folder: Path) -> Path:
    random = np.random.default_rng(0)
    group = np.repeat(HOSTILE, 8)
    data = pd.DataFrame({"g$_$ [/b]": group, "y": random.integers(0, 2, len(group))})
    data["[/x]\x1b[2J"] = random.choice(HOSTILE[:5], len(group))
    path = folder / "data.csv"
    data.to_csv(path, index=False)
    return path


def test_text_of_users_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No markup on a terminal, no formulas in figures and spreadsheets, no codes of terminals."""
    shown, path, out = io.StringIO(), _hostile(tmp_path), tmp_path / "fit"

    terminal = partial(
        commands.LastingConsole, file=shown, force_terminal=True, color_system=None, width=200
    )
    monkeypatch.setattr(commands, "LastingConsole", terminal)
    formula = "y ~ `[/x]\x1b[2J` + (1 | `g$_$ [/b]`)"
    line = ["fit", str(path), formula, "--family", "bernoulli", "--iterations", "4"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that the font of figures lacks
        assert main([*line, "--out", str(out)]) == 0
    assert "[/x]\\x1b[2J[[/bold]]" in shown.getvalue()
    written = (out / "table.txt").read_text(encoding="utf-8")
    assert "\x1b[2J" not in shown.getvalue() + written
    loaded = mixed.load(out / "fit.json")
    assert set(loaded.factors[0].groups) == set(HOSTILE)
    text = (out / "random_effects.csv").read_text(encoding="utf-8")
    assert "\x1b" not in text
    groups = pd.read_csv(out / "random_effects.csv", dtype=str)["group"].tolist()
    assert not [group for group in groups if group[0] in "=+@"]
    assert {"-5", "/about", "'@SUM(1)", "two\\nlines"} <= set(groups)
    assert (out / "fit.svg").stat().st_size > 10_000


def test_results_are_written_before_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Fit) -> None:
        raise ValueError("no figure")

    monkeypatch.setattr(Fit, "plot", broken)
    assert main([*LINE, "--out", str(tmp_path)]) == 2
    assert {"fit.json", "table.txt", "random_effects.csv"} <= {p.name for p in tmp_path.iterdir()}
