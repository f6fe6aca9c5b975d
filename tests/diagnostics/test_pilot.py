"""The pilot measures what it says, against exact moments of a chain with a few states."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import mlmcgrad as mg
from mlmcgrad.diagnostics._pilot import FEWEST, Group, Pilot, Simulator, run_pilot
from tests.diagnostics.exact import Exact
from tests.diagnostics.planned import finite, importance

# Two-sided, one test in a million; a handful of numbers in each test.
Z = 5.5


def measured(evaluations: float = 2e5, seed: int = 0) -> tuple[Pilot, Exact]:
    known = finite(6, 1)
    rng = torch.Generator().manual_seed(seed)
    return run_pilot(Simulator(known.gradient, known.x0, (), rng), evaluations), known.exact


def _covariance(exact: Exact, level: int) -> torch.Tensor:
    h = torch.empty(level + 1, level + 1, dtype=torch.float64)
    for i in range(level + 1):
        for j in range(level + 1):
            h[i, j] = exact.product(2**i, 2**j) - float(exact.mean(2**i) @ exact.mean(2**j))
    change = torch.eye(level + 1, dtype=torch.float64)
    change -= torch.diag(torch.ones(level, dtype=torch.float64), -1)
    return change @ h @ change.T


def test_means_of_all_lengths() -> None:
    found, exact = measured()
    for level in range(found.highest + 1):
        mean, error = found.mean(level)
        true = exact.mean(2**level) - (exact.mean(2 ** (level - 1)) if level else 0.0)
        assert float((mean - torch.as_tensor(true)).norm()) < Z * math.sqrt(error), level


def test_covariances_of_all_lengths() -> None:
    found, exact = measured()
    for level in range(6):
        true, mine = _covariance(exact, level), found.covariance(level)
        noise = Z * 3.0 * float(true.diagonal().max()) / math.sqrt(found.count(level))
        assert torch.allclose(mine, true, atol=noise, rtol=0.0), level


def test_a_chain_that_is_not_continued_is_seen() -> None:
    """The planted bug: segments that begin at the start again."""
    found, exact = measured()
    broken = [
        replace(group, estimates=group.estimates[:, :1].expand_as(group.estimates))
        for group in found.groups
    ]
    wrong = replace(found, groups=tuple(broken))
    true = exact.mean(4) - exact.mean(2)
    mean, _ = wrong.mean(2)
    _, error = found.mean(2)
    assert float((mean - torch.as_tensor(true)).norm()) > Z * math.sqrt(error)


def test_it_spends_what_it_may() -> None:
    for budget in (1e3, 1e4, 1e5):
        found, _ = measured(budget)
        assert 0.3 * budget < found.evaluations <= 1.05 * budget
        assert all(len(group.estimates) >= FEWEST for group in found.groups)
        assert [group.estimates.shape[1] for group in found.groups] == list(
            range(1, found.highest + 2)
        )


def test_the_fewest_simulations_even_with_nothing_to_spend() -> None:
    found, _ = measured(1.0)
    assert found.highest == 0
    assert len(found.groups[0].estimates) == FEWEST


def test_same_generator_same_pilot() -> None:
    first, _ = measured(1e4)
    second, _ = measured(1e4)
    for a, b in zip(first.groups, second.groups, strict=True):
        assert torch.equal(a.estimates, b.estimates)


def test_importance_sampling_is_one_set_of_draws_in_groups() -> None:
    """E[H^{(p)}] does not depend on the length of the simulation that it is taken from."""
    gradient, y = importance()
    rng = torch.Generator().manual_seed(3)
    found = run_pilot(Simulator(gradient, None, (y,), rng), 4e5)
    assert found.nested
    assert not found.paired
    for level in range(3):
        alone = found.groups[level].estimates[:, level]
        longer = found.groups[level + 2].estimates[:, level]
        gap = alone.mean(0) - longer.mean(0)
        noise = alone.var(0) / len(alone) + longer.var(0) / len(longer)
        assert bool((gap.square() < Z * Z * noise).all()), level
        # A longer simulation holds independent groups: its variance is smaller by their number.
        ratio = float(alone.var(0).sum() / longer.var(0).sum()) / 4.0
        assert abs(math.log(ratio)) < Z * math.sqrt(8.0 / len(longer)), level


def test_rows_are_paired_so_that_their_differences_are_no_noise() -> None:
    """Rows with means that are 100 apart, and H^{(1)} with variance 1 in each."""
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    kernel = mg.kernels.FromStep(
        lambda x, c, generator: c + torch.randn(x.shape, dtype=x.dtype, generator=generator)
    )
    gradient = mg.MarkovGradient(kernel, lambda x, _: x @ theta, mg.MLMC(2), parameters=[theta])
    centres = torch.tensor([[-100.0], [0.0], [100.0]], dtype=torch.float64)
    rng = torch.Generator().manual_seed(4)
    found = run_pilot(Simulator(gradient, centres, (centres,), rng), 2e4)
    assert found.paired
    variance = float(found.covariance(0)[0, 0])
    assert abs(variance - 1.0) < Z * math.sqrt(4.0 / found.count(0))
    # The mean over rows of E[H]² is 20000/3, though the mean of all is 0.
    assert float(found.products(0)[0, 0]) == pytest.approx(20000.0 / 3.0, rel=0.1)
    alone = replace(found, rows=1)
    assert float(alone.covariance(0)[0, 0]) > 1000.0


def test_kurtosis_of_rare_large_values() -> None:
    x = torch.zeros(1000, 1, 1, dtype=torch.float64)
    x[0] = 1.0
    found = Pilot((Group(x, 1.0, 1.0),), 1000, nested=False)
    assert found.kurtosis == pytest.approx(1000.0, rel=0.01)
    constant = Pilot((Group(0.0 * x, 1.0, 1.0),), 1000, nested=False)
    assert constant.kurtosis == 3.0


def _rows(centres: torch.Tensor, evaluations: float, seed: int) -> Pilot:
    """H^{(p)} of independent normal draws about the centre of each row."""
    theta = torch.zeros(centres.shape[1], dtype=torch.float64, requires_grad=True)
    kernel = mg.kernels.FromStep(
        lambda x, c, generator: c + torch.randn(x.shape, dtype=x.dtype, generator=generator)
    )
    gradient = mg.MarkovGradient(kernel, lambda x, _: x @ theta, mg.MLMC(2), parameters=[theta])
    rng = torch.Generator().manual_seed(seed)
    return run_pilot(Simulator(gradient, centres, (centres,), rng), evaluations)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_the_squared_mean_is_unbiased(rows: int) -> None:
    """Fewer rows than simulations, and more; 200 pilots of 100 evaluations."""
    rng = torch.Generator().manual_seed(9)
    spread = torch.randn(rows, 2, dtype=torch.float64, generator=rng)
    centres = 2.0 * (spread - spread.mean(0)) + torch.tensor([0.06, -0.08], dtype=torch.float64)
    pilots = [
        _rows(centres[torch.randperm(rows, generator=rng)], 100.0, seed) for seed in range(200)
    ]
    for level in range(pilots[0].highest + 1):
        found = torch.tensor([p.mean_square(level) for p in pilots])
        error = Z * float(found.std()) / math.sqrt(len(found))
        assert abs(float(found.mean()) - 0.01) < error, level
        # The planted bug: the square of a mean has its noise in it.
        means = torch.stack(
            [torch.cat([g.estimates[:, level] for g in p.groups[level:]]).mean(0) for p in pilots]
        )
        assert float(means.square().sum(1).mean()) - 0.01 > error, level
