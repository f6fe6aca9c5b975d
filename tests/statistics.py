"""Statistical tests with a stated false-alarm rate.

The null hypothesis is always that the rows of a sample are independent with the expected mean. The
tolerance comes from the standard error of these rows and Student's law, corrected (Bonferroni) for
the number of quantities looked at together, so a right implementation fails with at most the
probability `FALSE_ALARM` over all seeds, and never for the seed that is fixed in a test.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

FALSE_ALARM = 1e-5


def deviations(samples: Tensor, expected: Tensor) -> Tensor:
    """Distance of each column's mean from its expected value, in standard errors."""
    samples = samples.double()
    error = samples.std(0) / math.sqrt(len(samples))
    difference = (samples.mean(0) - expected).abs()
    return torch.where(difference <= 1e-12, 0.0, difference / error)


def mean_is(samples: Tensor, expected: Tensor) -> bool:
    """Whether the columns of (replicates, quantities) may have the expected means."""
    samples = samples.reshape(len(samples), -1)
    z = deviations(samples, expected.reshape(-1))
    threshold = student_isf(FALSE_ALARM / 2.0 / samples.shape[1], len(samples) - 1)
    return bool((z <= threshold).all())


def same_mean(first: Tensor, second: Tensor) -> bool:
    """Whether two independent samples, (replicates, quantities) each, may have the same means."""
    first, second = first.reshape(len(first), -1), second.reshape(len(second), -1)
    error = (first.var(0) / len(first) + second.var(0) / len(second)).sqrt()
    z = (first.mean(0) - second.mean(0)).abs() / error
    degrees = min(len(first), len(second)) - 1
    return bool((z <= student_isf(FALSE_ALARM / 2.0 / first.shape[1], degrees)).all())


def student_isf(probability: float, degrees: int) -> float:
    """The t with P(T > t) = probability for Student's law, by integrating its density."""
    constant = math.lgamma((degrees + 1) / 2.0) - math.lgamma(degrees / 2.0)
    scale = math.exp(constant) / math.sqrt(math.pi * degrees)
    # With t = x/(1 − x) the whole tail is a finite interval; Gauss–Legendre is exact to rounding.
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def tail(t: float) -> float:
        begin = t / (1.0 + t)
        x = begin + (1.0 - begin) * (nodes + 1.0) / 2.0
        s = x / (1.0 - x)
        density = scale * np.exp(-(degrees + 1) / 2.0 * np.log1p(s * s / degrees))
        return float((weights * density / (1.0 - x) ** 2).sum() * (1.0 - begin) / 2.0)

    low, high = 0.0, 1.0
    while tail(high) > probability:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if tail(middle) > probability else (low, middle)
    return high
