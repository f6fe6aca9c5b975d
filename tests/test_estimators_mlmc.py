import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mlmcgrad as mg
from mlmcgrad.levels import Geometric, Tabulated
from tests.chains import rng
from tests.statistics import mean_is


@given(st.integers(0, 12), st.floats(1.0, 300.0), st.integers(1, 4))
def test_a_plan_is_the_step_weights_of_its_levels(k: int, truncation: float, base: int) -> None:
    mlmc = mg.MLMC(truncation, base=base)
    kappa = mlmc.truncation_level(1)
    plan = mlmc.lengths_for(torch.tensor([k + 1, 1]), 1)
    for chain, level in enumerate((k + 1, 1)):
        used = level if level <= kappa else 0
        length = int(plan.longest[chain])
        assert length == Geometric().length(used, base)
        weights = plan.step_weights(1, length + 3)[:, chain]
        # H^{(ℓ_0)} + 2^K {H^{(ℓ_K)} − H^{(ℓ_{K−1})}}, step by step.
        expected = torch.zeros(length, dtype=torch.float64)
        expected[:base] = 1.0 / base
        if used:
            expected[: length // 2] -= 2.0**used / (length // 2)
            expected += 2.0**used / length
        assert torch.allclose(weights[:length], expected, rtol=0.0, atol=1e-12)
        assert (
            used == 0 or base > 1 or (weights[0] == 0.0 and weights[1:length].abs().eq(1.0).all())
        )
        assert (weights[length:] == 0.0).all()


def _mean_lengths(truncation: float, broken: bool = False) -> torch.Tensor:
    mlmc, generator = mg.MLMC(truncation), rng(5)
    lengths = mlmc.draw(20000, 1, generator).longest
    if broken:  # planted bug: levels that are cut off still run their chain
        lengths = 2 ** mlmc.levels.sample(20000, rng(5))
    return lengths.double()[:, None]


@pytest.mark.parametrize("truncation", [1, 2, 5, 16, 64])
def test_mean_and_worst_case_of_the_length(truncation: int) -> None:
    """Null: the mean chain length is κ + 2^{−κ}; false alarm 1e-5 a case."""
    kappa = int(math.log2(truncation))
    expected = torch.tensor([kappa + 2.0**-kappa], dtype=torch.float64)
    lengths = _mean_lengths(truncation)
    assert mean_is(lengths, expected)
    assert lengths.max() == 2**kappa
    assert mg.MLMC(truncation).expected_length(1) == expected.item()


def test_planted_bug_in_the_length() -> None:
    capped = _mean_lengths(16, broken=True).clamp(max=64.0)
    assert not mean_is(capped, torch.tensor([4.0 + 2.0**-4], dtype=torch.float64))


def test_truncation_follows_its_schedule() -> None:
    mlmc = mg.MLMC(mg.schedules.power(1.0, 0.5))
    assert [mlmc.truncation_level(n) for n in (1, 3, 4, 15, 16, 4096)] == [0, 0, 1, 1, 2, 6]


def test_a_truncation_below_the_base_runs_the_base() -> None:
    plan = mg.MLMC(2, base=5).draw(3, 1, rng())
    assert plan.longest.tolist() == [5, 5, 5]


@pytest.mark.parametrize("truncation", [0, -2.0, math.nan, math.inf])
def test_bad_truncation(truncation: float) -> None:
    with pytest.raises(ValueError, match="truncation must be a positive number"):
        mg.MLMC(truncation)
    with pytest.raises(ValueError, match="truncation must be a positive number"):
        mg.MLMC(lambda n: truncation).draw(1, 1, rng())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": 0}, "base must be an integer ≥ 1, got 0"),
        ({"base": 1.5}, "base must be an integer"),
        ({"assignment": "stratified"}, "assignment must be one of"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mg.MLMC(4, **options)


def test_a_table_ends() -> None:
    mlmc = mg.MLMC(1000, Tabulated([0.5, 0.5]))
    assert mlmc.truncation_level(1) == 2
    assert mlmc.expected_length(1) == 2.0


def test_the_longest_chain_may_be_the_shortest_level() -> None:
    """μ(1) = 0.01 has ℓ_0 = 50, beyond every level that T = 8 lets through."""
    assert mg.MLMC(8, Geometric(0.01)).longest() == 50
    assert mg.MLMC(8).longest() == 8


@pytest.mark.parametrize("more", [("shared",), (2,), ("shared", 2)])
def test_options_have_names(more: tuple[Any, ...]) -> None:
    """`MLMC(T, law)`, and nothing more by position."""
    assert mg.MLMC(8, Geometric(0.3)).levels == Geometric(0.3)
    with pytest.raises(TypeError, match="positional"):
        mg.MLMC(8, Geometric(), *more)
    named = mg.MLMC(8, assignment="shared", base=2)
    assert (named.assignment, named.base) == ("shared", 2)


def test_a_truncation_that_is_no_number_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="truncation must be a number or a schedule"):
        mg.MLMC("8")  # type: ignore[arg-type]
