"""A run gives the same bits however often it is interrupted."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mlmcgrad.iwae.objective import Objective
from mlmcgrad.paper.runs.process import Stopped
from mlmcgrad.paper.training import loop
from mlmcgrad.paper.training.trainer import Trainer
from tests.faults import times
from tests.paper.training import tiny

ROOT = Path(__file__).parents[3]


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
    assert record["settings"]["lr"] == 0.01
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
    expected, actual = tiny.remains(whole)["state"], tiny.remains(tmp_path)["state"]
    for name in ("model", "optimizer", "generator", "order", "window"):
        assert tiny.same(expected[name], actual[name])


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


def _signal_inside(patch: pytest.MonkeyPatch, where: str, call: int) -> list[str]:
    """Send SIGTERM in the middle of a test or a gradient, when it is computed for the nth time."""
    owner, _, name = where.rpartition(".")
    module = import_module(owner) if owner else Objective
    original, calls, finished = getattr(module, name), count(1), []

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)  # the generators have moved on
        if next(calls) == call:
            signal.raise_signal(signal.SIGTERM)
            finished.append(where)
        return result

    patch.setattr(module, name, interrupted)
    return finished


@pytest.mark.parametrize(
    ("where", "call", "reached"),
    [
        ("mlmcgrad.paper.training.trainer.negative_log_likelihood", 2, 14),
        ("mlmcgrad.paper.training.trainer.squared_gradient_norm", 1, 7),
        ("mlmcgrad.paper.training.trainer.squared_gradient_norm", 4, 24),  # the one at the end
        ("backward", 1, 0),
        ("backward", 9, 8),
    ],
)
def test_a_signal_ends_a_test_or_a_gradient_at_once(
    whole: Path,
    tmp_path: Path,
    where: str,
    call: int,
    reached: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        finished = _signal_inside(patch, where, call)
        with pytest.raises(Stopped, match=f"after iteration {reached}, all saved.*--resume"):
            tiny.run(tmp_path)
        assert not finished
    state = loop.latest_checkpoint(tmp_path)
    assert state is not None
    assert state["iteration"] == reached
    # The run is killed before the next checkpoint: the lines of this iteration are written once.
    with monkeypatch.context() as patch:
        patch.setattr("mlmcgrad.paper.training.loop.save_checkpoint", _killed)
        with suppress(InterruptedError):
            tiny.run(tmp_path, resume=True)
    tiny.run(tmp_path, resume=True)
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))


def test_a_signal_in_the_test_of_the_last_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.run(tmp_path / "whole", iterations=7)
    with monkeypatch.context() as patch:
        _signal_inside(patch, "mlmcgrad.paper.training.trainer.negative_log_likelihood", 1)
        with pytest.raises(Stopped, match="after iteration 7, all saved"):
            tiny.run(tmp_path / "cut", iterations=7)
    tiny.run(tmp_path / "cut", iterations=7, resume=True)
    assert tiny.same(tiny.remains(tmp_path / "whole"), tiny.remains(tmp_path / "cut"))


def _killed(*_: Any) -> None:
    raise InterruptedError


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "iwae", "candidates": 1},
        {"method": "br", "rao_blackwell": True, "encoder": "dreg", "optimizer": "adagrad"},
        {"assignment": "balanced", "base": 2, "optimizer": "rmsprop"},
        {"likelihood": "discretized_logistic", "kernel": "mala"},
        {"kernel": "importance", "estimator": "sum", "encoder": "mixed"},
        {"method": "iwae", "persistent": True, "encoder": "wake"},
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
    if changes.get("candidates") == 1:
        assert rows[-1]["evaluations"] == 24 * 8
    if "likelihood" in changes:
        bits = json.loads((tmp_path / "cut" / "summary.json").read_text())["bits_per_dimension"]
        assert 0.0 < bits < 20.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments_and_resumed(tmp_path: Path) -> None:
    kills = times(2, 20)
    tiny.run(tmp_path / "whole", iterations=60)
    command = [
        sys.executable,
        "-m",
        "tests.paper.training.tiny",
        str(tmp_path / "killed"),
        "60",
        str(kills),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == kills
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
    with pytest.raises(ValueError, match=r"iterations must be ≥ 24.*got 20"):
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
    [("seed", 3), ("method", "br"), ("lr", 0.02), ("batch_size", 4), ("log_every", 5)],
)
def test_other_settings_are_refused_by_name(whole: Path, name: str, value: object) -> None:
    before = (whole / "config.json").read_bytes()
    with pytest.raises(ValueError, match=f"^{name} must be .* as .*config.json says, got"):
        tiny.run(whole, resume=True, **{name: value})
    assert (whole / "config.json").read_bytes() == before


def test_a_folder_with_a_run_is_not_overwritten(whole: Path) -> None:
    with pytest.raises(
        ValueError, match=r"out: .* already holds a run of train; .*--resume.*--out"
    ):
        tiny.run(whole)
