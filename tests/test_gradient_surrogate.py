"""What a surrogate keeps and computes again, and what is said of chains that go nowhere."""

from __future__ import annotations

import pytest
import torch

import mlmcgrad as mg
from tests.chains import Counter, rng
from tests.test_gradient import coin, grad, weights, zeros


@pytest.mark.parametrize(("chunk", "forward", "again"), [(8, 1, 0), (4, 2, 2), (3, 3, 3)])
def test_activations_are_computed_again_if_there_are_several_chunks(
    chunk: int, forward: int, again: int
) -> None:
    """Eight chains that count, of one step each: eight states."""
    theta = torch.ones((), requires_grad=True)
    loss = Counter(lambda x: theta * x)
    kernel = mg.kernels.FromStep(lambda x, generator: x + 1.0)
    gradient = mg.MarkovGradient(kernel, loss, mg.Average(1), chunk=chunk)
    scalar, _ = gradient.surrogate(torch.arange(8.0), generator=rng())
    assert len(loss.calls) == forward
    scalar.backward()
    assert len(loss.calls) == forward + again
    assert grad(theta).item() == 4.5


def test_a_surrogate_of_no_state_is_zero() -> None:
    """Thinning that keeps a state with a probability of 1e-12."""
    scalar, estimate = coin(weights(), thinning=1e12).surrogate(zeros(3), generator=rng())
    assert (scalar.item(), estimate.loss_evaluations) == (0.0, 0)
    scalar.backward()


def test_both_ways_warn_of_chains_that_never_move() -> None:
    theta = torch.ones((), requires_grad=True)
    kernel = mg.kernels.FromStep(lambda x, generator: x)
    gradient = mg.MarkovGradient(kernel, lambda x: theta * x, mg.Average(200))
    for method in (gradient.gradient, gradient.surrogate):
        with pytest.warns(RuntimeWarning, match="no transition moved any chain"):
            method(torch.zeros(10), generator=rng())


def test_states_without_weight_are_not_evaluated() -> None:
    """i-SIR hands out all of its candidates, those that cannot be kept too."""
    theta = torch.ones((), requires_grad=True)
    loss = Counter(lambda z: theta * z)
    kernel = mg.kernels.ISIR(
        lambda z: torch.where(z > 0.0, 0.0, -torch.inf),
        lambda rows, generator: torch.randn(rows, generator=generator),
        4,
    )
    _, estimate = mg.MarkovGradient(kernel, loss, mg.Average(5)).gradient(
        torch.ones(6), generator=rng()
    )
    assert all((z > 0.0).all() for z in loss.calls)
    assert estimate.loss_evaluations == loss.rows < estimate.evaluations
