"""What goes wrong in a run is explained, and costs no finished work."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad._files import write_atomically
from mlmcgrad.iwae.objective import Objective
from mlmcgrad.paper.training.loop import DivergedError
from tests.paper.training import tiny


def test_a_full_disk_leaves_a_run_that_resumes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.name == "iteration-000000012.pt":
            monkeypatch.setattr(os, "fsync", no_room)
        write_atomically(path, data)

    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mlmcgrad.paper.training.loop.write_atomically", full)
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

    def failing(self: Objective, y: torch.Tensor, *, n: int, **options: Any) -> Any:
        if n == 10 and what == "weights":
            y = y * torch.nan
        step = backward(self, y, n=n, **options)
        if n == 10 and what == "gradient":
            self.parameters[0].grad.mul_(torch.inf)  # type: ignore[union-attr]
        if n == 10 and what == "bound":
            object.__setattr__(step, "bound", float("nan"))
        return step

    monkeypatch.setattr(Objective, "backward", failing)
    with pytest.raises(DivergedError, match=r"iteration 10 is not finite.*lower lr.*") as e:
        tiny.run(tmp_path)
    monkeypatch.undo()
    assert str(tmp_path / "dump-000010.pt") in str(e.value)
    dump = torch.load(tmp_path / "dump-000010.pt", weights_only=True)
    assert dump["iteration"] == 10
    assert dump["rows"].shape == (8,)
    # From the dump, the iteration can be made again: the parameters are those before it.
    tiny.run(tmp_path / "nine", iterations=9)
    state = tiny.remains(tmp_path / "nine")["state"]
    assert tiny.same(dump["model"], state["model"])
    assert torch.equal(dump["generator"], state["generator"])


def test_a_model_that_diverges_by_itself(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"it is 1e\+20; try 1e\+19"):
        tiny.run(tmp_path, lr=1e20)


def test_other_errors_keep_their_own_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ValueError is not about numbers that are not finite: a lower lr would not help."""

    def failing(self: Objective, *_: Any, **__: Any) -> Any:
        raise ValueError("y must have 16 pixels, got 15")

    monkeypatch.setattr(Objective, "backward", failing)
    with pytest.raises(ValueError, match=r"^y must have 16 pixels, got 15$"):
        tiny.run(tmp_path)
    assert not list(tmp_path.glob("dump-*"))
