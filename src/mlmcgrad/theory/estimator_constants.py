"""Constants of the multilevel estimator (Proposition 1, Appendix A): bias and moments of Ĥ.

With K ~ Geometric(1/2), truncation T ≥ 2 and ‖H‖ ≤ G in the Euclidean norm (erratum 10, see
docs/errata.md):

    ‖E Ĥ − h‖ ≤ c1 G/T,     E‖Ĥ‖² ≤ c2 G² log T,     E‖Ĥ‖³ ≤ c3 G³ √T,

    c1 = 4ζ√d/(1−α),
    c2 = (1/log 2) { 34 + 64 d (6/β + 5ζ²/(1−α)²) },
    c3 = (4√2/(√2−1)) [ 65 + 512 d^{3/2} ( 3Γ(3/2)(1+2^{3/2})/β^{3/2} + 9ζ³/(1−α)³ ) ].

For a general level law μ, τ(k) = 1/μ(k), τ(0) = max(1, 1/(2μ(1))), κ = max{k: ⌊τ(k)⌋ ≤ T}
(Lemmas "bias-gen" and "mom-2p-gen", p ≥ 2):

    ‖E Ĥ − h‖ ≤ 2ζG√d / ((1−α) ⌊τ(κ)⌋),
    E‖Ĥ‖^p ≤ 2^{p−1} G^p { 1 + 2^{2p}
              + (16^p/8) p Γ(p/2) (d/β)^{p/2} Σ_{k≤κ} τ(k)^{p/2−1} Δ(k, p/2)
              + (16^p/8) (ζ√d/(1−α))^p        Σ_{k≤κ} Δ(k, p)/τ(k) },
    Δ(k, p) = (τ(k)/⌊τ(k)⌋)^p + (τ(k)/⌊τ(k−1)⌋)^p.

When ⌊τ(0)⌋ > 1 both hold for the estimator that starts from H^{(⌊τ(0)⌋)} (erratum 7, see
docs/errata.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import count

from mlmcgrad._checks import non_negative, number, positive, whole
from mlmcgrad.schedules import floor
from mlmcgrad.theory.ergodicity_constants import Ergodicity

LevelLaw = Callable[[int], float] | Sequence[float]


@dataclass(frozen=True)
class Constants:
    """c1 (bias), c2 (second moment), c3 (third moment) for gradients of dimension d."""

    d: int
    _: KW_ONLY
    c1: float
    c2: float
    c3: float

    def __post_init__(self) -> None:
        whole(self.d, "d")
        for name in ("c1", "c2", "c3"):
            non_negative(getattr(self, name), name)


def constants(d: int, ergodicity: Ergodicity) -> Constants:
    """The constants c1, c2, c3 of Proposition 1.

    Args:
        d: dimension of the gradient.
        ergodicity: (ζ, α, β) of the chain.

    Returns:
        The three constants.

    Example:
        >>> c = constants(1, Ergodicity(zeta=1.0, alpha=0.5, beta=2.0))
        >>> c.c1, round(c.c2 * math.log(2), 9)  # 34 + 64 (3 + 20)
        (8.0, 1506.0)
    """
    whole(d, "d")
    ratio = ergodicity.zeta / (1 - ergodicity.alpha)
    beta = ergodicity.beta
    second = 34 + 64 * d * (6 / beta + 5 * ratio**2)
    third = 65 + 512 * d**1.5 * (3 * math.gamma(1.5) * (1 + 2**1.5) / beta**1.5 + 9 * ratio**3)
    return Constants(
        d=d,
        c1=4 * ratio * math.sqrt(d),
        c2=second / math.log(2),
        c3=4 * math.sqrt(2) / (math.sqrt(2) - 1) * third,
    )


def geometric(k: int) -> float:
    """Probability 2^{-k} of level k, the level law of the paper's estimator."""
    return 2.0**-k


def bias_bound(
    d: int, ergodicity: Ergodicity, *, truncation: float, pmf: LevelLaw = geometric, G: float = 1.0
) -> float:
    """Bound of ‖E Ĥ − h‖ for a level law μ (Lemma "bias-gen").

    Args:
        d: dimension of the gradient.
        ergodicity: (ζ, α, β) of the chain.
        truncation: T; levels with ⌊1/μ(k)⌋ > T are not used.
        pmf: μ as a function of k = 1, 2, … or as the sequence of its values; non-increasing.
        G: bound of the Euclidean norm of H.

    Example:
        >>> bias_bound(1, Ergodicity(zeta=1.0, alpha=0.5, beta=2.0), truncation=11.0)
        0.5
    """
    whole(d, "d")
    lengths = _lengths(pmf, number(truncation, "truncation"))
    ratio = ergodicity.zeta / (1 - ergodicity.alpha)
    return 2 * ratio * positive(G, "G") * math.sqrt(d) / floor(lengths[-1])


def moment_bound(
    p: float,
    d: int,
    ergodicity: Ergodicity,
    *,
    truncation: float,
    pmf: LevelLaw = geometric,
    G: float = 1.0,
) -> float:
    """Bound of E‖Ĥ‖^p for a level law μ and p ≥ 2 (Lemma "mom-2p-gen").

    Args:
        p: order of the moment, p ≥ 2.
        d: dimension of the gradient.
        ergodicity: (ζ, α, β) of the chain.
        truncation: T; levels with ⌊1/μ(k)⌋ > T are not used.
        pmf: μ as a function of k = 1, 2, … or as the sequence of its values; non-increasing.
        G: bound of the Euclidean norm of H.

    Example:
        >>> moment_bound(2, 1, Ergodicity(zeta=1.0, alpha=0.5, beta=2.0), truncation=2.0)
        866.0
    """
    if number(p, "p") < 2:
        raise ValueError(f"p must be ≥ 2, got {p!r}")
    whole(d, "d")
    tau = _lengths(pmf, number(truncation, "truncation"))
    levels = range(1, len(tau))
    noise = sum(tau[k] ** (p / 2 - 1) * delta(k, p / 2, tau) for k in levels)
    drift = sum(delta(k, p, tau) / tau[k] for k in levels)
    ratio = ergodicity.zeta / (1 - ergodicity.alpha)
    braces = 1 + 2 ** (2 * p)
    braces += 16**p / 8 * p * math.gamma(p / 2) * (d / ergodicity.beta) ** (p / 2) * noise
    braces += 16**p / 8 * (ratio * math.sqrt(d)) ** p * drift
    return float(2 ** (p - 1) * positive(G, "G") ** p * braces)


def delta(k: int, p: float, tau: Sequence[float]) -> float:
    """Δ(k, p) = (τ(k)/⌊τ(k)⌋)^p + (τ(k)/⌊τ(k−1)⌋)^p for τ = (τ(0), τ(1), …).

    Example:
        >>> delta(3, 2, [1.0, 2.0, 4.0, 8.0])  # 1 + 2^p
        5.0
    """
    return float((tau[k] / floor(tau[k])) ** p + (tau[k] / floor(tau[k - 1])) ** p)


def _lengths(pmf: LevelLaw, truncation: float) -> list[float]:
    """τ(0), …, τ(κ): the chain lengths within the truncation."""
    tau: list[float] = []
    mass, previous = 0.0, math.inf
    for k, value in enumerate(map(pmf, count(1)) if callable(pmf) else pmf, 1):
        probability = number(value, f"pmf at level {k}")
        if k > 1 and probability == 0:
            break
        if probability <= 0 or probability > previous or mass + probability > 1 + 1e-9:
            raise ValueError(
                f"pmf must be a non-increasing probability law on the levels 1, 2, …, "
                f"got {probability!r} at level {k} after the mass {mass:.9g}"
            )
        if k == 1:
            tau.append(max(1.0, 1 / (2 * probability)))
        if floor(1 / probability) > truncation:
            return tau
        tau.append(1 / probability)
        mass, previous = mass + probability, probability
    if not tau or mass < 1 - 1e-9:
        raise ValueError(
            f"pmf sums to {mass:.9g} over its {max(0, len(tau) - 1)} levels, all of them within "
            f"truncation={truncation:g}; pass the levels up to the first one longer than that"
        )
    return tau
