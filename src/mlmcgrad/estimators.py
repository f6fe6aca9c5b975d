"""Estimators: signed measures on lengths, see `mlmcgrad.lengths`.

The plain chain average H^{(p)} = (1/p) Σ_{i≤p} H(X_i), with an optional burn-in.

`Average(1)` is the short chain (contrastive divergence, one-step gradients), `Average(T)` with
`ISIR` is BR-SNIS, the baseline of the paper's experiments.

The multilevel estimator (eq. mlmc-estim of the paper).

    Ĥ = H^{(ℓ_0)} + τ(K) { H^{(ℓ_K)} − H^{(ℓ_{K−1})} } 1{ℓ_K ≤ T_n},      K ~ μ.

With the default law ℓ_k = base · 2^k and τ(K) = 2^K. It has the bias of a chain of length ℓ_κ,
κ = ⌊log2(T_n/base)⌋, and with base = 1 the expected length κ + 2^{−κ}. Every chain has at least the
length ℓ_0, even if ℓ_0 > T_n.

The multilevel estimator in sum form: all levels up to a random one.

    Ĥ = H^{(ℓ_0)} + Σ_{l=1}^{min(K, κ)} { H^{(ℓ_l)} − H^{(ℓ_{l−1})} } / r^l,      P(K ≥ l) = r^l,

with ℓ_l = base · 2^l and κ = max{l : ℓ_l ≤ T_n}. Level l is included with probability r^l and
divided by it, so the sum telescopes like the single term of `MLMC`: E[Ĥ] = E[H^{(ℓ_κ)}]. A
simulation of length ℓ_L, L = min(K, κ), serves every level up to L: with r = 1/2 and base = 1 its
mean length is 1 + κ/2, compared with κ + 2^{−κ} for `MLMC`.

As a measure on lengths (`lengths.py`): a_l = r^{−l} − r^{−(l+1)} for l < L, and a_L = r^{−L}.

Training in stages: Ĥ_n is the estimator of the stage that contains iteration n.

    Ĥ_n = Ĥ^{(i)},      n_i ≤ n < n_{i+1}.

A schedule T_n changes only the truncation of an estimator; stages may also change `base` and
`continuation`. `diagnostics.plan` creates them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Protocol, final

import torch
from torch import Tensor

from mlmcgrad._checks import non_negative, whole
from mlmcgrad.lengths import Lengths
from mlmcgrad.levels import Assignment, Geometric, LevelLaw, check_assignment, check_truncation
from mlmcgrad.schedules import Schedule, as_schedule, value_at


class Estimator(Protocol):
    """The protocol of estimators for `MarkovGradient`."""

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        """Draw lengths and weights of the chains at iteration n ≥ 1 (None: none is needed)."""

    def longest(self, n: int | None = None) -> int:
        """Return the transitions of the longest chain that may be drawn at iteration n."""

    def expected_length(self, n: int | None = None) -> float:
        """Return the mean number of transitions of one chain at iteration n."""


# A transition takes microseconds: nobody intends to wait for more of them.
MAX_TRANSITIONS = 10**9


def check_budget(
    estimator: Estimator,
    chains: int,
    n: int | None,
    limit: int = MAX_TRANSITIONS,
    *,
    longest: int | None = None,
) -> None:
    """Raise a ValueError for chains that would never end.

    Args:
        estimator: the estimator that draws the lengths.
        chains: number of chains.
        n: iteration; None if nothing depends on it.
        limit: transitions that one chain may make, and all of them in expectation.
        longest: transitions of the longest chain that may be drawn, if known.
    """
    if longest is None:
        longest = estimator.longest(n)
    if chains * longest <= limit:  # as a rule; the mean takes longer to compute
        return
    mean = chains * estimator.expected_length(n)
    if max(longest, mean) > limit:
        where = "" if n is None else f" at n = {n}"
        raise ValueError(
            f"estimator: {estimator} may ask for a chain of {longest:,} transitions{where}, with a "
            f"mean of {mean:,.0f} in all, beyond max_transitions = {limit:,}; lower its truncation "
            "or length, or raise max_transitions"
        )


@final
@dataclass(frozen=True)
class Average:
    """Average over `length` steps of every chain, after `burn_in` discarded steps.

    Args:
        length: number of states that are averaged, a number or a schedule; ⌊length⌋, at least 1.
        burn_in: number of discarded steps before them, a number or a schedule. A chain makes
            burn_in + length transitions.

    Example:
        >>> Average(4, burn_in=2).expected_length()
        6.0
    """

    length: float | Schedule
    burn_in: float | Schedule = 0.0

    def __post_init__(self) -> None:
        as_schedule(self.length, "length")
        as_schedule(self.burn_in, "burn_in")

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        """Length and weights of the chains at iteration n. The generator is not used."""
        skip, count = self._steps(n)
        share = 1.0 / count
        # H^{(b+L)} and H^{(b)} with (b+L)/L and −b/L: the steps of the burn-in cancel.
        terms = {skip + count: share} if skip == 0 else {skip: -share, skip + count: share}
        return Lengths(
            levels=torch.zeros(chains, dtype=torch.int64),
            terms=torch.tensor([list(terms)]).expand(chains, -1),
            weights=torch.tensor([list(terms.values())], dtype=torch.float64).expand(chains, -1),
            bound=skip + count,
        )

    def expected_length(self, n: int | None = None) -> float:
        """Transitions of one chain at iteration n."""
        return float(sum(self._steps(n)))

    def longest(self, n: int | None = None) -> int:
        """Transitions of one chain at iteration n."""
        return sum(self._steps(n))

    def _steps(self, n: int | None) -> tuple[int, int]:
        length = value_at(self.length, n, "length")
        if not 1.0 <= length < 2.0**62:
            raise ValueError(f"length must be from 1 to 2^62, got {length!r} at n = {n}")
        burn_in = non_negative(value_at(self.burn_in, n, "burn_in"), "burn_in")
        return math.floor(burn_in), math.floor(length)


@final
@dataclass(frozen=True)
class MLMC:
    """Multilevel Monte Carlo over chain lengths: the bias of length T at a cost of log T.

    Args:
        truncation: T_n, a number or a schedule: levels with longer chains are not used. For any
            T_n, every chain has at least the length ℓ_0: `base` for the default levels, base ·
            ⌊1/(2μ(1))⌋ if μ(1) < 1/2.
        levels: distribution μ of the level K.
        assignment: `"independent"` one K per chain, `"shared"` one K for all of them,
            `"balanced"` stratified over the chains, for a nearly constant cost per call.
        base: b, a factor of all lengths; a larger b has more cost and less variance. If the
            truncation is below b, all chains have length b.

    Example:
        >>> from mlmcgrad import schedules
        >>> MLMC(truncation=schedules.power(1.0, 0.5)).expected_length(n=4096)
        6.015625

    Reference:
        Godichon-Baggioni, Lang, Le Corff, Stoehr, Surendran, "Convergence of Multi-Level Markov
        Chain Monte Carlo Adaptive Stochastic Gradient Algorithms", Section 2 and Appendix A.
    """

    truncation: float | Schedule
    levels: LevelLaw = Geometric()
    assignment: Assignment = field(default="independent", kw_only=True)
    base: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        as_schedule(self.truncation, "truncation")
        if not callable(self.truncation):
            check_truncation(self.truncation)
        check_assignment(self.assignment)
        whole(self.base, "base")

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        """Draw the levels and lay out lengths and weights of the chains at iteration n."""
        return self.lengths_for(self.levels.sample(chains, generator, self.assignment), n)

    def lengths_for(self, levels: Tensor, n: int | None = None) -> Lengths:
        """The same for given levels, (chains,): what `draw` does after drawing them."""
        return self.levels.lengths(levels, self.truncation_level(n), self.base)

    def truncation_level(self, n: int | None = None) -> int:
        """κ_n, the highest level used at iteration n."""
        return self.levels.truncation_level(value_at(self.truncation, n, "truncation"), self.base)

    def expected_length(self, n: int | None = None) -> float:
        """Exact mean number of transitions of one chain at iteration n."""
        return self.levels.expected_length(value_at(self.truncation, n, "truncation"), self.base)

    def longest(self, n: int | None = None) -> int:
        """Transitions of the longest chain that may be drawn at iteration n: ℓ_κ, or ℓ_0."""
        return self.levels.length(self.truncation_level(n), self.base)


@final
@dataclass(frozen=True)
class MLMCSum:
    """Multilevel Monte Carlo with all levels up to a random one; less work than `MLMC`.

    Args:
        truncation: T_n, a number or a schedule: levels with longer simulations are not used.
            `math.inf` uses all levels up to `max_transitions`, for kernels whose levels have a
            variance that falls faster than r^l, such as `kernels.Importance` with
            `continuation=2**-1.5`. Markov chains raise an error: the variance of their levels falls
            as 2^{−l}, so the variance needs r > 1/2, but the mean length r < 1/2.
        continuation: r, the probability that level l + 1 follows level l; below 1/2 for an infinite
            truncation, whose mean length would otherwise be infinite.
        assignment: `"independent"` one K per chain, `"shared"` one K for all of them,
            `"balanced"` stratified over the chains, for a nearly constant cost per call.
        base: b, a factor of all lengths.
        max_transitions: the longest simulation of an infinite truncation. The estimate has the
            expectation of a simulation of length ℓ_κ ≤ max_transitions. A higher level, which has
            probability r^{κ+1}, is cut: a warning is shown, and `Estimate.cut` counts the chains.
            The bias is the same in calls without a cut.

    Example:
        >>> MLMCSum(truncation=64).expected_length()
        4.0
        >>> MLMCSum(math.inf, 2**-1.5).expected_length() < 2.21
        True

    Reference:
        Rhee, Glynn (2015), "Unbiased estimation with square root convergence for SDE models":
        the coupled sum estimator.
    """

    truncation: float | Schedule
    continuation: float = 0.5
    assignment: Assignment = field(default="independent", kw_only=True)
    base: int = field(default=1, kw_only=True)
    max_transitions: int = field(default=2**20, kw_only=True)

    def __post_init__(self) -> None:
        as_schedule(self.truncation, "truncation")
        if not 0.0 < self.continuation < 1.0:
            raise ValueError(
                f"continuation must lie strictly between 0 and 1, got {self.continuation!r}"
            )
        check_assignment(self.assignment)
        whole(self.base, "base")
        whole(self.max_transitions, "max_transitions")
        if not callable(self.truncation):
            self._level(self.truncation)

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        """Draw the levels and lay out lengths and weights of the chains at iteration n."""
        # P(G > l) = r^l for the levels G ≥ 1 of this law.
        levels = Geometric(1.0 - self.continuation).sample(chains, generator, self.assignment) - 1
        return self.lengths_for(levels, n)

    def lengths_for(self, levels: Tensor, n: int | None = None) -> Lengths:
        """The same for given levels K ≥ 0, (chains,): what `draw` does after drawing them."""
        truncation = value_at(self.truncation, n, "truncation")
        kappa = self._level(truncation)
        last = levels.clamp(max=kappa)
        lengths, weights = _ladders(self.base, self.continuation, int(last.max()))
        endless = truncation == math.inf
        return Lengths(
            levels,
            lengths.index_select(0, last),
            weights.index_select(0, last),
            cut=int((levels > kappa).sum()) if endless else 0,
            bound=self.base * 2**kappa,
            endless=endless,
        )

    def truncation_level(self, n: int | None = None) -> int:
        """κ_n, the highest level used at iteration n; 0 if even ℓ_1 > T_n."""
        return self._level(value_at(self.truncation, n, "truncation"))

    def expected_length(self, n: int | None = None) -> float:
        """Exact mean number of transitions of one chain at iteration n."""
        kappa, r = self.truncation_level(n), self.continuation
        # ℓ_L = ℓ_0 + Σ_{l=1}^{L} (ℓ_l − ℓ_{l−1}), and level l is there with probability r^l.
        return self.base * (1.0 + math.fsum(2.0 ** (i - 1) * r**i for i in range(1, kappa + 1)))

    def longest(self, n: int | None = None) -> int:
        """Transitions of the longest chain that may be drawn at iteration n: ℓ_κ."""
        return self.base * 2 ** self.truncation_level(n)

    def _level(self, truncation: float) -> int:
        """κ: the highest level that T_n allows or, for an infinite one, the budget."""
        if truncation == math.inf:
            if self.continuation >= 0.5:
                raise ValueError(
                    f"continuation must be below 1/2 for truncation=math.inf, got "
                    f"{self.continuation!r}: level l has 2^l steps and probability r^l, so the "
                    "mean length would be infinite; for example continuation=2**-1.5, or a finite "
                    "truncation"
                )
            truncation = self.max_transitions
        return max(0, math.floor(check_truncation(truncation) / self.base).bit_length() - 1)


@lru_cache(maxsize=64)
def _ladders(base: int, continuation: float, highest: int) -> tuple[Tensor, Tensor]:
    """Lengths and weights of the simulations that end at level 0 … highest, a row for each."""
    level = torch.arange(highest + 1)
    last = level[:, None]
    lengths = base * 2 ** torch.minimum(level, last)
    # Not by torch.pow, which may be wrong in the last digit of 2^l.
    share = torch.tensor([continuation**-i for i in range(highest + 1)], dtype=torch.float64)
    weights = torch.where(level < last, share - share / continuation, share) / lengths
    return lengths, torch.where(level <= last, weights, 0.0)


@final
@dataclass(frozen=True)
class Stages:
    """A sequence of estimators, each starting at a given iteration.

    Args:
        steps: first iteration and estimator of each stage; the first begins at 1.

    Example:
        >>> stages = Stages(((1, Average(1)), (100, MLMCSum(64, base=4))))
        >>> stages.longest(99), stages.longest(100)
        (1, 64)
    """

    steps: tuple[tuple[int, Estimator], ...]

    def __post_init__(self) -> None:
        begins = [whole(n, "n") for n, _ in self.steps]
        if begins[:1] != [1] or any(b <= a for a, b in pairwise(begins)):
            raise ValueError(
                f"steps must begin at iterations that rise from 1 on, got {begins}; for example "
                "((1, Average(1)), (100, MLMC(64)))"
            )

    def at(self, n: int | None) -> Estimator:
        """The estimator of iteration n.

        Raises:
            TypeError: n is None, and there is more than one stage.
        """
        if len(self.steps) == 1:
            return self.steps[0][1]
        if n is None:
            raise TypeError(
                "n must be given, because the estimator has several stages; pass the number of "
                "the iteration, n=1, 2, …"
            )
        return self.steps[bisect_right(self.steps, whole(n, "n"), key=lambda s: s[0]) - 1][1]

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        """Lengths and weights of the chains by the estimator of iteration n."""
        return self.at(n).draw(chains, n, generator)

    def longest(self, n: int | None = None) -> int:
        """Transitions of the longest chain that may be planned at iteration n."""
        return self.at(n).longest(n)

    def expected_length(self, n: int | None = None) -> float:
        """Mean number of transitions of one chain at iteration n."""
        return self.at(n).expected_length(n)
