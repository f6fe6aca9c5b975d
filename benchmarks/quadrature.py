"""The exact log-likelihood of logistic mixed models, by adaptive Gauss–Hermite quadrature.

It shares nothing with `mlmcgrad.mixed` but the columns of the design. With f(u) = log p(y, u) of a
group, m its mode, −∇²f(m) = H and CCᵀ = H^{-1},

    p(y) = ∫ e^{f(u)} du = |C| Σ_j w_j e^{‖t_j‖²/2} e^{f(m + C t_j)},

with the nodes t_j and the weights w_j of the weight function e^{−‖t‖²/2}.
"""

from __future__ import annotations

from itertools import product
from typing import TypeAlias, final

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, gammaln, logsumexp

from mlmcgrad.mixed.design import Design

Floats: TypeAlias = NDArray[np.float64]


@final
class Exact:
    """The log-likelihood of successes among trials with a logit link and one grouping factor.

    Args:
        design: the data; the effects of a group are correlated.
        nodes: in each direction.
    """

    def __init__(self, design: Design, nodes: int) -> None:
        (effects,) = design.effects
        order = np.argsort(effects.index.numpy(), kind="stable")
        self._group = effects.index.numpy()[order]
        self._first = np.flatnonzero(np.diff(self._group, prepend=-1))
        self._x, self._z = design.fixed.numpy()[order], effects.columns.numpy()[order]
        self._y, self._n = design.y.numpy()[order], design.trials.numpy()[order]
        self._q = self._z.shape[1]
        points, weights = hermegauss(nodes)
        self._t = np.array(list(product(points, repeat=self._q)))  # (m, q)
        self._log_w = np.log(weights)[_indices(nodes, self._q)].sum(1) + 0.5 * (self._t**2).sum(1)
        constant = gammaln(self._n + 1) - gammaln(self._y + 1) - gammaln(self._n - self._y + 1)
        self._constant = float(constant.sum())

    def __call__(self, theta: Floats) -> float:
        """The log-likelihood at θ: fixed effects, then the lower triangle of Λ row by row."""
        p, q = self._x.shape[1], self._q
        factor = np.zeros((q, q))
        factor[np.tril_indices(q)] = theta[p:]
        base, columns = self._x @ theta[:p], self._z @ factor
        mode, hessian = self._mode(base, columns)
        root = np.linalg.inv(np.linalg.cholesky(hessian)).transpose(0, 2, 1)  # C
        u = mode[:, None] + self._t @ root.transpose(0, 2, 1)  # (groups, m, q)
        eta = base[:, None] + np.einsum("ij,imj->im", columns, u[self._group])
        value = self._y[:, None] * eta - self._n[:, None] * np.logaddexp(0.0, eta)
        f = self._sums(value) - 0.5 * (u**2).sum(2) - 0.5 * q * np.log(2.0 * np.pi)
        volume = np.log(np.abs(np.linalg.det(root)))
        return float((logsumexp(self._log_w + f, axis=1) + volume).sum()) + self._constant

    def maximum(self, start: Floats) -> float:
        """The largest log-likelihood that is found from a start."""
        found = minimize(lambda theta: -self(theta), start, options={"gtol": 1e-3})
        return -float(found.fun)

    def _mode(self, base: Floats, columns: Floats) -> tuple[Floats, Floats]:
        """Mode and −∇²f of each group, by Newton's method with short enough steps."""
        u = np.zeros((len(self._first), self._q))
        for _ in range(200):
            p = expit(base + (columns * u[self._group]).sum(1))
            weighted = (self._n * p * (1.0 - p))[:, None] * columns
            outer = self._sums((weighted[:, :, None] * columns[:, None]).reshape(len(p), -1))
            hessian = np.eye(self._q) + outer.reshape(-1, self._q, self._q)
            gradient = self._sums((self._y - self._n * p)[:, None] * columns) - u
            step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
            # At most 1: Newton's method overshoots where the curvature is small.
            step /= np.maximum(1.0, np.abs(step).max(1, keepdims=True))
            u += step
            if np.abs(step).max() < 1e-9:
                break
        return u, hessian

    def _sums(self, rows: Floats) -> Floats:
        """Over the rows of each group."""
        return np.add.reduceat(rows, self._first, axis=0)


def _indices(nodes: int, q: int) -> NDArray[np.int64]:
    return np.array(list(product(range(nodes), repeat=q)))
