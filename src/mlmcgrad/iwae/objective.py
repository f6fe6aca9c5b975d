"""The gradients of IWAE, BR-IWAE and MLMC-IWAE (Section 4 of the paper, Algorithm 3).

θ: the estimate of −∇_θ log p_θ(y) = −E_{p_θ(z|y)}[∇_θ log p_θ(y, z)] by i-SIR with k candidates,

    iwae   one step from k draws of q: Σ_ℓ ω_ℓ ∇_θ log p_θ(y, z_ℓ), the IWAE gradient itself;
    br     the average over a chain of T_n steps (BR-SNIS);
    mlmc   the multilevel estimate with truncation T_n (Algorithm 3).

φ: always the IWAE gradient on the first k draws, Σ_ℓ ω_ℓ ∇_φ log w_ℓ with z_ℓ = mean + scale·ε
(`encoder="iwae"`), or the doubly reparameterised one, Σ_ℓ ω_ℓ² (∂ log w_ℓ/∂z) (∂z_ℓ/∂φ)
(`encoder="dreg"`). These k draws are the first block of the chain: they are weighed once.

V is maximised in the paper's Section 4; here −V is minimised (erratum 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from mlmcgrad.estimators import MLMC, Average, Estimator
from mlmcgrad.gradient import MarkovGradient, accumulate
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.kernels import ISIR, MALA, RWMH, FromStep, Kernel
from mlmcgrad.levels import Assignment
from mlmcgrad.schedules import Schedule
from mlmcgrad.types import Estimate, FirstBlock, Start

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
    chunk: int = 1024
    batch: int = 2048

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
            len(y), self.candidates, mean.shape[1], dtype=y.dtype, device=y.device,
            generator=generator,
        )  # fmt: skip
        z = mean[:, None] + log_scale.exp()[:, None] * noise  # (batch, k, latent)
        log_w = self._log_weights(z, y, mean, log_scale)  # (batch, k), with its graph
        share = log_w.detach().double().softmax(1)
        encoder = tuple(self.model.encoder.parameters())
        phi = torch.autograd.grad(self._encoder_loss(log_w, share), encoder)
        context = (y, mean.detach(), log_scale.detach())
        estimate = self._theta(z.detach(), log_w.detach(), context, n, generator)
        accumulate(encoder, phi)
        k = self.candidates
        bound = (log_w.detach().double().logsumexp(1) - torch.tensor(float(k)).log()).mean()
        return Step(
            bound=float(bound),
            estimate=estimate,
            effective=float((1.0 / share.square().sum(1)).mean()),
            largest=float(share.max(1).values.mean()),
        )

    def _theta(
        self, z: Tensor, log_w: Tensor, context: tuple[Tensor, ...], n: int,
        generator: torch.Generator,
    ) -> Estimate:  # fmt: skip
        start: Start
        if self.kernel != "isir":
            start = z[:, 0]
        elif self.candidates == 1:  # the ELBO: the draw itself, without a chain
            return _single(self.gradient, z[:, 0], context, n, generator)
        else:
            start = FirstBlock(z, log_w)
        return self.gradient.backward(start, *context, n=n, generator=generator)

    def _log_weights(self, z: Tensor, y: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
        k = z.shape[1]
        repeated = [t.repeat_interleave(k, 0) for t in (y, mean, log_scale)]
        if self.encoder == "dreg":  # the score of q with respect to φ is left out
            repeated[1:] = [t.detach() for t in repeated[1:]]
        return self.model.log_weight(z.flatten(0, 1), *repeated).reshape(-1, k)

    def _encoder_loss(self, log_w: Tensor, share: Tensor) -> Tensor:
        """A scalar whose gradient in φ is the wanted one, mean over the batch."""
        weight = share.square() if self.encoder == "dreg" else share
        return -(weight.to(log_w.dtype) * log_w).sum(1).mean()

    def _loss(self, z: Tensor, y: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
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
        return ISIR(
            self.model.log_weight, self.model.propose, max(self.candidates, 2),
            self.rao_blackwell, self.batch,
        )  # fmt: skip


def _single(
    gradient: MarkovGradient, z: Tensor, context: tuple[Tensor, ...], n: int,
    generator: torch.Generator,
) -> Estimate:  # fmt: skip
    """The gradient at one draw of q: a chain of one step that stays where it is."""

    def stay(x: Tensor, *_: Tensor, generator: torch.Generator) -> Tensor:
        return x

    still = MarkovGradient(
        FromStep(stay), gradient.loss, gradient.estimator, parameters=gradient.parameters,
        chunk=gradient.chunk,
    )  # fmt: skip
    return still.backward(z, *context, n=n, generator=generator)


__all__ = ["EncoderGradient", "KernelName", "Method", "Objective", "Step"]
