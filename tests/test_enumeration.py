"""E[Ĥ] by enumeration of all paths and all levels, through the real code, to 1e-12.

All paths of a chain are run side by side as chains of a kernel that replays them; the probability
of a path enters through the loss, so the gradient is an exact expectation and not an estimate.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels.isir import Draws, choose_sampled
from mlmcgrad.lengths import Lengths
from mlmcgrad.levels import Geometric, LevelLaw, Tabulated
from tests.chains import average_law, random_matrix, rng, unit

LAWS = {
    "geometric(1/2)": Geometric(),
    "geometric(0.2), erratum 7": Geometric(0.2),
    "tabulated": Tabulated([0.4, 0.3, 0.2, 0.1]),
}
CASES = [
    pytest.param(law, truncation, base, id=f"{name}, T={truncation}, base={base}")
    for name, law in LAWS.items()
    for truncation in (2, 4, 8)
    for base in (1, 2)
]


class Fixed:
    """An estimator whose level is given instead of drawn."""

    def __init__(self, mlmc: mg.MLMC | mg.MLMCSum, level: int) -> None:
        self.mlmc, self.level = mlmc, level

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        return self.mlmc.lengths_for(torch.full((chains,), self.level), n)

    def longest(self, n: int | None = None) -> int:
        return self.mlmc.longest(n)

    def expected_length(self, n: int | None = None) -> float:
        return self.mlmc.expected_length(n)


def expectation(
    law: LevelLaw, truncation: int, base: int, at_level: Callable[[Fixed, int], Tensor]
) -> Tensor:
    """Σ_k P(K = k) E[Ĥ_k]; all levels beyond the truncation are the base term."""
    mlmc = mg.MLMC(truncation, law, base=base)
    kappa = mlmc.truncation_level(1)
    beyond = kappa + 1  # any level that is cut off
    total = law.survival(kappa) * at_level(Fixed(mlmc, beyond), law.length(0, base))
    for k in range(1, kappa + 1):
        total = total + law.pmf(k) * at_level(Fixed(mlmc, k), law.length(k, base))
    return total


def expected_length(law: LevelLaw, truncation: int, base: int) -> int:
    return law.length(law.truncation_level(truncation, base), base)


def finite_chain_gradient(matrix: Tensor) -> Callable[[Fixed, int], Tensor]:
    """E[Ĥ_k] for loss θ[x], by all paths of the level's length from state 0."""

    def at_level(estimator: Fixed, length: int) -> Tensor:
        size = len(matrix)
        paths = torch.tensor(list(itertools.product(range(size), repeat=length)))
        before = torch.cat([torch.zeros(len(paths), 1, dtype=torch.int64), paths[:, :-1]], 1)
        probability = matrix[before, paths].prod(1)
        step = iter(range(length))

        def replay(x: Tensor, path: Tensor, _: Tensor, generator: torch.Generator) -> Tensor:
            return path[:, next(step)]

        theta = torch.zeros(size, dtype=torch.float64, requires_grad=True)
        gradient = mg.MarkovGradient(
            mg.kernels.FromStep(replay),
            lambda x, _, p: theta[x] * p * len(paths),
            estimator,
            chunk=1000,
        )
        start = torch.zeros(len(paths), dtype=torch.int64)
        (g,), estimate = gradient.gradient(start, paths, probability, n=1, generator=rng())
        assert (estimate.lengths == length).all()
        return g

    return at_level


@pytest.mark.parametrize(("law", "truncation", "base"), CASES)
def test_finite_chain(law: LevelLaw, truncation: int, base: int) -> None:
    matrix = random_matrix(3, seed=1)
    found = expectation(law, truncation, base, finite_chain_gradient(matrix))
    exact = average_law(matrix, unit(3), expected_length(law, truncation, base))
    assert (found - exact).abs().max() < 1e-12


def test_the_truncation_is_the_largest_power_of_two() -> None:
    """With the paper's law, E[Ĥ] = E[H^{(2^κ)}], κ = ⌊log2 T⌋, whatever the base."""
    for base in (1, 2):
        for truncation in (2, 3, 4, 5, 8):
            assert expected_length(Geometric(), truncation, base) == 2 ** (
                truncation.bit_length() - 1
            )


@pytest.mark.parametrize("bug", ["weight 2^(K-1)", "no base term", "erratum 7"])
def test_planted_bugs(bug: str) -> None:
    """The same enumeration sees each of three classical mistakes."""
    matrix = random_matrix(3, seed=1)
    good = finite_chain_gradient(matrix)
    law = Geometric(0.2) if bug == "erratum 7" else Geometric()

    def at_level(estimator: Fixed, length: int) -> Tensor:
        base_term = good(Fixed(estimator.mlmc, 99), law.length(0))
        if bug == "weight 2^(K-1)":  # the same in expectation as a K that starts at 0
            return base_term + 0.5 * (good(estimator, length) - base_term)
        if bug == "no base term":
            return good(estimator, length) - base_term
        return good(estimator, length) - base_term + unit(3) @ matrix  # H(X_1) comes first

    found = expectation(law, 8, 1, at_level)
    exact = average_law(matrix, unit(3), expected_length(law, 8, 1))
    assert (found - exact).abs().max() > 1e-3


# --- i-SIR with two candidates on a space of three points -------------------------------------

PROPOSAL = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
WEIGHT = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)


def isir_matrix() -> Tensor:
    """Law of the state kept after a step: a fresh candidate c replaces a with w_c/(w_a + w_c)."""
    matrix = torch.zeros(3, 3, dtype=torch.float64)
    for a, c in itertools.product(range(3), repeat=2):
        leave = WEIGHT[c] / (WEIGHT[a] + WEIGHT[c])
        matrix[a, c] += PROPOSAL[c] * leave
        matrix[a, a] += PROPOSAL[c] * (1.0 - leave)
    return matrix


def draws_of(length: int) -> tuple[Tensor, Tensor]:
    """All sequences of 1 + length proposals, and their probabilities."""
    sequences = torch.tensor(list(itertools.product(range(3), repeat=1 + length)))
    return sequences, PROPOSAL[sequences].prod(1)


def rao_blackwell_gradient(estimator: Fixed, length: int) -> Tensor:
    """Through `MarkovGradient` and `ISIR`, with all sequences of proposals as chains."""
    sequences, probability = draws_of(length)
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    used = torch.zeros(len(sequences), dtype=torch.int64)  # by the parts of the chains so far

    def propose(rows: int, _: Tensor, chain: Tensor, generator: torch.Generator) -> Tensor:
        place = used[chain] + torch.arange(rows) - torch.searchsorted(chain, chain)
        used.add_(chain.bincount(minlength=len(used)))
        return sequences[chain, place]

    kernel = mg.kernels.ISIR(
        lambda z, *_: WEIGHT[z].log(), propose, candidates=2, rao_blackwell=True, chunk=10**9
    )
    gradient = mg.MarkovGradient(
        kernel, lambda z, p, _: theta[z] * p * len(sequences), estimator, chunk=10**6
    )
    chains = torch.arange(len(sequences))
    (g,), _ = gradient.gradient(None, probability, chains, n=1, generator=rng())
    return g


def sampled_gradient(estimator: Fixed, length: int) -> Tensor:
    """All sequences of proposals × all 2^length decisions to stay or to leave."""
    sequences, probability = draws_of(length)
    plan = estimator.draw(len(sequences), 1, rng())
    draws = Draws(WEIGHT[sequences].log().flatten(), plan.longest, fresh=1)
    weights = plan.step_weights(1, length).T.flatten()
    total = torch.zeros(3, dtype=torch.float64)
    for decisions in itertools.product((0.0, 1.0 - 2.0**-53), repeat=length):
        leave = torch.tensor(decisions, dtype=torch.float64).repeat(len(sequences))
        selection, stay = choose_sampled(draws, weights, torch.zeros_like(leave), leave)
        chance = torch.where(leave > 0.0, 1.0 - stay, stay).reshape(-1, length).prod(1)
        mass = (chance * probability)[:, None] * selection.coefficient.reshape(sequences.shape)
        total.index_add_(0, sequences.flatten(), mass.flatten())
    return total


@pytest.mark.parametrize("truncation", [2, 4, 8])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_isir(law: LevelLaw, truncation: int) -> None:
    length = expected_length(law, truncation, 1)
    exact = average_law(isir_matrix(), PROPOSAL, length)
    averaged = expectation(law, truncation, 1, rao_blackwell_gradient)
    drawn = expectation(law, truncation, 1, sampled_gradient)
    assert (averaged - exact).abs().max() < 1e-12
    assert (drawn - exact).abs().max() < 1e-12


def test_isir_matrix_leaves_the_target_invariant() -> None:
    target = PROPOSAL * WEIGHT / (PROPOSAL @ WEIGHT)
    assert (target @ isir_matrix() - target).abs().max() < 1e-15
