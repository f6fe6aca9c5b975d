"""One training on several processes: the same numbers, one folder, and a common end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad import distributed
from mlmcgrad.paper.runs.folder import read_json, write_json
from mlmcgrad.paper.training import loop
from mlmcgrad.paper.training.config import Config
from mlmcgrad.paper.training.loop import decided
from mlmcgrad.paper.training.trainer import Trainer
from tests.distributed.processes import message, together
from tests.paper.training import tiny

SHARDS, ITERATIONS = 4, 15
# With a batch that is no power of two, shares of it are rounded.
SMALL: dict[str, Any] = {"iterations": ITERATIONS, "probe_images": 0, "shards": SHARDS}
SMALL |= {"batch_size": 10}
LAUNCH = "TORCHELASTIC_RUN_ID"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def run(folder: Path, **changes: Any) -> int:
    """Train; returns how many iterations the state of this process is at."""
    return int(tiny.run(folder, **{**SMALL, **changes}).summary["iteration"])


def several(folder: Path, changes: dict[str, Any]) -> int:
    return run(folder, **changes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    run(folder, persistent=True)
    return folder


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("halves")
    run(folder, shards=2)
    return folder


@pytest.mark.parametrize("size", [2, 4])
def test_any_number_of_processes_gives_the_same_numbers(
    size: int, alone: Path, tmp_path: Path
) -> None:
    """All of them, also the parameters: sums are rounded once, from float64."""
    assert together(size, several, tmp_path / "run", {"persistent": True}) == [ITERATIONS] * size
    found, expected = tiny.remains(tmp_path / "run"), tiny.remains(alone)
    assert found["metrics"] == expected["metrics"]
    assert found["summary"] == expected["summary"]
    for name, tensor in expected["state"]["model"].items():
        torch.testing.assert_close(found["state"]["model"][name], tensor, rtol=1e-6, atol=1e-7)


def test_a_run_goes_on_with_another_number_of_processes(alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    together(2, several, folder, {"persistent": True, "iterations": 5})
    run(folder, persistent=True, iterations=10, resume=True, shards=None)
    together(4, several, folder, {"persistent": True, "resume": True, "shards": None})
    assert tiny.metrics(folder) == tiny.metrics(alone)
    state = loop.latest_checkpoint(folder)
    assert state is not None
    assert state["settings"]["shards"] == SHARDS


def test_shards_matter_and_levels_are_balanced_in_them(alone: Path, tmp_path: Path) -> None:
    run(tmp_path / "three", persistent=True, shards=3)
    assert tiny.metrics(tmp_path / "three") != tiny.metrics(alone)
    assert Config.from_flat(shards=2).settings().assignment == "balanced"
    assert Config.from_flat(shards=2, assignment="shared").settings().assignment == "shared"
    assert Config.from_flat(shards=0).settings().assignment == "independent"


def test_by_default_as_many_shards_as_processes(tmp_path: Path) -> None:
    together(2, several, tmp_path / "run", {"shards": None, "iterations": 2})
    assert read_json(tmp_path / "run" / "config.json")["settings"]["shards"] == 2
    assert decided(tiny.config(tmp_path / "new")).shards == 0


def _after_steps(act: Callable[[int], None]) -> None:
    """Call a function after each iteration of this process, which ends with the test."""
    step = Trainer.step

    def stepping(self: Trainer) -> None:
        step(self)
        act(self.iteration)

    Trainer.step = stepping  # type: ignore[method-assign]


def stopped(folder: Path, in_test: bool) -> list[Any]:
    """What is said, and where this process is, if a signal comes to one of them."""
    rank = distributed.current().rank
    reached = [0]

    def act(iteration: int) -> None:
        reached[0] = iteration
        # The first one is in a test after iteration 7; in others, any process may hear it.
        if iteration == (7 if in_test else 5) and rank == (0 if in_test else 1):
            os.kill(os.getpid(), signal.SIGTERM)

    _after_steps(act)
    try:
        run(folder, shards=2)
    except KeyboardInterrupt as error:
        return [str(error), reached[0]]
    return ["", reached[0]]


@pytest.mark.parametrize("in_test", [False, True])
def test_a_signal_to_one_process_stops_all(in_test: bool, halves: Path, tmp_path: Path) -> None:
    first, second = together(2, stopped, tmp_path / "run", in_test)
    iteration = 7 if in_test else 5
    assert first[0].startswith(f"SIGTERM: stopped after iteration {iteration}, all saved in ")
    assert second == [f"SIGTERM: rank 1 stopped after iteration {iteration}", iteration]
    assert first[1] == iteration
    together(2, several, tmp_path / "run", {"resume": True, "shards": None})
    assert tiny.metrics(tmp_path / "run") == tiny.metrics(halves)


def diverging(folder: Path) -> str:
    """A number that is not finite, in the second process only."""
    backward = Trainer._backward

    def spoiled(self: Trainer, objective: Any, y: Any, x0: Any, n: int) -> Any:
        return backward(self, objective, y * float("nan") if n == 3 else y, x0, n)

    if distributed.current().rank:
        Trainer._backward = spoiled  # type: ignore[method-assign]
    return message(lambda: run(folder, shards=2))


def test_numbers_that_are_not_finite_stop_all(tmp_path: Path) -> None:
    first, second = together(2, diverging, tmp_path / "run")
    assert first.startswith("DivergedError: iteration 3 is not finite: another process reports")
    assert second.startswith("FloatingPointError: ")
    assert (tmp_path / "run" / "dump-000003.pt").exists()


def lost(folder: Path, dying: int) -> str:
    """One process is killed in iteration 4; what the others say."""

    def act(iteration: int) -> None:
        if iteration == 4 and distributed.current().rank == dying:
            os._exit(9)

    _after_steps(act)
    return message(lambda: run(folder, shards=3))


def test_who_loses_another_process_says_so(tmp_path: Path) -> None:
    first, second, killed = together(3, lost, tmp_path / "run", 2, ended=True)
    assert isinstance(killed, EOFError)
    for rank, said in enumerate((first, second)):
        assert said.startswith(f"LostError: rank {rank} of 3 stops: another process was killed")
        assert said.endswith("let torchrun do so with --max-restarts")


def too_few(folder: Path) -> str:
    return message(lambda: run(folder, shards=1))


def test_fewer_shards_than_processes_are_refused(tmp_path: Path) -> None:
    said = "shards must be from 2, the number of processes, to 10, the batch_size, got 1; "
    said += "start fewer processes, or another run with more shards"
    assert together(2, too_few, tmp_path / "run") == [f"ValueError: {said}"] * 2
    with pytest.raises(ValueError, match=r"must be from 1, .* to 10, .* got 11; use fewer shards$"):
        run(tmp_path / "run", shards=11)
    assert not (tmp_path / "run").exists()


def test_a_restart_by_torchrun_continues_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(tmp_path / "run", force=True)
    monkeypatch.setenv(LAUNCH, "mine")
    assert not decided(config).resume
    monkeypatch.setenv(RESTARTS, "1")
    assert not decided(config).resume  # there is nothing yet
    run(tmp_path / "run", iterations=2, shards=2)
    assert read_json(tmp_path / "run" / "config.json")["launch"] == "mine"
    again = decided(config)
    assert (again.resume, again.force, again.shards) == (True, False, 2)
    monkeypatch.setenv(RESTARTS, "0")
    assert not decided(config).resume
    monkeypatch.setenv(RESTARTS, "1")
    monkeypatch.setenv(LAUNCH, "another")  # the run was there before: it is refused, as ever
    assert not decided(config).resume
    monkeypatch.setenv(LAUNCH, "none")
    write_json(tmp_path / "run" / "config.json", {"launch": "none"})
    assert not decided(config).resume  # torchrun without a name: known by its process


def test_config_without_torchrun_says_nothing_of_it(alone: Path) -> None:
    assert "launch" not in read_json(alone / "config.json")
