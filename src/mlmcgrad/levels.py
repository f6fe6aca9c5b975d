"""Distributions of the random level K, and the lengths and weights of each level.

For a non-increasing pmf μ on {1, 2, …} (Appendix A of the paper)

    τ(k) = 1/μ(k),   τ(0) = max(1, 1/(2μ(1))),   ℓ_k = b ⌊τ(k)⌋   (b = `base`, 1 in the paper),
    Ĥ_k = H^{(ℓ_0)} + τ(k) { H^{(ℓ_k)} − H^{(ℓ_{k−1})} } 1{ℓ_k ≤ T},      K ~ μ,

where H^{(p)} is the average over the first p steps of the chain. With κ = max{k : ℓ_k ≤ T} (0 if
there is none) the sum telescopes: E[Ĥ] = E[H^{(ℓ_κ)}]. The paper prints H(X_1) for the first term,
which is correct only for ⌊τ(0)⌋ = 1, i.e. μ(1) > 1/4 (erratum 7 in docs/errata.md). `Geometric()`
is the distribution of the main text: ℓ_k = 2^k, step weights 0, −1 … −1, +1 … +1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor

from mlmcgrad.lengths import Lengths
from mlmcgrad.schedules import floor

Assignment: TypeAlias = Literal["independent", "shared", "balanced"]

# Chain lengths are int64, and a chain that long could never be run anyway.
_LONGEST = 2.0**62


class LevelLaw(ABC):
    """A non-increasing pmf on {1, 2, …}: give `pmf`, `survival`, `quantile` and `highest`."""

    @abstractmethod
    def pmf(self, k: int) -> float:
        """P(K = k); 0 outside the support."""

    @abstractmethod
    def survival(self, k: int) -> float:
        """P(K > k) for k ≥ 0."""

    @abstractmethod
    def quantile(self, u: Tensor) -> Tensor:
        """Inverse CDF: the smallest k with P(K ≤ k) > u, for u in [0, 1); int64."""

    @property
    @abstractmethod
    def highest(self) -> float:
        """The largest level; infinity if there is none."""

    @final
    def tau(self, k: int) -> float:
        """τ(k) = 1/μ(k), the weight of level k; τ(0) = max(1, 1/(2μ(1)))."""
        if k == 0:
            return max(1.0, 1.0 / (2.0 * self.pmf(1)))
        if not 1 <= k <= self.highest:
            raise ValueError(f"k must be a level between 0 and {self.highest}, got {k!r}")
        return 1.0 / self.pmf(k)

    @final
    def length(self, k: int, base: int = 1) -> int:
        """Chain length ℓ_k = base · ⌊τ(k)⌋ of level k; k = 0 is the base term."""
        return base * floor(self.tau(k))

    @final
    def terms(self, k: int, base: int = 1) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Level k as a measure on lengths, see `lengths.py`: (p_j), (w_j) for ℓ_0, ℓ_{k−1}, ℓ_k."""
        start = self.length(0, base)
        if k == 0:
            return (start, start, start), (1.0 / start, 0.0, 0.0)
        short, long, tau = self.length(k - 1, base), self.length(k, base), self.tau(k)
        return (start, short, long), (1.0 / start, -tau / short, tau / long)

    @final
    def lengths(self, levels: Tensor, kappa: int, base: int = 1) -> Lengths:
        """Return the lengths of chains with given levels; those above κ have the base term only.

        Example:
            >>> Geometric().lengths(torch.tensor([3]), kappa=3).step_weights(1, 8)[:, 0].tolist()
            [0.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0]
        """
        steps, weights, longest = _ladder(self, kappa, base)
        used = torch.where(levels <= kappa, levels, 0)
        lengths, weights = steps.index_select(0, used), weights.index_select(0, used)
        return Lengths(levels, lengths, weights, bound=longest)

    @final
    def truncation_level(self, truncation: float, base: int = 1) -> int:
        """κ = max{k : ℓ_k ≤ T}, the highest level that is used; 0 if even ℓ_1 > T.

        Example:
            >>> Geometric().truncation_level(100.0)
            6
        """
        check_truncation(truncation)
        kappa = 0
        while kappa < self.highest and self.length(kappa + 1, base) <= truncation:
            kappa += 1
        return kappa

    @final
    def expected_length(self, truncation: float, base: int = 1) -> float:
        """Exact mean of the chain length for a truncation T; κ + 2^{−κ} for `Geometric()`.

        Example:
            >>> Geometric().expected_length(64.0)
            6.015625
        """
        kappa = self.truncation_level(truncation, base)
        used = math.fsum(self.pmf(k) * self.length(k, base) for k in range(1, kappa + 1))
        return used + self.survival(kappa) * self.length(0, base)

    @final
    def sample(
        self, chains: int, generator: torch.Generator, assignment: Assignment = "independent"
    ) -> Tensor:
        """Draw one level for each chain; each chain's level has exactly the law μ.

        Args:
            chains: how many levels to draw.
            generator: source of the randomness.
            assignment: `"independent"` draws, one `"shared"` draw for all chains, or
                `"balanced"`: the chains get one draw from each of `chains` equal slices of the
                law, in random order, so that the cost of a call hardly varies.

        Returns:
            Levels, (chains,) int64.
        """
        check_assignment(assignment)
        count = 1 if assignment == "shared" else chains
        u = torch.rand(count, dtype=torch.float64, generator=generator, device=generator.device)
        if assignment == "balanced":
            slot = torch.randperm(chains, generator=generator, device=generator.device)
            # (slot + u)/chains may round up to 1, where no level is left.
            u = u.add_(slot).div_(chains).clamp_(max=1.0 - 2.0**-53)
        levels = self.quantile(u.cpu())
        return levels.expand(chains).clone() if assignment == "shared" else levels


@lru_cache(maxsize=64)
def _ladder(law: LevelLaw, kappa: int, base: int) -> tuple[Tensor, Tensor, int]:
    """Lengths and weights of the levels 0 … κ, (κ + 1, 3) each, and ℓ_κ."""
    steps, values = zip(*(law.terms(k, base) for k in range(kappa + 1)), strict=True)
    return torch.tensor(steps), torch.tensor(values, dtype=torch.float64), steps[-1][-1]


@final
@dataclass(frozen=True)
class Geometric(LevelLaw):
    """μ(k) = p (1−p)^{k−1} on {1, 2, …}; p = `success`, 1/2 in the paper's main text.

    Args:
        success: p in (0, 1). A smaller p gives closer levels, τ(k)/τ(k−1) = 1/(1−p).

    Example:
        >>> law = Geometric()
        >>> law.pmf(3), law.length(3)
        (0.125, 8)
    """

    success: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 < self.success < 1.0:
            raise ValueError(f"success must lie strictly between 0 and 1, got {self.success!r}")

    def pmf(self, k: int) -> float:
        """P(K = k) = p (1−p)^{k−1}."""
        return self.success * (1.0 - self.success) ** (k - 1) if k >= 1 else 0.0

    def survival(self, k: int) -> float:
        """P(K > k) = (1−p)^k."""
        return (1.0 - self.success) ** k

    def quantile(self, u: Tensor) -> Tensor:
        """Inverse CDF 1 + ⌊log(1−u)/log(1−p)⌋."""
        return 1 + (torch.log1p(-u) / math.log1p(-self.success)).long()  # rounds to 0

    @property
    def highest(self) -> float:
        """There is no largest level."""
        return math.inf


@final
@dataclass(frozen=True)
class Tabulated(LevelLaw):
    """A distribution on {1 … m} with probabilities μ(1) ≥ μ(2) ≥ … ≥ μ(m) > 0.

    Args:
        probabilities: positive, non-increasing, with sum 1.

    Example:
        >>> Tabulated([0.5, 0.3, 0.2]).length(3)
        5
    """

    probabilities: Sequence[float]

    def __post_init__(self) -> None:
        values = tuple(float(p) for p in self.probabilities)
        object.__setattr__(self, "probabilities", values)
        falls = all(a >= b > 0.0 for a, b in pairwise(values))
        if not (falls and values and values[0] > 0.0 and abs(math.fsum(values) - 1.0) <= 1e-9):
            raise ValueError(
                "probabilities must be positive and non-increasing, because a longer chain is "
                f"never more likely than a shorter one, with sum 1, got {values}; leave out levels "
                "that are never drawn, sort the others, and divide them by their sum"
            )

    def pmf(self, k: int) -> float:
        """P(K = k)."""
        return self.probabilities[k - 1] if 1 <= k <= len(self.probabilities) else 0.0

    def survival(self, k: int) -> float:
        """P(K > k)."""
        return math.fsum(self.probabilities[k:])

    def quantile(self, u: Tensor) -> Tensor:
        """Inverse CDF by bisection in the cumulative sums."""
        cumulative = torch.tensor(self.probabilities, dtype=torch.float64).cumsum(0)
        # Divided by the last one, so that rounding leaves no gap below 1.
        return 1 + torch.searchsorted(cumulative / cumulative[-1], u, right=True)

    @property
    def highest(self) -> float:
        """The number of probabilities."""
        return len(self.probabilities)


def check_truncation(truncation: float) -> float:
    """Return T if it is a positive finite number that a chain length can be compared with."""
    # Written so that NaN fails too.
    if not 0.0 < truncation < _LONGEST:
        raise ValueError(
            f"truncation must be a positive number below 2^62, got {truncation!r}; "
            "levels with longer chains are not used; for example 64 or schedules.power(1.0, 0.5)"
        )
    return truncation


def check_assignment(assignment: Assignment) -> None:
    """Refuse a way of assigning levels to chains that does not exist."""
    if assignment not in get_args(Assignment):
        raise ValueError(f"assignment must be one of {get_args(Assignment)}, got {assignment!r}")
