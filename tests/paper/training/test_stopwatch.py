"""Tests and checkpoints are no training time."""

import time
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.paper.training.trainer import Evaluator, Trainer
from tests.paper.training import tiny


def test_only_iterations_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each iteration takes 2 seconds, each test 100; also in a run that is resumed."""
    now, seconds = 0.0, 2.0
    backward, measure = Trainer._backward, Evaluator.measure

    def slowly(self: Trainer, *arguments: Any) -> Any:
        nonlocal now
        now += seconds
        return backward(self, *arguments)

    def long_test(self: Evaluator) -> Any:
        nonlocal now
        now += 100.0
        return measure(self)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(Trainer, "_backward", slowly)
    monkeypatch.setattr(Evaluator, "measure", long_test)
    assert tiny.run(tmp_path, iterations=8).summary["seconds"] == 16.0
    seconds = 3.0
    assert tiny.run(tmp_path, iterations=10, resume=True).summary["seconds"] == 22.0
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert ['"seconds": 14.0' in line for line in lines] == [False, True, False, False, False]
