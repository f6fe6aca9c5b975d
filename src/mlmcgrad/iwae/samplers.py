"""The kernels that sample p_θ(z | y), and weights of their draws for whoever has the images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.kernels import ISIR, MALA, RWMH, FromStep, Importance, Kernel
from mlmcgrad.kernels.base import take


def sampler_of(
    model: LatentModel,
    kernel: str,
    *,
    candidates: int,
    step_size: float,
    rao_blackwell: bool,
    chunk: int,
) -> Kernel:
    """A kernel by its name; see `Objective` for the arguments."""

    def log_density(z: Tensor, y: Tensor, *_: Tensor) -> Tensor:
        return model.log_joint(z, y)

    if kernel == "mala":
        return MALA(log_density, step_size)
    if kernel == "rwmh":
        return RWMH(log_density, step_size)
    if kernel == "importance":
        return Importance(model.log_weight, model.propose, candidates, chunk=chunk)
    if candidates == 1:  # the ELBO: the draw itself
        return FromStep(_stay)
    return ISIR(
        model.log_weight, model.propose, candidates, rao_blackwell=rao_blackwell, chunk=chunk
    )


def weigher(model: LatentModel, y: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Weighs draws of q for these images, given the image of each: log w, (draws,) float64."""
    # As where they are drawn: the same bits.
    context = (y, *(tensor.detach() for tensor in model.encoder(y)))

    @torch.no_grad()
    def weigh(z: Tensor, owner: Tensor) -> Tensor:
        return model.log_weight(z, *take(context, owner)).double()

    return weigh


def _stay(z: Tensor, *_: Tensor, generator: torch.Generator) -> Tensor:
    return z
