"""A gradient for each kernel, made on a device; what is drawn beforehand is drawn on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mlmcgrad.kernels import (
    ISIR,
    MALA,
    RWMH,
    Finite,
    FromStep,
    Gibbs,
    Importance,
    Kernel,
    Regenerative,
)

CHAINS = 12


@dataclass(frozen=True)
class Scenario:
    """What `MarkovGradient` takes, beside the estimator."""

    kernel: Kernel
    loss: Callable[..., Tensor]
    parameters: list[Tensor]
    x0: Any
    context: tuple[Tensor, ...] = ()


def leaf(*values: float, device: torch.device) -> Tensor:
    return torch.tensor(values, device=device, requires_grad=True)


def normals(*shape: int, device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def metropolis(
    kernel: type[RWMH | MALA], device: torch.device, chains: int, *, tensor: bool = False
) -> Scenario:
    """A normal target with a mean for each chain; the step size may be a tensor of the device."""
    scale, shift = leaf(1.0, 2.0, device=device), leaf(0.5, device=device)
    size = torch.tensor(0.4, device=device) if tensor else 0.4

    def log_density(x: Tensor, y: Tensor) -> Tensor:
        return -0.5 * (scale.detach() * (x - y)).square().sum(1)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (scale * x - y + shift).square().sum(1)

    x0, y = normals(chains, 2, device=device), normals(chains, 2, device=device, seed=1)
    return Scenario(kernel(log_density, size), loss, [scale, shift], x0, (y,))


def importance(kernel: Callable[..., Kernel], device: torch.device, chains: int) -> Scenario:
    """A latent normal variable seen with noise, proposed from its prior."""
    slope = leaf(1.5, device=device)

    def log_weight(z: Tensor, y: Tensor) -> Tensor:
        return -0.5 * (y - slope.detach() * z).square().sum(1)

    def propose(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, 1, device=y.device, generator=generator)

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (y - slope * z).square().sum(1)

    y = normals(chains, 1, device=device, seed=2)
    return Scenario(kernel(log_weight, propose), loss, [slope], None, (y,))


def gibbs(device: torch.device, chains: int) -> Scenario:
    rng = torch.Generator().manual_seed(3)
    made = Gibbs.of_size(6, 4, scale=0.5, generator=rng)
    machine = Gibbs(*(p.detach().to(device).requires_grad_() for p in made.parameters))
    x0 = made.random_states(chains, rng).to(device)
    return Scenario(machine, machine.loss, list(machine.parameters), x0)


def finite(device: torch.device, chains: int, *, function: bool = False) -> Scenario:
    """A chain on three states, as a matrix or as a function that makes it."""
    theta = leaf(0.0, 1.0, -1.0, device=device)
    rows = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.0, 0.5, 0.5]]
    matrix = torch.tensor(rows, device=device)
    kernel = Finite((lambda: matrix) if function else matrix)
    x0 = (torch.arange(chains) % 3).to(device)
    return Scenario(kernel, lambda x: theta[x].square() + theta[x], [theta], x0)


def regenerative(device: torch.device, chains: int) -> Scenario:
    """A chain that stays or renews, with a law of its own for each chain."""
    theta = leaf(0.0, 1.0, -1.0, device=device)
    laws = torch.rand(chains, 3, generator=torch.Generator().manual_seed(4)).to(device)
    x0 = (torch.arange(chains) % 3).to(device)
    kernel = Regenerative(0.5, lambda law: law)
    return Scenario(kernel, lambda x, _: theta[x].square() + theta[x], [theta], x0, (laws,))


def from_step(device: torch.device, chains: int) -> Scenario:
    """An autoregression, whose step draws on its own."""
    theta = leaf(0.3, device=device)

    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        return 0.5 * x + torch.randn(x.shape, device=x.device, generator=generator)

    x0 = normals(chains, 2, device=device)
    return Scenario(FromStep(step), lambda x: (theta * x).square().sum(1), [theta], x0)


def scenario(name: str, device: torch.device, chains: int = CHAINS) -> Scenario:
    """Return the row of a kernel, with tensors of a device."""
    return SCENARIOS[name](device, chains)


SCENARIOS: dict[str, Callable[[torch.device, int], Scenario]] = {
    "RWMH": partial(metropolis, RWMH),
    "RWMH, tensor": partial(metropolis, RWMH, tensor=True),
    "MALA": partial(metropolis, MALA),
    "MALA, tensor": partial(metropolis, MALA, tensor=True),
    "Gibbs": gibbs,
    "Finite": finite,
    "Finite, function": partial(finite, function=True),
    "FromStep": from_step,
    "Regenerative": regenerative,
    "ISIR": partial(importance, partial(ISIR, candidates=4)),
    "ISIR, Rao-Blackwell": partial(importance, partial(ISIR, candidates=4, rao_blackwell=True)),
    "Importance": partial(importance, partial(Importance, candidates=4)),
}
