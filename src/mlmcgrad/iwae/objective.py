"""The gradients of IWAE, BR-IWAE and MLMC-IWAE (Section 4 of the paper, Algorithm 3).

θ: the estimate of −∇_θ log p_θ(y) = −E_{p_θ(z|y)}[∇_θ log p_θ(y, z)] by i-SIR with k candidates,

    iwae   one step from k draws of q: Σ_ℓ ω_ℓ ∇_θ log p_θ(y, z_ℓ), the IWAE gradient itself;
    br     the average over a chain of T_n steps (BR-SNIS);
    mlmc   the multilevel estimate with truncation T_n (Algorithm 3).

φ: always the IWAE gradient on the first k draws, Σ_ℓ ω_ℓ ∇_φ log w_ℓ with z_ℓ = mean + scale·ε
(`encoder="iwae"`), or the doubly reparameterised one, Σ_ℓ ω_ℓ² (∂ log w_ℓ/∂z) (∂z_ℓ/∂φ)
(`encoder="dreg"`). These k draws are the first block of the chain: they are weighed once.

All draws are weighed first, without a graph; then only the states that matter are decoded again
and differentiated, for θ and φ in one pass (`shared.py`).

V is maximised in the paper's Section 4; here −V is minimised (erratum 9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from mlmcgrad.estimators import MLMC, Average, Estimator
from mlmcgrad.gradient import MarkovGradient, accumulate, check_value, report
from mlmcgrad.iwae import shared
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.kernels import ISIR, MALA, RWMH, FromStep, Kernel
from mlmcgrad.levels import Assignment
from mlmcgrad.measure import Measure, concatenate
from mlmcgrad.schedules import Schedule
from mlmcgrad.types import Estimate, FirstBlock, Outcome, Plan, Start, take

Method: TypeAlias = Literal["iwae", "br", "mlmc"]
EncoderGradient: TypeAlias = Literal["iwae", "dreg"]
KernelName: TypeAlias = Literal["isir", "mala", "rwmh"]


@dataclass(frozen=True)
class Step:
    """What one gradient saw and spent; `evaluations` of the estimate are decoder evaluations."""

    bound: float  # the IWAE bound with k draws, mean over the batch: an estimate of log p(y)
    estimate: Estimate
    effective: float  # effective number among the first k weights, mean over the batch
    largest: float  # largest normalised weight among them


@dataclass(frozen=True)
class Objective:
    """Gradients of −log p_θ(y), mean over a batch, for one of the methods.

    Args:
        model: encoder, decoder, likelihood.
        method: `iwae`, `br` or `mlmc`.
        candidates: k; with `method="iwae"`, 1 is the ELBO.
        truncation: T_n of `br` and `mlmc`, a number or a schedule.
        rao_blackwell: average i-SIR's selections out.
        assignment: of the levels of `mlmc` to the data of a batch.
        base: chain length at which the ladder of `mlmc` starts.
        encoder: gradient of φ.
        kernel: samples p_θ(z | y); `mala` and `rwmh` start from one draw of q.
        step_size: of `mala` and `rwmh`.
        thinning: a state whose coefficient is below this part of the weight of a step is left out
            at random, in a way that keeps the expectation; 0 keeps every state.
        chunk: states in one backward pass of the decoder.
        batch: draws weighed in one pass of the decoder.
    """

    model: LatentModel
    method: Method = "mlmc"
    candidates: int = 5
    truncation: float | Schedule = 16.0
    rao_blackwell: bool = False
    assignment: Assignment = "independent"
    base: int = 1
    encoder: EncoderGradient = "iwae"
    kernel: KernelName = "isir"
    step_size: float = 0.01
    thinning: float = 0.1
    chunk: int = 256
    batch: int = 256

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("method", self.method, Method),
            ("encoder", self.encoder, EncoderGradient),
            ("kernel", self.kernel, KernelName),
        ):
            if value not in get_args(kind):
                raise ValueError(f"{name} must be one of {get_args(kind)}, got {value!r}")
        least = 2 if self.method != "iwae" and self.kernel == "isir" else 1
        if not isinstance(self.candidates, int) or self.candidates < least:
            raise ValueError(
                f"candidates must be an integer from {least} on for method {self.method!r}, got "
                f"{self.candidates!r}"
            )
        if not 0.0 <= self.thinning < math.inf:
            raise ValueError(f"thinning must be a finite number from 0 on, got {self.thinning!r}")

    @cached_property
    def gradient(self) -> MarkovGradient:
        """The θ-gradient: kernel, loss and estimator."""
        return MarkovGradient(
            self._kernel(),
            self._loss,
            self._estimator(),
            parameters=tuple(self.model.decoder.parameters()),
            chunk=self.chunk,
        )

    def backward(self, y: Tensor, *, n: int, generator: torch.Generator) -> Step:
        """Add the gradients of a batch to `.grad` of decoder and encoder.

        Args:
            y: images in [0, 1], (batch, channels, h, w).
            n: iteration, counted from 1.
            generator: source of all randomness.
        """
        mean, log_scale = self.model.encoder(y)
        noise = torch.randn(
            len(y),
            self.candidates,
            mean.shape[1],
            dtype=y.dtype,
            device=y.device,
            generator=generator,
        )
        z = mean[:, None] + log_scale.exp()[:, None] * noise  # (batch, k, latent)
        context = (y, mean.detach(), log_scale.detach())
        log_w = self._weigh(z.detach(), context)  # (batch, k) float64
        share = log_w.softmax(1)
        weight = share.square() if self.encoder == "dreg" else share
        plan, outcome, states = self._simulate(z.detach(), log_w, weight, context, n, generator)
        theta = tuple(self.model.decoder.parameters())
        slopes = shared.differentiate(self._loss, theta, states, y, weight.numel(), self.chunk)
        check_value(slopes.value)
        phi = tuple(self.model.encoder.parameters())
        encoder_loss = self._encoder_loss(z, slopes.draws, weight, mean, log_scale)
        accumulate(phi, torch.autograd.grad(encoder_loss, phi))
        accumulate(theta, slopes.theta)
        return Step(
            bound=float((log_w.logsumexp(1) - math.log(self.candidates)).mean()),
            estimate=report(plan, outcome, slopes.value, slopes.count, theta),
            effective=float((1.0 / share.square().sum(1)).mean()),
            largest=float(share.max(1).values.mean()),
        )

    @torch.no_grad()
    def _weigh(self, z: Tensor, context: tuple[Tensor, ...]) -> Tensor:
        """Log weights of the first draws, (batch, k) float64."""
        owner = torch.arange(len(z), device=z.device).repeat_interleave(z.shape[1])
        flat = z.flatten(0, 1)
        pieces = [
            self.model.log_weight(flat[rows], *take(context, owner[rows]))
            for rows in torch.arange(len(flat), device=z.device).split(self.batch)
        ]
        return torch.cat(pieces).double().reshape(z.shape[:2])

    def _simulate(
        self,
        z: Tensor,
        log_w: Tensor,
        weight: Tensor,
        context: tuple[Tensor, ...],
        n: int,
        generator: torch.Generator,
    ) -> tuple[Plan, Outcome, shared.States]:
        """Run the chains; `weight` is that of the first draws in the gradient of φ."""
        start: Start = z[:, 0]
        if self.kernel == "isir" and self.candidates > 1:
            start = FirstBlock(z, log_w)
        plan = self.gradient.estimator.plan(len(z), n, generator)
        pieces: list[Measure] = []
        outcome = self.gradient.kernel.run(start, context, plan, generator, pieces.append)
        theta = concatenate(pieces)
        states = (
            shared.of_blocks(theta, weight)
            if self.kernel == "isir"
            else shared.side_by_side(theta, z, weight)
        )
        step = plan.values.abs().amax(1).to(z.device)[states.theta.owner]
        return plan, outcome, shared.thin(states, self.thinning * step, self.thinning, generator)

    def _encoder_loss(
        self, z: Tensor, slope: Tensor, weight: Tensor, mean: Tensor, log_scale: Tensor
    ) -> Tensor:
        """A scalar whose gradient in φ is the wanted one, mean over the batch.

        −Σ b_ℓ log w_ℓ, with its part −Σ b_ℓ log p_θ(y, z_ℓ) given by its slope in z.
        """
        if self.encoder == "dreg":  # the score of q with respect to φ is left out
            mean, log_scale = mean.detach(), log_scale.detach()
        flat = z.flatten(0, 1)
        rows = (t.repeat_interleave(z.shape[1], 0) for t in (mean, log_scale))
        log_q = self.model.log_q(flat, *rows)
        return (slope * flat).sum() + (weight.flatten().to(flat.dtype) * log_q).sum() / len(z)

    def _loss(self, z: Tensor, y: Tensor, *_: Tensor) -> Tensor:
        return -self.model.log_joint(z, y)

    def _estimator(self) -> Estimator:
        if self.method == "iwae":
            return Average(1)
        if self.method == "br":
            return Average(self.truncation)
        return MLMC(self.truncation, assignment=self.assignment, base=self.base)

    def _kernel(self) -> Kernel:
        def log_density(z: Tensor, y: Tensor, *_: Tensor) -> Tensor:
            return self.model.log_joint(z, y)

        if self.kernel == "mala":
            return MALA(log_density, self.step_size)
        if self.kernel == "rwmh":
            return RWMH(log_density, self.step_size)
        if self.candidates == 1:  # the ELBO: the draw itself
            return FromStep(_stay)
        return ISIR(
            self.model.log_weight,
            self.model.propose,
            self.candidates,
            self.rao_blackwell,
            self.batch,
        )


def _stay(z: Tensor, *_: Tensor, generator: torch.Generator) -> Tensor:
    return z


__all__ = ["EncoderGradient", "KernelName", "Method", "Objective", "Step"]
