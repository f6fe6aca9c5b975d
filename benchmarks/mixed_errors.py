"""Standard errors, Monte Carlo errors and certificates of `mixed.fit`, against quadrature.

200 simulated data sets of each model, fitted once each. The standard errors are compared with those
of the curvature of the exact log-likelihood at the same estimate: the ratio should be within 3 % of
1 for every parameter. A Monte Carlo error is the standard deviation of an estimate about the
maximum of the exact likelihood; over the data sets, the root mean square of the distance over the
reported error should be 1. The bound of a certificate should cover the distance in at least 95 % of
the fits.

    python -m benchmarks.mixed_errors

takes about half an hour and writes mixed_errors.md beside this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from pathlib import Path

import numpy as np
import pandas as pd
from rich.progress import track

from benchmarks.quadrature import Exact, Floats
from mlmcgrad import mixed

REPLICATIONS = 200
_STEP = 1e-3


@dataclass(frozen=True)
class Case:
    """A logistic model with one grouping factor."""

    name: str
    formula: str
    groups: int
    rows: int
    slope: bool
    nodes: int

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
    Case("intercept", "y ~ x + (1 | g)", 60, 6, False, 100),
    Case("intercept and slope of a skewed covariate", "y ~ x + (1 + x | g)", 60, 10, True, 40),
)


def curvature(exact: Exact, theta: Floats) -> tuple[Floats, Floats]:
    """Return the gradient of the exact log-likelihood and its negative Hessian, by differences."""
    size, steps = len(theta), _STEP * np.eye(len(theta))
    gradient = np.array([exact(theta + h) - exact(theta - h) for h in steps]) / (2.0 * _STEP)
    hessian = np.zeros((size, size))
    for i, j in combinations_with_replacement(range(size), 2):
        ends = [
            a * b * exact(theta + a * steps[i] + b * steps[j])
            for a, b in product((1.0, -1.0), repeat=2)
        ]
        hessian[i, j] = hessian[j, i] = -sum(ends) / (4.0 * _STEP**2)
    return gradient, hessian


def run(case: Case) -> tuple[Floats, Floats, Floats, int]:
    """Return ratios of standard errors, distances in Monte Carlo errors, coverage, and exclusions.

    A fit on the boundary, whose information is not that of an interior maximum, is left out.
    """
    ratios, distances, covered, left_out = [], [], [], 0
    for seed in track(range(REPLICATIONS), description=case.name):
        data = case.data(seed)
        fit = mixed.fit(case.formula, data, "bernoulli", seed=seed, progress=False)
        if not fit.converged or fit.notes or fit.certificate is None:
            left_out += 1
            continue
        exact = Exact(mixed.build(case.formula, data), case.nodes)
        theta = fit.theta.numpy()
        gradient, hessian = curvature(exact, theta)
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
    for case in CASES:
        ratios, distances, covered, left_out = run(case)
        low, middle, high = np.quantile(ratios, [0.025, 0.5, 0.975])
        within = (np.abs(ratios - 1.0) <= 0.03).mean()
        squares = np.sqrt((distances**2).mean(0))
        lines.append(
            f"| {case.name} | {middle:.4f}, {low:.4f} and {high:.4f}, {ratios.min():.4f} to "
            f"{ratios.max():.4f} | {100.0 * within:.1f} % | "
            f"{', '.join(f'{value:.2f}' for value in squares)} | {100.0 * covered.mean():.1f} % | "
            f"{left_out} |"
        )
        Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
