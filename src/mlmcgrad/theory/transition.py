"""Transition matrices of finite-state chains: checks, classes, period, stationary law.

A matrix P is accepted when it is square, finite, non-negative and row-stochastic, and the chain it
describes is irreducible and aperiodic (the paper's assumption H1): then πP = π has one solution.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.float64]

ROW_SUM_TOLERANCE = 1e-6  # allows for rounding in float32; rows are then divided by their sum


def transition_matrix(P: ArrayLike) -> Matrix:
    """Check that P is the transition matrix of an irreducible aperiodic chain; return it.

    Args:
        P: P[x, y] is the probability of going from x to y; an array, nested lists or a tensor.

    Returns:
        The matrix in double precision, each row divided by its sum.

    Example:
        >>> transition_matrix([[0.0, 1.0], [1.0, 0.0]])
        Traceback (most recent call last):
        ValueError: P is not aperiodic: its period is 2; mix it with the identity, (P + I)/2, ...
    """
    if hasattr(P, "detach"):  # numpy refuses a tensor that requires a gradient
        P = P.detach().cpu().numpy()
    matrix = np.array(P, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(f"P must be a square matrix, got shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        x, y = np.argwhere(~np.isfinite(matrix))[0]
        raise ValueError(f"P must be finite, got P[{x}, {y}] = {matrix[x, y]}")
    if (matrix < 0).any():
        x, y = np.argwhere(matrix < 0)[0]
        raise ValueError(f"P must be non-negative, got P[{x}, {y}] = {matrix[x, y]}")
    sums = matrix.sum(axis=1)
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if abs(sums[worst] - 1.0) > ROW_SUM_TOLERANCE:
        raise ValueError(
            f"P is not row-stochastic: row {worst} sums to {sums[worst]:.9g} instead of 1; "
            "divide each row by its sum (P[x, y] is the probability of going from x to y)"
        )
    matrix /= sums[:, None]
    groups = classes(matrix)
    if len(groups) > 1:
        raise ValueError(
            f"P is not irreducible: its communicating classes are {groups}; pass the matrix of one "
            "closed class, or add transitions that connect them"
        )
    if (span := period(matrix)) > 1:
        raise ValueError(
            f"P is not aperiodic: its period is {span}; mix it with the identity, (P + I)/2, "
            "or give one state a positive probability of staying"
        )
    return matrix


def classes(matrix: Matrix) -> list[list[int]]:
    """Communicating classes, each sorted, in the order of their first state.

    Example:
        >>> classes(np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]))
        [[0, 1], [2]]
    """
    n = len(matrix)
    reach = (matrix > 0) | np.eye(n, dtype=bool)
    for _ in range(math.ceil(math.log2(n))):
        reach = (reach.astype(np.float64) @ reach.astype(np.float64)) > 0
    mutual = reach & reach.T
    members: dict[int, list[int]] = {}
    for state in range(n):
        members.setdefault(int(np.argmax(mutual[state])), []).append(state)
    return list(members.values())


def period(matrix: Matrix) -> int:
    """Period of an irreducible chain: gcd of level(x) + 1 − level(y) over the arcs x → y.

    The level of a state is its distance from state 0 in the graph of positive transitions.
    """
    arcs = [np.flatnonzero(row > 0).tolist() for row in matrix]
    level = {0: 0}
    queue = [0]
    for x in queue:
        for y in arcs[x]:
            if y not in level:
                level[y] = level[x] + 1
                queue.append(y)
    return math.gcd(*(level[x] + 1 - level[y] for x in level for y in arcs[x]))


def stationary_law(matrix: Matrix) -> Matrix:
    """Stationary law of an irreducible chain by state reduction.

    The algorithm never subtracts, so every entry, however small, is accurate to a few units in the
    last place.

    Reference:
        Grassmann, Taksar and Heyman, Regenerative analysis and steady state distributions for
        Markov chains, Operations Research 33 (1985).
    """
    work = matrix.copy()
    n = len(work)
    for last in range(n - 1, 0, -1):
        work[:last, last] /= work[last, :last].sum()
        work[:last, :last] += np.outer(work[:last, last], work[last, :last])
    law = np.ones(n)
    for state in range(1, n):
        law[state] = law[:state] @ work[:state, state]
    return np.asarray(law / law.sum())
