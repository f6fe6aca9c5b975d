"""Bias, variance and cost of an estimator, from a pilot.

An estimator draws a simulation of length 2^j with weights a_l on H^{(2^l)} with a known probability
(`plan_for`), so with α_l = Σ_{m≥l} a_m on the differences D_l,

    E[Ĥ | α] = Σ_l α_l δ_l,     Var Ĥ = E[αᵀ Cov(D) α] + Var E[Ĥ | α]     (traces),

for each row of the data; what differs between rows is no noise, as all of them are used alike.

A gradient averaged over a budget of B evaluations has the mean squared error

    bias² + work × variance / B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mlmcgrad.diagnostics.approach import Squared
from mlmcgrad.diagnostics.decay import Decay
from mlmcgrad.diagnostics.ladder import outcomes
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum


@dataclass(frozen=True)
class Cost:
    """Evaluations of a simulation: of its start, and of each step."""

    start: float
    step: float

    def of(self, steps: float) -> float:
        """Evaluations of a simulation with so many steps."""
        return self.start + self.step * steps


@dataclass(frozen=True)
class Predicted:
    """One simulation's estimate."""

    estimator: Estimator
    bias: Squared  # ‖bias‖² and its standard error
    variance: float  # trace of the covariance matrix
    cost: float  # evaluations

    @property
    def work_variance(self) -> float:
        """What the variance of a budget of one evaluation would be."""
        return self.cost * self.variance

    def error(self, budget: float) -> float:
        """Mean squared error of the average over a budget of evaluations."""
        return self.bias.value + self.work_variance / budget

    def risk(self, budget: float) -> float:
        """The same with a bias that is as large as it may well be."""
        return self.bias.cautious + self.work_variance / budget

    def needed(self, accuracy: float) -> float:
        """Evaluations for a root mean squared error; infinite if the bias alone may be larger."""
        left = accuracy**2 - self.bias.cautious
        return self.work_variance / left if left > 0.0 else math.inf


def predict(estimator: Estimator, decay: Decay, cost: Cost) -> Predicted:
    """What an estimator with lengths that are powers of two would do.

    Args:
        estimator: `Average` (its burn-in 0 or as long as its length), `MLMC` or `MLMCSum`.
        decay: of a pilot; levels beyond it are extrapolated.
        cost: of a simulation.
    """
    within, between, steps = 0.0, 0.0, 0.0
    weights: dict[int, float] = {}  # E[a_l]
    every = combinations(estimator)
    highest = max(lengths[-1].bit_length() - 1 for _, lengths, _ in every)
    products, mean = decay.products(highest), torch.zeros(highest + 1, dtype=torch.float64)
    for probability, lengths, a in every:
        top = lengths[-1].bit_length() - 1
        alpha = torch.zeros(highest + 1, dtype=torch.float64)
        for length, weight in zip(lengths, a, strict=True):
            alpha[: length.bit_length()] += weight
            level = length.bit_length() - 1
            weights[level] = weights.get(level, 0.0) + probability * weight
        some = alpha[: top + 1]
        within += probability * float(some @ decay.covariance(top) @ some)
        between += probability * float(alpha @ products @ alpha)
        mean += probability * alpha
        steps += probability * lengths[-1]
    between = max(0.0, between - float(mean @ products @ mean))
    # What telescopes is left with rounding only.
    bias = decay.bias({level: a for level, a in weights.items() if abs(a) > 1e-9})
    variance = within + between
    if isinstance(estimator, Average):
        skip = every[0][1][0] if len(every[0][1]) > 1 else 0
        variance = decay.average_variance(every[0][1][-1] - skip, skip) or variance
    return Predicted(estimator, bias, variance, cost.of(steps))


def combinations(estimator: Estimator) -> list[tuple[float, list[int], list[float]]]:
    """Probability, lengths p_j and weights a_j of every simulation that may be drawn."""
    if isinstance(estimator, Average):
        plans = [(1.0, estimator.plan(1, None, torch.Generator()))]
    elif isinstance(estimator, (MLMC, MLMCSum)):
        plans = [
            (probability, estimator.plan_for(torch.tensor([level])))
            for probability, level, _ in outcomes(estimator)
        ]
    else:
        raise TypeError(f"estimator must be MLMC, MLMCSum or Average, got {estimator!r}")
    found = []
    for probability, plan in plans:
        lengths = plan.lengths[0].tolist()
        if any(math.log2(length) % 1 for length in lengths):
            raise ValueError(
                f"estimator must have lengths that are powers of two to be predicted, got {lengths}"
            )
        found.append((probability, lengths, (plan.weights * plan.lengths)[0].tolist()))
    return found
