"""The gradients of IWAE, BR-IWAE and MLMC-IWAE (Section 4 of the paper, Algorithm 3).

θ: the estimate of −∇_θ log p_θ(y) = −E_{p_θ(z|y)}[∇_θ log p_θ(y, z)] by i-SIR with k candidates,

    iwae   one step from k draws of q: Σ_ℓ ω_ℓ ∇_θ log p_θ(y, z_ℓ), the IWAE gradient itself;
    br     the average over a chain of T_n steps (BR-SNIS);
    mlmc   the multilevel estimate with truncation T_n (Algorithm 3).

φ: always the IWAE gradient on the first k draws, Σ_ℓ ω_ℓ ∇_φ log w_ℓ with z_ℓ = mean + scale·ε
(`encoder="iwae"`), or the doubly reparameterised one, Σ_ℓ ω_ℓ² (∂ log w_ℓ/∂z) (∂z_ℓ/∂φ)
(`encoder="dreg"`). These k draws are the first block of the chain: they are weighed once.

All draws are weighed first, without a graph; then only the states that matter are decoded again
and differentiated, for θ and φ in one pass (`states.py`).

V is maximised in the paper's Section 4; here −V is minimised (erratum 9 in docs/errata.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, SupportsIndex, TypeAlias, get_args

import torch
from torch import Tensor

from mlmcgrad.backward import accumulate, check_gradients
from mlmcgrad.estimate import Estimate
from mlmcgrad.estimators import MLMC, Average, Estimator, check_budget
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.iwae.states import States, differentiate, of_blocks, side_by_side, thinned
from mlmcgrad.kernels import ISIR, MALA, RWMH, FirstBlock, FromStep, Kernel, Outcome, Simulation
from mlmcgrad.kernels.base import take
from mlmcgrad.levels import Assignment
from mlmcgrad.plan import Plan
from mlmcgrad.ranges import non_negative, whole
from mlmcgrad.schedules import Schedule, check_iteration

Method: TypeAlias = Literal["iwae", "br", "mlmc"]
EncoderGradient: TypeAlias = Literal["iwae", "dreg"]
KernelName: TypeAlias = Literal["isir", "mala", "rwmh"]


@dataclass(frozen=True)
class Step:
    """What one gradient saw and spent."""

    bound: float  # the IWAE bound with k draws, mean over the batch: an estimate of log p(y)
    estimate: Estimate  # of θ's gradient
    evaluations: int  # decoder evaluations in all, without the second decoding of what matters
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
        chunk: states in one pass of the decoder: it bounds the memory.
    """

    model: LatentModel
    method: Method = "mlmc"
    candidates: int = field(default=5, kw_only=True)
    truncation: float | Schedule = field(default=16.0, kw_only=True)
    rao_blackwell: bool = field(default=False, kw_only=True)
    assignment: Assignment = field(default="independent", kw_only=True)
    base: int = field(default=1, kw_only=True)
    encoder: EncoderGradient = field(default="iwae", kw_only=True)
    kernel: KernelName = field(default="isir", kw_only=True)
    step_size: float = field(default=0.01, kw_only=True)
    thinning: float = field(default=0.1, kw_only=True)
    chunk: int = field(default=256, kw_only=True)

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("method", self.method, Method),
            ("encoder", self.encoder, EncoderGradient),
            ("kernel", self.kernel, KernelName),
        ):
            if value not in get_args(kind):
                raise ValueError(f"{name} must be one of {get_args(kind)}, got {value!r}")
        least = 2 if self.method != "iwae" and self.kernel == "isir" else 1
        whole(self.candidates, "candidates", least)
        non_negative(self.thinning, "thinning")

    @cached_property
    def estimator(self) -> Estimator:
        """How long the chains run."""
        if self.method == "iwae":
            return Average(1)
        if self.method == "br":
            return Average(self.truncation)
        return MLMC(self.truncation, assignment=self.assignment, base=self.base)

    @cached_property
    def _sampler(self) -> Kernel:
        """What samples p_θ(z | y)."""

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
            rao_blackwell=self.rao_blackwell,
            chunk=self.chunk,
        )

    def backward(
        self, y: Tensor, *, n: SupportsIndex | None = None, generator: torch.Generator
    ) -> Step:
        """Add the gradients of a batch to `.grad` of decoder and encoder.

        Args:
            y: images in [0, 1], (batch, channels, h, w).
            n: iteration, counted from 1; it may be left out where nothing is scheduled.
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
        bound = float((log_w.logsumexp(1) - math.log(self.candidates)).mean())
        if not math.isfinite(bound):
            raise FloatingPointError(f"the bound is {bound}: weights are not finite, or all are 0")
        share = log_w.softmax(1)
        weight = share.square() if self.encoder == "dreg" else share
        n = None if n is None else check_iteration(n)
        check_budget(self.estimator, len(y), n)
        plan = self.estimator.plan(len(y), n, generator)
        states, outcome = self._simulate(z.detach(), log_w, weight, context, plan, generator)
        theta, phi = (tuple(net.parameters()) for net in (self.model.decoder, self.model.encoder))
        gradient, slopes, value, count = differentiate(
            self._loss, theta, states, y, draws=weight.numel(), chunk=self.chunk
        )
        encoder_loss = self._encoder_loss(z, slopes, weight, mean, log_scale)
        of_phi = torch.autograd.grad(encoder_loss, phi)
        check_gradients(of_phi)
        accumulate(phi, of_phi)
        accumulate(theta, gradient)
        # i-SIR counts the k draws that the encoder shares with it; otherwise they come on top.
        extra = 0 if self.kernel == "isir" else weight.numel()
        return Step(
            bound=bound,
            estimate=Estimate.of(
                plan, outcome, value=value, loss_evaluations=count, parameters=theta
            ),
            evaluations=outcome.evaluations + extra,
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
            for rows in torch.arange(len(flat), device=z.device).split(self.chunk)
        ]
        return torch.cat(pieces).double().reshape(z.shape[:2])

    def _simulate(
        self,
        z: Tensor,
        log_w: Tensor,
        weight: Tensor,
        context: tuple[Tensor, ...],
        plan: Plan,
        generator: torch.Generator,
    ) -> tuple[States, Outcome]:
        """Run the chains; `weight` is that of the first draws in the gradient of φ."""
        start = FirstBlock(z, log_w) if isinstance(self._sampler, ISIR) else z[:, 0]
        simulation = Simulation(self._sampler.run(start, context, plan, generator))
        theta = [piece for piece in simulation if len(piece)]
        states = (
            of_blocks(theta, weight) if self.kernel == "isir" else side_by_side(theta, z, weight)
        )
        largest = plan.largest_step_weight.to(z.device)[states.theta.owner]
        states = thinned(states, self.thinning * largest, self.thinning, generator)
        return states, simulation.outcome

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


def _stay(z: Tensor, *_: Tensor, generator: torch.Generator) -> Tensor:
    return z
