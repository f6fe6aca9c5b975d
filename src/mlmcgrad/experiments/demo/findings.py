"""The numbers of `demo`: measured gradients, training curves, and what is known exactly."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch

from mlmcgrad.estimators import MLMC
from mlmcgrad.experiments.folder import Findings
from mlmcgrad.problems import FiniteChain

Rows = list[dict[str, Any]]


def summarise(gradients: Rows, curves: Rows, problem: FiniteChain) -> Findings:
    """The curves; for each method its gradient, and V − min V at the end of training.

    `ladder`: exact bias of chains of length 2, 4, … 1024, and what each costs as MLMC.
    """
    for row in gradients:
        for steps in dict.fromkeys(c["steps"] for c in curves):
            runs = [c for c in curves if (c["method"], c["steps"]) == (row["method"], steps)]
            row[f"final_{steps}"] = fmean(c["excess"][-1] for c in runs)
    (exact,) = problem.exact_gradient()
    ladder = [
        {
            "length": t,
            "mlmc_cost": MLMC(t).expected_length(),
            "bias": float((problem.average_gradient(t) - exact).norm()),
        }
        for t in (2**k for k in range(1, 11))
    ]
    return Findings(curves, {"methods": gradients, "ladder": ladder})


def minimum(problem: FiniteChain) -> float:
    """The smallest V(θ), by Newton's method: V is convex and its Hessian is Cov_π(f)."""
    theta, features = problem.theta.detach().clone(), problem.features
    for _ in range(50):
        law = (features @ theta).softmax(0)
        mean = law @ features
        hessian = (features - mean).T @ (law[:, None] * (features - mean))
        theta -= torch.linalg.solve(hessian, mean - problem.data_mean)
    return FiniteChain(theta, features, problem.data_mean).objective()
