"""The records that pass between an estimator, a kernel and the gradient.

Shapes: the chain dimension comes first everywhere, `x: (chains, *shape)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

Context: TypeAlias = tuple[Any, ...]
"""What `log_density`, `loss`, … take after x. Tensors have one row per chain; anything else is
handed through as it is."""


@dataclass(frozen=True)
class Plan:
    """How long each chain runs and the weight of each of its steps.

    The weights of a chain are piecewise constant in the step i = 1 … length, with few pieces, so
    a plan takes the same room for a chain of two steps and of two million: step i of chain c has
    the weight `values[c, j]` of the first piece j with i ≤ `ends[c, j]`.
    """

    levels: Tensor  # (chains,) int64: the level K drawn; 0 where the estimator has no levels
    lengths: Tensor  # (chains,) int64
    ends: Tensor  # (chains, pieces) int64, non-decreasing along the pieces
    values: Tensor  # (chains, pieces) float64

    def weights(self, first: int, last: int) -> Tensor:
        """Weights of the steps first … last (counted from 1, both included): (steps, chains)."""
        return self.at(torch.arange(first, last + 1, device=self.ends.device)[:, None])

    def at(self, steps: Tensor) -> Tensor:
        """Weights of steps of the chains, counted from 1: steps broadcast against (chains,)."""
        weights = self.values.new_zeros(())
        for end, value in zip(
            reversed(self.ends.unbind(1)), reversed(self.values.unbind(1)), strict=True
        ):
            weights = torch.where(steps <= end, value, weights)
        return weights

    def select(self, chains: Tensor | slice) -> Plan:
        """The plan of some of the chains, in the order given."""
        return Plan(
            self.levels[chains], self.lengths[chains], self.ends[chains], self.values[chains]
        )

    def to(self, device: torch.device) -> Plan:
        """The same plan with its tensors on another device."""
        return Plan(
            self.levels.to(device),
            self.lengths.to(device),
            self.ends.to(device),
            self.values.to(device),
        )


@dataclass(frozen=True)
class FirstBlock:
    """The k candidates of the first step of `ISIR`, drawn and weighed by the caller.

    A caller who needs their weights anyway (the encoder of an IWAE does) pays for them once: handed
    to `ISIR` as x0, they are not drawn and weighed again.
    """

    points: Tensor  # (chains, k, *shape): independent draws of the proposal
    log_weight: Tensor  # (chains, k)

    def __len__(self) -> int:
        return self.points.shape[0]


Start: TypeAlias = Tensor | FirstBlock | None
"""Where chains start: states, (chains, *shape); for `ISIR` also its first block, or nothing."""


@dataclass(frozen=True)
class Outcome:
    """What a kernel reports when its chains have ended; see `Estimate` for the meaning."""

    last: Tensor  # (chains, *shape)
    evaluations: int
    accepted: float
    invalid: int


@dataclass(frozen=True)
class Estimate:
    """What one gradient estimate spent, and what happened on the way.

    Attributes:
        value: the weighted loss Σ_j c_j loss(x_j), mean over chains.
        lengths: transitions made by each chain, (chains,).
        levels: level K drawn for each chain, (chains,); 0 where the estimator has no levels. A
            K beyond the truncation means that the chain took only the base term.
        transitions: total over the chains, `lengths.sum()`.
        evaluations: states at which the density (or the network behind the importance weights)
            was evaluated, total over the chains.
        loss_evaluations: states at which the loss was evaluated and differentiated.
        acceptance: share of the transitions that moved the chain.
        invalid: proposals refused because the density or its gradient was NaN or +∞ there.
        last: final state of each chain, (chains, *shape): a warm start for the next call.
        parameters: the tensors that received a gradient, in the order of `gradient.gradient`.
    """

    value: float
    lengths: Tensor
    levels: Tensor
    transitions: int
    evaluations: int
    loss_evaluations: int
    acceptance: float
    invalid: int
    last: Tensor
    parameters: tuple[Tensor, ...]


def take(context: Context, rows: Tensor | slice) -> Context:
    """The rows of every tensor in the context; whatever is not a tensor stays."""
    return tuple(c[rows] if isinstance(c, Tensor) else c for c in context)


def check_rows(name: str, values: Any, x: Tensor) -> None:
    """Refuse what a user's function returned unless it is one number for each row of x."""
    if not isinstance(values, Tensor) or values.shape != x.shape[:1]:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"{name} must return one number for each row of its first argument, here shape "
            f"({x.shape[0]},) for an argument of shape {tuple(x.shape)}, got {got}; "
            "sum over all dimensions but the first"
        )


__all__ = ["Context", "Estimate", "FirstBlock", "Outcome", "Plan", "Start", "check_rows", "take"]
