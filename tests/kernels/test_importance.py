"""The ladder of importance sampling; its expectation is enumerated in test_enumeration_sum.py."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import Importance, importance
from mlmcgrad.kernels.importance import Blocks, choose, shares
from mlmcgrad.lengths import Lengths
from tests.chains import rng, run
from tests.statistics import mean_is


def proposed(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
    return y + torch.randn(rows, 2, dtype=torch.float64, generator=generator)


def log_weight(z: Tensor, y: Tensor) -> Tensor:
    return 0.7 * (z - y).sum(1)


KERNEL = Importance(log_weight, proposed, 3)
Y = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(6, 2)


def planned(estimator: mg.MLMC | mg.MLMCSum, levels: list[int]) -> Lengths:
    return estimator.lengths_for(torch.tensor(levels))


def by_hand(log_w: Tensor, plan: Lengths, chain: int) -> Tensor:
    """Coefficients of the draws of one chain, (blocks, k), group by group."""
    total = torch.zeros_like(log_w)
    for p, w in zip(plan.terms[chain].tolist(), plan.weights[chain].tolist(), strict=True):
        groups = len(log_w) // p
        for g in range(groups):
            rows = slice(g * p, (g + 1) * p)
            share = log_w[rows].flatten().softmax(0).reshape(p, -1)
            total[rows] += w * p / groups * share
    return total


@pytest.mark.parametrize(
    "plan",
    [
        planned(mg.MLMC(8), [1, 3, 2, 9, 1, 2]),
        planned(mg.MLMCSum(8), [0, 3, 2, 9, 1, 0]),
        mg.Average(5, burn_in=2).draw(6, 1, rng()),
    ],
    ids=["MLMC", "MLMCSum", "Average"],
)
def test_coefficients(plan: Lengths) -> None:
    pieces = list(KERNEL.run(None, (Y,), plan, rng()))
    (measure,) = pieces
    begin = 0
    for chain in range(6):
        draws = int(plan.longest[chain]) * 3
        rows = slice(begin, begin + draws)
        assert (measure.owner[rows] == chain).all()
        z = measure.points[rows]
        expected = by_hand(log_weight(z, Y[chain]).reshape(-1, 3), plan, chain)
        assert torch.allclose(measure.coefficient[rows], expected.flatten(), rtol=0, atol=1e-12)
        begin += draws
    assert begin == len(measure)


def test_one_block_is_self_normalised_importance_sampling() -> None:
    (measure,) = KERNEL.run(None, (Y,), mg.Average(1).draw(6, 1, rng()), rng())
    share = log_weight(measure.points, Y.repeat_interleave(3, 0)).reshape(6, 3).softmax(1)
    assert torch.allclose(measure.coefficient, share.flatten(), rtol=1e-12)


def test_weights_with_a_spread_of_500_nats() -> None:
    """Each level chooses the largest weight of its groups: nothing over- or underflows."""
    log_w = torch.tensor([[0.0, -500.0], [500.0, 1.0], [-499.0, 700.0], [2.0, -700.0]])
    values = log_w.double().flatten()
    kernel = Importance(lambda z, y: z, lambda rows, y, generator: values, 2)
    plan = planned(mg.MLMCSum(4), [2])
    (measure,) = kernel.run(None, (torch.zeros(1),), plan, rng())
    a1, a2, a4 = (plan.weights * plan.terms)[0].tolist()
    expected = [a1 / 4, 0, a1 / 4 + a2 / 2, 0, 0, a1 / 4 + a2 / 2 + a4, a1 / 4, 0]
    assert torch.allclose(measure.coefficient, torch.tensor(expected).double(), atol=1e-12)
    float32 = Importance(lambda z, y: z.float(), lambda rows, y, generator: values, 2)
    (again,) = float32.run(None, (torch.zeros(1),), plan, rng())
    assert again.coefficient.dtype == torch.float64


def test_the_last_state_is_chosen_by_weight() -> None:
    """Null: of many draws one is chosen with the law of the target; false alarm 1e-5."""
    chains, plan = 4000, mg.Average(40).draw(4000, 1, rng())
    kernel = Importance(log_weight, proposed, 10)
    y = torch.zeros(chains, 2, dtype=torch.float64)
    _, outcome = run(kernel, None, plan, (y,))
    # Tilting N(0, 1) by exp(0.7 z) gives N(0.7, 1); 400 draws leave a bias of 0.003.
    expected = torch.tensor([0.7, 0.7, 1.49, 1.49], dtype=torch.float64)
    moments = torch.cat([outcome.last, outcome.last**2], 1)
    assert mean_is(moments, expected)
    # Planted bug: any draw, whatever its weight.
    _, outcome = run(Importance(lambda z, y: 0.0 * z[:, 0], proposed, 10), None, plan, (y,))
    assert not mean_is(torch.cat([outcome.last, outcome.last**2], 1), expected)


def test_a_draw_without_weight_is_never_the_last() -> None:
    kernel = Importance(
        lambda z, y: torch.where(z > 0, 0.0, -torch.inf),
        lambda rows, y, generator: torch.randn(rows, generator=generator),
        8,
    )
    _, outcome = run(kernel, None, mg.Average(4).draw(500, 1, rng()), (torch.zeros(500),))
    assert (outcome.last > 0).all()


def test_unbiased() -> None:
    """Null: E[Ĥ] is the mean of the target, 0.7, although one block is far off; 1e-5."""
    chains, target = 60_000, torch.full((2,), 0.7, dtype=torch.float64)
    y = torch.zeros(chains, 2, dtype=torch.float64)
    means = []
    for made in (mg.MLMCSum(math.inf, 2**-1.5), mg.Average(1)):
        measure, _ = run(KERNEL, None, made.draw(chains, 1, rng(1)), (y,), seed=2)
        weighted = measure.coefficient[:, None] * measure.points
        means.append(torch.zeros_like(y).index_add(0, measure.owner, weighted))
    assert mean_is(means[0], target)
    assert not mean_is(means[1], target)


def test_invalid_weights_are_counted_and_have_no_part() -> None:
    bad = torch.tensor([math.nan, math.inf, 0.0, -math.inf, 0.0, 0.0], dtype=torch.float64)
    kernel = Importance(lambda z, y: bad[z], lambda rows, y, generator: torch.arange(6), 3)
    measure, outcome = run(kernel, None, mg.Average(2).draw(1, 1, rng()), (torch.zeros(1),))
    assert outcome.invalid == 2
    assert measure.points.tolist() == [2, 4, 5]
    assert torch.allclose(measure.coefficient, torch.full((3,), 1 / 3).double())


def test_collapsed_weights_are_counted() -> None:
    kernel = Importance(
        lambda z, y: 100.0 * z,
        lambda rows, y, generator: torch.randn(rows, dtype=torch.float64, generator=generator),
        4,
    )
    _, outcome = run(kernel, None, mg.Average(2).draw(50, 1, rng()), (torch.zeros(50),))
    assert 40 < outcome.collapsed <= 50
    single = Importance(kernel.log_weight, kernel.propose, 1)
    assert run(single, None, mg.Average(2).draw(50, 1, rng()), (torch.zeros(50),))[1].collapsed == 0


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def go(kernel: Importance, x0: Any = None) -> None:
        run(kernel, x0, mg.Average(2).draw(6, 1, rng()), (Y,))

    dead = Importance(lambda z, y: torch.where(y[:, 0] > -0.9, 0.0, -torch.inf), proposed, 3)
    with pytest.raises(FloatingPointError, match=r"every draw of 1 chains \(chain 0 is one"):
        go(dead)
    with pytest.raises(ValueError, match=r"x0 must be None.*got torch.float64 of shape"):
        go(KERNEL, Y)
    with pytest.raises(ValueError, match="candidates must be"):
        Importance(log_weight, proposed, 0)
    with pytest.raises(ValueError, match="x0=None needs a context tensor"):
        KERNEL.chains(None, ())
    single = mg.Average(2).draw(1, 1, rng())
    monkeypatch.setattr(importance, "MOST_CANDIDATES", 6)
    run(KERNEL, None, single, (Y[:1],))
    monkeypatch.setattr(importance, "MOST_CANDIDATES", 5)
    with pytest.raises(ValueError, match=r"candidates × length must be at most 5, .* got 6"):
        run(KERNEL, None, single, (Y[:1],))


@pytest.mark.parametrize(("uniform", "chosen"), [(0.0, [1, 3]), (1.0, [2, 4])])
def test_the_ends_of_a_uniform_choose_within_their_chain(uniform: float, chosen: list[int]) -> None:
    """Two chains of one block; no draw without weight is chosen, nor one of another chain."""
    log_w = np.array([[-np.inf, 0.0, 0.0], [0.0, 0.0, -np.inf]])
    total = np.full(2, math.log(2.0))
    found = choose(*shares(log_w), Blocks.of(np.array([1, 1])), total, np.full(2, uniform))
    assert found.tolist() == chosen
