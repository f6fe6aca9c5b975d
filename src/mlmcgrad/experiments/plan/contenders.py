"""Gradients of the decoder of a model in training: those to plan for, and those to compare.

All of them estimate −∇_θ log p_θ(y) = −E_{p_θ(z|y)}[∇_θ log p_θ(y, z)], see `iwae/objective.py`:

    IWAE       one block of k draws;
    BR-IWAE    the average of a chain of i-SIR of T_n steps;
    this run   its method, with T_n at its last iteration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mlmcgrad.estimators import Average, Estimator
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.iwae.first import complete
from mlmcgrad.kernels import ISIR, Importance, Kernel
from mlmcgrad.kernels.base import Context, Pieces, Start
from mlmcgrad.plan import Plan
from mlmcgrad.seeds import seed_for
from mlmcgrad.training.trainer import Trainer


@dataclass(frozen=True)
class Images:
    """Training images that simulations are about, as a context: y, and mean and log scale of q."""

    rows: Tensor
    context: tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class FromProposal:
    """A kernel whose chains start from draws of q."""

    kernel: Kernel
    propose: Any

    def chains(self, x0: Start, context: Context) -> int:
        """One for each image."""
        return len(context[0]) if x0 is None else self.kernel.chains(x0, context)

    def run(self, x0: Start, context: Context, plan: Plan, generator: torch.Generator) -> Pieces:
        """Draw the start, unless there is one, and go on from there."""
        if x0 is None:
            x0 = self.propose(len(plan.levels), *context, generator=generator)
        return (yield from self.kernel.run(x0, context, plan, generator))


def images(trainer: Trainer, count: int, seed: int) -> Images:
    """Some training images at random, the same on every device."""
    available = len(trainer.source.train)
    if count > available:
        raise ValueError(f"rows must be ≤ {available}, the number of images, got {count}")
    generator = torch.Generator().manual_seed(seed_for(seed, "rows"))
    rows = torch.randperm(available, generator=generator)[:count]
    y = trainer.source.batch(rows.numpy(), trainer.device, generator)
    with torch.no_grad():
        mean, log_scale = trainer.model.encoder(y)
    return Images(rows, (y, mean, log_scale))


def kernels(trainer: Trainer) -> dict[str, Kernel]:
    """What can sample p(z | y) with the candidates of the run."""
    model, k, chunk = trainer.model, trainer.settings.candidates, trainer.settings.chunk
    weighed = (model.log_weight, model.propose)
    return {
        "isir": ISIR(*weighed, max(2, k), chunk=chunk),
        "importance": Importance(*weighed, k, chunk=chunk),
    }


def gradient(trainer: Trainer, kernel: Kernel, estimator: Estimator) -> MarkovGradient:
    """The decoder's gradient by a kernel and an estimator."""
    model = trainer.model
    return MarkovGradient(
        kernel,
        lambda z, y, *_: -model.log_joint(z, y),
        estimator,
        parameters=tuple(model.decoder.parameters()),
        chunk=trainer.settings.chunk,
    )


def contenders(trainer: Trainer) -> dict[str, MarkovGradient]:
    """IWAE, BR-IWAE and the run's own method, if it is neither."""
    settings, objective, known = trainer.settings, trainer.objective, kernels(trainer)
    n = max(1, trainer.iteration)
    longest = settings.truncation_scale * n**settings.truncation_exponent
    found = {
        "IWAE": gradient(trainer, known["importance"], Average(1)),
        "BR-IWAE": gradient(trainer, known["isir"], Average(max(2, math.floor(longest)))),
    }
    plain = settings.kernel in ("isir", "importance") and not settings.rao_blackwell
    if settings.method == "mlmc" or trainer.store is not None or not plain:
        kernel = objective.sampler
        if not isinstance(kernel, ISIR | Importance):
            kernel = FromProposal(kernel, trainer.model.propose)
        found["this run"] = gradient(trainer, kernel, objective.lengths)
    return found


def starts(trainer: Trainer, shown: Images, generator: torch.Generator) -> Tensor | None:
    """Where persistent chains of the run go on; None where each one starts anew."""
    if trainer.store is None:
        return None
    y = shown.context[0]
    drawn = trainer.model.propose(len(y), *shown.context, generator=generator)
    return complete(trainer.store[shown.rows], drawn)
