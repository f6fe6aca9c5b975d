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

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, SupportsIndex, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.backward import accumulate, check_gradients
from mlmcgrad.estimate import Estimate
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum, check_budget
from mlmcgrad.iwae import drawing
from mlmcgrad.iwae.encoder import EncoderGradient, Posterior, draw_weights, encoder_gradient
from mlmcgrad.iwae.first import Findings, complete, findings
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.iwae.spread import Spread, here
from mlmcgrad.iwae.states import States, differentiate, side_by_side, thinned, thresholds
from mlmcgrad.kernels import ISIR, MALA, RWMH, Importance, Kernel, Outcome, Simulation
from mlmcgrad.levels import Assignment
from mlmcgrad.measure import concatenate
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

        def log_density(z: Tensor, y: Tensor, *_: Tensor) -> Tensor:
            return self.model.log_joint(z, y)

        if self.kernel == "mala":
            return MALA(log_density, self.step_size)
        if self.kernel == "rwmh":
            return RWMH(log_density, self.step_size)
        return self._proposing(self.model.log_weight, self.model.propose, self.chunk)

    def _proposing(
        self, log_weight: Callable[..., Tensor], propose: Callable[..., Tensor], chunk: int
    ) -> ISIR | Importance:
        """The kernel on draws of q; for MALA and RWMH, what weighs the draws of φ."""
        if self.kernel != "isir" or self.candidates == 1:  # the ELBO: the draw itself
            return Importance(log_weight, propose, self.candidates, chunk=chunk)
        return ISIR(
            log_weight, propose, self.candidates, rao_blackwell=self.rao_blackwell, chunk=chunk
        )

    @cached_property
    def _drawing(self) -> ISIR | Importance:
        """The same on all draws of a batch at once, see `drawing.py`."""
        return self._proposing(drawing.log_weight, drawing.propose, drawing.ROWS)

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
        weighing: Spread = here,
        differentiating: Spread = here,
    ) -> tuple[tuple[Tensor, ...], Step]:
        """Return the gradients of `parameters`; `plan` is what `planned` drew before.

        Several processes may share the passes of the decoder, those that weigh draws and those
        that differentiate states; value, count and gradients are then of the passes made here.
        """
        if x0 is not None and self._by_block:
            raise ValueError(
                "x0: importance sampling has no state to go on from; use kernel='isir' and "
                "candidates ≥ 2, or leave x0 out"
            )
        q = Posterior(*self.model.encoder(y))
        fixed = q.detach()
        if plan is None:
            plan = self.planned(len(y), n, generator)
        check_planned(len(y), plan)
        states, found, outcome = self._simulate(y, fixed, x0, plan, generator, weighing)
        total = np.bincount(states.theta.owner.cpu().numpy(), states.phi, len(y)).astype(float)
        limits = thresholds(states, plan, self.thinning, by_block=self._by_block)
        states = thinned(states, *limits, generator)
        theta, phi = self._networks
        gradient, slopes, value, count = differentiate(
            self.model.log_joint, theta, states, y, chunk=self.chunk, spread=differentiating
        )
        of_q = encoder_gradient(self.encoder, states, slopes, total, fixed)
        of_phi = torch.autograd.grad(q, phi, of_q)
        check_gradients(of_phi)
        # The draws of φ are counted as part of the chain, unless they have nothing to do with it.
        extra = len(y) * self.candidates if self._apart else 0
        return (*gradient, *of_phi), Step(
            bound=found.bound,
            estimate=Estimate.of(
                plan, outcome, value=value, loss_evaluations=count, parameters=theta
            ),
            evaluations=outcome.evaluations + extra,
            effective=found.effective,
            largest=found.largest,
        )

    def _simulate(
        self,
        y: Tensor,
        q: Posterior,
        x0: Tensor | Remembered | None,
        plan: Plan,
        generator: torch.Generator,
        weighing: Spread,
    ) -> tuple[States, Findings, Outcome]:
        """Run the chains: states with their weights in both gradients, findings of the weights."""
        batch = drawing.Batch(y, self.model.log_joint, self.chunk, weighing)
        context = drawing.context(batch, *q)
        start, blocks = None, plan
        if self._apart:  # the draws of φ, before the chains
            blocks = Average(1).plan(len(y), None, generator)
        elif x0 is not None:
            start = complete(x0, drawing.propose(len(y), *context, generator=generator))
        simulation = Simulation(self._drawing.parts(start, context, blocks, generator))
        parts = list(simulation)
        found = findings([part.first for part in parts])
        measure = concatenate([part.measure for part in parts])
        phi = draw_weights(self.encoder, torch.cat([part.share for part in parts]).cpu().numpy())
        if self._apart:
            first = measure.points[:: self.candidates]
            start = first if x0 is None else complete(x0, first)
            chains = Simulation(self.sampler.run(start, (y,), plan, generator))
            return side_by_side(list(chains), measure, phi), found, chains.outcome
        if self._by_block:  # the mean over the blocks of a datum
            phi = phi / plan.longest.numpy()[measure.owner.cpu().numpy()]
        return States(measure, phi), found, simulation.outcome

    @property
    def _apart(self) -> bool:
        """Whether the chains have nothing in common with the draws of φ."""
        return self.kernel in ("mala", "rwmh")

    @property
    def _by_block(self) -> bool:
        """Whether importance sampling has no state to go on from, and all blocks are alike."""
        return not self._apart and isinstance(self._drawing, Importance)
