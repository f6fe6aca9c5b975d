import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mlmcgrad.measure import (
    Measure,
    certainty,
    chunks,
    concatenate,
    drop,
    merge,
    merge_runs,
    systematic,
    thin,
    uniforms,
)
from tests.statistics import mean_is


def _random(points: int, seed: int, shape: tuple[int, ...] = (2,)) -> Measure:
    generator = torch.Generator().manual_seed(seed)
    return Measure(
        torch.randint(0, 3, (points, *shape), generator=generator).double(),
        torch.randint(0, 4, (points,), generator=generator),
        torch.randint(-2, 3, (points,), generator=generator).double() / 2.0,
    )


def _totals(measure: Measure) -> dict[tuple[float, ...], float]:
    """The measure as a dictionary from (owner, state) to its total coefficient."""
    totals: dict[tuple[float, ...], float] = {}
    rows = measure.points.reshape(max(len(measure), 1), -1).tolist()[: len(measure)]
    for row, owner, c in zip(
        rows, measure.owner.tolist(), measure.coefficient.tolist(), strict=True
    ):
        totals[(owner, *row)] = totals.get((owner, *row), 0.0) + c
    return {key: value for key, value in totals.items() if value != 0.0}


@given(st.integers(1, 30), st.integers(0, 10**6), st.sampled_from([(), (1,), (2,), (2, 2)]))
def test_merge_and_drop_keep_the_measure(points: int, seed: int, shape: tuple[int, ...]) -> None:
    measure = _random(points, seed, shape)
    smaller = drop(merge(measure))
    assert _totals(smaller) == _totals(measure)
    assert len(smaller) == len(_totals(measure))  # one point a state, none of weight 0
    assert smaller.points.shape[1:] == measure.points.shape[1:]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_merge_keeps_the_dtype(dtype: torch.dtype) -> None:
    points = torch.tensor([[1, 0], [1, 0], [0, 1]]).to(dtype)
    merged = merge(Measure(points, torch.tensor([300, 300, 300]), torch.ones(3).double()))
    assert merged.points.dtype == dtype
    assert sorted(merged.coefficient.tolist()) == [1.0, 2.0]
    assert merged.owner.tolist() == [300, 300]


def test_merge_of_integers_that_fill_63_bits() -> None:
    # owner × span + state does not fit into an int64 here: the merged measure must not change.
    high, low = 2**63 - 1, -(2**63)
    points = torch.tensor([high, low, high, 0, low, 2**62], dtype=torch.int64)
    measure = Measure(points, torch.tensor([0, 0, 0, 1, 1, 1]), torch.ones(6).double())
    merged = merge(measure)
    assert _totals(merged) == _totals(measure)
    assert len(merged) == 5


_STATES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-2, 2), st.sampled_from([2**62, -(2**62)])
)
_OWNERS = st.one_of(st.integers(0, 4), st.integers(0, 2**62))


def _naively(measure: Measure) -> Measure:
    """The planted bug: one number for chain and state, also where it does not fit."""
    lowest, highest = (int(end) for end in measure.points.aminmax())
    key = measure.owner * (highest - lowest + 1) + (measure.points - lowest)
    unique, index = torch.unique(key, return_inverse=True)
    first = torch.stack([(index == number).nonzero()[0, 0] for number in range(len(unique))])
    total = torch.zeros(len(unique)).double().index_add_(0, index, measure.coefficient)
    return Measure(measure.points[first], measure.owner[first], total)


@given(st.lists(st.tuples(_OWNERS, _STATES), min_size=1, max_size=12), st.integers(0, 10**6))
def test_merge_of_states_and_chains_of_any_size(rows: list[tuple[int, int]], seed: int) -> None:
    owner, points = torch.tensor(rows).unbind(1)
    twice = Measure(points, owner, _random(len(rows), seed).coefficient)
    measure = concatenate([twice, twice])
    merged = merge(measure)
    assert _totals(merged) == _totals(measure)
    assert len(merged) == len(set(rows))
    pairs = list(zip(merged.owner.tolist(), merged.points.tolist(), strict=True))
    assert pairs == sorted(pairs)


def test_merge_where_numbers_of_chain_and_state_would_wrap_around() -> None:
    points, owner = torch.tensor([5, 5, 2**62 + 4]), torch.tensor([0, 4, 0])
    measure = Measure(points, owner, torch.tensor([1.0, 2.0, 4.0]).double())
    assert _totals(merge(measure)) == {(0, 5): 1.0, (4, 5): 2.0, (0, 2**62 + 4): 4.0}
    assert _totals(_naively(measure)) != _totals(measure)


def test_merged_states_are_sorted_where_63_bits_do_not_hold_them() -> None:
    """With 64 bits chain 2 would come before chain 0."""
    points, owner = torch.tensor([0, 2**62, 7, 0]), torch.tensor([0, 0, 1, 2])
    merged = merge(Measure(points, owner, torch.ones(4).double()))
    assert merged.owner.tolist() == [0, 0, 1, 2]
    assert merged.points.tolist() == [0, 2**62, 7, 0]


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_merge_of_complex_states(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = torch.tensor([1 + 2j, 1 - 2j, 1 + 2j, 0.5j], dtype=dtype)
    points = values.reshape(4, *(1 for _ in shape)).expand(4, *shape)
    merged = merge(Measure(points, torch.tensor([1, 1, 1, 0]), torch.ones(4).double()))
    assert (merged.points.dtype, merged.points.shape[1:]) == (dtype, shape)
    assert merged.points.reshape(3, -1)[:, 0].tolist() == [0.5j, 1 - 2j, 1 + 2j]
    assert merged.coefficient.tolist() == [1.0, 1.0, 2.0]


@given(st.integers(1, 40), st.integers(0, 10**6), st.integers(-5, 5))
def test_merge_of_single_integers(points: int, seed: int, shift: int) -> None:
    general = _random(points, seed, ())
    measure = Measure(general.points.long() + shift, general.owner, general.coefficient)
    merged = merge(measure)
    assert _totals(merged) == _totals(measure)
    assert merged.points.dtype == torch.int64
    assert len(merged) == len(
        set(zip(measure.owner.tolist(), measure.points.tolist(), strict=True))
    )


def test_drop_tolerance() -> None:
    measure = Measure(
        torch.arange(4.0), torch.zeros(4, dtype=torch.int64), torch.tensor([0.0, -1e-9, 0.5, 0.01])
    )
    assert drop(measure).points.tolist() == [1.0, 2.0, 3.0]
    assert drop(measure, 0.01).points.tolist() == [2.0]
    nan = Measure(measure.points, measure.owner, torch.full((4,), torch.nan))
    assert len(drop(nan)) == len(drop(nan, 0.01)) == 4


def _thinned_totals(threshold: float, divide: bool) -> tuple[Tensor, Tensor]:
    """Total coefficient of each of five points over many thinnings, and the true coefficients."""
    c = torch.tensor([0.5, -0.03, 0.02, -0.2, 0.1], dtype=torch.float64)
    measure = Measure(torch.arange(5), torch.zeros(5, dtype=torch.int64), c)
    generator, rows = torch.Generator().manual_seed(0), []
    for _ in range(4000):
        kept, _ = thin(measure, certainty(c.numpy(), threshold), uniforms(1, generator))
        coefficient = kept.coefficient if divide else c[kept.points]
        rows.append(torch.zeros(5, dtype=torch.float64).index_put((kept.points,), coefficient))
    return torch.stack(rows), c


def test_thinning_is_unbiased() -> None:
    """Null: the mean coefficient after thinning is the one before; false alarm 1e-5."""
    assert mean_is(*_thinned_totals(0.1, divide=True))
    assert not mean_is(*_thinned_totals(0.1, divide=False))  # planted bug: no division


def test_thinning_raises_to_the_threshold_and_leaves_large_ones_alone() -> None:
    rows, c = _thinned_totals(0.1, divide=True)
    assert (rows[:, [0, 3, 4]] == c[[0, 3, 4]]).all()
    assert sorted(set(rows[:, 1].tolist())) == pytest.approx([-0.1, 0.0], rel=1e-15)
    everything = _random(20, 1)
    generator = torch.Generator().manual_seed(0)
    kept, which = thin(
        everything, certainty(everything.coefficient.numpy(), 0.0), uniforms(20, generator)
    )
    assert torch.equal(kept.points, everything.points[which])
    assert _totals(kept) == _totals(everything)


def _systematic(p: Tensor, owner: Tensor, generator: torch.Generator) -> Tensor:
    return torch.from_numpy(systematic(p.numpy(), owner.numpy(), uniforms(8, generator)))


def test_systematic_choice_keeps_each_point_with_its_probability() -> None:
    """Null: the rates are the probabilities and chains are independent; false alarm 1e-5 each."""
    p = torch.tensor([0.3, 1.0, 0.2, 0.05, 0.6, 0.15, 1.0, 0.4, 0.0], dtype=torch.float64)
    owner = torch.tensor([7, 2, 2, 7, 2, 7, 7, 2, 7])
    generator = torch.Generator().manual_seed(0)
    kept = torch.stack([_systematic(p, owner, generator) for _ in range(4000)]).double()
    assert mean_is(kept, p)
    assert not mean_is(kept, p.roll(1))  # planted bug: the probability of the neighbour
    first, second = kept[:, owner == 2].sum(1), kept[:, owner == 7].sum(1)
    assert set(first.tolist()) == {2.0, 3.0}  # expected: 2.2
    assert set(second.tolist()) == {1.0, 2.0}  # expected: 1.5
    both = ((first - 2.2) * (second - 1.5))[:, None]
    assert mean_is(both, torch.zeros(1))
    assert not mean_is((first - 2.2)[:, None] ** 2, torch.zeros(1))  # planted bug: one uniform
    assert len(_systematic(p[:0], owner[:0], generator)) == 0


def test_a_probability_that_is_no_number_is_not_hidden() -> None:
    p, owner = torch.tensor([0.0, torch.nan]).double(), torch.tensor([0, 1])
    assert _systematic(p, owner, torch.Generator().manual_seed(0)).tolist() == [False, True]


@given(st.integers(0, 10**6), st.integers(1, 2000))
def test_systematic_choice_keeps_what_is_certain(seed: int, points: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(points, dtype=torch.float64, generator=generator)
    p[torch.rand(points, generator=generator) < 0.5] = 1.0
    p[torch.rand(points, generator=generator) < 0.2] = 0.0
    owner = torch.randint(0, 5, (points,), generator=generator)
    kept = _systematic(p, owner, generator)
    assert kept[p == 1.0].all()
    assert not kept[p == 0.0].any()
    for chain in range(5):
        mine = owner == chain
        assert abs(int(kept[mine].sum()) - float(p[mine].sum())) < 1.0 + 1e-6


@given(st.data())
def test_merge_runs_is_the_naive_sum(data: st.DataObject) -> None:
    """Pieces of any lengths together give the measure Σ_i weight_i δ_{X_i}, one point a stay."""
    chains = data.draw(st.integers(1, 4))
    pieces = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    steps = sum(pieces)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    moved = torch.rand(steps, chains, generator=generator) < 0.5
    weights = torch.randint(-2, 3, (steps, chains), generator=generator).double()
    start = torch.zeros(1, chains, dtype=torch.int64)
    path = torch.cat([start, moved.cumsum(0)]).double()  # never returns to a state
    owner = 10 + torch.arange(chains)

    found, carried, begin = [], torch.zeros(chains, dtype=torch.float64), 0
    for length in pieces:
        end = begin + length
        measure, carried = merge_runs(
            path[begin : end + 1], moved[begin:end], weights[begin:end], carried, owner
        )
        found.append(drop(measure))
        begin = end
    found.append(Measure(path[-1], owner, carried))
    naive = Measure(path[1:].flatten(), owner.repeat(steps), weights.flatten())
    together = concatenate(found)
    assert _totals(together) == _totals(naive)
    distinct = {
        (o, x) for o, x in zip(together.owner.tolist(), together.points.tolist(), strict=True)
    }
    assert len(distinct) == len(together)


def test_chains_that_end_leave_nothing_to_carry() -> None:
    """The last two of three chains end: the weight of their last stay is in the measure."""
    path = torch.tensor([[0.0, 10.0, 20.0], [1.0, 10.0, 21.0], [1.0, 11.0, 21.0]])
    moved = torch.tensor([[True, False, True], [False, True, False]])
    weights, owner = torch.ones(2, 3, dtype=torch.float64), torch.tensor([4, 7, 5])
    measure, carried = merge_runs(path, moved, weights, weights[0], owner, 2)
    measure = drop(measure)
    assert measure.points.tolist() == [0.0, 10.0, 20.0, 11.0, 21.0]
    assert measure.owner.tolist() == [4, 7, 5, 7, 5]
    assert measure.coefficient.tolist() == [1.0, 2.0, 1.0, 1.0, 2.0]
    assert carried.tolist() == [2.0, 1.0, 2.0]


def test_concatenate_nothing() -> None:
    assert len(concatenate([])) == 0


def test_burn_in_is_left_out_and_what_was_carried_into_it_is_not() -> None:
    path = torch.tensor([[0.0, 10.0], [1.0, 10.0], [1.0, 11.0]])
    moved = torch.tensor([[True, False], [False, True]])
    none, owner = torch.zeros(2, 2).double(), torch.tensor([4, 7])
    measure, carried = merge_runs(path, moved, none, none[0], owner)
    assert (len(drop(measure)), carried.tolist()) == (0, [0.0, 0.0])
    measure, carried = merge_runs(path, moved, none, torch.tensor([0.5, 0.0]).double(), owner)
    measure = drop(measure)
    assert (measure.points.tolist(), measure.owner.tolist()) == ([0.0], [4])
    assert measure.coefficient.tolist() == [0.5]
    assert carried.tolist() == [0.0, 0.0]


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 40))
def test_chunks_are_the_same_points_in_order(lengths: list[int], size: int) -> None:
    pieces = [_random(length, seed) for seed, length in enumerate(lengths)]
    cut = list(chunks(iter(pieces), size))
    assert [len(chunk) for chunk in cut[:-1]] == [size] * (len(cut) - 1)
    assert all(0 < len(chunk) <= size for chunk in cut)
    if sum(lengths):
        whole, again = concatenate([p for p in pieces if len(p)]), concatenate(cut)
        assert torch.equal(whole.points, again.points)
        assert torch.equal(whole.coefficient, again.coefficient)


def test_no_measures_have_the_types_of_one() -> None:
    none = concatenate([])
    assert (len(none), none.owner.dtype, none.coefficient.dtype) == (0, torch.int64, torch.float64)


def test_a_tolerance_counts_where_no_weight_is_zero() -> None:
    measure = Measure(
        torch.arange(4.0), torch.zeros(4).long(), torch.tensor([0.5, -0.1, 0.01, -0.3]).double()
    )
    assert drop(measure, 0.2).points.tolist() == [0.0, 3.0]
    assert drop(measure) is measure


def test_without_a_threshold_whatever_has_a_weight_is_certain() -> None:
    c = torch.tensor([0.0, 0.5, -1e-300], dtype=torch.float64)
    assert certainty(c.numpy(), 0.0).tolist() == [0.0, 1.0, 1.0]


def test_systematic_choice_is_that_of_a_slow_loop() -> None:
    """One uniform of double precision for each chain, wherever its points are cut into pieces."""
    generator = torch.Generator().manual_seed(5)
    owner = torch.tensor([7, 2, 2, 7, 4, 2, 7, 7, 4, 2] * 3)
    p = torch.rand(30, dtype=torch.float64, generator=generator)
    p[::7], p[1::9] = 0.0, 1.0
    u = uniforms(8, torch.Generator().manual_seed(2))
    rest = u.copy()
    pieces = zip(p.split([11, 1, 0, 18]), owner.split([11, 1, 0, 18]), strict=True)
    found = np.concatenate([systematic(a.numpy(), b.numpy(), rest) for a, b in pieces])
    for chain in (2, 4, 7):
        at = float(u[chain])
        for j in (owner == chain).nonzero()[:, 0].tolist():
            assert bool(found[j]) == (math.floor(at + float(p[j])) > math.floor(at))
            at += float(p[j])
        assert rest[chain] == pytest.approx(at % 1.0, abs=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_states_that_are_no_integers_are_not_rounded_when_they_are_merged(
    shape: tuple[int, ...],
) -> None:
    values = torch.tensor([0.5, 0.7, 0.5, 0.5]).reshape(4, *(1,) * len(shape)).expand(4, *shape)
    measure = Measure(values, torch.tensor([0, 0, 0, 1]), torch.ones(4, dtype=torch.float64))
    merged = merge(measure)
    assert merged.points.reshape(3, -1)[:, 0].tolist() == pytest.approx([0.5, 0.7, 0.5])
    assert merged.points.shape[1:] == shape
    assert merged.owner.tolist() == [0, 0, 1]
    assert merged.coefficient.tolist() == [2.0, 1.0, 1.0]


def test_a_burn_in_is_a_measure_without_points() -> None:
    path, owner = torch.zeros(3, 4, 2), torch.arange(4)
    moved, weights = torch.ones(2, 4, dtype=torch.bool), torch.zeros(2, 4, dtype=torch.float64)
    measure, carried = merge_runs(path, moved, weights, weights[0], owner)
    measure = drop(measure)
    assert (measure.points.shape, measure.owner.dtype) == ((0, 2), torch.int64)
    assert measure.coefficient.shape == (0,)
    assert carried.tolist() == [0.0] * 4
