"""The checks: right simulations pass, planted bugs fail, and what they spend is counted."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from benchmarks.certify_cases import MILD, Drifting, Weighed, WrongSelection, WrongWeights
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics._certify import Simulations
from mlmcgrad.diagnostics._checks import (
    _EACH,
    FALSE_ALARM,
    Segment,
    Setting,
    _visited,
    _weighted,
    check_law,
    check_levels,
    check_mixing,
    check_weights,
)
from mlmcgrad.kernels import ISIR, FromStep, Importance, Kernel
from tests.chains import rng


def setting(kernel: Kernel, x0: Tensor, seed: int = 0) -> Setting:
    problem = problems.gaussian()
    gradient = mg.MarkovGradient(kernel, problem.loss, mg.MLMC(2), parameters=problem.parameters)
    return Setting(gradient, x0, (), rng(seed))


def weighing(kernel: Kernel, count: int = 128) -> Setting:
    case = MILD.case("", kernel)
    return Setting(case.gradient, None, (torch.zeros(count),), rng())


def langevin() -> tuple[problems.GaussianTarget, Kernel]:
    problem = problems.gaussian()
    return problem, mg.kernels.MALA(problem.log_density, 0.5)


def test_three_checks_share_the_rate_of_false_alarms() -> None:
    assert pytest.approx(1e-5) == FALSE_ALARM == 3.0 * _EACH


def test_levels() -> None:
    problem, kernel = langevin()
    right, spent = check_levels(setting(kernel, problem.start(128)), 20_000)
    assert right.passed
    # Of p = 1, 2, 4, … steps: (1 + p) + (1 + 2p) evaluations for each of 128 chains.
    assert spent == 128 * sum(2 + 3 * p for p in (1, 2, 4, 8))
    assert right.sentence.startswith("Lengths 1 … 16 are consistent (p = ")
    assert right.p_value > FALSE_ALARM
    wrong, again = check_levels(setting(Drifting(kernel), problem.start(128)), 20_000)
    assert wrong.passed is False
    assert wrong.p_value < FALSE_ALARM
    assert wrong.sentence.startswith(
        "Simulations of length 8 and the first 8 steps of longer ones have different means"
    )
    assert "the steps depend on the length of the chain. Check the kernel" in wrong.sentence
    assert again == spent


def test_levels_of_importance_sampling() -> None:
    right, _ = check_levels(weighing(Importance(MILD.log_weight, MILD.propose, 4)), 20_000)
    assert right.passed


def parts(
    drift: float = 0.0, apart: float = 0.0, share: float = 0.0
) -> tuple[Segment, Segment, Segment]:
    """Three parts of 128 chains whose means are normal: 1 for each part, `apart` for each chain."""
    z = torch.randn(4, 128, 2, dtype=torch.float64, generator=rng())
    own = apart * z[3]
    found = []
    for i in range(3):
        x = z[i] + own + (drift if i == 2 else 0.0)
        found.append(Segment(x * (1.0 - share), x[None]))
    return found[0], found[1], found[2]


@pytest.mark.parametrize(
    ("drift", "apart", "words"),
    [
        (0.0, 0.0, "Means do not drift, and chains agree"),
        (1.0, 0.0, "Means still drift"),
        (0.0, 3.0, "The variance between chains is "),
    ],
)
def test_mixing(drift: float, apart: float, words: str) -> None:
    problem, kernel = langevin()
    where = setting(kernel, problem.start(128))
    simulations = Simulations(where)
    simulations.segment(1)
    found = check_mixing(where, simulations.moved, *parts(drift, apart))
    assert found.passed == (drift == apart == 0.0)
    assert found.sentence.startswith(words)
    assert (found.p_value >= FALSE_ALARM / 3.0) == found.passed
    if not found.passed:
        assert found.sentence.endswith("or use a kernel that mixes faster.")


def test_a_drift_since_the_part_before_is_seen() -> None:
    problem, kernel = langevin()
    where = setting(kernel, problem.start(128))
    simulations = Simulations(where)
    simulations.segment(1)
    before, first, second = parts()
    moved = Segment(before.estimates + 1.0, before.states)
    assert check_mixing(where, simulations.moved, before, first, second).passed
    assert not check_mixing(where, simulations.moved, moved, first, second).passed


def test_states_are_compared_where_estimates_say_nothing() -> None:
    """H is always 0, but the chains are apart."""
    problem, kernel = langevin()
    where = setting(kernel, problem.start(128))
    simulations = Simulations(where)
    simulations.segment(1)
    assert not check_mixing(where, simulations.moved, *parts(apart=3.0, share=1.0)).passed


def test_chains_that_never_move() -> None:
    problem, _ = langevin()
    where = setting(FromStep(lambda x, generator: x), problem.start(128))
    simulations = Simulations(where)
    part = simulations.segment(4)
    found = check_mixing(where, simulations.moved, part, part, part)
    assert found.passed is False
    assert found.sentence == "No chain has moved. Reduce the step size, or check x0."


def test_weights() -> None:
    found, spent = check_weights(weighing(ISIR(MILD.log_weight, MILD.propose, 4)), 1e4)
    assert found is not None
    assert found.passed
    assert spent == 64 * 128
    found, spent = check_weights(weighing(ISIR(MILD.log_weight, MILD.propose, 4), count=2), 1e4)
    assert found is not None
    assert found.sentence.startswith("1024 draws have an effective sample size of ")
    assert spent == 2048
    far = Weighed(60, 1.5)
    found, _ = check_weights(
        Setting(
            far.case("", Importance(far.log_weight, far.propose, 4)).gradient,
            None,
            (torch.zeros(8),),
            rng(),
        ),
        1e4,
    )
    assert found is not None
    assert found.passed is False
    assert found.sentence.endswith("Use a proposal that covers the target.")
    problem, kernel = langevin()
    assert check_weights(setting(kernel, problem.start(8)), 1e4) == (None, 0)
    _, spent = check_weights(weighing(ISIR(MILD.log_weight, MILD.propose, 4)), 0.0)
    assert spent == 64 * 16


def law(where: Setting, evaluations: float = 1e5) -> tuple[bool | None, str, int]:
    simulations = Simulations(where)
    simulations.segment(32)
    found, spent = check_law(where, (simulations.segment(32), simulations.segment(32)), evaluations)
    return found.passed, found.sentence, spent


def test_the_law_of_weighing_kernels() -> None:
    for right in (ISIR, Importance):
        passed, sentence, spent = law(weighing(right(MILD.log_weight, MILD.propose, 4)))
        assert passed
        assert "changes no mean (p = " in sentence
        assert 1e4 < spent < 2e5  # random lengths cost 1e5 in the mean
    for wrong in (WrongSelection, WrongWeights):
        passed, sentence, _ = law(weighing(wrong(MILD.log_weight, MILD.propose, 4)))
        assert passed is False
        assert "their distribution is not that of the density" in sentence


def test_the_law_of_a_chain_from_as_many_states_as_may_be() -> None:
    problem, kernel = langevin()
    start = problem.sample(128, rng(5))
    passed, sentence, spent = law(setting(kernel, start))
    assert passed
    assert "from 8,192 states" in sentence
    assert spent == 5 * 8192
    assert law(setting(kernel, start), 1_280)[2] == 1_280
    passed, sentence, spent = law(setting(kernel, start), 1_000)
    assert passed is False
    assert spent == 5 * 128
    assert sentence.endswith("Increase evaluations.")  # too few to detect anything


def test_a_law_that_cannot_be_checked() -> None:
    problem, _ = langevin()

    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        return problem.sample(len(x), generator)

    where = setting(FromStep(step), problem.start(128))
    assert law(where) == (
        None,
        "The stationary distribution was not checked: no log_density is given.",
        0,
    )
    passed, _, _ = law(dataclasses.replace(where, log_density=problem.log_density))
    assert passed
    wrong = dataclasses.replace(where, log_density=lambda x: 0.8 * problem.log_density(x))
    assert law(wrong)[0] is False
    # Whole numbers that are not 0 or 1: a density says nothing of how to move them.
    counts = setting(FromStep(lambda x, generator: x + 1), torch.arange(128))
    found, _ = check_law(
        dataclasses.replace(counts, log_density=lambda x: -x.double()),
        (Segment(torch.zeros(128, 1), torch.arange(128)[None]),) * 2,
        1e5,
    )
    assert found.passed is None


def test_states_that_were_visited_have_the_same_weight() -> None:
    found = _visited(torch.arange(12.0).reshape(6, 2), 7.0)
    assert found.points.tolist() == [0.0, 1.0, 4.0, 5.0, 8.0, 9.0]
    assert found.owner.tolist() == [0, 1, 0, 1, 0, 1]
    assert found.coefficient.tolist() == pytest.approx([1.0 / 3.0] * 6)


def test_draws_are_as_long_as_the_evaluations_allow() -> None:
    """2.2 blocks of 4 draws in the mean, 6 evaluations each, 128 times: 8 times that is 54,000."""
    measure, spent = _weighted(weighing(Importance(MILD.log_weight, MILD.propose, 4)), 1e5)
    draws = torch.bincount(measure.owner)
    assert int(draws.min()) == 8 * 4
    assert spent == len(measure)
    assert measure.coefficient.sum().item() == pytest.approx(128.0)
