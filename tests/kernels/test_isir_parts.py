"""Long chains of i-SIR are made in parts: the same chains, with less in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mlmcgrad.estimators import Average
from mlmcgrad.kernels import ISIR, Outcome, Simulation, isir
from mlmcgrad.kernels.isir import Draws, Selection, choose_sampled
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure, concatenate, drop, merge
from tests.chains import rng

LENGTHS = torch.tensor([9, 1, 40, 9, 2, 40])


def _plan() -> Lengths:
    """The difference of two averages and some more, as an estimator would have it."""
    lengths = torch.stack([(LENGTHS + 1) // 2, LENGTHS], 1)
    weights = torch.tensor([[-2.0, 3.0]], dtype=torch.float64) / lengths
    return Lengths(torch.zeros_like(LENGTHS), lengths, weights)


def _handed_out(table: Tensor) -> Callable[..., Tensor]:
    """A proposal that hands out the draws of each chain in the order of a table."""
    used = [0] * len(table)

    def propose(rows: int, chain: Tensor, generator: torch.Generator) -> Tensor:
        found = []
        for c in chain.tolist():
            found.append(table[c, used[c]])
            used[c] += 1
        return torch.stack(found)

    return propose


def _decided(draws: Draws, weights: Tensor, generator: torch.Generator) -> Selection:
    """Algorithm 3 with uniforms that follow from the weights of a block, wherever it is."""
    choice, leave = ((factor * draws.new.sum(1)).sin().abs() for factor in (1e3, 1e4))
    return choose_sampled(draws, weights, choice, leave)[0]


@pytest.mark.parametrize("start", ["drawn", "state"])
@pytest.mark.parametrize("rao_blackwell", [False, True])
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_chains_in_parts_are_the_same_chains(
    monkeypatch: pytest.MonkeyPatch, start: str, rao_blackwell: bool, spread: float
) -> None:
    """Coefficient of every draw, last states, evaluations and moves, for parts of every size."""
    k = 3
    table = torch.randn(6, 90, 2, dtype=torch.float64, generator=rng(5))
    first = torch.randn(6, k, 2, dtype=torch.float64, generator=rng(6))
    x0 = {"drawn": None, "state": first[:, 0]}[start]
    monkeypatch.setattr(isir, "sampled", _decided)

    def simulate(draws: int, steps: int) -> tuple[Measure, Outcome, list[Measure]]:
        monkeypatch.setattr(isir, "_PART_DRAWS", draws)
        monkeypatch.setattr(isir, "_AVERAGED_STEPS", steps)
        kernel = ISIR(
            lambda z, _: spread * z.sum(1), _handed_out(table), k, rao_blackwell=rao_blackwell
        )
        simulation = Simulation(kernel.run(x0, (torch.arange(6),), _plan(), rng()))
        pieces = list(simulation)
        return merge(concatenate(pieces)), simulation.outcome, pieces

    whole, outcome, pieces = simulate(2**16, 128)
    assert len(pieces) == 1
    for size in (1, 24, 70):
        parts, other, pieces = simulate(size, 7)
        assert len(pieces) > 2
        assert torch.equal(parts.points, whole.points)
        assert torch.equal(parts.owner, whole.owner)
        assert torch.allclose(parts.coefficient, whole.coefficient, rtol=1e-12, atol=1e-15)
        assert other.evaluations == outcome.evaluations
        assert other.accepted == pytest.approx(outcome.accepted, rel=1e-12)
        used = drop(concatenate(pieces))
        assert len(used) == len(merge(used))  # no draw is in two pieces
        if not rao_blackwell:
            assert torch.equal(other.last, outcome.last)


def test_draws_that_can_hardly_be_kept_any_more_are_forgotten() -> None:
    """With two equal weights the j-th newest is kept with probability 2^-j: 63 exceed 2^-64."""
    kernel = ISIR(
        lambda z: torch.zeros(len(z)),
        lambda rows, generator: torch.randn(rows, 2, generator=generator),
        2,
        rao_blackwell=True,
    )
    plan = Average(1024).draw(3, None, rng())
    simulation = Simulation(kernel.run(torch.zeros(3, 2), (), plan, rng()))
    sizes = [len(piece) for piece in simulation]
    assert sizes == [3 * (1 + 128)] + [3 * (63 + 128)] * 7
    assert simulation.outcome.evaluations == 3 * (1 + 1024)


def test_weights_of_bad_draws_are_counted_once_and_last_states_follow_their_law() -> None:
    """A chain of one good and many worthless draws keeps the good one through all parts."""
    good = torch.full((4, 1), 7.0)
    kernel = ISIR(
        lambda z: torch.where(z[:, 0] == 7.0, 0.0, torch.nan),
        lambda rows, generator: torch.zeros(rows, 1),
        3,
        rao_blackwell=True,
    )
    plan = Average(300).draw(4, None, rng())
    simulation = Simulation(kernel.run(good, (), plan, rng()))
    measure = merge(drop(concatenate(list(simulation))))
    assert measure.points[:, 0].tolist() == [7.0] * 4
    assert torch.allclose(measure.coefficient, torch.ones(4, dtype=torch.float64))
    assert torch.equal(simulation.outcome.last, good)
    assert simulation.outcome.invalid == 4 * 2 * 300


@pytest.mark.parametrize("start", ["drawn", "state"])
@pytest.mark.parametrize("draws", [12, 10**6])
def test_the_weights_within_the_first_block(
    monkeypatch: pytest.MonkeyPatch, start: str, draws: int
) -> None:
    """Normalised over the draws of q: a state of the caller is not among them. Later: nothing."""
    monkeypatch.setattr(isir, "_PART_DRAWS", draws)
    kernel = ISIR(_sum, _normal, 3)
    points = torch.randn(6, 3, 2, dtype=torch.float64, generator=rng(6))
    x0 = {"drawn": None, "state": points[:, 0]}[start]
    context = (torch.arange(6),)
    parts = list(kernel.parts(x0, context, _plan(), rng(7)))
    for part, piece in zip(parts, kernel.run(x0, context, _plan(), rng(7)), strict=True):
        assert torch.equal(part.measure.points, piece.points)
        assert torch.equal(part.measure.coefficient, piece.coefficient)
    measure, share, first = parts[0]
    kept = int(start == "state")
    order = LENGTHS.argsort(stable=True).tolist()
    assert [len(part.first.log_sum) for part in parts] == [6] + [0] * (len(parts) - 1)
    assert all(not part.share.any() for part in parts[1:])
    for row, chain in enumerate(order):
        mine = measure.owner == chain
        block = measure.points[mine][kept:3].sum(1)
        assert torch.allclose(share[mine][kept:3], block.softmax(0))
        assert not share[mine][:kept].any()
        assert not share[mine][3:].any()
        assert abs(float(first.log_sum[row]) - float(block.logsumexp(0))) < 1e-12
        assert torch.allclose(torch.from_numpy(first.share[row]), block.softmax(0))


def _sum(z: Tensor, chain: Tensor) -> Tensor:
    return z.sum(1)


def _normal(rows: int, chain: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, 2, dtype=torch.float64, generator=generator)
