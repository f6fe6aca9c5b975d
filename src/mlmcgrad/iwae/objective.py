"""The gradients of IWAE, BR-IWAE and MLMC-IWAE (Section 4 of the paper, Algorithm 3).

θ: the estimate of −∇_θ log p_θ(y) = −E_{p_θ(z|y)}[∇_θ log p_θ(y, z)] from blocks of k draws of q,

    iwae   one block: Σ_ℓ ω_ℓ ∇_θ log p_θ(y, z_ℓ), the IWAE gradient itself;
    br     the average over a chain of T_n steps of i-SIR (BR-SNIS);
    mlmc   the multilevel estimate with truncation T_n: by i-SIR, which is Algorithm 3, or by the
           levels of importance sampling (`kernel="importance"`); with one random level
           (`multilevel="single"`) or the sum of all levels up to it (`multilevel="sum"`).

φ: one of the gradients of `mlmcgrad.iwae.proposal`, on the first block of a Markov chain and on all
blocks of importance sampling.

Persistent chains (x0 of `backward`, from a `Store`) resume from their state at the last visit of a
datum: it is then the first candidate of i-SIR, and φ uses the other k−1.

All draws are weighted without a graph; one differentiation of the decoder then serves θ and φ. With
ℓ_j = −log p_θ(y, z_j), θ needs Σ_j c_j ∇_θ ℓ_j over the states of the simulations, and φ needs
b_j ∂ℓ_j/∂z_j at draws of q, most of which are among these states. The backward pass of Σ_j c_j ℓ_j
computes c_j ∂ℓ_j/∂z_j in row j; times b_j/c_j it is the slope for φ. Only states without a weight
for θ need a pass for φ alone. Most states hardly matter: with a spread of 20 nats one candidate of
a step has all the weight. `thin_states` drops such states at random without changing the mean.

V is maximised in the paper's Section 4; here −V is minimised (erratum 9 in docs/errata.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, SupportsIndex, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from mlmcgrad._checks import non_negative, whole
from mlmcgrad.backward import Estimate, WeightedBackward, accumulate, refused
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum, check_budget
from mlmcgrad.iwae import proposal
from mlmcgrad.iwae.networks import HiddenVariableModel
from mlmcgrad.iwae.proposal import (
    EncoderGradient,
    Posterior,
    States,
    complete,
    draw_weights,
    encoder_gradient,
    summarize_weights,
)
from mlmcgrad.kernels import ISIR, MALA, RWMH, Importance, Kernel, Simulation
from mlmcgrad.kernels.base import check_place, judged, precise
from mlmcgrad.kernels.importance import QUIET
from mlmcgrad.lengths import Lengths, check_lengths
from mlmcgrad.levels import Assignment
from mlmcgrad.measure import (
    Measure,
    certainty,
    chunk_size,
    concatenate,
    fetch,
    ship,
    thin,
    uniforms,
)
from mlmcgrad.schedules import Schedule
from mlmcgrad.store import Remembered

Method: TypeAlias = Literal["iwae", "br", "mlmc"]
KernelName: TypeAlias = Literal["isir", "importance", "mala", "rwmh"]
MultilevelName: TypeAlias = Literal["single", "sum"]

# States in one pass of the decoder on a processor: more of them leave its cache.
_CHUNK = 256
# b/c is used below this ratio; in float32 a larger one could amplify an underflow.
_LARGEST_RATIO = 1e6


@dataclass(frozen=True)
class ObjectiveInfo:
    """What one gradient measured and spent.

    Attributes:
        bound: IWAE bound with k draws, mean over the batch: an estimate of log p(y).
        estimate: of θ's gradient.
        evaluations: decoder evaluations without a graph; `estimate.loss_evaluations` come on top.
        effective: effective sample size of the first k weights, mean over the batch.
        largest: largest normalised weight among them, mean over the batch.
    """

    bound: float
    estimate: Estimate
    evaluations: int
    effective: float
    largest: float


@dataclass(frozen=True)
class Objective:
    """Gradients of −log p_θ(y), mean over a batch, for one of the methods.

    Args:
        model: encoder, decoder, likelihood.
        method: `iwae`, `br` or `mlmc`.
        candidates: k, the draws per block; `method="iwae"` with k = 1 is the ELBO.
        truncation: T_n of `br` and `mlmc`, a number or a schedule.
        rao_blackwell: average over i-SIR's selections instead of drawing them.
        assignment: how `mlmc` assigns levels to the data of a batch.
        base: chain length of the lowest level of `mlmc`.
        multilevel: estimator of `mlmc`: one random level as in the paper (`single`, `MLMC`), or
            the sum of all levels up to it (`sum`, `MLMCSum`).
        continuation: r of `multilevel="sum"`; 2**-1.5 suits `kernel="importance"`.
        encoder: gradient of φ: `iwae`, `dreg`, `stl`, `wake` or `mixed`.
        kernel: samples p_θ(z | y); `mala` and `rwmh` start from one draw of q.
        step_size: of `mala` and `rwmh`.
        thinning: a state whose coefficient is below this fraction of the weight of a step is
            dropped at random, without changing the expectation; 0 keeps every state.
        chunk: states in one pass of the decoder: it bounds the memory. By default 256 on a
            processor and 8192 on other devices.
    """

    model: HiddenVariableModel
    method: Method = "mlmc"
    candidates: int = field(default=5, kw_only=True)
    truncation: float | Schedule = field(default=16.0, kw_only=True)
    rao_blackwell: bool = field(default=False, kw_only=True)
    assignment: Assignment = field(default="independent", kw_only=True)
    base: int = field(default=1, kw_only=True)
    multilevel: MultilevelName = field(default="single", kw_only=True)
    continuation: float = field(default=0.5, kw_only=True)
    encoder: EncoderGradient = field(default="iwae", kw_only=True)
    kernel: KernelName = field(default="isir", kw_only=True)
    step_size: float = field(default=0.01, kw_only=True)
    thinning: float = field(default=0.1, kw_only=True)
    chunk: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("method", self.method, Method),
            ("multilevel", self.multilevel, MultilevelName),
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
        """The estimator that draws the lengths of the chains."""
        if self.method == "iwae":
            return Average(1)
        if self.method == "br":
            return Average(self.truncation)
        how: dict[str, Any] = {"assignment": self.assignment, "base": self.base}
        if self.multilevel == "single":
            return MLMC(self.truncation, **how)
        return MLMCSum(self.truncation, self.continuation, **how)

    @cached_property
    def parameters(self) -> tuple[Tensor, ...]:
        """θ, and then φ."""
        return (*self.model.decoder.parameters(), *self.model.encoder.parameters())

    def draw_lengths(
        self, chains: int, n: SupportsIndex | None, generator: torch.Generator
    ) -> Lengths:
        """Draw the lengths of the chains of a batch."""
        n = None if n is None else whole(n, "n")
        lengths = self.estimator.draw(chains, n, generator)
        check_budget(self.estimator, chains, n, longest=lengths.bound)
        return lengths

    @cached_property
    def sampler(self) -> Kernel:
        """The kernel that samples p_θ(z | y)."""

        def log_density(z: Tensor, y: Tensor, *_: Tensor) -> Tensor:
            return self.model.log_joint(z, y)

        if self.kernel == "mala":
            return MALA(log_density, self.step_size)
        if self.kernel == "rwmh":
            return RWMH(log_density, self.step_size)
        return self._proposing(self.model.log_weight, self.model.propose, self.chunk)

    def _proposing(
        self, log_weight: Callable[..., Tensor], propose: Callable[..., Tensor], chunk: int | None
    ) -> ISIR | Importance:
        """Return the kernel on draws of q; for MALA and RWMH, it weights the draws of φ."""
        if self.kernel != "isir" or self.candidates == 1:  # the ELBO: the draw itself
            return Importance(log_weight, propose, self.candidates, chunk=chunk)
        return ISIR(
            log_weight, propose, self.candidates, rao_blackwell=self.rao_blackwell, chunk=chunk
        )

    @cached_property
    def _batched(self) -> ISIR | Importance:
        """The same kernel on many draws at once, see `mlmcgrad.iwae.proposal`."""
        return self._proposing(proposal.log_weight, proposal.propose, proposal.ROWS)

    def backward(
        self,
        y: Tensor,
        *,
        n: SupportsIndex | None = None,
        x0: Tensor | Remembered | None = None,
        generator: torch.Generator,
        scale: float | Tensor | None = None,
    ) -> ObjectiveInfo:
        """Add the gradients of a batch to `.grad` of decoder and encoder.

        Args:
            y: images in [0, 1], (batch, channels, h, w).
            n: iteration, counted from 1; optional without schedules.
            x0: previous states of persistent chains, (batch, latent), from a `Store`, which then
                keeps `estimate.last` of the result; None starts from draws of q.
            generator: source of all randomness.
            scale: a factor of the gradients, as in `MarkovGradient.backward`.
        """
        gradients, info = self.gradient(y, n=n, x0=x0, generator=generator, scale=scale)
        accumulate(self.parameters, gradients)
        return info

    @refused()
    def gradient(
        self,
        y: Tensor,
        *,
        n: SupportsIndex | None = None,
        x0: Tensor | Remembered | None = None,
        generator: torch.Generator,
        lengths: Lengths | None = None,
        scale: float | Tensor | None = None,
    ) -> tuple[tuple[Tensor, ...], ObjectiveInfo]:
        """Return the gradients of `parameters`, and leave `.grad` unchanged.

        Takes the arguments of `backward`, and `lengths` if `draw_lengths` was called before.
        """
        if x0 is not None and self._by_block:
            raise ValueError(
                "x0: importance sampling has no state to resume from; use kernel='isir' and "
                "candidates ≥ 2, or leave x0 out"
            )
        check_place("y", y, self.parameters[0])
        check_place("generator", generator, self.parameters[0])
        q = Posterior(*map(judged, self.model.encoder(y)))
        fixed = q.detach()
        if lengths is None:
            lengths = self.draw_lengths(len(y), n, generator)
        check_lengths(len(y), lengths)
        states, summary, simulation = self._simulate(y, fixed, x0, lengths, generator)
        total = np.bincount(states.theta.owner.numpy(), states.phi, len(y)).astype(float)
        states = thin_states(states, lengths, self.thinning, generator, by_block=self._by_block)
        theta = tuple(self.model.decoder.parameters())
        phi = self.parameters[len(theta) :]
        chunk = chunk_size(self.chunk, y.device, _CHUNK)
        both, slopes, count = differentiate(
            self.model.log_joint, theta, states, y, chunk=chunk, scale=scale
        )
        of_q = encoder_gradient(self.encoder, states, slopes, total, fixed)
        if scale is not None:
            of_q = Posterior(of_q.mean * scale, of_q.log_scale * scale)
        with precise(y.device):
            of_phi = torch.autograd.grad(q, phi, of_q)
        gradient = both.gradients(simulation.read, further=of_phi)
        outcome = simulation.ended
        # The draws of φ are part of the chain, unless the kernel does not use them.
        extra = len(y) * self.candidates if self._separate else 0
        estimate = Estimate.of(
            lengths, outcome, value=both.value, loss_evaluations=count, parameters=theta
        )
        return (*gradient, *of_phi), ObjectiveInfo(
            estimate=estimate, evaluations=outcome.evaluations + extra, **summary
        )

    def _simulate(
        self,
        y: Tensor,
        q: Posterior,
        x0: Tensor | Remembered | None,
        lengths: Lengths,
        generator: torch.Generator,
    ) -> tuple[States, dict[str, float], Simulation[Any]]:
        """Run the chains, and return their states with the weights in both gradients."""
        chunk = chunk_size(self.chunk, y.device, _CHUNK)
        context = proposal.context(self.model.log_joint, y, q, chunk)
        start, blocks = None, lengths
        if self._separate:  # the draws of φ, before the chains
            blocks = Average(1).draw(len(y), None, generator)
        elif x0 is not None:
            start = complete(x0, proposal.propose(len(y), *context, generator=generator))
        simulation: Simulation[Any] = Simulation(
            self._batched.parts(start, context, blocks, generator)
        )
        parts = list(simulation)
        summary = summarize_weights([part.first for part in parts])
        measure = concatenate([part.measure for part in parts])
        phi = draw_weights(self.encoder, torch.cat([part.share for part in parts]).numpy())
        if self._separate:
            first = measure.points[:: self.candidates]
            start = first if x0 is None else complete(x0, first)
            simulation = Simulation(self.sampler.run(start, (y,), lengths, generator))
            chains = concatenate(list(simulation))
            chains = Measure(chains.points, *fetch(*chains.parts[1:]))
            unused = Measure(*measure.parts[:2], torch.zeros_like(measure.coefficient))
            measure = concatenate([chains, unused])
            phi = np.concatenate([np.zeros(len(measure) - len(phi)), phi])
        elif self._by_block:  # the mean over the blocks of a datum
            phi = (torch.from_numpy(phi) / lengths.longest[measure.owner]).numpy()
        return States(measure, phi), summary, simulation

    @property
    def _separate(self) -> bool:
        """Whether the chains do not use the draws of φ."""
        return self.kernel in ("mala", "rwmh")

    @property
    def _by_block(self) -> bool:
        """Whether the blocks are those of importance sampling: exchangeable, without a state."""
        return not self._separate and isinstance(self._batched, Importance)


@QUIET
def thin_states(
    states: States, lengths: Lengths, thinning: float, generator: torch.Generator, *, by_block: bool
) -> States:
    """Drop states of small weight at random, without changing the mean of either gradient.

    A state is kept with probability min(1, max(|c|/s, b/t)), and its weights are divided by this
    probability. For Markov chains s is `thinning` times the largest weight of a step, and t is
    `thinning`; for blocks of importance sampling s is `thinning` times the largest |c| of the
    datum, and t is `thinning` divided by the number of blocks.

    Args:
        states: the states.
        lengths: lengths of their chains.
        thinning: 0 keeps every state with a weight.
        generator: source of the randomness.
        by_block: whether the states are blocks of importance sampling.
    """
    owner, c = (t.numpy() for t in states.theta.parts[1:])
    largest, blocks = lengths.largest_step_weight.numpy(), np.ones(len(lengths.levels))
    if by_block:
        largest, blocks = np.zeros(len(lengths.levels)), lengths.longest.numpy()
        np.maximum.at(largest, owner, np.abs(c))
    probability = np.maximum(
        certainty(c, (thinning * largest)[owner]), certainty(states.phi, (thinning / blocks)[owner])
    )
    theta, keep = thin(states.theta, probability, uniforms(len(blocks), generator))
    return States(theta, states.phi[keep] / probability[keep])


def differentiate(
    log_joint: Callable[[Tensor, Tensor], Tensor],
    parameters: tuple[Tensor, ...],
    states: States,
    y: Tensor,
    *,
    chunk: int,
    scale: float | Tensor | None = None,
) -> tuple[WeightedBackward, Tensor, int]:
    """Differentiate the loss at all states for θ and φ, mean over the data, in chunks.

    Args:
        log_joint: −ℓ(z, y), (rows,).
        parameters: θ.
        states: the states and their weights.
        y: data, (batch, …).
        chunk: states in one backward pass.
        scale: a factor of the gradients in θ, and of the backward passes; not of the slopes.

    Returns:
        The sums Σ_j c_j ∇_θ ℓ_j and Σ_j c_j ℓ_j, not read yet; the slopes b_j ∂ℓ_j/∂z_j,
        (points, latent); and the number of differentiated states.
    """
    points, owner, c = states.theta.parts
    b = torch.from_numpy(states.phi)
    of_theta, of_phi = ((weight / -len(y)).to(points.dtype) for weight in (c, b))
    slopes = torch.zeros_like(points)

    def add(total: WeightedBackward, weight: Tensor, where: Tensor) -> None:
        rows = slice(None) if where.all() else where.nonzero()[:, 0]
        measure = Measure(points, owner, weight)[rows]
        pieces = zip(*(tensor.split(chunk) for tensor in measure.parts), strict=True)
        found = torch.cat([total.add_with_slopes(Measure(*piece)) for piece in pieces])
        if isinstance(rows, Tensor):
            slopes.index_copy_(0, ship(rows, slopes.device), found)
        else:
            slopes.copy_(found)

    both = WeightedBackward(log_joint, (y,), divisor=1, parameters=parameters, scale=scale)
    # Weights that underflow in the precision of the loss are 0: times an infinite slope, NaN.
    used = of_theta != 0.0
    if used.any():
        add(both, of_theta, used)
    served = b <= _LARGEST_RATIO * c.abs()  # φ, by the pass of θ
    ratio = ship(torch.where(served & used, b / c, 0.0).to(slopes.dtype), slopes.device)[:, None]
    slopes = torch.where(ratio != 0.0, slopes * ratio, 0.0)
    count = both.count
    alone = ~served & (of_phi != 0.0)
    if alone.any():
        only_phi = WeightedBackward(log_joint, (y,), divisor=1, parameters=(), scale=scale)
        add(only_phi, of_phi, alone)
        count += only_phi.count
    return both, slopes if scale is None else slopes / scale, count
