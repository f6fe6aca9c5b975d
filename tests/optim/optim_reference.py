"""Slow references in pure Python floats, written from the paper's Sections 2 and 3.

They keep the paper's indices: iteration n = 0, 1, …; γ_{n+1}, ε_{n+1} at iteration n; M_n with the
gradient of iteration n. Nothing here knows of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

Vector: TypeAlias = list[float]
Matrix: TypeAlias = list[list[float]]
Sequence: TypeAlias = Callable[[int], float]
Gradient: TypeAlias = Callable[[Vector, int], Vector]


def adagrad(
    theta: Vector, h: Gradient, N: int, gamma: Sequence, epsilon: Sequence, M: Sequence
) -> Vector:
    """MLMC-Adagrad; here gamma and epsilon are γ_n, ε_n for n ≥ 1 and M is M_n for n ≥ 0."""
    history: list[Vector] = []
    for n in range(N):
        gradient = h(theta, n)
        history.append([min(x * x, M(n) ** 2) for x in gradient])
        A = [
            (epsilon(n + 1) ** -2 + sum(past[i] for past in history) / (n + 1)) ** -0.5
            for i in range(len(theta))
        ]
        theta = [t - gamma(n + 1) * a * x for t, a, x in zip(theta, A, gradient, strict=True)]
    return theta


def amsgrad(
    theta: Vector,
    h: Gradient,
    N: int,
    gamma: Sequence,
    rho1: float,
    rho2: float,
    delta: float,
    epsilon: Sequence,
) -> Vector:
    """Algorithm 2."""
    d = len(theta)
    m, W, W_hat = [0.0] * d, [0.0] * d, [0.0] * d
    for n in range(N):
        gradient = h(theta, n)
        for i, x in enumerate(gradient):
            m[i] = rho1 * m[i] + (1 - rho1) * x
            W[i] = rho2 * W[i] + (1 - rho2) * min(epsilon(n + 1), x * x)
            W_hat[i] = max(W_hat[i], W[i])
        theta = [theta[i] - gamma(n + 1) * (delta + W_hat[i]) ** -0.5 * m[i] for i in range(d)]
    return theta


def rmsprop(
    theta: Vector, h: Gradient, N: int, gamma: Sequence, rho: float, delta: float, M: Sequence
) -> Vector:
    """RMSProp with the sum written out, (1−ρ) Σ ρ^{n−k} min(Ĥ_k², M_k²)."""
    history: list[Vector] = []
    for n in range(N):
        gradient, moved = h(theta, n), theta[:]
        history.append([min(x * x, M(n) ** 2) for x in gradient])
        powers = [rho ** (n - k) for k in range(n + 1)]
        for i, x in enumerate(gradient):
            average = (1 - rho) * sum(p * past[i] for p, past in zip(powers, history, strict=True))
            moved[i] -= gamma(n + 1) * (delta + average) ** -0.5 * x
        theta = moved
    return theta


def full_adagrad(
    theta: Vector, h: Gradient, N: int, gamma: Sequence, delta: float, M: Sequence
) -> Vector:
    """Full Adagrad; a gradient longer than M_n enters the matrix with length M_n."""
    d = len(theta)
    total = [[0.0] * d for _ in range(d)]
    for n in range(N):
        gradient = h(theta, n)
        norm = math.sqrt(sum(x * x for x in gradient))
        entering = [x * min(1.0, M(n) / norm) for x in gradient]
        for i in range(d):
            for j in range(d):
                total[i][j] += entering[i] * entering[j]
        mean = [
            [x / (n + 1) + delta * (i == j) for j, x in enumerate(r)] for i, r in enumerate(total)
        ]
        move = apply_function(mean, lambda b: b**-0.5, gradient)
        theta = [t - gamma(n + 1) * x for t, x in zip(theta, move, strict=True)]
    return theta


def newton(
    theta: Vector,
    h: Gradient,
    N: int,
    gamma: Sequence,
    bounds: tuple[float, float],
    pair: Callable[[int], tuple[Vector, Vector]],
    averaging: float,
) -> Vector:
    """Stochastic Newton; pair(n) is observed before the step of iteration n, and used after it."""
    d = len(theta)
    B = [[float(i == j) for j in range(d)] for i in range(d)]
    for n in range(N):
        used = [row[:] for row in B]
        z, y = pair(n)
        a = min(1.0, averaging * d / (n + 1))
        r = [y[i] - sum(B[i][j] * z[j] for j in range(d)) for i in range(d)]
        zz = sum(x * x for x in z)
        zr = sum(x * w for x, w in zip(z, r, strict=True))
        for i in range(d):
            for j in range(d):
                B[i][j] += a * ((r[i] * z[j] + z[i] * r[j]) / zz - zr * z[i] * z[j] / zz**2)
        move = apply_function(
            used, lambda b: min(max(1 / max(abs(b), 1e-300), bounds[0]), bounds[1]), h(theta, n)
        )
        theta = [t - gamma(n + 1) * x for t, x in zip(theta, move, strict=True)]
    return theta


def apply_function(matrix: Matrix, f: Callable[[float], float], vector: Vector) -> Vector:
    """f(matrix) · vector for a symmetric matrix, by Jacobi's rotations."""
    values, vectors = jacobi(matrix)
    d = len(vector)
    inner = [sum(vectors[i][k] * vector[i] for i in range(d)) for k in range(d)]
    return [sum(vectors[i][k] * f(values[k]) * inner[k] for k in range(d)) for i in range(d)]


def jacobi(matrix: Matrix) -> tuple[Vector, Matrix]:
    """Eigenvalues, and eigenvectors in columns, of a symmetric matrix."""
    a = [row[:] for row in matrix]
    d = len(a)
    v = [[float(i == j) for j in range(d)] for i in range(d)]
    for _ in range(30):
        if sum(a[p][q] ** 2 for p in range(d) for q in range(p)) == 0.0:
            break
        for p in range(d):
            for q in range(p + 1, d):
                if abs(a[p][q]) < 1e-200:
                    a[p][q] = a[q][p] = 0.0
                    continue
                ratio = (a[q][q] - a[p][p]) / (2 * a[p][q])
                t = math.copysign(1.0, ratio) / (abs(ratio) + math.sqrt(ratio * ratio + 1))
                c = 1 / math.sqrt(t * t + 1)
                s = t * c
                for k in range(d):
                    a[k][p], a[k][q] = c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]
                for k in range(d):
                    a[p][k], a[q][k] = c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]
                for k in range(d):
                    v[k][p], v[k][q] = c * v[k][p] - s * v[k][q], s * v[k][p] + c * v[k][q]
    return [a[i][i] for i in range(d)], v
