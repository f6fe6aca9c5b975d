"""Where the memory of a device does not suffice for a pass, its halves are computed one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import ISIR, RWMH
from tests.chains import rng

Function = Callable[..., Tensor]


def limited(function: Function, rows: int) -> Function:
    """Return a function that has no memory for more rows than this."""

    def called(x: Tensor, *context: Tensor) -> Tensor:
        if len(x) > rows:
            raise torch.OutOfMemoryError("no memory")
        return function(x, *context)

    return called


def propose(rows: int, _: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, 2, generator=generator)


def gradient(rows: int) -> tuple[Tensor, int]:
    """Return a gradient whose weights and loss have memory for so many rows."""
    theta = torch.ones(2, requires_grad=True)
    loss = limited(lambda z, y: (theta * z).square().sum(1) + y, rows)
    kernel = ISIR(limited(lambda z, y: z.sum(1) + y, rows), propose, 4)
    markov = mg.MarkovGradient(kernel, loss, mg.MLMC(16))
    (found,), estimate = markov.gradient(None, torch.arange(12.0), generator=rng())
    return found, estimate.loss_evaluations


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_halves(rows: int) -> None:
    expected, states = gradient(10**6)
    with pytest.warns(RuntimeWarning, match="memory of the device does not suffice"):
        found, count = gradient(rows)
    assert count == states > 40
    assert torch.allclose(found, expected, rtol=1e-5)


def test_a_row_that_does_not_fit_is_an_error_and_leaves_grad_alone() -> None:
    theta = torch.ones(2, requires_grad=True)
    loss = limited(lambda x: (theta * x).sum(1), 0)
    markov = mg.MarkovGradient(RWMH(lambda x: -0.5 * x.square().sum(1), 0.5), loss, mg.MLMC(4))
    with (
        pytest.warns(RuntimeWarning, match="memory"),
        pytest.raises(torch.OutOfMemoryError, match="no memory"),
    ):
        markov.backward(torch.zeros(4, 2), generator=rng())
    assert theta.grad is None
