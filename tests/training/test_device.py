"""Only devices that torch can compute on here are taken."""

import pytest
import torch

from mlmcgrad.training.device import usable


@pytest.mark.parametrize("name", ["meta", "mps", "xla", "hpu", "cpu:7", "cuda:99", "nowhere", ""])
def test_what_cannot_be_used_is_refused_with_what_can(name: str) -> None:
    with pytest.raises(ValueError, match=f"^device must be cpu.*, got {name!r}$"):
        usable(name)


def test_what_can_be_used() -> None:
    assert usable("cpu") == torch.device("cpu")
