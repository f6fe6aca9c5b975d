"""The chain that stays or renews: its path against a slow loop, its law against the matrix."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mlmcgrad import MLMC, Average, theory
from mlmcgrad.kernels import Regenerative
from mlmcgrad.lengths import Lengths
from mlmcgrad.problems import sticky
from tests.chains import average_law, rng, run, unit
from tests.statistics import mean_is

LAW = torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.1, 0.9]], dtype=torch.float64)


def _slow(
    stay: float, law: Tensor, x0: Tensor, plan: Lengths, seed: int
) -> tuple[Tensor, Tensor, int]:
    """Coefficients (chains, S), last states and moves, one step of one chain at a time."""
    noise = torch.rand(2, int(plan.longest.sum()), dtype=torch.float64, generator=rng(seed))
    total, last, moves, j = torch.zeros_like(law), x0.clone(), 0, 0
    for chain, length in enumerate(plan.longest.tolist()):
        x = int(x0[chain])
        for i in range(1, length + 1):
            before = x
            if noise[1, j] >= stay:
                x = int((law[chain].cumsum(0) <= noise[0, j]).sum())
            moves += x != before
            total[chain, x] += plan.step_weights(i, i)[0, chain]
            j += 1
        last[chain] = x
    return total, last, moves


@pytest.mark.parametrize("estimator", [Average(7), MLMC(64.0), MLMC(16.0, base=3)])
def test_path_is_that_of_a_slow_loop(estimator: Average | MLMC) -> None:
    law = LAW.repeat(20, 1)
    x0 = torch.randint(3, (len(law),), generator=rng(3))
    plan = estimator.draw(len(law), 1, rng(1))
    measure, outcome = run(Regenerative(0.6, lambda: law), x0, plan, seed=2)
    total, last, moves = _slow(0.6, law, x0, plan, seed=2)
    found = torch.zeros_like(law)
    found[measure.owner, measure.points] += measure.coefficient
    assert torch.allclose(found, total, atol=1e-12)
    assert torch.equal(outcome.last, last)
    assert outcome.evaluations == 0
    assert (outcome.accepted, outcome.invalid) == (moves, 0)
    assert 0 < moves < int(plan.longest.sum())
    assert found[1::2, 0].abs().max() <= total[1::2, 0].abs().max()  # only a start is ever there


def test_law_is_that_of_the_matrix() -> None:
    """Null: the mean of MLMC's measure is the law of an average of 8 steps; false alarm 1e-5.

    Planted: a chain that stays a little longer than the matrix says fails the same test.
    """
    problem = sticky(stay=0.6, seed=3)
    theta = problem.theta.detach()
    chains = 40_000
    plan = MLMC(8.0).draw(chains, 1, rng(1))
    expected = average_law(problem.matrix(theta)[0], unit(4, 2), 8)

    def sample(stay: float) -> Tensor:
        kernel = Regenerative(stay, lambda: problem.law(theta).expand(chains, -1))
        measure, _ = run(kernel, torch.full((chains,), 2), plan, seed=4)
        coefficient = torch.zeros(chains, 4, dtype=torch.float64)
        coefficient[measure.owner, measure.points] = measure.coefficient
        return coefficient

    assert mean_is(sample(0.6), expected)
    assert not mean_is(sample(0.68), expected)


def test_only_the_ratios_of_a_law_count() -> None:
    """A sum that rounding leaves beside 1 does no harm; here it is 4."""
    law, x0, plan = LAW.repeat(20, 1), torch.zeros(40, dtype=torch.int64), MLMC(16.0)
    (first, one), (second, other) = (
        run(Regenerative(0.3, lambda c=c: c * law), x0, plan.draw(40, 1, rng()), seed=5)
        for c in (1.0, 4.0)
    )
    assert torch.equal(first.coefficient, second.coefficient)
    assert torch.equal(one.last, other.last)


def test_the_smallest_uniform_renews_and_draws_no_state_of_probability_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        torch, "rand", lambda *size, dtype, device, generator: torch.zeros(size).to(dtype)
    )
    kernel = Regenerative(0.0, lambda: LAW[1:])
    _, outcome = run(kernel, torch.tensor([2]), Average(3).draw(1, 1, rng()))
    assert outcome.last.tolist() == [1]


def test_a_single_step_may_stay() -> None:
    kernel = Regenerative(1.0 - 1e-12, lambda: LAW[:1])
    _, outcome = run(kernel, torch.tensor([2]), Average(1).draw(1, 1, rng()))
    assert (outcome.last.tolist(), outcome.accepted) == ([2], 0)


@pytest.mark.parametrize("stay", [0.3, 0.7])
def test_ergodicity_is_known_without_computing(stay: float) -> None:
    """d(i) = a^i (1 − min π) and d̄(i) = a^i for every θ, so β is the same for every θ."""
    problem = sticky(rows=4, stay=stay, seed=1)
    matrices, laws = problem.matrix(problem.theta.detach()), problem.law(problem.theta.detach())
    betas = []
    for matrix, law in zip(matrices, laws, strict=True):
        power = torch.eye(4, dtype=torch.float64)
        for i in range(1, 6):
            power = power @ matrix
            distance = 0.5 * (power - law).abs().sum(1)
            assert torch.allclose(distance, stay**i * (1.0 - law), atol=1e-12)
            between = 0.5 * (power[0] - power[1]).abs().sum()
            assert between.item() == pytest.approx(stay**i)
        betas.append(theory.ergodicity(matrix).beta)
    assert betas == pytest.approx([2.0 * (1.0 - stay) ** 2] * 4, rel=1e-9)


def _go(law: Any, x0: Any = None) -> None:
    x0 = torch.zeros(2, dtype=torch.int64) if x0 is None else x0
    run(Regenerative(0.5, lambda: law), x0, Average(2).draw(2, 1, rng()))


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"stay must be in \[0, 1\), got 1.0"):
        Regenerative(1.0, lambda: LAW)
    with pytest.raises(ValueError, match="x0 must be a tensor"):
        _go(LAW, "nowhere")
    for value in (-0.1, math.nan, math.inf):
        law = torch.tensor([[0.5, 0.5], [1.0, value]])
        with pytest.raises(ValueError, match=r"law must return numbers that are finite and not.*1"):
            _go(law)
    with pytest.raises(ValueError, match=r"positive and finite sum .* \[0.0, 0.0\] for chain 0"):
        _go(torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"positive and finite sum .* got \[1e\+308, 1e\+308\]"):
        _go(torch.full((2, 2), 1e308, dtype=torch.float64))
    for other in (LAW[0], LAW[:1], LAW.expand(2, 2, 3), LAW.to(torch.complex128), [0.5, 0.5]):
        with pytest.raises(ValueError, match=r"law must return a row .* each of the 2 chains.*got"):
            _go(other)
    for state in (-1, 3):
        with pytest.raises(ValueError, match="x0 must be states between 0 and 2, got"):
            _go(LAW, torch.tensor([0, state]))
    for start in (torch.zeros(2), torch.zeros(2, 1).long(), torch.zeros(2, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"x0 must be int64 or int32.*for Regenerative"):
            _go(LAW, start)


def test_states_keep_their_type() -> None:
    plan, x0 = Average(3).draw(2, 1, rng()), torch.zeros(2, dtype=torch.int32)
    measure, outcome = run(Regenerative(0.5, lambda: LAW), x0, plan)
    assert (measure.points.dtype, outcome.last.dtype) == (torch.int32, torch.int32)
