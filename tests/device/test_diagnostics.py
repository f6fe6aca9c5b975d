"""Diagnostics on the stand-in: they say what they say on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import mlmcgrad as mg
from mlmcgrad import diagnostics
from mlmcgrad.estimators import Estimator
from tests.device.place import CPU, DEVICE, same
from tests.device.scenarios import Scenario, scenario

pytestmark = pytest.mark.filterwarnings("ignore")  # small budgets are remarked on


def problem(made: Scenario, estimator: Estimator) -> mg.MarkovGradient:
    return mg.MarkovGradient(made.kernel, made.loss, estimator, parameters=made.parameters)


def plan(made: Scenario, rng: torch.Generator) -> object:
    return diagnostics.plan(
        problem(made, mg.MLMC(16)), made.x0, *made.context, budget=1e5, pilot=2000, generator=rng
    )


def certify(made: Scenario, rng: torch.Generator) -> object:
    return diagnostics.certify(
        problem(made, mg.MLMCSum(32)), made.x0, *made.context, evaluations=5000, generator=rng
    )


def compare(made: Scenario, rng: torch.Generator) -> object:
    contenders = {"average": problem(made, mg.Average(4)), "mlmc": problem(made, mg.MLMC(8))}
    return diagnostics.compare(contenders, made.x0, *made.context, evaluations=4000, generator=rng)


def level_test(made: Scenario, rng: torch.Generator) -> object:
    return diagnostics.level_test(
        problem(made, mg.MLMC(8)), made.x0, *made.context, highest=2, replicates=2000, generator=rng
    )


CASES = [
    *((v, kernel) for v in (plan, certify, compare) for kernel in ("Finite", "ISIR", "Importance")),
    (level_test, "Finite"),
]


@pytest.mark.parametrize(("verb", "kernel"), CASES)
def test_verbs(verb: Callable[[Scenario, torch.Generator], object], kernel: str) -> None:
    found = []
    for device in (CPU, DEVICE):
        chains = 1 if verb is level_test else 8
        rng = torch.Generator(device).manual_seed(0)
        found.append(str(verb(scenario(kernel, device, chains), rng)))
    assert same(found[0], found[1])
