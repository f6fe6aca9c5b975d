"""Simulations of importance sampling in several parts, so that memory does not depend on them."""

import numpy as np
import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import Importance, Simulation, importance
from tests.chains import Counter, rng, run
from tests.kernels.test_importance import Y, by_hand, log_weight, planned, proposed


def test_first_blocks_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of simulations that are made in several pieces too; every step of all of them counts."""
    monkeypatch.setattr(importance, "_PART_DRAWS", 10)
    plan = planned(mg.MLMCSum(8), [0, 3, 2, 9, 1, 0])
    small = Importance(log_weight, proposed, 3, chunk=5)
    simulation = Simulation(small.parts(None, (Y,), plan, rng()))
    first = [part.first for part in simulation]
    assert len(first) > 6
    assert {each.share.shape[1:] for each in first} == {(3,)}
    log_sum = np.concatenate([each.log_sum for each in first])
    assert len(log_sum) == len(np.concatenate([each.share for each in first])) == 6
    assert simulation.outcome.accepted == int(plan.longest.sum())


def test_long_simulations_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same measure and state, whether the draws are kept or made twice."""
    plan = planned(mg.MLMCSum(32), [2, 5, 0, 4, 1, 3])
    weigh = Counter(log_weight)
    kernel = Importance(weigh, proposed, 3, chunk=16)
    measure, outcome = run(kernel, None, plan, (Y,))
    calls = len(weigh.calls)
    monkeypatch.setattr(importance, "_PART_DRAWS", 40)
    generator = rng()
    pieces = list(kernel.run(None, (Y,), plan, generator))
    assert len(pieces) > 6
    assert max(map(len, pieces)) <= 80
    assert len(weigh.calls) < 3 * calls
    measure_again, again = run(kernel, None, plan, (Y,))
    assert again.evaluations == outcome.evaluations == 3 * int(plan.longest.sum())
    for chain in range(6):
        z = measure_again.points[measure_again.owner == chain]
        c = measure_again.coefficient[measure_again.owner == chain]
        expected = by_hand(log_weight(z, Y[chain]).reshape(-1, 3), plan, chain).flatten()
        assert torch.allclose(c, expected, rtol=0.0, atol=1e-12)
        assert (z == again.last[chain]).all(1).any()
    assert len(measure) == len(measure_again)


def test_parts_are_what_run_yields_with_the_weights_within_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importance, "_PART_DRAWS", 20)
    dead = Importance(lambda z, y: torch.where(z[:, 0] > y[:, 0], z[:, 1], -torch.inf), proposed, 2)
    plan = planned(mg.MLMCSum(16), [4, 2, 3, 1, 4, 2])
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
    kernel = Importance(log_weight, proposed, 1)
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
    _, outcome = run(kernel, None, mg.Average(32).draw(1, 1, rng()), (torch.zeros(1),))
    assert outcome.last.tolist() == [where]
