"""Seconds of an MLMC gradient against T: they should grow like log T, as the transitions do.

MALA, 256 chains with balanced levels, 100 dimensions. The number is the growth that T = 1024 over
T = 32 has for the plain average (32), over the growth it has for MLMC (10/5 = 2 in transitions).
"""

from __future__ import annotations

import torch
from torch import Tensor

import mlmcgrad as mg
from benchmarks.timing import Result, compare

CHAINS, DIMENSION = 256, 100


def run() -> list[Result]:
    generator = torch.Generator().manual_seed(0)
    theta = torch.zeros(DIMENSION, requires_grad=True)
    x0 = torch.zeros(CHAINS, DIMENSION)

    def log_density(x: Tensor) -> Tensor:
        return -0.5 * x.square().sum(1)

    def loss(x: Tensor) -> Tensor:
        return 0.5 * (x - theta).square().sum(1)

    kernel = mg.kernels.MALA(log_density, 0.05)

    def step(estimator: mg.estimators.Estimator) -> None:
        mg.MarkovGradient(kernel, loss, estimator).backward(x0, n=1, generator=generator)

    mlmc = {t: mg.MLMC(t, assignment="balanced") for t in (64, 1024)}
    return [
        compare(
            "MLMC, T = 1024 / average of 1024",
            lambda: step(mlmc[1024]),
            lambda: step(mg.Average(1024)),
            target=5.0,
            repeats=5,
        ),
        compare(
            "MLMC, T = 64 / average of 64",
            lambda: step(mlmc[64]),
            lambda: step(mg.Average(64)),
            target=2.0,
        ),
    ]
