"""Do simulations have the law that they should? Only the density itself can tell.

If x has the law π, one exact Metropolis step from x leaves every mean as it is: with y proposed
symmetrically, or from q with w = π/q in place of π,

    E[ α(x, y) {g(y) − g(x)} ] = 0,      α(x, y) = 1 ∧ π(y)/π(x),

for every function g. The step is made here from the states of a simulation, whatever kernel they
come from; g are the coordinates of x, their squares, and log π (or log w) itself. It needs neither
derivatives nor a smooth density, and its terms are bounded where those of importance sampling are
not. States of 0 and 1 are moved by flipping one of them, others by normal jumps of random size,
forth and back, so that what is linear in a jump cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mlmcgrad.diagnostics.long_runs import DIRECTIONS, features
from mlmcgrad.diagnostics.means import Mean
from mlmcgrad.kernels import Finite, Gibbs
from mlmcgrad.kernels.acceptance import probability
from mlmcgrad.kernels.base import Context, take
from mlmcgrad.kernels.proposing import ProposingKernel
from mlmcgrad.measure import Measure

_AT_ONCE = 2**13
_LOWEST = -1e4  # of log π: outside the support
_MOVES = 4  # from each state
_SMALLEST = 1.5  # jumps are up to 10^1.5 times smaller than the largest

Energy = Callable[[Tensor, Context], Tensor]
Propose = Callable[[Tensor, Context, torch.Generator], list[Tensor]]


@dataclass(frozen=True)
class Law:
    """What a simulation should have the law of.

    Args:
        energy: log π, `energy(x, context) -> (rows,)`, or log w if `propose` draws from q.
        propose: several y for each x; None for a walk.
    """

    energy: Energy
    propose: Propose | None = None


def law_of(kernel: Any, log_density: Callable[..., Tensor] | None) -> Law | None:
    """What is known of the law of a kernel: a log density, weights, a matrix; None if nothing."""
    density = log_density or getattr(kernel, "log_density", None)
    if callable(density):
        return Law(lambda x, context: density(x, *context))
    if isinstance(kernel, Gibbs):
        return Law(lambda x, context: -kernel.free_energy(x))
    if isinstance(kernel, Finite):
        return _finite(kernel)
    if isinstance(kernel, ProposingKernel):
        return Law(
            kernel.weigh,
            lambda x, context, rng: [kernel.draw(context, len(x), rng) for _ in range(_MOVES)],
        )
    return None


@torch.no_grad()
def increments(
    law: Law, measure: Measure, context: Context, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """Σ_j c_j α {g(y_j) − g(x_j)} of each simulation, and the same with all signs positive.

    Args:
        law: of x, as it should be.
        measure: states of simulations, c_j summing to 1 in each.
        context: of the simulations.
        count: of them.
        generator: source of the steps.

    Returns:
        (count, k) each, and evaluations of the density.
    """
    points = measure.points
    propose = law.propose or _walk(points, measure.owner)
    k = min(DIRECTIONS, points[0].numel())
    centre = features(points[: 4 * _AT_ONCE])[:, :k].mean(0)
    moved = torch.zeros(count, 2 * k + 1, dtype=torch.float64)
    size, evaluations = torch.zeros_like(moved), 0
    for begin in range(0, len(points), _AT_ONCE):
        rows = slice(begin, begin + _AT_ONCE)
        x, owner = points[rows], measure.owner[rows]
        about = take(context, owner)
        before, g = _energy(law, x, about), features(x, centre)
        proposals = propose(x, about, generator)
        c, owner = measure.coefficient[rows].double().cpu()[:, None], owner.cpu()
        for y in proposals:
            gain = (_energy(law, y, about) - before)[:, None]
            accepted = probability(gain)
            step = accepted * torch.cat([features(y, centre) - g, gain], 1) / len(proposals)
            step = torch.where(accepted > 0.0, step, 0.0)
            moved.index_add_(0, owner, c * step)
            size.index_add_(0, owner, c.abs() * step.abs())
        evaluations += len(x) * (1 + len(proposals))
    return moved, size, evaluations


def _energy(law: Law, x: Tensor, context: Context) -> Tensor:
    value = law.energy(x, context)
    return value.detach().double().cpu().nan_to_num(nan=_LOWEST).clamp(min=_LOWEST)


def walks(points: Tensor) -> bool:
    """Whether a walk knows how to move states like these."""
    return points.is_floating_point() or _binary(points)


def _binary(points: Tensor) -> bool:
    return bool(((points == 0) | (points == 1)).all())


def _walk(points: Tensor, owner: Tensor) -> Propose:
    """Symmetric moves of the size of the spread of these states."""
    if _binary(points):
        return _flip
    flat = points.reshape(len(points), -1)
    within = Mean.of(flat.double().cpu(), owner.cpu())
    # Of chains that hardly move, the spread between them is all there is.
    spread = (within.spread.square().sum(0) * len(flat)).sqrt()
    spread = torch.where(spread > 0.0, spread, flat.double().cpu().std(0))
    scale = (2.4 / flat.shape[1] ** 0.5 * spread).to(points).reshape(points.shape[1:])

    def jump(x: Tensor, context: Context, generator: torch.Generator) -> list[Tensor]:
        options: Any = {"dtype": x.dtype, "device": x.device, "generator": generator}
        found = []
        for _ in range(_MOVES // 2):
            power = torch.rand(len(x), *(1,) * (x.dim() - 1), **options)
            move = scale * 10.0 ** (-_SMALLEST * power) * torch.randn(x.shape, **options)
            found += [x + move, x - move]
        return found

    return jump


def _flip(x: Tensor, context: Context, generator: torch.Generator) -> list[Tensor]:
    """One of the units of each state, chosen at random, is the other way round."""
    flat, found = x.reshape(len(x), -1), []
    for _ in range(_MOVES):
        size, device = (len(x), 1), generator.device
        unit = torch.randint(flat.shape[1], size, generator=generator, device=device).to(x.device)
        found.append(flat.scatter(1, unit, 1 - flat.gather(1, unit)).reshape(x.shape))
    return found


def _finite(kernel: Finite) -> Law | None:
    """The stationary law of the matrix; moves go anywhere."""
    if isinstance(kernel.matrix, Tensor) and kernel.matrix.dim() == 3:
        return None  # one for each chain, whose copies are not known to it

    def matrix(context: Context) -> Tensor:
        found = kernel.matrix if isinstance(kernel.matrix, Tensor) else kernel.matrix(*context)
        return found.detach().double().cpu()

    def energy(x: Tensor, context: Context) -> Tensor:
        law = _stationary(matrix(context)).expand(len(x), -1)
        return law.gather(1, x.long().cpu()[:, None])[:, 0].log()

    def anywhere(x: Tensor, context: Context, generator: torch.Generator) -> list[Tensor]:
        size, shape = matrix(context).shape[-1], (_MOVES, *x.shape)
        found = torch.randint(size, shape, generator=generator, device=generator.device)
        return list(found.to(x))

    return Law(energy, anywhere)


def _stationary(matrix: Tensor) -> Tensor:
    """π(P − I) = 0, Σπ = 1, (S,) or (rows, S)."""
    size = matrix.shape[-1]
    system = matrix.transpose(-1, -2) - torch.eye(size, dtype=matrix.dtype)
    one = torch.ones(*matrix.shape[:-2], 1, size, dtype=matrix.dtype)
    right = torch.zeros(*matrix.shape[:-2], size + 1, 1, dtype=matrix.dtype)
    right[..., -1, :] = 1.0
    found = torch.linalg.lstsq(torch.cat([system, one], -2), right).solution[..., 0]
    return found.clamp(min=0.0)
