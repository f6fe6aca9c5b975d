"""Markov chains on the states 0 … S−1.

`Finite` has a transition matrix, P(X_{i+1} = b | X_i = a) = matrix[a, b].

`Regenerative` stays with probability a and is drawn from π otherwise, P = a I + (1−a) 1πᵀ:

    TV(P^i(x,·), π) = a^i (1−π(x)) and TV(P^i(x,·), P^i(y,·)) = a^i for x ≠ y,

so that its ergodicity constants are known for every π. Its path needs no loop over steps: X_i is
the draw of the latest renewal at or before i. All steps of all chains are drawn at once, in one
ragged array, so the time of an estimate follows the total number of steps rather than the longest
chain; so does the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from mlmcgrad._checks import fraction
from mlmcgrad.kernels.base import (
    Context,
    Fault,
    Outcome,
    Pieces,
    Start,
    StepKernel,
    Unread,
    Walk,
    check,
    check_place,
    count_states,
    described,
    steps,
)
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure, read, ship


class FiniteState(NamedTuple):
    """Position, and the cumulative probabilities from which the next position is drawn."""

    x: Tensor  # (chains,) int64
    cumulative: Tensor  # (chains, S, S) float64, an expanded view if all chains share one matrix


@final
@dataclass(frozen=True)
class Finite(StepKernel[FiniteState]):
    """The chain of a transition matrix; states are integers.

    Args:
        matrix: (S, S), rows sum to 1; or a callable `matrix(*context)` that returns it, or one
            matrix for each chain, (chains, S, S). The callable is called for every estimate,
            so it may depend on the parameters that are being trained.

    Example:
        >>> kernel = Finite(torch.tensor([[0.9, 0.1], [0.4, 0.6]]))
    """

    matrix: Tensor | Callable[..., Tensor]
    evaluations_per_step: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if isinstance(self.matrix, Tensor):
            check_stochastic(self.matrix)

    def start(self, x: Tensor, context: Context) -> tuple[FiniteState, int]:
        """State at x: the matrix is read and checked once."""
        matrix = self.matrix
        if not isinstance(matrix, Tensor):
            with torch.no_grad():
                matrix = matrix(*context)
            check_stochastic(matrix)
        check_place("matrix", matrix, x)
        size = matrix.shape[-1]
        check_integers(x, "Finite")
        if matrix.dim() == 3 and len(matrix) != len(x):
            raise ValueError(
                f"matrix must be (S, S) or one for each of the {len(x)} chains, got "
                f"{described(matrix)}"
            )
        cumulative = matrix.detach().double().cumsum(-1)
        # Divided by the last one, so that rounding never reaches a state of probability 0.
        cumulative = cumulative / cumulative[..., -1:]
        return FiniteState(x, cumulative.expand(len(x), size, size)), 0

    def fault(self, state: FiniteState) -> Fault:
        """States that the matrix does not have."""
        return out_of_range(state.x, state.cumulative.shape[-1])

    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> Tensor:
        """Uniforms for a block of steps, (steps, chains)."""
        return torch.rand(steps, len(x), dtype=torch.float64, device=x.device, generator=generator)

    def walk(self, state: FiniteState, noise: Tensor, context: Context) -> Walk[FiniteState]:
        """Make a block of transitions of every chain."""
        if state.x.device.type != "cpu":  # where a fault is reported at the end
            state = state._replace(x=state.x.clamp(0, state.cumulative.shape[-1] - 1))
        return steps(self.advance, state, noise, context)

    def advance(
        self, state: FiniteState, noise: Tensor, context: Context
    ) -> tuple[FiniteState, Tensor, tuple[()]]:
        """One transition of every chain, by inverse CDF."""
        rows = torch.arange(len(state.x), device=state.x.device)
        cumulative = state.cumulative[rows, state.x]  # (chains, S)
        x = torch.searchsorted(cumulative, noise[:, None], right=True)[:, 0].to(state.x.dtype)
        return FiniteState(x, state.cumulative), x != state.x, ()


@final
@dataclass(frozen=True)
class Regenerative:
    """A kernel on the states 0 … S−1 that stays or renews.

    Args:
        stay: a in [0, 1), the probability of staying in the current state.
        law: `law(*context)`, the stationary distribution π of each chain, (chains, S): finite,
            non-negative numbers, which are normalised.

    Example:
        >>> kernel = Regenerative(0.5, lambda: torch.tensor([[0.25, 0.75]]))
    """

    stay: float
    law: Callable[..., Tensor]

    def __post_init__(self) -> None:
        fraction(self.stay, "stay")

    def chains(self, x0: Start, context: Context) -> int:
        """Return one for each row of x0."""
        return count_states(x0, "Regenerative")

    def run(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Pieces:
        """Simulate the planned chains from x0; the measure is one piece."""
        with torch.no_grad():
            law = self.law(*context)
        check_law(law, len(x0))
        check_place("law", law, x0)
        chains, states = law.shape
        check_integers(x0, "Regenerative")
        check(out_of_range(x0, states))
        device, steps = x0.device, lengths.longest
        # What depends on the lengths alone is computed on the host.
        owner = torch.repeat_interleave(steps)  # (steps of all chains,)
        begin, index = (steps.cumsum(0) - steps)[owner], torch.arange(len(owner))
        weight = ship(lengths.select(owner).at(index - begin + 1), device)
        end = ship(steps.cumsum(0) - 1, device)
        owner, begin, index = (ship(numbers, device) for numbers in (owner, begin, index))
        cumulative = law.detach().double().cumsum(-1)  # (chains, S)
        noise = torch.rand(2, len(owner), dtype=torch.float64, device=device, generator=generator)
        # Divided by the last one, so that rounding never reaches a state of probability 0.
        point = noise[0] * cumulative[:, -1][owner]
        fresh = (point[:, None] >= cumulative[:, :-1][owner]).sum(1)
        renewal = torch.where(noise[1] >= self.stay, index, -1).cummax(0).values
        state = torch.where(renewal >= begin, fresh[renewal], x0[owner])
        coefficient = torch.zeros(chains * states, dtype=torch.float64, device=device)
        coefficient.index_add_(0, owner * states + state, weight)
        points = torch.arange(chains * states, device=device)
        yield Measure((points % states).to(x0.dtype), points // states, coefficient)
        before = torch.where(index == begin, x0[owner], state.roll(1))
        unread = Unread((state != before).sum())
        return Outcome(state[end].to(x0.dtype), 0, 0, 0, unread=unread)


def check_integers(x: Tensor, kernel: str) -> None:
    """Refuse states that are not integers, one for each chain."""
    # Not uint8: torch would take the states for a mask, here and in a loss theta[x].
    if x.dim() != 1 or x.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"x0 must be int64 or int32 of shape (chains,) for {kernel}, got {described(x)}; "
            "use x0.long()"
        )


def out_of_range(x: Tensor, size: int) -> Fault:
    """Say which states are not from 0 to size − 1."""

    def error() -> Exception:
        lowest, highest = x.min().item(), x.max().item()
        return ValueError(f"x0 must be states between 0 and {size - 1}, got {lowest} … {highest}")

    return Fault((x < 0) | (x >= size), error)


def check_law(law: Tensor, chains: int) -> None:
    """Refuse what is not a row of finite numbers for each chain, none negative and not all 0."""
    if not isinstance(law, Tensor) or law.dim() != 2 or len(law) != chains or law.is_complex():
        raise ValueError(
            f"law must return a row of probabilities for each of the {chains} chains, (chains, S), "
            f"got {described(law)}; a law that all chains share is law.expand(chains, -1)"
        )
    total = law.double().sum(1)
    bad = ~((law >= 0.0) & law.isfinite()).all(1) | ~((total > 0.0) & total.isfinite())
    if bool(bad.any()):
        chain = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"law must return numbers that are finite and not negative, with a positive and finite "
            f"sum for each chain, got {law[chain].tolist()} for chain {chain} and "
            f"{int(bad.sum())} of {chains} chains like it"
        )


def check_stochastic(matrix: Tensor) -> None:
    """Refuse a matrix that is not square, non-negative, finite and with rows that sum to 1."""
    square = isinstance(matrix, Tensor) and matrix.dim() in (2, 3)
    if not square or matrix.shape[-1] != matrix.shape[-2] or not matrix.numel():
        raise ValueError(
            "matrix must be a square tensor of shape (S, S) or (chains, S, S), got "
            f"{described(matrix)}"
        )
    wrong = ((matrix < 0.0) | ~matrix.isfinite()).any()
    wrongs, off = read(wrong, (matrix.double().sum(-1) - 1.0).abs().max())
    if wrongs:
        raise ValueError("matrix must have entries that are finite and not negative")
    if off > 1e-5:
        raise ValueError(
            f"matrix must have rows that sum to 1, one is off by {off:.3g}; divide each by its sum"
        )
