"""Maximum likelihood estimates of the Florentine models, as exact as a long simulation makes them.

It shares nothing with `examples/ergm_florentine.py` but the list of marriages: NumPy, ties updated
one at a time in the order (0, 1), (0, 2), …, statistics kept by adding up their changes. Newton's
method with simulated moments finds the neighbourhood of the maximum. Then one long run there is
reweighted (Geyer and Thompson, 1992): the estimate solves

    Σ_i w_i(θ) (s(y_i) − s(y_obs)) = 0,   w_i(θ) = exp{(θ − θ_0)·s(y_i)},

and its Monte Carlo error comes from the chains, which are independent. It must be below 0.001.

    python -m benchmarks.ergm_reference

takes a minute and writes `benchmarks/ergm_reference.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

import numpy as np
from examples.ergm_florentine import FAMILIES, MARRIAGES
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

PATH = Path(__file__).with_suffix(".json")
CHAINS, BURN_IN, SWEEPS = 8192, 100, 1000
LARGEST_ERROR = 1e-3


class Sampler:
    """Chains of single-tie Gibbs updates of edges and triangles, or of edges and two-stars."""

    def __init__(self, nodes: int, second: str, chains: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._second = second
        self._ties = np.zeros((nodes, nodes, chains), dtype=np.uint8)
        self.statistics = np.zeros((chains, 2))

    def sweep(self, theta: Floats) -> None:
        """Update every tie once, given all others."""
        y = self._ties
        nodes, _, chains = y.shape
        most = nodes if self._second == "triangles" else 2 * nodes
        chance = 1.0 / (1.0 + np.exp(-theta[0] - theta[1] * np.arange(most)))
        degree = y.sum(0, dtype=np.uint8)
        for i in range(nodes):
            for j in range(i + 1, nodes):
                old = y[i, j].copy()
                if self._second == "triangles":
                    change = (y[i] & y[j]).sum(0, dtype=np.uint8)
                else:
                    change = degree[i] + degree[j] - 2 * old
                new = (self._rng.random(chains) < chance[change]).astype(np.uint8)
                y[i, j] = y[j, i] = new
                difference = new.astype(np.int8) - old.astype(np.int8)
                degree[i] += difference.view(np.uint8)  # modulo 256: a −1 is right too
                degree[j] += difference.view(np.uint8)
                self.statistics[:, 0] += difference
                self.statistics[:, 1] += difference * change.astype(np.int64)


def observed(second: str) -> Floats:
    """Edges, and triangles or two-stars, of the marriages, counted one by one."""
    nodes = range(len(FAMILIES))
    names = list(FAMILIES)
    ties = {frozenset((names.index(a), names.index(b))) for a, b in MARRIAGES}
    if second == "triangles":
        count = sum(
            {frozenset((i, j)), frozenset((j, k)), frozenset((i, k))} <= ties
            for i in nodes
            for j in nodes
            for k in nodes
            if i < j < k
        )
    else:
        count = sum(
            {frozenset((i, k)), frozenset((j, k))} <= ties
            for i in nodes
            for j in nodes
            for k in nodes
            if i < j and k not in (i, j)
        )
    return np.array([len(ties), count], dtype=float)


def reference(second: str, chains: int = CHAINS, sweeps: int = SWEEPS, seed: int = 1) -> Floats:
    """Three rows: estimates, Monte Carlo errors, standard errors; a column for each term."""
    nodes, target = len(FAMILIES), observed(second)
    density = target[0] / (nodes * (nodes - 1) / 2)
    theta = np.array([np.log(density / (1.0 - density)), 0.0])
    sampler = Sampler(nodes, second, chains, seed)
    for _ in range(8):  # Newton's method with simulated moments
        samples = _run(sampler, theta, 20, 20).reshape(-1, 2)
        theta = theta + np.linalg.solve(np.cov(samples.T), target - samples.mean(0))
    samples = _run(sampler, theta, BURN_IN, sweeps) - target  # (sweeps, chains, 2)
    estimate = theta.copy()
    for _ in range(20):
        weights = np.exp(samples @ (estimate - theta))
        weights /= weights.mean()
        score = (weights[..., None] * samples).mean(0)  # (chains, 2)
        centred = (samples - score.mean(0)).reshape(-1, 2)
        hessian = (weights.reshape(-1, 1) * centred).T @ centred / len(centred)
        estimate -= np.linalg.solve(hessian, score.mean(0))
    inverse = np.linalg.inv(hessian)
    noise = inverse @ (np.cov(score.T) / chains) @ inverse
    return np.stack([estimate, np.sqrt(np.diag(noise)), np.sqrt(np.diag(inverse))])


def _run(sampler: Sampler, theta: Floats, burn_in: int, sweeps: int) -> Floats:
    """Statistics after each sweep, (sweeps, chains, 2)."""
    for _ in range(burn_in):
        sampler.sweep(theta)
    kept = []
    for _ in range(sweeps):
        sampler.sweep(theta)
        kept.append(sampler.statistics.copy())
    return np.stack(kept)


def main() -> None:
    """Write the file, unless an error is too large."""
    rows = {}
    for second in ("triangles", "two-stars"):
        estimate, error, standard = reference(second)
        if error.max() > LARGEST_ERROR:
            raise RuntimeError(f"the Monte Carlo error of edges + {second} is {error.max():.2g}")
        rows[second] = {
            "estimates": estimate.tolist(),
            "monte_carlo_errors": error.tolist(),
            "standard_errors": standard.tolist(),
        }
        print(f"edges + {second}: {estimate} ± {error}, standard errors {standard}")
    PATH.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
