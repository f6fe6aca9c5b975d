"""Γ without cancellation.

    log Γ(x) = (x − ½) log x − x + ½ log 2π + R(x),      R(x) = 1/(12x) − 1/(360x³) + …
    ψ(x) = log x − G(x),                                 G(x) = 1/(2x) + 1/(12x²) − 1/(120x⁴) + …

Differences of log Γ at large arguments lose their digits; R and G keep them. From 100 on the series
are exact to rounding, below it they are taken from log Γ and ψ themselves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LARGE = 100.0
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def remainder(x: Tensor) -> Tensor:
    """R(x) for x > 0."""
    inverse = 1.0 / x
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    direct = torch.lgamma(x) - ((x - 0.5) * torch.log(x) - x + HALF_LOG_2PI)
    return torch.where(x > _LARGE, series, direct)


def gap(x: Tensor) -> Tensor:
    """G(x) for x > 0."""
    inverse = 1.0 / x
    square = inverse * inverse
    series = 0.5 * inverse + square * (1 / 12 - square * (1 / 120 - square * (1 / 252)))
    return torch.where(x > _LARGE, series, torch.log(x) - torch.digamma(x))
