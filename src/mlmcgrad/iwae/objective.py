"""The gradients of IWAE, BR-IWAE and MLMC-IWAE (Section 4 of the paper, Algorithm 3).

θ: the estimate of −∇_θ log p_θ(y) = −E_{p_θ(z|y)}[∇_θ log p_θ(y, z)] from blocks of k draws of q,

    iwae   one block: Σ_ℓ ω_ℓ ∇_θ log p_θ(y, z_ℓ), the IWAE gradient itself;
    br     the average over a chain of T_n steps of i-SIR (BR-SNIS);
    mlmc   the multilevel estimate with truncation T_n: by i-SIR, which is Algorithm 3, or by the
           ladder of importance sampling (`kernel="importance"`); with one level
           (`estimator="single"`) or all levels up to a random one (`estimator="sum"`).

φ: one of the gradients of `encoder.py`, on the first block for a Markov chain, which begins with
it, and on all blocks for importance sampling. Draws are weighed once for both.

Persistent chains (x0 of `backward`, from a `Store`) go on where they were at the last visit of a
datum: the first candidate of i-SIR is then the state that was kept, and φ has the other k−1.

All draws are weighed first, without a graph; then only the states that matter are decoded again
and differentiated, for θ and φ in one pass (`states.py`).

V is maximised in the paper's Section 4; here −V is minimised (erratum 9 in docs/errata.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, SupportsIndex, TypeAlias, get_args

import torch
from torch import Tensor

from mlmcgrad.backward import WeightedBackward, accumulate, check_gradients
from mlmcgrad.estimate import Estimate
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum, check_budget
from mlmcgrad.iwae.encoder import EncoderGradient, Posterior, draw_weights, from_draws, from_states
from mlmcgrad.iwae.first import FirstDraws, complete, first_draws
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.iwae.samplers import sampler_of
from mlmcgrad.iwae.states import States, differentiate, of_blocks, side_by_side, thinned, thresholds
from mlmcgrad.kernels import ISIR, FirstBlock, Importance, Kernel, Outcome, Simulation
from mlmcgrad.kernels.base import Spread
from mlmcgrad.levels import Assignment
from mlmcgrad.measure import Measure, concatenate
from mlmcgrad.plan import Plan, check_planned
from mlmcgrad.ranges import non_negative, whole
from mlmcgrad.schedules import Schedule, check_iteration
from mlmcgrad.store import Remembered
from mlmcgrad.wrapped import refused

Method: TypeAlias = Literal["iwae", "br", "mlmc"]
KernelName: TypeAlias = Literal["isir", "importance", "mala", "rwmh"]
EstimatorName: TypeAlias = Literal["single", "sum"]


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
        estimator: of `mlmc`: one random level, as in the paper, or all levels up to it.
        encoder: gradient of φ, see `encoder.py`.
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
    estimator: EstimatorName = field(default="single", kw_only=True)
    encoder: EncoderGradient = field(default="iwae", kw_only=True)
    kernel: KernelName = field(default="isir", kw_only=True)
    step_size: float = field(default=0.01, kw_only=True)
    thinning: float = field(default=0.1, kw_only=True)
    chunk: int = field(default=256, kw_only=True)

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("method", self.method, Method),
            ("estimator", self.estimator, EstimatorName),
            ("encoder", self.encoder, EncoderGradient),
            ("kernel", self.kernel, KernelName),
        ):
            if value not in get_args(kind):
                raise ValueError(f"{name} must be one of {get_args(kind)}, got {value!r}")
        least = 2 if self.method != "iwae" and self.kernel == "isir" else 1
        whole(self.candidates, "candidates", least)
        non_negative(self.thinning, "thinning")

    @cached_property
    def lengths(self) -> Estimator:
        """How long the simulations are."""
        if self.method == "iwae":
            return Average(1)
        if self.method == "br":
            return Average(self.truncation)
        kind = MLMC if self.estimator == "single" else MLMCSum
        return kind(self.truncation, assignment=self.assignment, base=self.base)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """θ, and then φ."""
        return sum(self._networks, ())

    def planned(self, chains: int, n: SupportsIndex | None, generator: torch.Generator) -> Plan:
        """Lengths of the simulations of a batch."""
        n = None if n is None else check_iteration(n)
        check_budget(self.lengths, chains, n)
        return self.lengths.plan(chains, n, generator)

    @cached_property
    def _networks(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """θ and φ."""
        return tuple(self.model.decoder.parameters()), tuple(self.model.encoder.parameters())

    @cached_property
    def sampler(self) -> Kernel:
        """What samples p_θ(z | y)."""
        return sampler_of(
            self.model,
            self.kernel,
            candidates=self.candidates,
            step_size=self.step_size,
            rao_blackwell=self.rao_blackwell,
            chunk=self.chunk,
        )

    def backward(
        self,
        y: Tensor,
        *,
        n: SupportsIndex | None = None,
        x0: Tensor | Remembered | None = None,
        generator: torch.Generator,
    ) -> Step:
        """Add the gradients of a batch to `.grad` of decoder and encoder.

        Args:
            y: images in [0, 1], (batch, channels, h, w).
            n: iteration, counted from 1; it may be left out where nothing is scheduled.
            x0: where the chains go on, (batch, latent), from a `Store`; None starts them anew.
                `Step.estimate.last` is what the store is to keep.
            generator: source of all randomness.
        """
        gradients, step = self.gradient(y, n=n, x0=x0, generator=generator)
        accumulate(self.parameters, gradients)
        return step

    @refused()
    def gradient(
        self,
        y: Tensor,
        *,
        n: SupportsIndex | None = None,
        x0: Tensor | Remembered | None = None,
        generator: torch.Generator,
        plan: Plan | None = None,
        weighing: Spread | None = None,
        differentiating: Spread | None = None,
    ) -> tuple[tuple[Tensor, ...], Step]:
        """Return the gradients of `parameters`; `plan` is what `planned` drew before.

        Several processes may weigh the draws of i-SIR and importance sampling, but for the first
        ones, and differentiate the states (`differentiated`): value, count and gradients are then
        those of the states of this process.
        """
        chain = self.kernel in ("mala", "rwmh") or (self.kernel == "isir" and self.candidates > 1)
        if x0 is not None and not chain:
            raise ValueError(
                "x0: importance sampling has no state to go on from; use kernel='isir' and "
                "candidates ≥ 2, or leave x0 out"
            )
        q = Posterior(*self.model.encoder(y))
        noise = torch.randn(
            len(y),
            self.candidates,
            q.mean.shape[1],
            dtype=y.dtype,
            device=y.device,
            generator=generator,
        )
        fixed = q.detach()
        z = fixed.draw(noise)  # (batch, k, latent)
        context = (y, *fixed)
        start = z[:, 0] if x0 is None else complete(x0, z[:, 0])
        old = x0 is not None and self.kernel == "isir"
        first = first_draws(self.model, z, context, start, old=old, chunk=self.chunk)
        if plan is None:
            plan = self.planned(len(y), n, generator)
        check_planned(len(y), plan)
        states, outcome = self._simulate(first, context, plan, generator, weighing)
        by_block = self.kernel == "importance"
        limits = thresholds(states, plan, self.thinning, by_block=by_block)
        states = thinned(states, *limits, generator)
        if by_block:  # every state is a draw of φ
            states = replace(states, draw=torch.arange(len(states.theta), device=y.device))
        theta, phi = self._networks
        gradient, slopes, value, count = differentiate(
            self._loss,
            theta,
            states,
            y,
            draws=len(states.theta) if by_block else first.share.numel(),
            chunk=self.chunk,
            spread=differentiating,
        )
        of_phi = torch.autograd.grad(q, phi, self._encoder_gradient(first, states, slopes, fixed))
        check_gradients(of_phi)
        # The draws of φ are counted as part of the chain, unless they have nothing to do with it.
        extra = first.share.numel() if self.kernel in ("mala", "rwmh") else 0
        return (*gradient, *of_phi), Step(
            bound=first.bound,
            estimate=Estimate.of(
                plan, outcome, value=value, loss_evaluations=count, parameters=theta
            ),
            evaluations=outcome.evaluations + extra,
            effective=float((1.0 / first.share.square().sum(1)).mean()),
            largest=float(first.share.max(1).values.mean()),
        )

    def differentiated(self, y: Tensor) -> WeightedBackward:
        """Adds up gradients of the decoder at states of the chains of these images."""
        theta, _ = self._networks
        return WeightedBackward(self._loss, (y,), divisor=len(y), parameters=theta, wide=True)

    def _simulate(
        self,
        first: FirstDraws,
        context: tuple[Tensor, ...],
        plan: Plan,
        generator: torch.Generator,
        weighing: Spread | None,
    ) -> tuple[States, Outcome]:
        """Run the chains: states with their weights in both gradients."""
        z, sampler = first.z, self.sampler
        if weighing is not None and isinstance(sampler, (ISIR, Importance)):
            sampler = replace(sampler, weighing=weighing)
        block = FirstBlock(z, first.log_w)
        if isinstance(sampler, Importance):
            drawn = Simulation(sampler.parts(block, context, plan, generator))
            parts = list(drawn)
            theta = concatenate([part.measure for part in parts])
            share = torch.cat([part.share for part in parts])
            # The mean over the blocks of a datum.
            blocks = plan.longest.to(z.device)[theta.owner]
            weight = draw_weights(self.encoder, share) / blocks
            return States(theta, weight, torch.full_like(theta.owner, -1)), drawn.outcome
        start = block if isinstance(sampler, ISIR) else first.start
        simulation = Simulation(sampler.run(start, context, plan, generator))
        pieces = [piece for piece in simulation if len(piece)]
        weight = draw_weights(self.encoder, first.share)
        states = (
            of_blocks(pieces, weight) if self.kernel == "isir" else side_by_side(pieces, z, weight)
        )
        return states, simulation.outcome

    def _encoder_gradient(
        self, first: FirstDraws, states: States, slopes: Tensor, q: Posterior
    ) -> Posterior:
        """The gradient in mean and log scale of the encoder, mean over the batch."""
        terms, theta = [], states.theta
        if self.encoder != "wake":
            draws = Measure(theta.points, theta.owner, states.phi)
            if self.kernel != "importance":
                owner = torch.arange(len(q.mean), device=q.mean.device)
                weight = draw_weights(self.encoder, first.share).flatten()
                owner = owner.repeat_interleave(self.candidates)
                draws = Measure(first.z.flatten(0, 1), owner, weight)
            terms.append(from_draws(self.encoder, draws, slopes, q))
        if self.encoder in ("wake", "mixed"):
            terms.append(from_states(self.encoder, theta, q))
        return terms[0] if len(terms) == 1 else Posterior(*map(torch.add, *terms))

    def _loss(self, z: Tensor, y: Tensor, *_: Tensor) -> Tensor:
        return -self.model.log_joint(z, y)
