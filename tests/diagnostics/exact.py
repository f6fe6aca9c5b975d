"""Exact bias, variance and cost of every estimator on a chain with a few states, by its matrix.

With μ_i the law of X_i, G the gradients of the states and A_k = Σ_{t=1}^k P^t G, sums S_p of the
first p gradients have, for p ≤ q,

    E[S_p · S_q] = Σ_{i≤p} μ_i·|G|² + Σ_{i≤p} μ_i·(G A_{q−i}) + Σ_{i≤p} μ_i·(G A_{p−i}).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mlmcgrad.diagnostics._plan import combinations
from mlmcgrad.estimators import Estimator

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Exact:
    """A chain of a transition matrix from a law of starts, and the gradient in each state."""

    matrix: Tensor  # (S, S)
    start: Tensor  # (S,)
    gradients: Tensor  # (S, d)
    longest: int = 2**11

    @cached_property
    def _laws(self) -> Array:
        """μ_1 … μ_longest, (longest, S)."""
        law, found = self.start.numpy(), []
        for _ in range(self.longest):
            law = law @ self.matrix.numpy()
            found.append(law)
        return np.stack(found)

    @cached_property
    def _sums(self) -> Array:
        """A_0 … A_longest, (longest + 1, S, d)."""
        moved, found = self.gradients.numpy(), [np.zeros_like(self.gradients.numpy())]
        for _ in range(self.longest):
            moved = self.matrix.numpy() @ moved
            found.append(found[-1] + moved)
        return np.stack(found)

    @cached_property
    def limit(self) -> Array:
        """The gradient under the stationary law."""
        law = np.linalg.matrix_power(self.matrix.numpy(), 2**20)[0]
        return law @ self.gradients.numpy()

    def mean(self, p: int) -> Array:
        """E[H^{(p)}]."""
        return self._laws[:p].mean(0) @ self.gradients.numpy()

    def product(self, p: int, q: int) -> float:
        """E[H^{(p)} · H^{(q)}]."""
        p, q = min(p, q), max(p, q)
        g, laws = self.gradients.numpy(), self._laws[:p]
        i = np.arange(1, p + 1)
        inner = np.einsum("sd,psd->ps", g, self._sums[q - i] + self._sums[p - i])
        total = (laws * ((g * g).sum(1) + inner)).sum()
        return float(total / (p * q))

    def moments(self, estimator: Estimator) -> tuple[float, float, float]:
        """Squared bias, variance (trace) and steps of an estimator."""
        mean, second, steps = np.zeros(self.gradients.shape[1]), 0.0, 0.0
        for probability, lengths, a in combinations(estimator):
            for p, x in zip(lengths, a, strict=True):
                mean = mean + probability * x * self.mean(p)
                for q, y in zip(lengths, a, strict=True):
                    second += probability * x * y * self._product(p, q)
            steps += probability * lengths[-1]
        bias = mean - self.limit
        return float(bias @ bias), second - float(mean @ mean), steps

    def error(self, estimator: Estimator, budget: float) -> float:
        """Mean squared error of the average over a budget of steps."""
        bias, variance, steps = self.moments(estimator)
        return math.inf if 8 * steps > budget else bias + variance * steps / budget

    def _product(self, p: int, q: int) -> float:
        known: dict[tuple[int, int], float] = self.__dict__.setdefault("_known", {})
        key = (min(p, q), max(p, q))
        if key not in known:
            known[key] = self.product(*key)
        return known[key]
