"""`mlmcgrad reproduce`: end to end, and killed on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.experiments.reproduce import run as reproduce
from mlmcgrad.experiments.reproduce.forecast import forecast
from mlmcgrad.experiments.reproduce.gather import method_name
from mlmcgrad.experiments.reproduce.presets import PRESETS, decide, training_runs
from mlmcgrad.experiments.reproduce.sentences import HEADLINES, statement
from mlmcgrad.experiments.reproduce.settings import Reproduce
from mlmcgrad.experiments.reproduce.tables import value
from mlmcgrad.runs.folder import as_record
from mlmcgrad.runs.lock import locked
from mlmcgrad.training.config import Config
from tests.experiments.reproduce import fabricated
from tests.folders import content

QUIET = Console(quiet=True)
SMALL = ("--preset", "smoke", "--optimizer", "amsgrad", "--methods", "br", "mlmc")


def _summary(folder: Path) -> dict[str, Any]:
    """The summary without what depends on the clock."""
    (summary,) = json.loads((folder / "summary.json").read_text())["reproductions"]
    summary["claims"] = [claim for claim in summary["claims"] if claim["axis"] != "seconds"]
    for row in summary["final"]:
        del row["seconds"]
    return {name: summary[name] for name in ("claims", "diagnostics", "final", "failed")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert main(["reproduce", *SMALL, "--out", str(folder)]) == 0
    return folder


def test_smoke_run(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (whole / "summary.json").read_text()
    (summary,) = json.loads(text)["reproductions"]
    assert {(claim["quantity"], claim["axis"]) for claim in summary["claims"]} == {
        ("decay", "iteration"),
        ("rate", "iteration"),
        *(("nll", axis) for axis in ("iteration", "evaluations", "seconds")),
        *((name, axis) for name in ("gradient", "budget") for axis in ("evaluations", "seconds")),
    }
    assert {(row["method"], row["optimizer"], row["seed"]) for row in summary["final"]} == {
        (method, "amsgrad", seed) for method in ("br", "mlmc") for seed in (1, 2)
    }
    for row in summary["final"]:
        run = json.loads(
            (whole / "runs" / f"amsgrad-{row['method']}-{row['seed']}" / "summary.json").read_text()
        )
        assert (run["nll"], run["evaluations"]) == (row["nll"], row["evaluations"])
        assert row["seconds"] == pytest.approx(run["seconds"], abs=0.1)
    for row in summary["diagnostics"]:
        assert 0.0 < row["decoded_again"] < row["evaluations"]
    assert (whole / "report.html").stat().st_size > 10_000
    # Once more, with nothing left to train: the same report, and where it is.
    assert main(["reproduce", *SMALL, "--out", str(whole), "--resume"]) == 0
    printed = capsys.readouterr().out
    assert f"report: {whole / 'report.html'}" in printed.replace("\n", "")
    assert (whole / "summary.json").read_text() == text


def test_it_ends_with_the_claims_that_matter(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six of the ten: there are no runs of IWAE and of the Rao-Blackwellised method."""
    assert main(["reproduce", *SMALL, "--out", str(whole), "--resume"]) == 0
    printed = capsys.readouterr().out
    (findings,) = (
        fabricated.read_back(each)
        for each in json.loads((whole / "summary.json").read_text())["reproductions"]
    )
    shown = [claim for claim in findings.claims if claim.subject in HEADLINES]
    assert len(shown) == 6
    for claim in shown:
        assert f"{statement(claim)}\n    AMSGrad: {value(claim)}\n" in printed
    assert printed.count("AMSGrad: ") == 6
    assert "seconds" not in printed.split("MLMC-IWAE has a better")[1]
    assert f"all {len(findings.claims)} claims: {whole / 'claims.md'}" in printed.replace("\n", "")


def test_killed_and_resumed_it_ends_the_same(whole: Path, tmp_path: Path) -> None:
    """kill -9 of the parent: its processes stop by themselves, and --resume finishes the work."""
    command = [sys.executable, "-m", "mlmcgrad", "reproduce", *SMALL, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    metrics = tmp_path / "runs" / "amsgrad-mlmc-1" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "summary.json").exists()
    finished = sorted((tmp_path / "runs").glob("*/summary.json"))
    assert len(finished) < 4
    _until_nobody_trains(tmp_path)
    assert main(["reproduce", *SMALL, "--out", str(tmp_path), "--resume"]) == 0
    assert _summary(tmp_path) == _summary(whole)


def _until_nobody_trains(folder: Path) -> None:
    """Wait until the orphaned processes have let go of their run folders."""
    import fcntl

    for lock in (folder / "runs").glob("*/lock"):
        with lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def test_a_folder_in_use_is_not_touched(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *SMALL, "--out", str(whole)]) == 2
    assert "already holds a run of reproduce; continue it with --resume" in capsys.readouterr().err
    assert (
        main(
            [
                "reproduce",
                *SMALL,
                "--iterations",
                "32",
                "--stretch",
                "1",
                "--out",
                str(whole),
                "--resume",
            ]
        )
        == 2
    )
    assert "evaluate_every must be 2 as" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"experiment": "scaling"}')
    assert main(["reproduce", *SMALL, "--out", str(tmp_path), "--resume"]) == 2
    assert "holds a run of scaling, as its config" in capsys.readouterr().err


def test_force_keeps_the_earlier_reproduction(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "copy")
    (copy / "notes.txt").write_text("mine")
    before = content(whole)
    with locked(copy):
        assert main(["reproduce", *SMALL, "--out", str(copy), "--force"]) == 2
    assert not (copy / "old-1").exists()
    arguments = ["--preset", "smoke", "--optimizer", "amsgrad", "--methods", "br", "--seeds", "1"]
    assert main(["reproduce", *arguments, "--out", str(copy), "--force"]) == 0
    assert content(copy / "old-1") == before
    assert (copy / "notes.txt").read_text() == "mine"


def test_a_failed_run_is_named_and_the_report_is_written(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(whole, tmp_path / "copy")
    runs = sorted((copy / "runs").iterdir())
    taken = runs[0]
    (taken / "summary.json").unlink()
    (taken / "config.json").write_text('{"experiment": "scaling"}')
    (copy / "summary.json").unlink()
    assert main(["reproduce", *SMALL, "--out", str(copy), "--resume"]) == 2
    said = capsys.readouterr().err
    assert f"1 of {len(runs)} runs failed ({taken.name}), the first because: out: " in said
    assert "holds a run of scaling" in said
    assert "holds a run of scaling" in (copy / "report.html").read_text()
    (summary,) = json.loads((copy / "summary.json").read_text())["reproductions"]
    assert [row["name"] for row in summary["failed"]] == [taken.name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "meta"], "device must be cpu"),
        (["--seeds", str(10**23)], "seeds must be an integer from 1 to 1000, got 1000"),
        (["--jobs", "1025"], "jobs must be an integer from 1 to 1024, got 1025"),
        (["--iterations", str(2**64)], "iterations must be an integer from 16 to 2147483648"),
        (["--stretch", "0"], "stretch must be an integer from 1 to 1048576, got 0"),
    ],
)
def test_what_no_run_can_do_is_refused_before_any_begins(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "--preset", "smoke", *options, "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"mlmcgrad: {message}")
    assert not out.exists()


def test_presets_are_what_the_paper_and_the_help_say() -> None:
    paper = training_runs(decide(Reproduce(preset="paper")))
    assert len(paper) == 5 * 2 * 7
    for run in paper.values():
        assert (run.dataset, run.batch_size, run.candidates, run.latent) == ("cifar10", 128, 5, 100)
        assert run.iterations * 128 >= 200 * 50_000 > (run.iterations - 200) * 128
        assert (run.truncation_scale, run.truncation_exponent) == (1.0, 0.5)
        assert (run.lr, run.rho1, run.rho2) == (0.001, 0.9, 0.999)
    for name, preset in PRESETS.items():
        runs = training_runs(decide(Reproduce(preset=name)))
        br = runs["amsgrad-br-1"]
        assert br.tests_at(br.iterations)
        assert runs["adagrad-mlmc-rb-1"].rao_blackwell
        assert runs["adagrad-mlmc-rb-1"].optimizer == "adagrad"
        importance, persistent, dreg = (runs[f"amsgrad-{m}-1"] for m in ("mlmc-is", "jsa", "dreg"))
        assert (importance.method, importance.kernel, importance.estimator) == (
            "mlmc",
            "importance",
            "sum",
        )
        assert (persistent.method, persistent.encoder, persistent.persistent) == (
            "iwae",
            "wake",
            True,
        )
        assert (dreg.method, dreg.encoder, dreg.persistent) == ("iwae", "dreg", False)
        assert all(
            method_name(as_record(run)) == name.split("-", 1)[1].rsplit("-", 1)[0]
            for name, run in runs.items()
        )
        assert runs["amsgrad-mlmc-1"].tests_at(br.iterations)  # so that N can be compared exactly
        assert runs["amsgrad-mlmc-1"].iterations == preset.stretch * preset.iterations
        assert preset.seeds >= 3 or name == "smoke"


def test_command_says_what_differs_from_the_preset() -> None:
    options = Reproduce(preset="full", seeds=4, methods=("br", "mlmc"), out=Path("x"), jobs=1)
    expected = "mlmcgrad reproduce --preset full --methods br mlmc --seeds 4"
    assert reproduce.command(decide(options)) == expected
    assert reproduce.command(decide(Reproduce())) == "mlmcgrad reproduce --preset quick"


def test_what_the_options_leave_open_the_preset_decides() -> None:
    settings = decide(Reproduce(preset="full", iterations=32))
    assert (settings.dataset, settings.seeds, settings.stretch) == ("cifar10", 3, 3)
    assert (settings.iterations, settings.device) == (32, "cpu")
    assert settings.folder == Path("runs/reproduce-full")
    assert decide(Reproduce(dataset="cifar10", out=Path("x"))).folder == Path("x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds must be an integer from 1 to 1000, got 0"),
        ({"iterations": 15}, "iterations must be an integer from 16 to 2147483648, got 15"),
        ({"methods": ()}, "methods must name each choice once"),
        ({"optimizer": ("adagrad", "adagrad")}, "optimizer must name each choice once"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reproduce(**changes)


def test_forecast_grows_with_the_work(tmp_path: Path) -> None:
    """Ten times the iterations take more than five times as long; no run folder is made."""

    def run(iterations: int) -> Config:
        return Config(
            method="br",
            iterations=iterations,
            batch_size=10,
            nll_samples=1,
            test_images=1,
            evaluate_every=iterations,
            out=tmp_path / "x",
        )

    few, many = forecast([run(1000).settings()]), forecast([run(10_000).settings()])
    assert 0.0 < few < many
    assert many > 5.0 * few
    assert not (tmp_path / "x").exists()
