"""The ladder of importance sampling; its expectation is enumerated in test_enumeration_sum.py."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import FirstBlock, Importance, Simulation, importance
from mlmcgrad.kernels.groups import Blocks, choose, shares
from mlmcgrad.plan import Plan
from tests.chains import Counter, rng, run
from tests.statistics import mean_is


def _propose(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
    return y + torch.randn(rows, 2, dtype=torch.float64, generator=generator)


def _log_weight(z: Tensor, y: Tensor) -> Tensor:
    return 0.7 * (z - y).sum(1)


KERNEL = Importance(_log_weight, _propose, 3)
Y = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(6, 2)


def _plan(estimator: mg.MLMC | mg.MLMCSum, levels: list[int]) -> Plan:
    return estimator.plan_for(torch.tensor(levels))


def _by_hand(log_w: Tensor, plan: Plan, chain: int) -> Tensor:
    """Coefficients of the draws of one chain, (blocks, k), group by group."""
    total = torch.zeros_like(log_w)
    for p, w in zip(plan.lengths[chain].tolist(), plan.weights[chain].tolist(), strict=True):
        groups = len(log_w) // p
        for g in range(groups):
            rows = slice(g * p, (g + 1) * p)
            share = log_w[rows].flatten().softmax(0).reshape(p, -1)
            total[rows] += w * p / groups * share
    return total


@pytest.mark.parametrize(
    "plan",
    [
        _plan(mg.MLMC(8), [1, 3, 2, 9, 1, 2]),
        _plan(mg.MLMCSum(8), [0, 3, 2, 9, 1, 0]),
        mg.Average(5, burn_in=2).plan(6, 1, rng()),
    ],
    ids=["MLMC", "MLMCSum", "Average"],
)
def test_coefficients(plan: Plan) -> None:
    pieces = list(KERNEL.run(None, (Y,), plan, rng()))
    (measure,) = pieces
    begin = 0
    for chain in range(6):
        draws = int(plan.longest[chain]) * 3
        rows = slice(begin, begin + draws)
        assert (measure.owner[rows] == chain).all()
        z = measure.points[rows]
        expected = _by_hand(_log_weight(z, Y[chain]).reshape(-1, 3), plan, chain)
        assert torch.allclose(measure.coefficient[rows], expected.flatten(), rtol=0, atol=1e-12)
        begin += draws
    assert begin == len(measure)


def test_first_blocks_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of simulations that are made in several pieces too; every step of all of them counts."""
    monkeypatch.setattr(importance, "_PART_DRAWS", 10)
    plan = _plan(mg.MLMCSum(8), [0, 3, 2, 9, 1, 0])
    small = Importance(_log_weight, _propose, 3, chunk=5)
    simulation = Simulation(small.parts(None, (Y,), plan, rng()))
    first = [part.first for part in simulation]
    assert len(first) > 6
    assert {each.share.shape[1:] for each in first} == {(3,)}
    log_sum = np.concatenate([each.log_sum for each in first])
    assert len(log_sum) == len(np.concatenate([each.share for each in first])) == 6
    assert simulation.outcome.accepted == int(plan.longest.sum())


def test_one_block_is_self_normalised_importance_sampling() -> None:
    (measure,) = KERNEL.run(None, (Y,), mg.Average(1).plan(6, 1, rng()), rng())
    share = _log_weight(measure.points, Y.repeat_interleave(3, 0)).reshape(6, 3).softmax(1)
    assert torch.allclose(measure.coefficient, share.flatten(), rtol=1e-12)


def test_weights_with_a_spread_of_500_nats() -> None:
    """Each level chooses the largest weight of its groups: nothing over- or underflows."""
    log_w = torch.tensor([[0.0, -500.0], [500.0, 1.0], [-499.0, 700.0], [2.0, -700.0]])
    values = log_w.double().flatten()
    kernel = Importance(lambda z, y: z, lambda rows, y, generator: values, 2)
    plan = _plan(mg.MLMCSum(4), [2])
    (measure,) = kernel.run(None, (torch.zeros(1),), plan, rng())
    a1, a2, a4 = (plan.weights * plan.lengths)[0].tolist()
    expected = [a1 / 4, 0, a1 / 4 + a2 / 2, 0, 0, a1 / 4 + a2 / 2 + a4, a1 / 4, 0]
    assert torch.allclose(measure.coefficient, torch.tensor(expected).double(), atol=1e-12)
    float32 = Importance(lambda z, y: z.float(), lambda rows, y, generator: values, 2)
    (again,) = float32.run(None, (torch.zeros(1),), plan, rng())
    assert again.coefficient.dtype == torch.float64


@pytest.mark.parametrize("given", [False, True])
def test_long_simulations_are_drawn_again(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same measure and state, whether the draws are kept or made twice."""
    plan = _plan(mg.MLMCSum(32), [2, 5, 0, 4, 1, 3])
    start = None
    if given:
        points = Y[:, None] + torch.randn(6, 3, 2, dtype=torch.float64, generator=rng(9))
        start = FirstBlock(
            points, _log_weight(points.flatten(0, 1), Y.repeat_interleave(3, 0)).reshape(6, 3)
        )
    weigh = Counter(_log_weight)
    kernel = Importance(weigh, _propose, 3, chunk=16)
    measure, outcome = run(kernel, start, plan, (Y,))
    calls = len(weigh.calls)
    monkeypatch.setattr(importance, "_PART_DRAWS", 40)
    generator = rng()
    pieces = list(kernel.run(start, (Y,), plan, generator))
    assert len(pieces) > 6
    assert max(map(len, pieces)) <= 80
    assert len(weigh.calls) < 3 * calls
    measure_again, again = run(kernel, start, plan, (Y,))
    assert again.evaluations == outcome.evaluations == 3 * int(plan.longest.sum())
    for chain in range(6):
        z = measure_again.points[measure_again.owner == chain]
        c = measure_again.coefficient[measure_again.owner == chain]
        expected = _by_hand(_log_weight(z, Y[chain]).reshape(-1, 3), plan, chain).flatten()
        assert torch.allclose(c, expected, rtol=0.0, atol=1e-12)
        if given:
            assert start is not None
            assert torch.equal(z[:3], start.points[chain])
        assert (z == again.last[chain]).all(1).any()
    assert len(measure) == len(measure_again)


def test_the_last_state_is_chosen_by_weight() -> None:
    """Null: of many draws one is chosen with the law of the target; false alarm 1e-5."""
    chains, plan = 4000, mg.Average(40).plan(4000, 1, rng())
    kernel = Importance(_log_weight, _propose, 10)
    y = torch.zeros(chains, 2, dtype=torch.float64)
    _, outcome = run(kernel, None, plan, (y,))
    # Tilting N(0, 1) by exp(0.7 z) gives N(0.7, 1); 400 draws leave a bias of 0.003.
    expected = torch.tensor([0.7, 0.7, 1.49, 1.49], dtype=torch.float64)
    moments = torch.cat([outcome.last, outcome.last**2], 1)
    assert mean_is(moments, expected)
    # Planted bug: any draw, whatever its weight.
    _, outcome = run(Importance(lambda z, y: 0.0 * z[:, 0], _propose, 10), None, plan, (y,))
    assert not mean_is(torch.cat([outcome.last, outcome.last**2], 1), expected)


def test_a_draw_without_weight_is_never_the_last() -> None:
    kernel = Importance(
        lambda z, y: torch.where(z > 0, 0.0, -torch.inf),
        lambda rows, y, generator: torch.randn(rows, generator=generator),
        8,
    )
    _, outcome = run(kernel, None, mg.Average(4).plan(500, 1, rng()), (torch.zeros(500),))
    assert (outcome.last > 0).all()


def test_first_block() -> None:
    """The draws of the caller come first in their chain, and are not weighed again."""
    weigh = Counter(_log_weight)
    kernel = Importance(weigh, _propose, 3)
    points = torch.randn(6, 3, 2, dtype=torch.float64, generator=rng(4))
    log_w = torch.randn(6, 3, generator=rng(5))
    plan = _plan(mg.MLMC(4), [2, 1, 5, 1, 2, 5])
    measure, outcome = run(kernel, FirstBlock(points, log_w), plan, (Y,))
    begin = plan.longest.cumsum(0) - plan.longest
    for chain in range(6):
        rows = slice(3 * int(begin[chain]), 3 * int(begin[chain]) + 3)
        assert torch.equal(measure.points[rows], points[chain])
    drawn = sum(map(len, weigh.calls))
    assert (outcome.evaluations, drawn) == (
        3 * int(plan.longest.sum()),
        3 * int(plan.longest.sum()) - 18,
    )
    only, _ = run(kernel, FirstBlock(points, log_w), mg.Average(1).plan(6, 1, rng()), (Y,))
    assert torch.allclose(only.coefficient, log_w.double().softmax(1).flatten())


def test_unbiased() -> None:
    """Null: E[Ĥ] is the mean of the target, 0.7, although one block is far off; 1e-5."""
    chains, target = 60_000, torch.full((2,), 0.7, dtype=torch.float64)
    y = torch.zeros(chains, 2, dtype=torch.float64)
    means = []
    for made in (mg.MLMCSum(math.inf, 2**-1.5), mg.Average(1)):
        measure, _ = run(KERNEL, None, made.plan(chains, 1, rng(1)), (y,), seed=2)
        weighted = measure.coefficient[:, None] * measure.points
        means.append(torch.zeros_like(y).index_add(0, measure.owner, weighted))
    assert mean_is(means[0], target)
    assert not mean_is(means[1], target)


def test_invalid_weights_are_counted_and_have_no_part() -> None:
    bad = torch.tensor([math.nan, math.inf, 0.0, -math.inf, 0.0, 0.0], dtype=torch.float64)
    kernel = Importance(lambda z, y: bad[z], lambda rows, y, generator: torch.arange(6), 3)
    measure, outcome = run(kernel, None, mg.Average(2).plan(1, 1, rng()), (torch.zeros(1),))
    assert outcome.invalid == 2
    assert measure.points.tolist() == [2, 4, 5]
    assert torch.allclose(measure.coefficient, torch.full((3,), 1 / 3).double())


def test_collapsed_weights_are_counted() -> None:
    kernel = Importance(
        lambda z, y: 100.0 * z,
        lambda rows, y, generator: torch.randn(rows, dtype=torch.float64, generator=generator),
        4,
    )
    _, outcome = run(kernel, None, mg.Average(2).plan(50, 1, rng()), (torch.zeros(50),))
    assert 40 < outcome.collapsed <= 50
    single = Importance(kernel.log_weight, kernel.propose, 1)
    assert run(single, None, mg.Average(2).plan(50, 1, rng()), (torch.zeros(50),))[1].collapsed == 0


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def go(kernel: Importance, x0: Any = None) -> None:
        run(kernel, x0, mg.Average(2).plan(6, 1, rng()), (Y,))

    dead = Importance(lambda z, y: torch.where(y[:, 0] > -0.9, 0.0, -torch.inf), _propose, 3)
    with pytest.raises(FloatingPointError, match=r"every draw of 1 chains \(chain 0 is one"):
        go(dead)
    with pytest.raises(ValueError, match=r"x0 must be None or a FirstBlock.*got Tensor"):
        go(KERNEL, Y)
    with pytest.raises(ValueError, match="x0 must hold 3 candidates"):
        go(KERNEL, FirstBlock(Y[:, None], torch.zeros(6, 1)))
    with pytest.raises(ValueError, match="candidates must be"):
        Importance(_log_weight, _propose, 0)
    with pytest.raises(ValueError, match="x0=None needs a context tensor"):
        KERNEL.chains(None, ())
    monkeypatch.setattr(importance, "MOST_CANDIDATES", 6)
    go(KERNEL)
    monkeypatch.setattr(importance, "MOST_CANDIDATES", 5)
    with pytest.raises(ValueError, match=r"candidates × length must be at most 5, .* got 6"):
        run(KERNEL, None, _plan(mg.MLMCSum(2), [0, 0, 1, 0, 0, 0]), (Y,))


def test_a_first_block_of_another_shape_is_refused() -> None:
    """The message has the shape of a draw, and then that of x0."""

    def propose(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, 3, generator=generator)

    kernel = Importance(lambda z, y: z.sum(1), propose, 2)
    block = FirstBlock(torch.zeros(1, 2, 5), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"x0 must look like a draw.*chains, 3\).*shape \(5,\)"):
        run(kernel, block, mg.Average(2).plan(1, 1, rng()), (torch.zeros(1),))


def test_parts_are_what_run_yields_with_the_weights_within_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importance, "_PART_DRAWS", 20)
    dead = Importance(lambda z, y: torch.where(z[:, 0] > y[:, 0], z[:, 1], -torch.inf), _propose, 2)
    plan = _plan(mg.MLMCSum(16), [4, 2, 3, 1, 4, 2])
    simulation = Simulation(dead.parts(None, (Y,), plan, rng(7)))
    parts = list(simulation)
    outcome = simulation.outcome
    pieces = list(dead.run(None, (Y,), plan, rng(7)))
    assert len(parts) == len(pieces) > 1
    for part, piece in zip(parts, pieces, strict=True):
        assert torch.equal(part.measure.points, piece.points)
        assert torch.equal(part.measure.coefficient, piece.coefficient)
        z, y = piece.points, Y[piece.owner]
        log_w = dead.log_weight(z, y).reshape(-1, 2)
        expected = torch.where((log_w > -torch.inf).any(1, keepdim=True), log_w.softmax(1), 0.0)
        assert torch.allclose(part.share, expected.flatten())
        assert (part.share == 0.0).sum() > 0
    assert outcome.last.shape == (6, 2)
    assert outcome.evaluations == sum(len(piece) for piece in pieces)
    assert sum(len(part.first.share) for part in parts) == 6
    for part in parts:
        chains = part.measure.owner.unique_consecutive()[: len(part.first.share)]
        for chain, found in zip(chains.tolist(), part.first.share, strict=True):
            expected = part.share[part.measure.owner == chain][:2]
            assert found.tolist() == expected.tolist()


def test_long_simulations_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "_PART_DRAWS", 10)
    kernel = Importance(_log_weight, _propose, 1)
    for lengths in ([3, 25, 4, 1, 12, 11, 2], [11, 9, 1, 30], [1, 2, 40, 8, 9]):
        parts = [part.tolist() for part in kernel._parts_of(np.array(lengths))]
        assert [i for part in parts for i in part] == list(range(len(lengths)))
        for part in parts:
            assert len(part) == 1 or all(lengths[i] <= 10 for i in part)
            assert len(part) == 1 or sum(lengths[i] for i in part) <= 20


@pytest.mark.parametrize("where", [0, 15, 16, 17, 47, 48, 95])
def test_the_last_state_of_a_long_simulation(where: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw has all the weight, at the edge of a piece or not: it is the last state."""
    monkeypatch.setattr(importance, "_PART_DRAWS", 40)
    count = iter(range(10**6))

    def propose(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
        return torch.tensor([next(count) % 96 for _ in range(rows)], dtype=torch.float64)

    kernel = Importance(lambda z, y: torch.where(z == where, 100.0, 0.0), propose, 3, chunk=16)
    _, outcome = run(kernel, None, mg.Average(32).plan(1, 1, rng()), (torch.zeros(1),))
    assert outcome.last.tolist() == [where]


@pytest.mark.parametrize(("uniform", "chosen"), [(0.0, [1, 3]), (1.0, [2, 4])])
def test_the_ends_of_a_uniform_choose_within_their_chain(uniform: float, chosen: list[int]) -> None:
    """Two chains of one block; no draw without weight is chosen, nor one of another chain."""
    log_w = np.array([[-np.inf, 0.0, 0.0], [0.0, 0.0, -np.inf]])
    total = np.full(2, math.log(2.0))
    found = choose(*shares(log_w), Blocks.of(np.array([1, 1])), total, np.full(2, uniform))
    assert found.tolist() == chosen
