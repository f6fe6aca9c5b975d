"""E[Ĥ] of the sum form and of the ladder of importance sampling, by enumeration, to 1e-12."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.estimators import Estimator
from mlmcgrad.lengths import Lengths
from tests.chains import average_law, random_matrix, rng, unit
from tests.test_enumeration import (
    PROPOSAL,
    WEIGHT,
    Fixed,
    finite_chain_gradient,
    isir_matrix,
    rao_blackwell_gradient,
)

Levels = list[tuple[float, Fixed, int]]  # probability, estimator with that level, its length


def sum_levels(truncation: int, r: float, base: int = 1) -> Levels:
    """The levels of `MLMCSum`, from 0 to κ."""
    estimator = mg.MLMCSum(truncation, r, base=base)
    kappa = estimator.truncation_level()
    chance = [r**i * (1.0 - r if i < kappa else 1.0) for i in range(kappa + 1)]
    return [(p, Fixed(estimator, i), base * 2**i) for i, p in enumerate(chance)]


def single_levels(truncation: int) -> Levels:
    """The levels of `MLMC`; those beyond κ are the base term."""
    estimator = mg.MLMC(truncation)
    kappa, law = estimator.truncation_level(), estimator.levels
    used = [(law.pmf(k), Fixed(estimator, k), 2**k) for k in range(1, kappa + 1)]
    return [(law.survival(kappa), Fixed(estimator, kappa + 1), 1), *used]


def expectation(levels: Levels, at_level: Callable[[Fixed, int], Tensor]) -> Tensor:
    return torch.stack([p * at_level(fixed, length) for p, fixed, length in levels]).sum(0)


CASES = [(t, r, b) for t in (1, 2, 4, 7) for r in (0.5, 2**-1.5, 0.8) for b in (1, 2)]


@pytest.mark.parametrize(("truncation", "r", "base"), CASES)
def test_sum_on_a_finite_chain(truncation: int, r: float, base: int) -> None:
    matrix = random_matrix(3, seed=1)
    levels = sum_levels(truncation, r, base)
    found = expectation(levels, finite_chain_gradient(matrix))
    exact = average_law(matrix, unit(3), levels[-1][2])
    assert (found - exact).abs().max() < 1e-12


@pytest.mark.parametrize("truncation", [2, 4, 6])
def test_sum_with_isir(truncation: int) -> None:
    levels = sum_levels(truncation, 0.5)
    found = expectation(levels, rao_blackwell_gradient)
    exact = average_law(isir_matrix(), PROPOSAL, levels[-1][2])
    assert (found - exact).abs().max() < 1e-12


# --- Importance sampling on a space of three points -------------------------------------------


def sequences(draws: int) -> tuple[Tensor, Tensor]:
    """All sequences of draws, and their probabilities."""
    every = torch.tensor(list(itertools.product(range(3), repeat=draws)))
    return every, PROPOSAL[every].prod(1)


def self_normalised(draws: int) -> Tensor:
    """E[Σ_j w_j 1{z_j = x} / Σ_j w_j] of so many draws, for each x; all of weight 0 left out."""
    every, chance = sequences(draws)
    weight = WEIGHT[every]
    chance = torch.where(weight.sum(1) > 0, chance, 0.0)
    share = weight / weight.sum(1, keepdim=True).clamp(min=1e-300)
    inside = torch.stack([(share * (every == x)).sum(1) for x in range(3)], 1)
    return (chance[:, None] * inside).sum(0) / chance.sum()


def importance_gradient(candidates: int) -> Callable[[Estimator, int], Tensor]:
    """Through `MarkovGradient` and `Importance`, with all sequences of draws as chains."""

    def at_level(estimator: Estimator, length: int) -> Tensor:
        every, chance = sequences(length * candidates)
        theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        used = torch.zeros(len(every), dtype=torch.int64)

        def propose(rows: int, _: Tensor, chain: Tensor, generator: torch.Generator) -> Tensor:
            place = used[chain] + torch.arange(rows) - torch.searchsorted(chain, chain)
            used.add_(chain.bincount(minlength=len(used)))
            return every[chain, place]

        kernel = mg.kernels.Importance(
            lambda z, *_: WEIGHT[z].log(), propose, candidates, chunk=1000
        )
        gradient = mg.MarkovGradient(
            kernel, lambda z, p, _: theta[z] * p, estimator, chunk=10**6, reduction="sum"
        )
        (g,), estimate = gradient.gradient(
            None, chance, torch.arange(len(every)), n=1, generator=rng()
        )
        assert (estimate.lengths == length).all()
        assert estimate.evaluations == every.numel()
        return g

    return at_level


@pytest.mark.parametrize("candidates", [1, 2])
@pytest.mark.parametrize(
    "levels",
    [single_levels(4), sum_levels(4, 0.5), sum_levels(5, 2**-1.5), sum_levels(2, 0.5, base=2)],
    ids=["single", "sum", "sum, r = 2^-1.5", "sum, base 2"],
)
def test_importance(levels: Levels, candidates: int) -> None:
    if levels[-1][2] * candidates > 8:
        pytest.skip("too many sequences")
    found = expectation(levels, importance_gradient(candidates))
    exact = self_normalised(levels[-1][2] * candidates)
    assert (found - exact).abs().max() < 1e-12


class AtLengths:
    """An estimator with given lengths and weights, such as those of a table that do not divide."""

    def __init__(self, terms: dict[int, float]) -> None:
        self.terms = terms

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        lengths = torch.tensor([list(self.terms)]).expand(chains, -1)
        a = torch.tensor([list(self.terms.values())], dtype=torch.float64).expand(chains, -1)
        return Lengths(torch.zeros(chains, dtype=torch.int64), lengths, a / lengths)

    def longest(self, n: int | None = None) -> int:
        return max(self.terms)

    def expected_length(self, n: int | None = None) -> float:
        return max(self.terms)


def test_lengths_that_do_not_divide() -> None:
    found = importance_gradient(1)(AtLengths({2: -1.5, 3: 0.5, 5: 2.0}), 5)
    parts = [a * self_normalised(p) for p, a in ((2, -1.5), (3, 0.5), (5, 2.0))]
    assert (found - sum(parts)).abs().max() < 1e-12


def test_planted_bug() -> None:
    """A ladder whose short estimates do not cover all groups evenly is seen: weights 2^(l−1)."""
    levels = [(p, f, length) for p, f, length in sum_levels(4, 0.5)]
    broken = [(2 * p if length > 1 else p - 0.5, f, length) for p, f, length in levels]
    found = expectation(broken, importance_gradient(2))
    assert (found - self_normalised(8)).abs().max() > 1e-3


def test_weights_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups without any weight are left out of their mean: exact, given that some draw has one."""
    weight = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    monkeypatch.setitem(globals(), "WEIGHT", weight)
    every, chance = sequences(4)
    alive = weight[every].sum(1) > 0
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    living, chance = every[alive], chance[alive] / chance[alive].sum()
    kernel = mg.kernels.Importance(
        lambda z, *_: weight[z].log(), lambda rows, *_, generator: living.flatten(), 1
    )
    estimator = Fixed(mg.MLMCSum(4), 2)
    gradient = mg.MarkovGradient(kernel, lambda z, p: theta[z] * p, estimator, reduction="sum")
    (g,), _ = gradient.gradient(None, chance, generator=rng())
    plan = estimator.draw(1, 1, rng())
    a = dict(zip(plan.terms[0].tolist(), (plan.weights * plan.terms)[0].tolist(), strict=True))
    exact = sum(a[p] * self_normalised(p) for p in (1, 2, 4))
    assert (g - exact).abs().max() < 1e-12
    assert abs(float(g.sum()) - 1.0) < 1e-12
