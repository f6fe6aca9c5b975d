"""Dealing by cost: every chain once, shares that end together, the bound of Graham."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mlmcgrad as mg
from mlmcgrad.distributed.shards import deal

COSTS = st.lists(st.integers(1, 64).map(float), min_size=1, max_size=40)


@given(COSTS, st.integers(1, 8))
def test_every_chain_is_dealt_once_and_no_share_is_far_above_the_mean(
    costs: list[float], shares: int
) -> None:
    shares = min(shares, len(costs))
    rows = [r.tolist() for r in deal(costs, shares)]
    assert sorted(itertools.chain(*rows)) == list(range(len(costs)))
    assert all(mine and mine == sorted(mine) for mine in rows)
    loads = [sum(costs[i] for i in mine) for mine in rows]
    # Longest first: within 4/3 of the best, which is at least the mean and the longest.
    assert max(loads) <= 4 / 3 * max(sum(costs) / shares, max(costs)) + max(costs) / 3
    # Who has the most took its last chain when nobody had less.
    most = max(range(shares), key=loads.__getitem__)
    assert loads[most] - min(costs[i] for i in rows[most]) <= min(loads)


def test_equal_costs_are_dealt_in_equal_numbers() -> None:
    assert [len(rows) for rows in deal(torch.full((10,), 3), 4)] == [3, 3, 2, 2]
    assert [r.tolist() for r in deal([1.0] * 4, 2)] == [[0, 2], [1, 3]]


def test_the_longest_chain_is_alone_where_it_costs_more_than_the_mean() -> None:
    rows = deal([1.0] * 20 + [1024.0], 3)
    assert rows[0].tolist() == [20]
    assert sorted(len(r) for r in rows) == [1, 10, 10]


def _loads(chains: int, ranks: int, truncation: int, iterations: int) -> torch.Tensor:
    """Transitions of each rank, (iterations, ranks), and the longest chain in the last column."""
    estimator, generator = mg.MLMC(truncation, assignment="balanced"), torch.Generator()
    rows = []
    for n in range(iterations):
        longest = estimator.draw(chains, None, generator.manual_seed(n)).longest
        loads = [int(longest[mine].sum()) for mine in deal(longest, ranks)]
        rows.append([*loads, int(longest.max())])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("chains", [64, 128])
def test_the_slowest_of_eight_ranks(chains: int) -> None:
    """T = 1024: within 5 % of the mean, or of the longest chain where that is more."""
    loads = _loads(8 * chains, 8, 1024, 40)
    slowest, mean, longest = loads[:, :8].amax(1), loads[:, :8].mean(1), loads[:, 8]
    assert bool((slowest <= 1.05 * torch.maximum(mean, longest)).all())
    # No dealing helps against one chain that is longer than what a rank has to do.
    assert bool((longest > 1.05 * mean).any()) == (chains == 64)
    short = longest < 1024
    assert bool(short.any()) == (chains == 64)
    assert bool((slowest <= 1.01 * mean)[short].all())


def test_dealing_in_order_would_fail_that_test() -> None:
    longest = mg.MLMC(1024).draw(1024, None, torch.Generator().manual_seed(0)).longest
    in_order = longest.reshape(8, 128).sum(1).double()
    assert in_order.max() > 1.05 * max(float(in_order.mean()), float(longest.max()))
