"""Standard errors, Monte Carlo errors and certificates of sampled fits, against quadrature.

By default `mixed.fit` computes the integrals of these models by quadrature, too; here they are
sampled, as those of models with more effects per group are.

200 simulated data sets of each model, fitted once each. The standard errors are compared with those
of the curvature of the exact log-likelihood at the same estimate: the ratio should be within 3 % of
1 for every parameter. A Monte Carlo error is the standard deviation of an estimate about the
maximum of the exact likelihood; over the data sets, the root mean square of the distance over the
reported error should be 1. The bound of a certificate should cover the distance in at least 95 % of
the fits.

The exact values are integrals over u ~ N(0, I) by the trapezoidal rule on [−7, 7]^q, whose error
falls exponentially in the number of nodes, also where a posterior is far from normal. With the
complete-data score S and information J of a group, as in Louis' identity,

    ∇ log p(y) = E[S | y],      −∇² log p(y) = E[J | y] − Var[S | y].

    python -m benchmarks.mixed_errors

takes about three minutes of one core and writes mixed_errors.md beside this file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor
from torch.nn.functional import softplus

from mlmcgrad import MLMCSum, mixed
from mlmcgrad.mixed.design import Design

Floats = NDArray[np.float64]

REPLICATIONS = 200
SAMPLED = MLMCSum(math.inf, 2**-1.5, assignment="balanced", max_transitions=2**14)
_LARGEST = 7.0  # of each coordinate of u


@dataclass(frozen=True)
class Case:
    """A logistic model with one grouping factor."""

    name: str
    formula: str
    groups: int
    rows: int
    slope: bool

    def data(self, seed: int) -> pd.DataFrame:
        """Return simulated data; the covariate of a slope is skewed."""
        rng = np.random.default_rng(seed)
        g = np.repeat(np.arange(self.groups), self.rows)
        x = rng.lognormal(0.0, 0.8, len(g)) if self.slope else rng.standard_normal(len(g))
        b = rng.standard_normal((self.groups, 2)) @ np.array([[1.5, 0.3], [0.0, 0.6]])
        eta = -0.5 + 0.5 * x + b[g, 0] + (b[g, 1] * x if self.slope else 0.0)
        y = (rng.random(len(g)) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
        return pd.DataFrame({"y": y, "x": x, "g": g})


CASES = (
    Case("intercept", "y ~ x + (1 | g)", 60, 6, False),
    Case("intercept and slope of a skewed covariate", "y ~ x + (1 + x | g)", 60, 10, True),
)


def exact(design: Design, theta: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Return the gradient of the exact log-likelihood and its negative Hessian.

    Args:
        design: binary responses, and one grouping factor with correlated effects.
        theta: fixed effects, then the lower triangle of Λ row by row.
        nodes: in each direction.
    """
    (effects,), x = design.effects, design.fixed
    p, q = x.shape[1], effects.columns.shape[1]
    row, column = torch.tril_indices(q, q)
    factor = torch.zeros(q, q, dtype=torch.float64)
    factor[row, column] = theta[p:]
    line = torch.linspace(-_LARGEST, _LARGEST, nodes, dtype=torch.float64)
    u = torch.cartesian_prod(*[line] * q).reshape(-1, q)
    v = torch.cat([torch.ones_like(u[:, :1]), u], 1)  # (nodes, 1 + q)
    squares = (v[:, :, None] * v[:, None]).reshape(len(v), -1)
    # η has the slopes c_k v_k: x with v = 1, then the columns of effects with u.
    slopes = torch.cat([x, effects.columns[:, row]], 1)
    place = torch.cat([torch.zeros(p, dtype=torch.int64), 1 + column])
    total, hessian = torch.zeros_like(theta), torch.zeros(len(theta), len(theta)).double()
    for group in range(len(effects.groups)):
        rows = effects.index == group
        c, y = slopes[rows], design.y[rows, None]
        eta = (x[rows] @ theta[:p])[:, None] + effects.columns[rows] @ factor @ u.T
        log_joint = (y * eta - softplus(eta)).sum(0) - 0.5 * u.square().sum(1)
        w, mean = log_joint.softmax(0), torch.sigmoid(eta)
        score = (c.T @ (y - mean)).T * v[:, place]  # (nodes, θ)
        moments = ((w * mean * (1.0 - mean)) @ squares).reshape(-1, 1 + q, 1 + q)
        complete = torch.einsum("ik,il,ikl->kl", c, c, moments[:, place][:, :, place])
        expected = w @ score
        centred = score - expected
        total += expected
        hessian += complete - (w[:, None] * centred).T @ centred
    return total, hessian


def run(case: Case) -> tuple[Floats, Floats, Floats, list[str]]:
    """Return ratios of standard errors, distances in Monte Carlo errors, coverage, and exclusions.

    A fit on the boundary, whose information is not that of an interior maximum, is left out.
    """
    ratios, distances, covered, left_out = [], [], [], list[str]()
    for seed in track(range(REPLICATIONS), description=case.name):
        data = case.data(seed)
        fit = mixed.fit(
            case.formula, data, "bernoulli", seed=seed, estimator=SAMPLED, progress=False
        )
        if not fit.converged or fit.notes or fit.certificate is None:
            left_out.append(fit.problem or fit.notes[0])
            continue
        gradient, hessian = map(np.asarray, exact(mixed.build(case.formula, data), fit.theta, 100))
        errors = np.sqrt(np.diag(np.linalg.inv(hessian)))
        ratios.append(np.sqrt(np.diag(fit.parameter_covariance)) / errors)
        # One Newton step of the exact likelihood: the estimate is next to its maximum.
        distance = np.linalg.solve(hessian, gradient)
        distances.append(distance / np.sqrt(np.diag(fit.monte_carlo_covariance)))
        covered.append(np.abs(distance / errors).max() <= fit.certificate.bound)
    return np.array(ratios), np.array(distances), np.array(covered), left_out


def main() -> None:
    """Run all cases and write the table."""
    lines = [
        f"{REPLICATIONS} data sets of each model; see mixed_errors.py.",
        "",
        "| model | standard error over quadrature, all parameters: median, 2.5 % and 97.5 %, "
        "extremes | within 3 % | distance from the maximum in Monte Carlo errors, root mean square "
        "| covered by the bound of the certificate | left out |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    reasons = ["", "Left out:", ""]
    for case in CASES:
        ratios, distances, covered, left_out = run(case)
        low, middle, high = np.quantile(ratios, [0.025, 0.5, 0.975])
        within = (np.abs(ratios - 1.0) <= 0.03).mean()
        squares = np.sqrt((distances**2).mean(0))
        lines.append(
            f"| {case.name} | {middle:.4f}, {low:.4f} and {high:.4f}, {ratios.min():.4f} to "
            f"{ratios.max():.4f} | {100.0 * within:.1f} % | "
            f"{', '.join(f'{value:.2f}' for value in squares)} | {100.0 * covered.mean():.1f} % | "
            f"{len(left_out)} |"
        )
        reasons += [
            f"- {left_out.count(why)} × {case.name}: {why}" for why in sorted(set(left_out))
        ]
        Path(__file__).with_suffix(".md").write_text(
            "\n".join([*lines, *reasons]) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
