from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.kernels import ISIR
from mlmcgrad.lengths import Lengths
from tests.chains import Counter, rng, run


def _plan(lengths: list[int]) -> Lengths:
    ends = torch.tensor(lengths)
    values = (1.0 / ends.double())[:, None]
    return Lengths(torch.zeros_like(ends), ends[:, None], values)


def _propose(rows: int, *_: Any, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, 2, generator=generator)


def _nothing(rows: int, *_: Any, generator: torch.Generator) -> Any:
    return None


def _weight(z: Tensor, *_: Any) -> Tensor:
    return -0.5 * (z - 1.0).square().sum(1) + 0.5 * z.square().sum(1)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.integers(2, 5),
    st.booleans(),
    st.booleans(),
    st.sampled_from([3, 8192]),
)
def test_cost_and_mass(
    lengths: list[int], k: int, rao_blackwell: bool, given_start: bool, chunk: int
) -> None:
    """k + (t−1)(k−1) draws a chain, weighed in as few calls as the chunk allows; mass 1."""
    weigh = Counter(_weight)
    kernel = ISIR(weigh, _propose, k, rao_blackwell=rao_blackwell, chunk=chunk)
    chains = len(lengths)
    x0 = torch.full((chains, 2), 0.5) if given_start else None
    context = torch.arange(chains)
    measure, outcome = run(kernel, x0, _plan(lengths), (context,))
    draws = sum(k + (t - 1) * (k - 1) for t in lengths)
    assert outcome.evaluations == weigh.rows == draws
    fresh = draws - chains if given_start else draws
    starts = math.ceil(chains / chunk) if given_start else 0
    assert len(weigh.calls) == math.ceil(fresh / chunk) + starts
    mass = torch.zeros(chains, dtype=torch.float64)
    mass.index_add_(0, measure.owner, measure.coefficient)
    assert torch.allclose(mass, torch.ones(chains, dtype=torch.float64), atol=1e-12)
    assert 0.0 <= outcome.accepted <= sum(lengths) + 1e-9
    assert outcome.last.shape == (chains, 2)


def test_context_follows_its_chain() -> None:
    centre = torch.tensor([[-100.0], [0.0], [100.0]])

    def propose(rows: int, c: Tensor, generator: torch.Generator) -> Tensor:
        return c + torch.randn(rows, 1, generator=generator)

    def weigh(z: Tensor, c: Tensor) -> Tensor:
        assert (z - c).abs().max() < 10.0
        return torch.zeros(len(z))

    measure, outcome = run(ISIR(weigh, propose, 3), None, _plan([4, 1, 2]), (centre,))
    assert (measure.points - centre[measure.owner]).abs().max() < 10.0
    assert (outcome.last - centre).abs().max() < 10.0


def test_equal_weights_and_one_step_are_a_plain_mean() -> None:
    kernel = ISIR(lambda z: torch.zeros(len(z)), _propose, 4)
    measure, _ = run(kernel, torch.zeros(3, 2), _plan([1, 1, 1]))
    assert (measure.coefficient == 0.25).all()


@pytest.mark.parametrize("rao_blackwell", [False, True])
def test_weights_far_beyond_the_range_of_floats(rao_blackwell: bool) -> None:
    """Spread of thousands of nats: the best draw so far takes all, nothing becomes NaN."""
    kernel = ISIR(lambda z, _: 3000.0 * z[:, 0] - 1e5, _propose, 5, rao_blackwell=rao_blackwell)
    measure, outcome = run(kernel, None, _plan([8, 8]), (torch.zeros(2, 1),))
    assert measure.coefficient.isfinite().all()
    assert measure.coefficient.sum().item() == pytest.approx(2.0)
    for chain in range(2):
        mine = measure.points[measure.owner == chain]
        assert outcome.last[chain, 0] == mine[:, 0].max()


@pytest.mark.parametrize("rao_blackwell", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_unusable_draws_are_left_out_and_counted(rao_blackwell: bool, bad: float) -> None:
    def weigh(z: Tensor) -> Tensor:
        return torch.where(z[:, 0] > 0.0, 0.0, bad)

    kernel = ISIR(weigh, _propose, 6, rao_blackwell=rao_blackwell)
    measure, outcome = run(kernel, torch.ones(50, 2), _plan([5] * 50))
    assert (measure.points[:, 0] > 0.0).all()
    assert (outcome.invalid == 0) == (bad == -math.inf)
    assert measure.coefficient.sum().item() == pytest.approx(50.0)


@pytest.mark.parametrize("rao_blackwell", [False, True])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_refuses_a_first_step_without_any_weight(rao_blackwell: bool, bad: float) -> None:
    kernel = ISIR(
        lambda z, c: torch.where(c == 1, bad, 0.0), _propose, 3, rao_blackwell=rao_blackwell
    )
    with pytest.raises(FloatingPointError, match=r"all 3 candidates.*1 chains \(chain 2 is one"):
        run(kernel, None, _plan([2, 4, 2]), (torch.tensor([0, 0, 1]),))


@pytest.mark.parametrize("rao_blackwell", [False, True])
def test_a_later_block_without_weight_keeps_the_state(rao_blackwell: bool) -> None:
    kernel = ISIR(
        lambda z: torch.where((z == 7.0).all(1), 0.0, -math.inf),
        _propose,
        3,
        rao_blackwell=rao_blackwell,
    )
    measure, outcome = run(kernel, torch.full((2, 2), 7.0), _plan([4, 4]))
    assert (outcome.last == 7.0).all()
    assert outcome.accepted == 0.0
    assert measure.coefficient.tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 1}, "candidates must be an integer ≥ 2, got 1"),
        ({"candidates": 2.0}, "candidates must be an integer"),
        ({"candidates": 2, "chunk": 0}, "chunk must be an integer ≥ 1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ISIR(_weight, _propose, **options)


def test_options_have_names_and_the_choice_is_random_by_default() -> None:
    make: Any = ISIR
    assert not make(_weight, _propose, 3).rao_blackwell
    with pytest.raises(TypeError, match="positional argument"):
        make(_weight, _propose, 3, 10)


def test_the_context_says_how_many_chains_there_are() -> None:
    """Its first tensor with rows, where x0 is None."""
    kernel = ISIR(_weight, _propose, 3)
    assert kernel.chains(None, (torch.tensor(2.0), {"y": torch.zeros(5, 1)}, torch.zeros(7))) == 5
    for context in ((), (2.0, torch.tensor(2.0))):
        with pytest.raises(ValueError, match="x0=None needs a context tensor with one row"):
            kernel.chains(None, context)


def test_as_many_candidates_as_fit_into_memory() -> None:
    x0 = torch.zeros(4, 2)
    assert ISIR(_weight, _propose, 25_000_000).chains(x0, ()) == 4
    with pytest.raises(ValueError, match=r"at most 100,000,000, .* got 25,000,001 × 4"):
        ISIR(_weight, _propose, 25_000_001).chains(x0, ())


def test_chains_whose_first_step_has_one_candidate_only_are_counted() -> None:
    """The largest share of a first block is 0.998, 0.9995, 1: above 0.999 it has collapsed."""
    share = torch.tensor([0.998, 0.9995, 1.0], dtype=torch.float64)[:, None]
    log_w = torch.cat([(1.0 - share) / 2.0, share, (1.0 - share) / 2.0], 1).log().flatten()
    kernel = ISIR(lambda z, _: log_w[z], lambda rows, _, generator: torch.arange(rows), 3)
    _, outcome = run(kernel, None, _plan([1, 1, 1]), (torch.zeros(3),))
    assert outcome.collapsed == 2


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (ISIR(lambda z: z, _propose, 3), r"log_weight must return one number.*shape \(2, 2\)"),
        (ISIR(_weight, lambda r, generator: torch.zeros(r + 1, 2), 3), "one draw per row"),
        (ISIR(_weight, _nothing, 3), "one draw per row.*got None"),
        (ISIR(_weight, lambda r, generator: torch.zeros(r, 3), 3), "x0 must look like a draw"),
    ],
)
def test_bad_functions(kernel: ISIR, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(kernel, torch.zeros(2, 2), _plan([2, 2]))


def test_log_weights_are_kept_in_double_precision() -> None:
    """float32 weights of 1e8 nats lose their differences; they must not lose more than that."""
    model = problems.linear_gaussian()
    y = model.data.float()
    kernel = ISIR(
        lambda z, y: model.log_weight(z.double(), y.double()).float(),
        lambda rows, y, generator: model.propose(rows, y.double(), generator).float(),
        5,
    )
    measure, _ = run(kernel, None, mg.Average(4).draw(len(y), 1, rng()), (y,))
    assert measure.coefficient.dtype == torch.float64
    assert measure.points.dtype == torch.float32
