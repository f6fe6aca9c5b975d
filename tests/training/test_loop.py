"""A run gives the same bits however often it is interrupted, and says what went wrong."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.iwae.objective import Objective
from mlmcgrad.runs import checkpoint
from mlmcgrad.runs.atomic import write_atomically
from mlmcgrad.runs.lock import alone
from mlmcgrad.training.errors import DivergedError, Stopped
from mlmcgrad.training.loop import train
from mlmcgrad.training.trainer import Trainer
from tests.training import tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    tiny.run(folder)
    return folder


def _stop_after(monkeypatch: pytest.MonkeyPatch, iteration: int, number: int) -> None:
    step = Trainer.step

    def stopping(self: Trainer) -> None:
        step(self)
        if self.iteration == iteration:
            signal.raise_signal(number)

    monkeypatch.setattr(Trainer, "step", stopping)


def test_what_a_run_leaves(whole: Path) -> None:
    rows = tiny.metrics(whole)
    lines = [row for row in rows if "bound" in row]
    tests = [row for row in rows if "nll" in row]
    assert [row["iteration"] for row in lines] == [4, 8, 12, 16, 20, 24]
    assert [row["iteration"] for row in tests] == [7, 14, 21, 24]
    assert [row.get("final", False) for row in tests] == [False, False, False, True]
    for row in lines:
        assert sum(row["levels"].values()) == 4 * 8
        assert 0.0 <= row["acceptance"] <= 1.0
        assert 1.0 <= row["effective"] <= 3.0
        assert 1.0 / 3.0 <= row["largest"] <= 1.0
        assert row["gradient_norm"] > 0.0
    last = lines[-1]
    # k + (t−1)(k−1) evaluations for a chain of t steps, k = 3, 8 chains an iteration
    assert last["evaluations"] == 24 * 8 + 2 * last["transitions"]
    assert last["epoch"] == pytest.approx(24 / 5)
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["nll"] == tests[-1]["nll"]
    assert summary["iteration"] == 24
    record = json.loads((whole / "config.json").read_text())
    assert record["settings"]["learning_rate"] == 0.01
    for kind, height in (("samples", 8), ("reconstructions", 4)):
        for n in ("000007", "000024"):
            with Image.open(whole / f"{kind}-{n}.png") as picture:
                assert picture.size == (8 * 34 + 2, height * 34 + 2)
    assert len(list((whole / "checkpoints").iterdir())) == 2


def test_the_same_settings_give_the_same_bits(whole: Path, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    # Checkpoints and tests draw nothing that the training would miss.
    tiny.run(tmp_path, checkpoint_every=5)
    assert torch.equal(before, torch.get_rng_state())
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))
    tiny.run(tmp_path / "seed", seed=2)
    assert not tiny.same(
        tiny.remains(whole)["state"]["model"], tiny.remains(tmp_path / "seed")["state"]["model"]
    )


def test_tests_do_not_disturb_the_training(whole: Path, tmp_path: Path) -> None:
    tiny.run(tmp_path, evaluate_every=2, nll_samples=3)
    expected, found = tiny.remains(whole)["state"], tiny.remains(tmp_path)["state"]
    for name in ("model", "optimizer", "generator", "order", "window"):
        assert tiny.same(expected[name], found[name])


@pytest.mark.parametrize("cut", [1, 5, 7, 12, 23, 24])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_resume_gives_the_same_bits(
    whole: Path, tmp_path: Path, cut: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        _stop_after(patch, cut, number)
        with pytest.raises(Stopped, match=f"after iteration {cut}, all saved.*--resume") as stopped:
            tiny.run(tmp_path)
    assert stopped.value.code == 128 + number
    assert signal.getsignal(number) is handler
    assert not (tmp_path / "summary.json").exists()
    tiny.run(tmp_path, resume=True)
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "iwae", "candidates": 1},
        {"method": "br", "rao_blackwell": True, "encoder": "dreg", "optimizer": "adagrad"},
        {"assignment": "balanced", "base": 2, "optimizer": "rmsprop"},
        {"likelihood": "discretized_logistic", "kernel": "mala"},
    ],
)
def test_every_kind_of_run_resumes(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.run(tmp_path / "whole", **changes)
    with monkeypatch.context() as patch:
        _stop_after(patch, 11, signal.SIGTERM)
        with pytest.raises(Stopped):
            tiny.run(tmp_path / "cut", **changes)
    tiny.run(tmp_path / "cut", resume=True, **changes)
    assert tiny.same(tiny.remains(tmp_path / "whole"), tiny.remains(tmp_path / "cut"))
    rows = [row for row in tiny.metrics(tmp_path / "cut") if "bound" in row]
    if changes.get("method") == "iwae":
        assert rows[-1]["evaluations"] == 24 * 8
    if "likelihood" in changes:
        bits = json.loads((tmp_path / "cut" / "summary.json").read_text())["bits_per_dimension"]
        assert 0.0 < bits < 20.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments_and_resumed(tmp_path: Path) -> None:
    tiny.run(tmp_path / "whole", iterations=60)
    command = [sys.executable, "-m", "tests.training.tiny", str(tmp_path / "killed"), "60", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 10
    assert tiny.same(tiny.remains(tmp_path / "whole"), tiny.remains(tmp_path / "killed"))


def test_a_run_can_be_extended(whole: Path, tmp_path: Path) -> None:
    for iterations in (9, 17, 24):
        tiny.run(tmp_path, iterations=iterations, resume=True)
    (tmp_path / "samples-000009.png").unlink()  # of the ends on the way
    (tmp_path / "samples-000017.png").unlink()
    (tmp_path / "reconstructions-000009.png").unlink()
    (tmp_path / "reconstructions-000017.png").unlink()
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))
    # A complete run that is resumed stays what it is.
    tiny.run(tmp_path, resume=True)
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))
    with pytest.raises(ValueError, match=r"iterations must be at least 24.*got 20"):
        tiny.run(tmp_path, iterations=20, resume=True)


def test_a_damaged_checkpoint_costs_only_time(whole: Path, tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=20)
    (newest,) = (tmp_path / "checkpoints").glob("*20.pt")
    newest.write_bytes(newest.read_bytes()[:-100])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 21, "epo')  # cut short
    tiny.run(tmp_path, resume=True)
    for kind in ("samples", "reconstructions"):
        (tmp_path / f"{kind}-000020.png").unlink()
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 3), ("method", "br"), ("learning_rate", 0.02), ("batch_size", 4), ("log_every", 5)],
)
def test_other_settings_are_refused_by_name(whole: Path, name: str, value: object) -> None:
    before = (whole / "config.json").read_bytes()
    with pytest.raises(ValueError, match=f"^{name} must be .* as in the run that is resumed, got"):
        tiny.run(whole, resume=True, **{name: value})
    assert (whole / "config.json").read_bytes() == before


def test_a_folder_with_a_run_is_not_overwritten(whole: Path) -> None:
    with pytest.raises(ValueError, match=r"out: .* holds a run already; .*--resume.*--out"):
        tiny.run(whole)


def test_a_full_disk_leaves_a_run_that_resumes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.name == "iteration-000000012.pt":
            monkeypatch.setattr(os, "fsync", no_room)
        write_atomically(path, data)

    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mlmcgrad.runs.checkpoint.write_atomically", full)
    with pytest.raises(OSError, match=r"No space left.*iteration-000000009.pt is intact"):
        tiny.run(tmp_path)
    monkeypatch.undo()
    tiny.run(tmp_path, resume=True)
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))


@pytest.mark.parametrize("what", ["weights", "gradient", "bound"])
def test_what_is_not_finite_is_dumped_and_explained(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backward = Objective.backward

    def failing(self: Objective, y: torch.Tensor, *, n: int, generator: torch.Generator) -> Any:
        if n == 10 and what == "weights":
            y = y * torch.nan
        step = backward(self, y, n=n, generator=generator)
        if n == 10 and what == "gradient":
            next(self.model.parameters()).grad.mul_(torch.inf)  # type: ignore[union-attr]
        if n == 10 and what == "bound":
            object.__setattr__(step, "bound", float("nan"))
        return step

    monkeypatch.setattr(Objective, "backward", failing)
    with pytest.raises(
        DivergedError, match=r"iteration 10 is not finite.*lower learning_rate.*"
    ) as e:
        tiny.run(tmp_path)
    monkeypatch.undo()
    assert e.value.dump == tmp_path / "dump-000010.pt"
    dump = torch.load(e.value.dump, weights_only=True)
    assert dump["iteration"] == 10
    assert dump["rows"].shape == (8,)
    # From the dump, the iteration can be made again: the parameters are those before it.
    tiny.run(tmp_path / "nine", iterations=9)
    state = tiny.remains(tmp_path / "nine")["state"]
    assert tiny.same(dump["model"], state["model"])
    assert torch.equal(dump["generator"], state["generator"])


def test_a_model_that_diverges_by_itself(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"it is 1e\+20; try 1e\+19"):
        tiny.run(tmp_path, learning_rate=1e20)


def test_sigterm_to_the_command(tmp_path: Path) -> None:
    code = "import sys; from mlmcgrad.cli import main; sys.exit(main())"
    out = tmp_path / "run"
    arguments = ["train", "--iterations", "100000", "--out", str(out), "--log-every", "1"]
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    metrics = out / "metrics.jsonl"
    deadline = time.monotonic() + 60.0
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=60.0)
    assert child.returncode == 143, errors
    assert "SIGTERM: stopped after iteration" in errors
    assert "--resume" in errors
    state = checkpoint.latest(out)
    assert state is not None
    assert state["iteration"] == tiny.metrics(out)[-1]["iteration"] >= 1
    assert state["settings"]["batch_size"] == 50


def test_the_command_shows_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--iterations", "2", "--nll-samples", "2", "--out", str(tmp_path)]
    assert main(["train", *arguments]) == 0
    assert "test NLL" in capsys.readouterr().out
    assert main(["train", *arguments]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["train", "--resume", "--candidates", "4", *arguments]) == 2
    assert "candidates must be 5" in capsys.readouterr().err


def test_the_bar_shows_epoch_bound_test_and_budget(tmp_path: Path) -> None:
    console = Console(force_terminal=True, width=160, file=(tmp_path / "log").open("w"))
    with console.file:
        train(tiny.config(tmp_path / "run"), console, _source=tiny.source())
    text = (tmp_path / "log").read_text()
    for word in ("epoch", "it/s", "bound", "test NLL", "evaluations"):
        assert word in text


def test_tensorboard_is_wanted_but_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        tiny.run(tmp_path, tensorboard=True)
    assert not list(tmp_path.iterdir())


class _Writer:
    """Stands in for TensorBoard's writer."""

    rows: list[tuple[str, float, int]] = []  # noqa: RUF012

    def __init__(self, folder: str, purge_step: int) -> None:
        assert purge_step == 1

    def add_scalar(self, name: str, value: float, iteration: int) -> None:
        self.rows.append((name, value, iteration))

    def close(self) -> None:
        self.rows.append(("closed", 0.0, 0))


def test_tensorboard_gets_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = _Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    tiny.run(tmp_path, tensorboard=True)
    rows = tiny.metrics(tmp_path)
    assert ("bound", rows[0]["bound"], 4) in _Writer.rows
    tests = [row for row in rows if "nll" in row]
    assert ("nll", tests[0]["nll"], 7) in _Writer.rows
    assert _Writer.rows[-1][0] == "closed"


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(ValueError, match="another process is training in"):
        tiny.run(tmp_path)
    tiny.run(tmp_path, iterations=1)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write in .*file.*--out"):
        tiny.run(tmp_path / "file")
