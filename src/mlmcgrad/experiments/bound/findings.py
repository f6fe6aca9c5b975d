"""The theorems for given numbers: constants, the terms of the bound at many N, rates, a plan."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from mlmcgrad import theory
from mlmcgrad.experiments.bound.matrix_file import read_matrix
from mlmcgrad.experiments.bound.settings import Bound
from mlmcgrad.experiments.folder import Findings
from mlmcgrad.experiments.settings import Preset
from mlmcgrad.schedules import power

PER_DECADE = 4  # values of N for each power of ten
# The largest power of ten among the N; the smallest is 2.
_HIGHEST: dict[Preset, int] = {"smoke": 4, "quick": 10, "full": 15}


def evaluate(settings: Bound) -> Findings:
    """One row for each N with the terms of the bound; constants, rate and plan in the summary.

    Raises:
        ValueError: a setting is out of its range, or so far from 1 that the bound overflows; the
            message names it.
    """
    try:
        with np.errstate(all="ignore"):
            findings = _evaluate(settings)
    except (OverflowError, ZeroDivisionError) as error:
        raise _overflow(settings) from error
    numbers = [row["total"] for row in findings.rows] + [*findings.summary["constants"].values()]
    if not all(map(math.isfinite, numbers)):
        raise _overflow(settings)
    return findings


def _evaluate(settings: Bound) -> Findings:
    chain = _ergodicity(settings)
    problem = theory.Problem(
        theory.constants(settings.dimension, chain), G=settings.G, L=settings.L, gap=settings.gap
    )
    method: theory.Method = "general" if settings.optimizer == "sgd" else settings.optimizer
    options = _options(settings)
    steps = PER_DECADE * (_HIGHEST[settings.preset] - 2)
    N = [round(10 ** (2 + i / PER_DECADE)) for i in range(steps + 1)]
    bound: theory.Bound = getattr(theory.bounds, method)(
        N,
        problem,
        gamma=power(settings.gamma_scale, -settings.gamma_exponent),
        truncation=power(settings.truncation_scale, settings.truncation_exponent),
        **options,
    )
    rate: theory.Rate = getattr(theory.rates, method)(
        settings.gamma_exponent, settings.truncation_exponent, as_printed=settings.as_printed
    )
    rows = [
        {
            "N": n,
            "terms": {name: float(values[i]) for name, values in bound.terms.items()},
            "total": float(bound.total[i]),
        }
        for i, n in enumerate(N)
    ]
    summary: dict[str, Any] = {
        "optimizer": settings.optimizer,
        "constants": _constants(settings, problem, chain),
        "rate": {
            "exponent": rate.exponent,
            "log_power": rate.log_power,
            "dominant": list(rate.dominant),
            "terms": {name: list(order) for name, order in rate.terms.items()},
        },
        "bound": {str(row["N"]): row["total"] for row in rows},
    }
    if settings.accuracy is not None:
        summary |= _plan(settings.accuracy, problem, method, options)
    return Findings(rows, summary)


def _overflow(settings: Bound) -> ValueError:
    """The error that names the constant furthest from 1."""
    values = {
        name: value
        for name, value in vars(settings).items()
        if isinstance(value, (int, float)) and value > 0 and "exponent" not in name
    }
    name = max(values, key=lambda name: abs(math.log10(values[name])))
    return ValueError(
        f"{name} must be closer to 1, got {values[name]:g}: the bound is beyond the range of "
        "double precision; choose other units, or other constants"
    )


def _ergodicity(settings: Bound) -> theory.Ergodicity:
    if settings.matrix is None:
        return theory.Ergodicity(zeta=settings.zeta, alpha=settings.alpha, beta=settings.beta)
    rows = read_matrix(settings.matrix)
    try:
        return theory.ergodicity(rows)
    except ValueError as error:
        raise ValueError(f"matrix: {settings.matrix}: {error}") from error


def _options(settings: Bound) -> dict[str, Any]:
    """What the optimizer's theorem takes besides the schedules."""
    if settings.optimizer == "adagrad":
        return {"epsilon": settings.epsilon, "clip": settings.clip}
    if settings.optimizer == "amsgrad":
        names = ("rho1", "rho2", "delta", "clip", "as_printed")
        return {name: getattr(settings, name) for name in names}
    return {}


def _constants(
    settings: Bound, problem: theory.Problem, chain: theory.Ergodicity
) -> dict[str, float]:
    constants = {"G": problem.G, "L": problem.L, "gap": problem.gap}
    constants |= {"zeta": chain.zeta, "alpha": chain.alpha, "beta": chain.beta}
    constants |= dataclasses.asdict(problem.constants)
    if chain.mixing_time is not None:
        constants["mixing_time"] = chain.mixing_time
    if settings.optimizer == "amsgrad":
        coefficients = theory.amsgrad_coefficients(
            problem,
            gamma_1=settings.gamma_scale,
            truncation_1=settings.truncation_scale,
            rho1=settings.rho1,
            delta=settings.delta,
            as_printed=settings.as_printed,
        )
        constants |= dataclasses.asdict(coefficients)
    return constants


def _plan(
    accuracy: float, problem: theory.Problem, method: theory.Method, options: dict[str, Any]
) -> dict[str, Any]:
    """What reaches the accuracy, or why nothing does."""
    try:
        plan = theory.recommend(accuracy, problem, method, **options)
    except theory.UnreachableError as error:
        return {"plan": None, "plan_missing": str(error)}
    return {
        "plan": {
            "accuracy": plan.accuracy,
            "gamma": [plan.gamma.c, plan.gamma.exponent],
            "truncation": [plan.truncation.c, plan.truncation.exponent],
            "iterations": plan.iterations,
            "bound": plan.bound,
            "cost": plan.expected_cost,
            "longest_chain": plan.longest_chain,
            "average_cost": plan.average_cost,
            "saving": plan.saving,
        }
    }
