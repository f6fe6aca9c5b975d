"""The numbers of `plan`, as summary.json has them; what is infinite is None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlmcgrad.diagnostics import Comparison
from mlmcgrad.diagnostics.choice import Choice, describe
from mlmcgrad.diagnostics.predicted import Predicted


def summarise(
    plans: Mapping[str, Choice], chosen: str, comparison: Comparison, **about: Any
) -> dict[str, Any]:
    """Plans by the name of their kernel, which of them is chosen, and the comparison."""
    return {
        **about,
        "kernel": chosen,
        "estimator": describe(plans[chosen].estimator),
        "best": list(comparison.best(plans[chosen].budget)),
        "plans": {name: _plan(choice) for name, choice in plans.items()},
        "comparison": comparison.record(),
    }


def _plan(choice: Choice) -> dict[str, Any]:
    return {
        "estimator": describe(choice.estimator),
        "schedule": str(choice.schedule),
        "verdict": choice.verdict,
        "warnings": list(choice.warnings),
        "error": choice.error,
        "known": choice.known,
        "crossover": _finite(choice.crossover),
        "budget": choice.budget,
        "simulations": choice.simulations,
        "candidates": [_predicted(each, choice.budget) for each in choice.shown()],
    }


def _predicted(each: Predicted, budget: float) -> dict[str, Any]:
    return {
        "estimator": describe(each.estimator),
        "bias2": each.bias.value,
        "bias2_se": each.bias.se,
        "variance": each.variance,
        "cost": each.cost,
        "error": math.sqrt(each.error(budget)),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
