"""Averages of iterates: their weights, swapping, and what a checkpoint keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlmcgrad.optim import SGD, Averaged


def follow(eta: float, steps: int) -> tuple[list[Tensor], Averaged, Tensor]:
    """Return the iterates of a training, what averages them, and its parameter."""
    rng = torch.Generator().manual_seed(0)
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = SGD([theta], lr=1.0)
    averaged, iterates = Averaged(optimizer, eta=eta), []
    for _ in range(steps):
        theta.grad = torch.randn(3, generator=rng, dtype=torch.float64)
        optimizer.step()
        iterates.append(theta.detach().clone())
    return iterates, averaged, theta


@pytest.mark.parametrize("eta", [0, 3, 9])
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_iterate_k_has_the_weight_of_the_binomial_coefficient(eta: int, steps: int) -> None:
    iterates, averaged, theta = follow(eta, steps)
    # Π of the recursion: the weight of θ_k is proportional to k (k+1) … (k+η−1).
    weights = torch.ones(steps, dtype=torch.float64)
    for i in range(eta):
        weights *= torch.arange(1, steps + 1) + i
    expected = (weights / weights.sum()) @ torch.stack(iterates)
    with averaged.applied():
        torch.testing.assert_close(theta.detach(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(theta.detach(), iterates[-1])


def test_before_the_first_step_it_is_the_start() -> None:
    _, averaged, theta = follow(9, 0)
    with averaged.applied():
        assert torch.equal(theta.detach(), torch.zeros(3, dtype=torch.float64))


def test_a_state_continues_to_the_last_bit() -> None:
    _, whole, theta = follow(9, 20)
    _, part, other = follow(9, 12)
    state = part.state_dict()
    _, resumed, _ = follow(9, 5)
    resumed.load_state_dict(state)
    with part.applied(), pytest.raises(RuntimeError, match="no step can be taken inside"):
        part._optimizer.step()
    assert resumed.n == 12
    for mine, saved in zip(resumed.state_dict()["mean"], state["mean"], strict=True):
        assert torch.equal(mine, saved)
    assert not torch.equal(theta, other)
    with pytest.raises(ValueError, match="state_dict must hold averages of shapes"):
        whole.load_state_dict({"n": 1, "mean": [torch.zeros(2)]})


def test_an_error_in_the_block_restores_the_iterate() -> None:
    iterates, averaged, theta = follow(9, 7)
    with pytest.raises(KeyError), averaged.applied():
        raise KeyError
    assert torch.equal(theta.detach(), iterates[-1])


def test_a_group_that_joins_later_is_refused() -> None:
    _, averaged, _ = follow(9, 2)
    more = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    averaged._optimizer.add_param_group({"params": [more]})
    with pytest.raises(RuntimeError, match="make a new one after add_param_group"):
        averaged._optimizer.step()
    averaged.detach()
    averaged._optimizer.step()


def test_eta_must_not_be_negative() -> None:
    theta = torch.zeros(1, requires_grad=True)
    with pytest.raises(ValueError, match="eta must be ≥ 0, got -1"):
        Averaged(SGD([theta], lr=0.1), eta=-1.0)
