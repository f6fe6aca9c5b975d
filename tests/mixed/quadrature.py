"""Likelihoods by Gauss–Hermite quadrature, written without the library: NumPy and SciPy only."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, special

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """Data of one grouping factor g, with predictors 1 and x, and a response y (of n trials)."""

    family: str
    data: pd.DataFrame
    effects: int  # 1: an intercept; 2: an intercept and a slope of x, correlated
    known: dict[bytes, tuple[Floats, Floats]] = field(default_factory=dict)

    @property
    def formula(self) -> str:
        """For the library."""
        left = "proportion(y, n)" if self.family == "binomial" else "y"
        return f"{left} ~ x + ({'1' if self.effects == 1 else '1 + x'} | g)"

    def log_likelihood(self, theta: Floats, at: Floats, nodes: int = 0) -> float:
        """The exact log-likelihood of θ = (β_0, β_1, entries of Λ row by row).

        Adaptive: the nodes of a group are around the mean of its u at another θ near by (`at`), in
        units of its standard deviations there.
        """
        nodes = nodes or (80 if self.effects == 1 else 24)
        point, weight = np.polynomial.hermite_e.hermegauss(nodes)
        log_weight = np.log(weight) + 0.5 * point**2
        t = np.array(list(itertools.product(point, repeat=self.effects)))  # (nodes^q, q)
        log_w = np.array([sum(w) for w in itertools.product(log_weight, repeat=self.effects)])
        if at.tobytes() not in self.known:
            self.known[at.tobytes()] = self._posterior(at)
        mean, scale = self.known[at.tobytes()]
        u = mean[:, None] + t @ scale.transpose(0, 2, 1)  # (groups, nodes^q, q)
        inside = self._log_joint(theta, u) + np.linalg.slogdet(scale)[1][:, None]
        return float(special.logsumexp(inside + log_w, axis=1).sum())

    def _posterior(self, theta: Floats) -> tuple[Floats, Floats]:
        """Mean of u and a root of its covariance for each group, on a grid that follows them."""
        groups = int(self.data["g"].max()) + 1
        mean = np.zeros((groups, self.effects))
        root = np.tile(np.eye(self.effects), (groups, 1, 1))
        line = np.linspace(-5.0, 5.0, 41)
        t = np.array(list(itertools.product(line, repeat=self.effects)))
        for _ in range(4):
            u = mean[:, None] + t @ root.transpose(0, 2, 1)
            p = special.softmax(self._log_joint(theta, u), axis=1)[..., None]
            mean = (p * u).sum(1)
            moved = u - mean[:, None]
            root = np.linalg.cholesky((p * moved).transpose(0, 2, 1) @ moved)
        return mean, root

    def _log_joint(self, theta: Floats, u: Floats) -> Floats:
        """Log p(y, u) for points of each group, (groups, points), from (groups, points, q)."""
        factor = np.zeros((self.effects, self.effects))
        factor[np.tril_indices(self.effects)] = theta[2:]
        x, g = self.data["x"].to_numpy(), self.data["g"].to_numpy()
        z = np.stack([np.ones_like(x), x], 1)[:, : self.effects]
        b = u @ factor.T
        eta = (theta[0] + theta[1] * x)[:, None] + (z[:, None] * b[g]).sum(2)  # (rows, points)
        log_prior = -0.5 * (u**2).sum(2) - 0.5 * self.effects * np.log(2.0 * np.pi)
        rows = self._log_prob(eta).reshape(len(u), -1, u.shape[1])  # groups are equally large
        return np.asarray(rows.sum(1) + log_prior)

    def _log_prob(self, eta: Floats) -> Floats:
        y = self.data["y"].to_numpy()[:, None]
        if self.family == "bernoulli":
            found = y * eta - np.logaddexp(0.0, eta)
        elif self.family == "binomial":
            n = self.data["n"].to_numpy()[:, None]
            choose = special.gammaln(n + 1) - special.gammaln(y + 1) - special.gammaln(n - y + 1)
            found = y * eta - n * np.logaddexp(0.0, eta) + choose
        else:
            found = y * eta - np.exp(eta) - special.gammaln(y + 1)
        return np.asarray(found, dtype=np.float64)

    def maximum(self, start: Floats) -> tuple[Floats, float]:
        """θ of the largest log-likelihood and its value, from a point near it."""
        found = optimize.minimize(
            lambda theta: -self.log_likelihood(theta, start),
            start,
            method="BFGS",
            options={"gtol": 1e-4},
        )
        return found.x, -float(found.fun)


def simulate(
    family: str,
    effects: int,
    seed: int,
    *,
    groups: int = 120,
    rows: int = 6,
    sd: tuple[float, float] = (4.0, 1.5),
    trials: int = 4,
    beta: tuple[float, float] = (-0.5, 0.8),
) -> Model:
    """Data of the model; sd of the intercept, and of the slope where there is one."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(groups), rows)
    x = rng.standard_normal(groups * rows)
    factor = np.array([[sd[0], 0.0], [0.3 * sd[1], 0.95 * sd[1]]])[:effects, :effects]
    b = rng.standard_normal((groups, effects)) @ factor.T
    eta = beta[0] + beta[1] * x + (np.stack([np.ones_like(x), x], 1)[:, :effects] * b[g]).sum(1)
    data = pd.DataFrame({"x": x, "g": g})
    if family == "bernoulli":
        data["y"] = (rng.random(len(x)) < special.expit(eta)).astype(int)
    elif family == "binomial":
        data["n"] = trials
        data["y"] = rng.binomial(trials, special.expit(eta))
    else:
        data["y"] = rng.poisson(np.exp(eta))
    return Model(family, data, effects)
