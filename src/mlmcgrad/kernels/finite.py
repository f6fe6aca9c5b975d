"""A Markov chain on the states 0 … S−1, given by its transition matrix.

P(X_{i+1} = b | X_i = a) = matrix[a, b].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from mlmcgrad.kernels.base import Context
from mlmcgrad.kernels.steps import StepKernel, Walk, steps


class State(NamedTuple):
    """Position, and the rows of cumulative probabilities to draw the next one from."""

    x: Tensor  # (chains,) int64
    cumulative: Tensor  # (chains, S, S) float64, an expanded view if all chains share one matrix


@final
@dataclass(frozen=True)
class Finite(StepKernel[State]):
    """The chain of a transition matrix; states are integers.

    Args:
        matrix: (S, S), rows sum to 1; or a callable `matrix(*context)` that returns it, or one
            matrix for each chain, (chains, S, S). The callable is called for every estimate,
            so it may depend on the parameters that are being trained.

    Example:
        >>> kernel = Finite(torch.tensor([[0.9, 0.1], [0.4, 0.6]]))
    """

    matrix: Tensor | Callable[..., Tensor]

    def __post_init__(self) -> None:
        if isinstance(self.matrix, Tensor):
            check_stochastic(self.matrix)

    def start(self, x: Tensor, context: Context) -> tuple[State, int]:
        """State at x: the matrix is read and checked once."""
        matrix = self.matrix
        if not isinstance(matrix, Tensor):
            with torch.no_grad():
                matrix = matrix(*context)
            check_stochastic(matrix)
        size = matrix.shape[-1]
        # Not uint8: torch would take the states for a mask, here and in a loss theta[x].
        if x.dim() != 1 or x.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"x0 must be int64 or int32 of shape (chains,) for Finite, got {x.dtype} of shape "
                f"{tuple(x.shape)}; use x0.long()"
            )
        if bool(((x < 0) | (x >= size)).any()):
            raise ValueError(
                f"x0 must be states between 0 and {size - 1}, got {x.min().item()} … "
                f"{x.max().item()}"
            )
        if matrix.dim() == 3 and len(matrix) != len(x):
            raise ValueError(
                f"matrix must be (S, S) or one for each of the {len(x)} chains, got shape "
                f"{tuple(matrix.shape)}"
            )
        cumulative = matrix.detach().double().cumsum(-1)
        # Divided by the last one, so that rounding never reaches a state of probability 0.
        cumulative = cumulative / cumulative[..., -1:]
        return State(x, cumulative.expand(len(x), size, size)), 0

    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> Tensor:
        """Uniforms for a block of steps, (steps, chains)."""
        return torch.rand(steps, len(x), dtype=torch.float64, device=x.device, generator=generator)

    def walk(self, state: State, noise: Tensor, context: Context) -> list[Walk[State]]:
        """A block of transitions of every chain."""
        return [steps(self.advance, state, noise, context)]

    def advance(
        self, state: State, noise: Tensor, context: Context
    ) -> tuple[State, Tensor, tuple[()]]:
        """One transition of every chain, by inverse CDF."""
        rows = torch.arange(len(state.x), device=state.x.device)
        cumulative = state.cumulative[rows, state.x]  # (chains, S)
        x = torch.searchsorted(cumulative, noise[:, None], right=True)[:, 0].to(state.x.dtype)
        return State(x, state.cumulative), x != state.x, ()

    @property
    def evaluations_per_step(self) -> int:
        """There is no density to evaluate."""
        return 0


def check_stochastic(matrix: Tensor) -> None:
    """Refuse a matrix that is not square, non-negative, finite and with rows that sum to 1."""
    if not isinstance(matrix, Tensor) or matrix.dim() not in (2, 3):
        got = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
        raise ValueError(f"matrix must be a tensor of shape (S, S) or (chains, S, S), got {got}")
    if matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        raise ValueError(f"matrix must be square, got shape {tuple(matrix.shape)}")
    if not bool(((matrix >= 0.0) & matrix.isfinite()).all()):
        raise ValueError("matrix must have entries that are finite and not negative")
    off = (matrix.double().sum(-1) - 1.0).abs().max().item()
    if off > 1e-5:
        raise ValueError(
            f"matrix must have rows that sum to 1, one is off by {off:.3g}; divide each by its sum"
        )
