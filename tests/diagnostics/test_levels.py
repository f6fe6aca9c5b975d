"""The multilevel test: right kernels pass its consistency check, a broken one does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics import level_test
from mlmcgrad.diagnostics._levels import LevelRow, LevelTest, Stratum, _row, difference_lengths
from mlmcgrad.kernels import Kernel
from mlmcgrad.kernels.base import Context, Pieces, Simulation, Start
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure
from mlmcgrad.paper.experiments.accuracy import fit_power
from tests.chains import average_law, rng, unit


def test_levels_of_the_finite_chain() -> None:
    problem = problems.finite_chain(states=6, seed=1)
    gradient = mg.MarkovGradient(
        problem.kernel(), problem.loss, mg.MLMC(2), parameters=problem.parameters
    )
    found = level_test(gradient, problem.start(1), highest=8, generator=rng(), replicates=200_000)
    assert found.consistent
    matrix = problem.matrix()
    for row in found.rows[1:]:
        longer = average_law(matrix, unit(6), row.length) @ problem.features
        shorter = average_law(matrix, unit(6), row.length // 2) @ problem.features
        exact = float((longer - shorter).norm())
        assert abs(row.mean - exact) < 5.0 * row.mean_se
        assert row.kurtosis > 1.0
    long = [row for row in found.rows if row.length >= 32]
    decay = fit_power([row.length for row in long], [row.variance for row in long])
    assert decay.slope == pytest.approx(-1.0, abs=0.2)
    some = [row for row in found.rows if row.length >= 8]
    drift = fit_power(*([getattr(r, k) for r in some] for k in ("length", "mean", "mean_se")))
    assert drift.slope == pytest.approx(-1.0, abs=0.3)
    assert [row.length for row in found.rows] == [2**k for k in range(9)]
    assert [row.level for row in found.rows] == list(range(9))
    # The difference of level 8, the longest, gets fewer chains than that of level 1.
    assert [row.replicates for row in found.rows] == [200_000 // 2**k for k in range(8)] + [1000]


def test_consistent_if_every_check_is_below_1() -> None:
    rows = [LevelRow(k, 2**k, 1.0, 0.01, 1.0, 1.0, 3.0, 0.9, 10) for k in range(4)]
    assert LevelTest(tuple(rows)).consistent
    wrong = LevelRow(4, 16, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0, 10)
    assert not LevelTest((*rows, wrong)).consistent


def test_a_row_by_hand() -> None:
    """‖(3, 4)‖² less the noise of two chains, 8/2."""
    zero, covariance = torch.zeros(2).double(), torch.tensor([[2.0, 1.0], [1.0, 6.0]]).double()
    mean = torch.tensor([3.0, 4.0], dtype=torch.float64)
    row = _row(
        3,
        Stratum(2, 8, mean, covariance, 1.0, 1.0, 1.0, 1.0, 2.5),
        Stratum(5, 8, zero, 2.0 * covariance, 1.0, 1.0, 1.0, 1.0, 9.0),
        0.25,
    )
    assert row == LevelRow(3, 8, 21.0**0.5, 2.0, 8.0, 16.0, 2.5, 0.25, 2)


def test_levels_that_are_all_the_same_fit_together_and_progress_is_reported() -> None:
    theta = torch.ones((), dtype=torch.float64, requires_grad=True)
    gradient = mg.MarkovGradient(
        mg.kernels.FromStep(lambda x, generator: x),
        lambda x: theta * x,
        mg.Average(1),
        parameters=[theta],
    )
    shares: list[float] = []
    found = level_test(
        gradient,
        torch.ones(1, dtype=torch.float64),
        highest=2,
        generator=rng(),
        replicates=8,
        least=2,
        report=shares.append,
    )
    assert [row.check for row in found.rows] == [0.0, 0.0, 0.0]
    assert found.consistent
    assert shares == [0.5, 1.0]


@dataclass(frozen=True)
class Drifting:
    """Planted bug: the longer a chain is planned, the more its states are shifted."""

    kernel: Kernel

    def chains(self, x0: Start, context: Context) -> int:
        return self.kernel.chains(x0, context)

    def run(self, x0: Start, context: Context, plan: Lengths, generator: torch.Generator) -> Pieces:
        shift = 0.02 * float(plan.longest.max())
        simulation = Simulation(self.kernel.run(x0, context, plan, generator))
        for measure in simulation:
            yield Measure(measure.points + shift, measure.owner, measure.coefficient)
        return simulation.outcome


def test_levels_that_do_not_telescope_are_seen() -> None:
    problem = problems.gaussian()
    kernel = mg.kernels.MALA(problem.log_density, 0.5)
    for tested, consistent in ((kernel, True), (Drifting(kernel), False)):
        gradient = mg.MarkovGradient(
            tested, problem.loss, mg.MLMC(2), parameters=problem.parameters
        )
        found = level_test(
            gradient, problem.start(1), highest=4, generator=rng(), replicates=20_000
        )
        assert found.consistent == consistent


def test_difference_weights_sum_to_zero() -> None:
    for law in (mg.levels.Geometric(), mg.levels.Geometric(0.2)):
        for k in (1, 2, 3):
            plan = difference_lengths(law, k, 2, chains=3)
            weights = plan.step_weights(1, int(plan.longest[0]))
            assert weights.sum(0).tolist() == pytest.approx([0.0] * 3, abs=1e-12)
            assert weights[-1, 0] == pytest.approx(1.0 / law.length(k, 2))
