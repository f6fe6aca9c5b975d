"""Only devices that torch can compute on here are taken."""

from pathlib import Path

import pytest
import torch

from mlmcgrad.paper.training import train
from mlmcgrad.paper.training.trainer import flushing, usable, usual_numbers
from tests.paper.training import tiny as tiny_runs


@pytest.mark.parametrize("name", ["meta", "mps", "xla", "hpu", "cpu:7", "cuda:99", "nowhere", ""])
def test_what_cannot_be_used_is_refused_with_what_can(name: str) -> None:
    with pytest.raises(ValueError, match=f"^device must be cpu.*, got {name!r}$"):
        usable(name)


def test_what_can_be_used() -> None:
    assert usable("cpu") == torch.device("cpu")


def test_subnormal_numbers_are_flushed_and_the_setting_restored() -> None:
    tiny = torch.tensor(1e-39)
    assert not flushing()
    with usual_numbers():
        assert flushing()
        assert float(tiny * 1.0) == 0.0
        with usual_numbers():
            assert flushing()
        assert flushing()
    assert not flushing()
    assert float(tiny * 1.0) > 0.0
    with pytest.raises(RuntimeError), usual_numbers():
        raise RuntimeError
    assert not flushing()


def test_a_training_run_flushes(tmp_path: Path) -> None:
    seen: list[bool] = []
    train(
        tiny_runs.config(tmp_path),
        report=lambda *_: seen.append(flushing()),
        _source=tiny_runs.source(),
    )
    assert seen
    assert all(seen)
    assert not flushing()
