"""The Metropolis–Hastings decision, shared by the kernels that propose and accept.

A proposal y is accepted with probability 1 ∧ e^r,

    r = log π(y) − log π(x) + log q(y,x) − log q(x,y).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

S = TypeVar("S", bound="tuple[Tensor, ...]")
HALF = (torch.float16, torch.bfloat16)


def decide(log_ratio: Tensor, log_uniform: Tensor) -> Tensor:
    """Accept where log u < r < ∞, (chains,) bool; a ratio of NaN or +∞ is a rejection."""
    return (log_uniform < log_ratio) & (log_ratio < torch.inf)


def probability(log_ratio: Tensor) -> Tensor:
    """The chance 1 ∧ e^r that `decide` accepts, (chains,); 0 for a ratio of NaN or +∞."""
    return torch.where(log_ratio < torch.inf, log_ratio.clamp(max=0.0).exp(), 0.0)


def usable(log_ratio: Tensor, log_density: Tensor) -> Tensor:
    """Whether proposals could be judged, from their r and log π(y); of any shape.

    A proposal outside the support, log π(y) = −∞, is an ordinary rejection. Anything else that
    leaves no finite ratio (NaN, an infinite density or gradient) is refused and counted. This is
    bookkeeping, done for a block of steps at a time.
    """
    return (log_ratio.abs() < torch.inf) | log_density.isneginf()


class Noise(NamedTuple):
    """What a step of a proposing kernel consumes; for a block, with the steps in front."""

    jump: Tensor  # (chains, *shape): the random part of the proposed move
    log_uniform: Tensor  # (chains,)

    def unbind(self) -> list[Noise]:
        """The noise of each step of a block."""
        pairs = zip(self.jump.unbind(), self.log_uniform.unbind(), strict=True)
        return [Noise(jump, log_uniform) for jump, log_uniform in pairs]

    def part(self, begin: int, steps: int) -> Noise:
        """The noise of some steps of a block, as tensors that begin where their memory does.

        Whether they do is something that a compiled graph depends on.
        """
        fields = [field[begin : begin + steps] for field in self]
        return Noise(*(fields if begin == 0 else [field.clone() for field in fields]))


def proposal_noise(
    steps: int, x: Tensor, deviation: float | Tensor, generator: torch.Generator
) -> Noise:
    """Centred normals of that deviation, and log uniforms, for a block of steps."""
    options: Any = {"device": x.device, "generator": generator}
    jump = torch.randn(steps, *x.shape, dtype=x.dtype, **options).mul_(deviation)
    precise = torch.promote_types(x.dtype, torch.float32)
    uniform = torch.rand(steps, x.shape[0], dtype=precise, **options)
    # An exact 0 would accept anything; half of the smallest positive value stands for it.
    uniform.clamp_(min=0.25 * torch.finfo(precise).eps)
    return Noise(jump, uniform.log_())


def judged(values: Tensor) -> Tensor:
    """Numbers that a decision depends on: not in half precision, whatever the states are."""
    return values.float() if isinstance(values, Tensor) and values.dtype in HALF else values


def choose(accepted: Tensor, proposed: S, current: S) -> S:
    """The proposed state where it was accepted and the current one elsewhere, field by field."""
    over = accepted.view(-1, *(1,) * (proposed[0].dim() - 1))
    fields = [
        torch.where(over if p.dim() > 1 else accepted, p, c)
        for p, c in zip(proposed, current, strict=True)
    ]
    return type(proposed)(*fields)
