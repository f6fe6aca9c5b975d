"""Chains that cannot have explored anything are warned of, once, and only these."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.backward import Estimate
from mlmcgrad.gradient import warn_of
from mlmcgrad.kernels import Outcome
from mlmcgrad.lengths import Lengths
from tests.chains import rng


def _backward(kernel: Any, chains: int = 16, length: int = 4) -> None:
    theta = torch.zeros(2, requires_grad=True)
    gradient = mg.MarkovGradient(
        kernel, lambda x, *_: ((x - theta) ** 2).sum(1), mg.Average(length)
    )
    context = (torch.zeros(chains),) if isinstance(kernel, mg.kernels.ISIR) else ()
    gradient.backward(torch.zeros(chains, 2), *context, generator=rng())


def _normal(x: Tensor, *_: Tensor) -> Tensor:
    return -0.5 * x.square().sum(1)


def _only_at_zero(x: Tensor) -> Tensor:
    return torch.where((x == 0.0).all(1), 0.0, torch.nan)


def _isir(spread: float, k: int = 5, rao_blackwell: bool = False) -> mg.kernels.ISIR:
    return mg.kernels.ISIR(
        lambda z, _: spread * z.sum(1),
        lambda rows, _, generator: torch.randn(rows, 2, generator=generator),
        k,
        rao_blackwell=rao_blackwell,
    )


@pytest.mark.parametrize("size", [1e6, 1e18])
def test_no_proposal_accepted(size: float) -> None:
    with pytest.warns(RuntimeWarning, match="no transition moved any chain.*lower the step size"):
        _backward(mg.kernels.RWMH(_normal, size))


@pytest.mark.parametrize("kernel", [mg.kernels.RWMH, mg.kernels.MALA])
def test_every_proposal_invalid(kernel: Any) -> None:
    def log_density(x: Tensor) -> Tensor:
        return x.sum(1) * 0.0 + _only_at_zero(x.detach())

    with pytest.warns(RuntimeWarning, match="every proposal was refused.*check log_density"):
        _backward(kernel(log_density, 1.0))


@pytest.mark.parametrize("rao_blackwell", [False, True])
def test_every_candidate_invalid(rao_blackwell: bool) -> None:
    kernel = mg.kernels.ISIR(
        lambda z, _: _only_at_zero(z), _isir(1.0).propose, 5, rao_blackwell=rao_blackwell
    )
    with pytest.warns(RuntimeWarning, match="every proposal was refused"):
        _backward(kernel)


def test_one_weight_has_everything() -> None:
    with pytest.warns(RuntimeWarning, match="one candidate of the first step has more than 99.9"):
        _backward(_isir(1000.0))


def test_nothing_is_said_of_healthy_or_short_chains() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _backward(mg.kernels.RWMH(_normal, 2.0))
        _backward(_isir(1.0))
        _backward(_isir(1000.0), chains=4)  # chance
        _backward(mg.kernels.RWMH(_normal, 1e6), chains=4, length=4)
        theta = torch.zeros(2, requires_grad=True)
        still = mg.kernels.Finite(torch.eye(2))
        gradient = mg.MarkovGradient(still, lambda x: theta[x], mg.Average(9))
        gradient.backward(torch.zeros(99, dtype=torch.int64), generator=rng())


def test_python_shows_a_warning_once() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(5):
            _backward(mg.kernels.RWMH(_normal, 1e6))
    assert len(seen) == 1


def _plan(lengths: Sequence[int], cut: int = 0) -> Lengths:
    return Lengths(
        levels=torch.zeros(len(lengths), dtype=torch.int64),
        terms=torch.tensor(lengths)[:, None],
        weights=torch.ones(len(lengths), 1, dtype=torch.float64),
        cut=cut,
    )


def _warnings(
    lengths: Sequence[int], evaluations: int = 1, accepted: int = 1, cut: int = 0, **counts: Any
) -> list[str]:
    """The beginnings of what is said of chains of these lengths."""
    last = torch.zeros(len(lengths))
    outcome = Outcome(last, evaluations, accepted, **{"invalid": 0} | counts)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_of(outcome, _plan(lengths, cut))
    assert all(warning.category is RuntimeWarning for warning in seen)
    return [" ".join(str(warning.message).split()[:2]) for warning in seen]


def test_from_how_many_transitions_on_a_chain_is_stuck() -> None:
    stuck = ["no transition"]
    assert _warnings([20, 44], accepted=0) == stuck
    assert _warnings([20, 43], accepted=0) == []
    assert _warnings([20, 44], accepted=1) == []
    assert _warnings([20, 44], accepted=0, evaluations=0) == []
    assert _warnings([20, 44], accepted=0, invalid=63) == stuck
    assert _warnings([20, 44], accepted=0, invalid=64) == ["every proposal"]


def test_from_how_many_chains_on_weights_have_collapsed() -> None:
    assert _warnings([1] * 8, collapsed=5) == ["in most"]
    assert _warnings([1] * 8, collapsed=4) == []
    assert _warnings([1] * 9, collapsed=3) == []
    assert _warnings([1] * 7, collapsed=7) == []


def test_a_cut_is_told_beside_the_rest() -> None:
    assert _warnings([1], cut=1) == ["a simulation"]
    assert _warnings([64], accepted=0, cut=1) == ["no transition", "a simulation"]


def test_what_plan_and_outcome_amount_to() -> None:
    """Chains of three and of five steps, of which two moved."""
    outcome = Outcome(torch.tensor([7.0, 9.0]), evaluations=11, accepted=2, invalid=1)
    made = Estimate.of(_plan([3, 5], 1), outcome, value=0.5, loss_evaluations=4, parameters=())
    assert (made.transitions, made.acceptance, made.evaluations, made.invalid) == (8, 0.25, 11, 1)
    assert (made.value, made.loss_evaluations, made.parameters, made.cut) == (0.5, 4, (), 1)
    assert made.lengths.tolist() == [3, 5]
    assert made.last.tolist() == [7.0, 9.0]
    # No chain is cut unless it is said.
    assert Estimate(0.5, made.lengths, made.levels, 8, 11, 4, 0.25, 1, made.last, ()).cut == 0


def test_a_warning_points_at_the_line_of_the_user() -> None:
    theta = torch.zeros(2, requires_grad=True)
    endless = mg.MLMCSum(float("inf"), 0.49, max_transitions=1)
    blocks = mg.kernels.Importance(lambda z, _: z.sum(1), _isir(1.0).propose, 5)
    for kernel, estimator, x0 in (
        (mg.kernels.RWMH(_normal, 1e6), mg.Average(4), torch.zeros(16, 2)),
        (_isir(1000.0), mg.Average(4), torch.zeros(16, 2)),
        (blocks, endless, None),
    ):
        gradient = mg.MarkovGradient(kernel, lambda x, *_: ((x - theta) ** 2).sum(1), estimator)
        with pytest.warns(RuntimeWarning) as seen:
            gradient.backward(x0, torch.zeros(16), generator=rng())
        assert len(seen) == 1
        line = linecache.getline(seen[0].filename, seen[0].lineno)
        assert line.strip().startswith("gradient.backward(")
