"""The two selections against a plain sequential implementation and against each other."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from mlmcgrad.kernels import isir as selection
from mlmcgrad.kernels.importance import uniforms
from mlmcgrad.kernels.isir import Draws, choose_sampled, rao_blackwell, sampled, still_possible
from tests.chains import rng
from tests.statistics import mean_is


def _draws(lengths: list[int], fresh: int, seed: int, spread: float) -> tuple[Draws, Tensor]:
    """Random log weights, and random weights of the steps."""
    generator, t = rng(seed), torch.tensor(lengths)
    log_w = torch.randn(len(t) + fresh * sum(lengths), dtype=torch.float64, generator=generator)
    weights = torch.randint(-1, 2, (sum(lengths),), generator=generator).double()
    return Draws(spread * log_w, t, fresh), weights


def _chains(draws: Draws, *more: Tensor) -> list[tuple[Draws, slice, list[Tensor]]]:
    """Each chain by itself, where its draws are, and its part of further tensors."""
    parts, begin = zip(*(m.split(draws.lengths.tolist()) for m in more), strict=True), 0
    found = []
    for t, part in zip(draws.lengths.tolist(), parts, strict=True):
        where = slice(begin, begin + 1 + t * draws.fresh)
        one = Draws(draws.log_w[where], torch.tensor([t]), draws.fresh)
        found.append((one, where, list(part)))
        begin = where.stop
    return found


def test_draws_know_their_places() -> None:
    draws, _ = _draws([1, 1, 3], fresh=2, seed=0, spread=1.0)
    assert draws.first.tolist() == [0, 3, 6]
    assert draws.chain.tolist() == [0, 1, 2, 2, 2]
    assert draws.block.tolist() == [1, 4, 7, 9, 11]
    assert draws.step.tolist() == [1, 1, 1, 2, 3]
    assert draws.places.tolist() == [[1, 2], [4, 5], [7, 8], [9, 10], [11, 12]]
    assert torch.equal(draws.new[1], draws.log_w[4:6])
    single, _ = _draws([2, 4], fresh=1, seed=0, spread=1.0)
    assert single.step.tolist() == [1, 2, 1, 2, 3, 4]


lengths_of_chains = st.lists(st.integers(1, 6), min_size=1, max_size=5).map(sorted)


@given(lengths_of_chains, st.integers(1, 4), st.integers(0, 10**6), st.floats(0.1, 20.0))
@example(lengths=[2, 1025, 1100], fresh=2, seed=1, spread=3.0)
def test_sampled_follows_algorithm_3(
    lengths: list[int], fresh: int, seed: int, spread: float
) -> None:
    """Every chain, in plain Python, from the same uniforms."""
    draws, weights = _draws(lengths, fresh, seed, spread)
    choice, leave = torch.rand(2, len(weights), dtype=torch.float64, generator=rng(seed + 1))
    found, _ = choose_sampled(draws, weights, choice, leave)
    moves = 0
    for chain, (one, where, (weight, pick, u)) in enumerate(_chains(draws, weights, choice, leave)):
        w = [math.exp(v) for v in one.log_w.tolist()]
        coefficient, kept = [0.0] * len(w), 0
        for p in range(len(weight)):
            block = list(range(1 + p * fresh, 1 + (p + 1) * fresh))
            total = w[kept] + sum(w[j] for j in block)
            for j in [kept, *block]:
                coefficient[j] += float(weight[p]) * w[j] / total
            if float(u[p]) >= w[kept] / total:
                moves += 1
                mass, rest = float(pick[p]) * sum(w[j] for j in block), 0.0
                for j in block:
                    rest += w[j]
                    if rest > mass:
                        kept = j
                        break
        expected = torch.tensor(coefficient).double()
        assert torch.allclose(found.coefficient[where], expected, atol=1e-9)
        assert int(found.kept[chain]) == where.start + kept
    assert found.moves == moves


def test_a_uniform_at_the_staying_probability_leaves() -> None:
    """Two equal weights: the kept state stays for the uniforms in [0, ½), half of them."""
    draws = Draws(torch.zeros(4, dtype=torch.float64), torch.tensor([1, 1]), 1)
    leave = torch.tensor([0.5, 0.5 - 2.0**-53], dtype=torch.float64)
    weights = torch.ones(2, dtype=torch.float64)
    found, stay = choose_sampled(draws, weights, torch.zeros_like(leave), leave)
    assert stay.tolist() == [0.5, 0.5]
    assert found.kept.tolist() == [1, 2]  # the candidate of the first chain, the other's start
    assert found.moves == 1


def test_the_smallest_and_the_largest_uniform_pick_no_candidate_without_weight() -> None:
    """The first and the last of each block, whatever rounding leaves of the sum of shares."""
    blocks = torch.randn(200, 6, dtype=torch.float64, generator=rng())
    blocks[:, [0, -1]] = -math.inf
    log_w = torch.cat([torch.zeros(200, 1, dtype=torch.float64), blocks], 1).flatten()
    draws = Draws(log_w, torch.ones(200, dtype=torch.int64), 6)
    weights = torch.ones(200, dtype=torch.float64)
    for choice, place in ((0.0, 2), (1.0 - 2.0**-53, 5)):
        found, _ = choose_sampled(draws, weights, choice * weights, weights)
        assert (found.kept - draws.first == place).all()


def test_the_averaged_state_at_the_end_is_drawn_by_its_law() -> None:
    """One uniform of double precision for each chain."""
    draws, weights = _draws([2] * 50, fresh=2, seed=4, spread=2.0)
    found = rao_blackwell(draws, weights, uniforms(rng(7), len(draws.lengths)))
    assert found.law is not None
    u = torch.rand(50, dtype=torch.float64, generator=rng(7))
    for chain, law in enumerate(found.law.reshape(50, -1)):
        rest = [j for j in range(5) if float(law[: j + 1].sum()) > float(u[chain])]
        assert int(found.kept[chain] - draws.first[chain]) == rest[0]


def test_a_state_that_was_drawn_goes_on_with_certainty() -> None:
    draws, weights = _draws([2, 3, 3], fresh=2, seed=4, spread=2.0)
    found = sampled(draws, weights, uniforms(rng(), 2, len(draws.chain)))
    held, law = still_possible(draws, found, 2)
    assert torch.equal(held[:, 0], found.kept[1:])
    assert (law.tolist(), law.dtype) == ([[1.0], [1.0]], torch.float64)


@given(lengths_of_chains, st.integers(1, 4), st.integers(0, 10**6), st.floats(0.1, 20.0))
def test_rao_blackwell_is_design_s_formula(
    lengths: list[int], fresh: int, seed: int, spread: float
) -> None:
    """p'(old j) = p(j) w_j/(w_j+S),  p'(new j) = w_j Σ_s p(s)/(w_s+S), in plain Python."""
    draws, weights = _draws(lengths, fresh, seed, spread)
    found = rao_blackwell(draws, weights, uniforms(rng(), len(draws.lengths)))
    for one, where, (weight,) in _chains(draws, weights):
        w = [math.exp(v) for v in one.log_w.tolist()]
        law, coefficient = [1.0], [0.0] * len(w)
        for p in range(len(weight)):
            block = w[1 + p * fresh : 1 + (p + 1) * fresh]
            total = sum(block)
            new = [v * sum(q / (s + total) for q, s in zip(law, w, strict=False)) for v in block]
            law = [q * s / (s + total) for q, s in zip(law, w, strict=False)] + new
            for j, q in enumerate(law):
                coefficient[j] += float(weight[p]) * q
        expected = torch.tensor(coefficient).double()
        assert torch.allclose(found.coefficient[where], expected, atol=1e-9)
    place = found.kept - draws.first
    assert bool(((place >= 0) & (place <= fresh * draws.lengths)).all())


def test_rao_blackwell_is_the_mean_of_sampled() -> None:
    """Null: for given draws the mean over selections is the averaged one; false alarm 1e-5."""
    one, weights = _draws([5], fresh=2, seed=3, spread=1.5)
    many = 20_000
    copies = Draws(one.log_w.repeat(many), one.lengths.repeat(many), one.fresh)
    drawn = sampled(copies, weights.repeat(many), uniforms(rng(1), 2, len(copies.chain)))
    exact = rao_blackwell(one, weights, uniforms(rng(2), len(one.lengths)))
    coefficients = drawn.coefficient.reshape(many, -1)
    assert mean_is(coefficients, exact.coefficient)
    # The state kept at the end has the law of the last step, in both.
    last = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    law = rao_blackwell(one, last, uniforms(rng(2), len(one.lengths))).coefficient
    averaged = rao_blackwell(copies, last.repeat(many), uniforms(rng(3), len(copies.lengths)))
    often = law * many > 20.0  # rarer ones are too few for a normal approximation
    one_hot = torch.eye(11, dtype=torch.float64)
    for kept in (drawn.kept, averaged.kept):
        assert mean_is(one_hot[kept - copies.first][:, often], law[often])
    # Planted bug: the normalisation of erratum 2, over steps instead of candidates.
    wrong = one.new.softmax(0).flatten() * 0.2
    assert not mean_is(coefficients[:, 1:], wrong)


@pytest.mark.parametrize("few", [0, 3, 100])
def test_chains_one_by_one_are_those_in_arrays(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as run at each step: 8, 7, 5, 5, 2, 2, 2, 1."""
    lengths = torch.tensor([1, 2, 2, 4, 4, 4, 7, 8])
    steps = int(lengths.sum())
    log_w = torch.randn(8 + 2 * steps, dtype=torch.float64, generator=rng(1))
    weights, choice, leave = torch.rand(3, steps, dtype=torch.float64, generator=rng(2))
    draws = Draws(log_w, lengths, 2)
    found = choose_sampled(draws, weights, choice, leave)
    monkeypatch.setattr(selection, "_FEW", few)
    again = choose_sampled(draws, weights, choice, leave)
    assert torch.equal(found[0].coefficient, again[0].coefficient)
    assert torch.equal(found[0].kept, again[0].kept)
    assert torch.equal(found[1], again[1])
    assert found[0].moves == again[0].moves > 4
