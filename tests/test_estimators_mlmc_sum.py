import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mlmcgrad as mg
from tests.chains import rng
from tests.statistics import mean_is, same_mean


@given(st.integers(0, 9), st.floats(1.0, 300.0), st.floats(0.05, 0.95), st.integers(1, 3))
def test_a_plan_is_the_sum_over_levels(level: int, truncation: float, r: float, base: int) -> None:
    """H^{(ℓ_0)} + Σ_l {H^{(ℓ_l)} − H^{(ℓ_{l−1})}} / r^l, step by step."""
    estimator = mg.MLMCSum(truncation, r, base=base)
    kappa = estimator.truncation_level()
    assert base * 2**kappa <= max(truncation, base) < 2 * base * 2**kappa
    plan = estimator.lengths_for(torch.tensor([level, 0]))
    assert (plan.terms.diff(dim=1) >= 0).all()
    for chain, drawn in enumerate((level, 0)):
        last = min(drawn, kappa)
        assert int(plan.longest[chain]) == base * 2**last
        expected = torch.zeros(base * 2**last, dtype=torch.float64)
        expected[:base] = 1.0 / base
        for i in range(1, last + 1):
            long, short = base * 2**i, base * 2 ** (i - 1)
            expected[:long] += r**-i / long
            expected[:short] -= r**-i / short
        weights = plan.step_weights(1, len(expected) + 2)[:, chain]
        scale = max(1.0, r**-last)
        assert torch.allclose(weights[: len(expected)], expected, rtol=0.0, atol=1e-12 * scale)
        assert (weights[len(expected) :] == 0.0).all()
        # The coefficients of a chain sum to 1.
        assert abs(float((plan.weights * plan.terms)[chain].sum()) - 1.0) < 1e-12 * scale


@given(st.integers(0, 10), st.floats(0.05, 0.95))
def test_telescoping(kappa: int, r: float) -> None:
    """Σ_L P(min(K, κ) = L) a_l(L) is 1 for l = κ and 0 below: E[Ĥ] = E[H^{(ℓ_κ)}]."""
    plan = mg.MLMCSum(2**kappa, r).lengths_for(torch.arange(kappa + 1))
    chance = [r**i * (1 - r if i < kappa else 1.0) for i in range(kappa + 1)]
    weights = torch.tensor(chance, dtype=torch.float64)[:, None] * plan.weights * plan.terms
    assert torch.allclose(weights.sum(0)[:-1], torch.zeros(kappa).double(), atol=1e-12)
    assert abs(float(weights.sum(0)[-1]) - 1.0) < 1e-12


def _lengths(estimator: mg.MLMCSum, broken: bool = False) -> torch.Tensor:
    plan = estimator.draw(20000, 1, rng(3))
    if broken:  # planted bug: the law of `MLMC`, which begins at 1
        plan = estimator.lengths_for(plan.levels + 1, 1)
    return plan.longest.double()[:, None]


@pytest.mark.parametrize("r", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("truncation", [1, 3, 64])
def test_mean_length(truncation: float, r: float) -> None:
    """Null: the mean length is `expected_length`; false alarm 1e-5 a case."""
    estimator = mg.MLMCSum(truncation, r)
    kappa = int(math.log2(truncation))
    by_hand = sum(r**i * (1.0 - r if i < kappa else 1.0) * 2**i for i in range(kappa + 1))
    assert math.isclose(estimator.expected_length(), by_hand, rel_tol=1e-12)
    assert mean_is(_lengths(estimator), torch.tensor([by_hand], dtype=torch.float64))
    assert estimator.longest() == 2**kappa
    if kappa:
        assert not mean_is(_lengths(estimator, True), torch.tensor([by_hand]).double())


def test_half_as_long_as_the_single_term() -> None:
    for kappa in range(1, 12):
        assert mg.MLMCSum(2.0**kappa).expected_length() == 1 + kappa / 2


@pytest.mark.parametrize("assignment", ["shared", "balanced"])
def test_assignments(assignment: Any) -> None:
    estimator = mg.MLMCSum(1024, assignment=assignment)
    levels = estimator.draw(64, 1, rng()).levels
    if assignment == "shared":
        assert (levels == levels[0]).all()
    else:  # one level in each of 64 slices of the law
        assert levels.bincount()[:6].tolist() == [32, 16, 8, 4, 2, 1]


def test_base_and_schedule() -> None:
    estimator = mg.MLMCSum(mg.schedules.power(1.0, 0.5), base=3)
    assert [estimator.truncation_level(n) for n in (1, 35, 36, 143, 144)] == [0, 0, 1, 1, 2]
    assert estimator.expected_length(144) == 3 * 2.0
    with pytest.raises(TypeError, match="n must be given"):
        estimator.truncation_level()


def test_infinite_truncation() -> None:
    estimator = mg.MLMCSum(math.inf, 2**-1.5, max_transitions=100, base=3)
    assert estimator.truncation_level() == 5
    assert estimator.longest() == 96
    plan = estimator.lengths_for(torch.tensor([0, 5, 6, 40]))
    assert plan.longest.tolist() == [3, 96, 96, 96]
    assert plan.cut == 2
    assert mg.MLMCSum(96, base=3).lengths_for(torch.tensor([40])).cut == 0
    # Beyond some level the rest of the sum is beyond double precision.
    r = 2**-1.5
    whole = 1.0 + r / (1.0 - 2.0 * r)
    assert math.isclose(mg.MLMCSum(math.inf, r).expected_length(), whole, rel_tol=1e-2)
    scheduled = mg.MLMCSum(lambda n: math.inf if n > 1 else 8.0, r, max_transitions=2**10)
    assert [scheduled.truncation_level(n) for n in (1, 2)] == [3, 10]


def _importance(estimator: Any, theta: torch.Tensor) -> mg.MarkovGradient:
    """Importance sampling of N(1.5, 1) from N(0, 1), with the loss θ_i x for chain i."""

    def propose(rows: int, i: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(rows, 1, dtype=torch.float64, generator=generator)

    kernel = mg.kernels.Importance(lambda x, i: 1.5 * x[:, 0], propose, 2)
    return mg.MarkovGradient(kernel, lambda x, i: theta[i] * x[:, 0], estimator, reduction="sum")


def test_the_budget_is_reported_when_it_bites() -> None:
    theta = torch.zeros(100, dtype=torch.float64, requires_grad=True)
    gradient = _importance(mg.MLMCSum(math.inf, 0.49, max_transitions=4), theta)
    with pytest.warns(RuntimeWarning, match="beyond the budget of its infinite truncation"):
        estimate = gradient.backward(None, torch.arange(100), generator=rng())
    assert estimate.cut == int((estimate.levels > 2).sum()) > 0
    assert gradient.backward(None, torch.arange(1), generator=rng(1)).cut == 0


@pytest.mark.filterwarnings("ignore:a simulation drew a level beyond the budget")
def test_the_expectation_is_that_of_the_budget_and_not_that_without_cuts() -> None:
    """Infinite truncation with a budget of 4 blocks: E[Ĥ] = E[H^{(4)}], over all draws.

    Null: the mean is that of `Average(4)`; false alarm 1e-5. Where no chain is cut it differs.
    """
    draws, found = 40_000, list[tuple[torch.Tensor, torch.Tensor]]()
    for estimator in (mg.Average(4), mg.MLMCSum(math.inf, 0.45, max_transitions=4)):
        theta = torch.zeros(draws, dtype=torch.float64, requires_grad=True)
        gradient = _importance(estimator, theta)
        (each,), estimate = gradient.gradient(None, torch.arange(draws), generator=rng(len(found)))
        found.append((each, estimate.levels <= 2))
    (plain, _), (multilevel, whole) = found
    assert same_mean(plain, multilevel)
    assert not same_mean(plain, multilevel[whole])


CHAINS: dict[str, Any] = {
    "Finite": mg.kernels.Finite(torch.eye(2)),
    "RWMH": mg.kernels.RWMH(lambda x: -x.double(), 1.0),
    "FromStep": mg.kernels.FromStep(lambda x, generator: x),
    "ISIR": mg.kernels.ISIR(lambda x: x.double(), lambda rows, generator: torch.zeros(rows), 2),
    "Regenerative": mg.kernels.Regenerative(0.5, lambda: torch.tensor([[0.5, 0.5]])),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_need_a_truncation(name: str) -> None:
    """Finite cost needs r < 1/2 and finite variance r > 1/2: refused when T_n is read."""
    theta, start = torch.zeros(2, requires_grad=True), torch.zeros(1, dtype=torch.int64)
    endless = mg.MLMCSum(math.inf, 2**-1.5)
    scheduled = mg.MLMCSum(lambda n: math.inf if n > 1 else 8.0, 2**-1.5)
    stages = mg.estimators.Stages(((1, mg.Average(1)), (2, endless)))
    for estimator in (endless, scheduled, stages):
        gradient = mg.MarkovGradient(CHAINS[name], lambda x: theta[x.long()], estimator)
        with pytest.raises(ValueError, match=f"chains of {name} need one.*a finite truncation, or"):
            gradient.backward(start, n=2, generator=rng())
    assert theta.grad is None


def test_the_variance_of_levels_of_a_chain_falls_as_two_to_the_minus_l() -> None:
    """Exactly, for a chain of two states: so Σ_l Var[Δ_l] / r^l is infinite for every r < 1/2."""
    matrix = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    second = []
    for level in range(1, 11):
        steps, half = 2**level, 2 ** (level - 1)
        weight = torch.full((steps,), 1.0 / steps, dtype=torch.float64)
        weight[:half] -= 1.0 / half
        # E[(Σ_i w_i 1{X_i = 0})²], the chain at its stationary law (4/5, 1/5).
        lag = torch.arange(steps)
        power = torch.stack([torch.linalg.matrix_power(matrix, int(k))[0, 0] for k in lag])
        moment = 0.8 * power[(lag[:, None] - lag[None]).abs()]
        second.append(float(weight @ moment @ weight))
    ratios = [b / a for a, b in pairwise(second)]
    assert ratios[-1] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0,), {}, "truncation must be a positive number"),
        ((math.nan,), {}, "truncation must be a positive number"),
        (("64",), {}, "truncation must be a number or a schedule"),
        ((math.inf,), {}, "continuation must be below 1/2 for truncation=math.inf, got 0.5"),
        ((64, 0.0), {}, "continuation must lie strictly between 0 and 1, got 0.0"),
        ((64, 1.0), {}, "continuation must lie strictly between 0 and 1, got 1.0"),
        ((64,), {"assignment": "all"}, "assignment must be one of"),
        ((64,), {"base": 0}, "base must be"),
        ((64,), {"max_transitions": 0}, "max_transitions must be"),
    ],
)
def test_bad_arguments(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        mg.MLMCSum(*arguments, **options)


def test_options_have_names() -> None:
    """`MLMCSum(T, r)`, and nothing more by position."""
    assert mg.MLMCSum(64, 0.4).continuation == 0.4
    for value in list[Any](["balanced", 2, 100]):
        with pytest.raises(TypeError, match="positional"):
            mg.MLMCSum(64, 0.5, value)  # type: ignore[call-arg]
    named = mg.MLMCSum(64, 0.5, assignment="balanced", base=2, max_transitions=100)
    assert (named.assignment, named.base, named.max_transitions) == ("balanced", 2, 100)
