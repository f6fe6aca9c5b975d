"""Plans: near the best of all estimators by exact moments, honest about what they do not know."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import diagnostics, kernels, problems
from mlmcgrad.diagnostics._plan import Plan, Truncations, describe, grid
from mlmcgrad.estimators import MLMC, Average, MLMCSum, Stages
from tests.diagnostics.planned import Known, finite, importance


def planned(known: Known, budget: float, simulations: int | None, seed: int = 7) -> Plan:
    return diagnostics.plan(
        known.gradient,
        known.x0,
        budget=budget,
        simulations=simulations,
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("states", [4, 6, 20])
def test_within_half_of_the_best(states: int, seed: int) -> None:
    """Against all estimators of the grid with up to 2048 steps, in a training of many chains."""
    known, budget = finite(states, 2, longest=2**14), 1e7
    among = int(budget / 16)
    choice = planned(known, budget, among, seed)
    possible = [e for e in grid(5, nested=False) if e.longest() <= 2**11]
    errors = [
        known.exact.error(e, budget) for e in possible if e.expected_length() <= budget / among
    ]
    assert choice.estimator.expected_length() <= 16.0
    assert choice.estimator.longest() <= known.exact.longest
    error = known.exact.error(choice.estimator, budget)
    assert error < 1.5 * min(errors)
    assert choice.error**2 == pytest.approx(error, rel=0.5 if choice.known else 2.0)


def test_few_long_chains_need_no_multilevel() -> None:
    choice = planned(finite(4, 0), 1e6, None)
    assert not choice.multilevel
    assert choice.estimator.longest() > 100
    assert choice.verdict.startswith("Multilevel does not pay here: Average(")
    assert "the chain mixes in 2 steps" in choice.verdict
    assert choice.crossover == math.inf or choice.crossover > choice.budget


def test_many_short_ones_do() -> None:
    choice = planned(finite(20, 2), 1e6, 100_000)
    assert choice.multilevel
    assert choice.verdict.startswith(f"Use {describe(choice.estimator)}: its mean squared error")
    assert choice.crossover < choice.budget
    # Below the crossover the short one is better.
    assert choice.plain is not None
    assert choice.multi is not None
    less = 0.5 * choice.crossover
    assert choice.plain.error(less) < choice.multi.error(less)


def test_a_larger_budget_never_wants_more_bias() -> None:
    known = finite(6, 1)
    small, large = (planned(known, budget, int(budget / 8)) for budget in (1e3, 1e7))
    assert large.best.bias.value < small.best.bias.value
    assert large.error < small.error


def test_a_slow_chain_is_not_said_to_be_known() -> None:
    choice = planned(finite(20, 2), 1e4, None)  # forgets in 54 steps; the pilot has 8
    assert not choice.known
    assert planned(finite(6, 1), 1e6, 100_000).known


def test_accuracy_in_place_of_a_budget() -> None:
    known = finite(6, 1, longest=2**14)
    rng = torch.Generator().manual_seed(0)
    choice = diagnostics.plan(known.gradient, known.x0, accuracy=0.01, generator=rng)
    assert choice.error <= 0.01
    bias, variance, steps = known.exact.moments(choice.estimator)
    assert bias + variance * steps / choice.budget < 1.5 * 0.01**2
    rng = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=r"accuracy must be > .*, got 1e-12"):
        diagnostics.plan(known.gradient, known.x0, accuracy=1e-12, generator=rng)


def test_importance_sampling_has_levels_and_no_burn_in() -> None:
    gradient, y = importance()
    rng = torch.Generator().manual_seed(0)
    choice = diagnostics.plan(gradient, None, y, budget=1e6, simulations=50_000, generator=rng)
    assert isinstance(choice.estimator, MLMCSum)
    assert all(not getattr(c.estimator, "burn_in", 0) for c in choice.candidates)
    assert choice.known


def test_the_pilot_keeps_to_its_evaluations() -> None:
    known = finite(6, 1)
    for pilot, most in ((None, 5e3), (5e3, 5e3), (2e4, 2e4)):
        rng = torch.Generator().manual_seed(0)
        choice = diagnostics.plan(known.gradient, known.x0, budget=1e5, pilot=pilot, generator=rng)
        assert 0.5 * most <= choice.decay.pilot.evaluations <= 1.01 * most


def test_same_generator_same_plan() -> None:
    known = finite(6, 1)
    assert str(planned(known, 1e5, 10_000)) == str(planned(known, 1e5, 10_000))


def test_progress_is_reported() -> None:
    known, seen = finite(6, 1), list[float]()
    rng = torch.Generator().manual_seed(0)
    diagnostics.plan(known.gradient, known.x0, budget=1e5, generator=rng, report=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_schedule_begins_short_and_is_an_estimator_too() -> None:
    choice = planned(finite(20, 2), 1e7, 1_000_000)
    assert isinstance(choice.schedule, Truncations)
    first, last = choice.schedule(1), choice.schedule(10**9)
    assert first < last
    assert last == choice.family[-1].truncation
    estimator = choice.scheduled
    assert isinstance(estimator.at(10**9), (MLMC, MLMCSum))
    assert estimator.longest(1) <= first
    assert estimator.longest(10**9) == last


def test_schedule_of_a_plain_average() -> None:
    known, rng = finite(4, 0), torch.Generator().manual_seed(7)
    choice = diagnostics.plan(known.gradient, known.x0, budget=1e6, iteration=0, generator=rng)
    estimator = choice.scheduled
    assert isinstance(estimator.at(10**6), Average)
    assert estimator.expected_length(1) <= estimator.expected_length(10**6)


def test_a_schedule_is_multilevel_where_iterations_count_though_long_chains_are_best() -> None:
    choice = planned(finite(4, 0), 1e6, None)
    assert not choice.multilevel
    assert choice.estimator.expected_length() > 1e4
    assert isinstance(choice.scheduled.at(10**6), (MLMC, MLMCSum))
    assert choice.scheduled.expected_length(10**6) < 100.0


def test_a_schedule_uses_what_the_plan_knows_of_bases() -> None:
    """Importance sampling: near the end of a training a larger base has less work × variance."""
    gradient, y = importance()
    root = mg.schedules.power(1.0, 0.5)
    choice = diagnostics.plan(
        gradient,
        None,
        y,
        budget=1e6,
        simulations=10_000,
        iteration=100,
        after=root,
        generator=torch.Generator().manual_seed(0),
    )
    used = choice.scheduled.at(101)
    assert isinstance(used, MLMCSum)
    assert used.base > 1
    alike = [c for c in choice.candidates if c.estimator.longest() == used.longest()]
    single = [c.work_variance for c in alike if getattr(c.estimator, "base", 0) == 1]
    (mine,) = (c.work_variance for c in alike if c.estimator == used)
    assert mine < 0.6 * min(single)
    # T is at least what it was told.
    assert all(choice.schedule(n) > root(n) / 2.0 for n in (1, 50, 101, 5000, 10**6))
    assert all(choice.scheduled.longest(n) == choice.schedule(n) for n in (1, 50, 101, 10**6))


def test_no_step_moved_is_a_warning() -> None:
    target = problems.gaussian()
    gradient = mg.MarkovGradient(
        kernels.RWMH(target.log_density, 1e9), target.loss, MLMC(2), parameters=target.parameters
    )
    rng = torch.Generator().manual_seed(0)
    choice = diagnostics.plan(gradient, target.start(1), budget=1e4, generator=rng)
    assert any("No step of the longest simulations was accepted" in w for w in choice.warnings)
    assert not choice.known


def test_heavy_tails_are_a_warning() -> None:
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def heavy(x: Tensor, generator: torch.Generator) -> Tensor:
        return 1.0 / (torch.rand(x.shape, dtype=x.dtype, generator=generator) + 1e-3)

    kernel = kernels.FromStep(heavy)
    gradient = mg.MarkovGradient(kernel, lambda x: x @ theta, MLMC(2), parameters=[theta])
    rng, start = torch.Generator().manual_seed(0), torch.zeros(1, 1, dtype=torch.float64)
    choice = diagnostics.plan(gradient, start, budget=1e6, generator=rng)
    assert any("kurtosis" in w for w in choice.warnings)
    assert "kurtosis" in str(choice)
    assert not choice.known


def test_weights_that_collapse_are_a_warning() -> None:
    gradient, y = importance(d=16, s=0.6, m=1.5)  # a proposal beside the target
    rng = torch.Generator().manual_seed(0)
    choice = diagnostics.plan(gradient, None, y, budget=1e6, generator=rng)
    assert any("of the weight: the proposal misses" in w for w in choice.warnings)
    assert not choice.known
    mild, y = importance()
    assert not diagnostics.plan(mild, None, y, budget=1e6, generator=rng).warnings


def test_the_table_names_what_users_think_of() -> None:
    text = str(planned(finite(6, 1), 1e5, 10_000))
    lines = text.splitlines()
    assert lines[0] == "A gradient averaged over 1e+05 evaluations, at least 10000 simulations"
    assert any(line.startswith("Average(1) ") for line in lines)
    assert any(line.startswith("MLMCSum(") for line in lines)


def test_errors_name_the_argument() -> None:
    known, rng = finite(6, 1), torch.Generator()
    with pytest.raises(ValueError, match="give either budget or accuracy, got None and None"):
        diagnostics.plan(known.gradient, known.x0, generator=rng)
    with pytest.raises(ValueError, match="give either budget or accuracy"):
        diagnostics.plan(known.gradient, known.x0, budget=1.0, accuracy=1.0, generator=rng)
    with pytest.raises(
        ValueError, match="budget must be ≥ 8, the evaluations of 8 simulations of one step"
    ):
        diagnostics.plan(known.gradient, known.x0, budget=7.0, generator=rng)
    with pytest.raises(ValueError, match="pilot must be"):
        diagnostics.plan(known.gradient, known.x0, budget=1e5, pilot=-1.0, generator=rng)
    with pytest.raises(ValueError, match="simulations must be"):
        diagnostics.plan(known.gradient, known.x0, budget=1e5, simulations=0, generator=rng)
    with pytest.raises(ValueError, match="accuracy must be"):
        diagnostics.plan(known.gradient, known.x0, accuracy=-1.0, generator=rng)


def test_descriptions_are_what_one_would_write() -> None:
    assert describe(Average(8)) == "Average(8)"
    assert describe(Average(8, burn_in=4)) == "Average(8, burn_in=4)"
    assert describe(MLMC(64, base=4)) == "MLMC(64, base=4)"
    assert describe(MLMCSum(128)) == "MLMCSum(128)"
    assert describe(MLMCSum(128, 0.35)) == "MLMCSum(128, 0.35)"
    stages = Stages(tuple((n, MLMC(2**n)) for n in range(1, 6)))
    assert describe(Stages(stages.steps[:2])) == "MLMC(2) from n = 1; MLMC(4) from n = 2"
    assert describe(stages).endswith("; MLMC(16) from n = 4; …")


def test_a_schedule_does_not_go_below_an_earlier_one() -> None:
    known = finite(20, 2)
    rng = torch.Generator().manual_seed(7)
    first = Truncations(((1, 2.0), (3, 16.0)))
    choice = diagnostics.plan(
        known.gradient, known.x0, budget=1e6, simulations=100_000, after=first, generator=rng
    )
    alone = planned(known, 1e6, 100_000)
    for n in (1, 2, 3, 10, 1000, 10**6):
        assert choice.schedule(n) == max(first(n), alone.schedule(n))


def test_a_training_with_a_long_way_to_go_has_short_chains() -> None:
    """The finite chain's loss has its whole gradient."""
    known = finite(20, 2)
    rng = torch.Generator().manual_seed(7)
    arguments = {"budget": 1e6, "simulations": 100_000, "generator": rng}
    without = diagnostics.plan(known.gradient, known.x0, iteration=0, **arguments)  # type: ignore[arg-type]
    late = diagnostics.plan(known.gradient, known.x0, iteration=1000, **arguments)  # type: ignore[arg-type]
    assert late.schedule(1000) < without.schedule(1000)
    with pytest.raises(ValueError, match=r"iteration must be an integer from 0 to .*, got -1"):
        diagnostics.plan(known.gradient, known.x0, iteration=-1, **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"after must be a schedule, .* got 8.0"):
        diagnostics.plan(known.gradient, known.x0, after=8.0, **arguments)  # type: ignore[arg-type]
