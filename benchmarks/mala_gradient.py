"""A MALA gradient against the loop one would write: density twice a step, loss at every state.

128 chains in 100 dimensions, average over 64 steps; the loss is a small network.
"""

from __future__ import annotations

import torch
from torch import Tensor

import mlmcgrad as mg
from benchmarks.timing import Result, compare

CHAINS, DIMENSION, STEPS, H = 128, 100, 64, 0.05


def run() -> list[Result]:
    generator = torch.Generator().manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(DIMENSION, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    x0 = torch.randn(CHAINS, DIMENSION, generator=generator)

    def log_density(x: Tensor) -> Tensor:
        return -0.5 * x.square().sum(1) - 0.1 * x.sin().sum(1)

    def loss(x: Tensor) -> Tensor:
        return network(x)[:, 0]

    gradient = mg.MarkovGradient(
        mg.kernels.MALA(log_density, H), loss, mg.Average(STEPS), chunk=2048
    )

    def ours() -> None:
        network.zero_grad()
        gradient.backward(x0, n=1, generator=generator)

    def slope(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        value = log_density(x)
        (g,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), g

    def theirs() -> None:
        network.zero_grad()
        x = x0
        for _ in range(STEPS):
            value, g = slope(x)
            noise = torch.randn(x.shape, generator=generator)
            y = x + H * g + (2.0 * H) ** 0.5 * noise
            value_y, g_y = slope(y)
            back = -(x - y - H * g_y).square().sum(1) / (4.0 * H)
            forth = -(y - x - H * g).square().sum(1) / (4.0 * H)
            accept = torch.rand(CHAINS, generator=generator).log() < (
                value_y - value + back - forth
            )
            x = torch.where(accept[:, None], y, x)
            (loss(x).mean() / STEPS).backward()

    return [compare("MALA gradient / plain loop", ours, theirs, target=1.0)]
