"""`accuracy` against exact expectations by enumeration of the finite chain."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics import Reference, certify
from mlmcgrad.diagnostics._levels import Stratum
from mlmcgrad.lengths import Lengths
from mlmcgrad.paper.experiments.accuracy import (
    Accuracy,
    LadderRung,
    _resampled,
    accuracy,
    autocorrelation_time,
)
from tests.chains import rng


def _problem() -> problems.FiniteChain:
    return problems.finite_chain(states=3, seed=1)


def _exact_moments(problem: problems.FiniteChain, plan: Lengths) -> tuple[Tensor, float, float]:
    """E[Ĥ | K = level], E‖Ĥ‖² and E‖Ĥ‖³ by all paths, for the plan of one chain."""
    matrix = problem.matrix()
    weights = plan.step_weights(1, int(plan.longest[0]))[:, 0]
    mean, second, third = torch.zeros(2, dtype=torch.float64), 0.0, 0.0
    for path in itertools.product(range(3), repeat=len(weights)):
        before = (0, *path[:-1])
        probability = math.prod(float(matrix[a, b]) for a, b in zip(before, path, strict=True))
        value = sum(
            (
                w * (problem.features[x] - problem.data_mean)
                for w, x in zip(weights, path, strict=True)
            ),
            torch.zeros(2, dtype=torch.float64),
        )
        mean += probability * value
        second += probability * float(value.norm()) ** 2
        third += probability * float(value.norm()) ** 3
    return mean, second, third


def _measured(estimator: mg.estimators.Estimator, replicates: int = 40_000) -> Accuracy:
    problem = _problem()
    gradient = mg.MarkovGradient(
        problem.kernel(), problem.loss, estimator, parameters=problem.parameters
    )
    return accuracy(
        gradient,
        problem.start(1),
        reference=problem,
        ladder=[1, 2, 4, 8],
        generator=rng(3),
        replicates=replicates,
    )


def test_moments_of_the_multilevel_estimator() -> None:
    """Null: the measured moments are the enumerated ones; 5 standard errors, 12 comparisons."""
    problem = _problem()
    law = mg.levels.Geometric()
    exact = [_exact_moments(problem, law.lengths(torch.tensor([k]), k)) for k in range(4)]
    (target,) = problem.exact_gradient()
    for kappa, row in enumerate(_measured(mg.MLMC(2)).rows):
        shares = [2.0**-kappa, *(2.0**-k for k in range(1, kappa + 1))]
        mean = sum((s * e[0] for s, e in zip(shares, exact, strict=False)), torch.zeros(2).double())
        second = sum(s * e[1] for s, e in zip(shares, exact, strict=False))
        third = sum(s * e[2] for s, e in zip(shares, exact, strict=False))
        bias = float((mean - target).norm())
        assert bias == pytest.approx(
            float((problem.average_gradient(2**kappa) - target).norm()), abs=1e-12
        )
        assert abs(row.bias - bias) < 5.0 * row.bias_se
        assert row.bias_low <= row.bias <= row.bias_high
        assert abs(row.second_moment - second) < 5.0 * row.second_moment_se
        assert abs(row.third_moment - third) < 5.0 * row.third_moment_se
        # Planted bug: without the division by μ(k) the levels would weigh 1, not 1/μ(k).
        if kappa > 1:
            wrong = sum(e[1] for e in exact[: kappa + 1]) / (kappa + 1)
            assert abs(row.second_moment - wrong) > 5.0 * row.second_moment_se
        assert row.length == 2**kappa
        assert row.expected_cost == kappa + 2.0**-kappa
        assert row.cost == pytest.approx(row.expected_cost, rel=0.02)


def test_moments_of_the_sum_form() -> None:
    """Null: the measured moments are the enumerated ones; 5 standard errors, 8 comparisons."""
    problem, r = _problem(), 0.4
    estimator = mg.MLMCSum(8, r)
    exact = [_exact_moments(problem, estimator.lengths_for(torch.tensor([k]))) for k in range(4)]
    (target,) = problem.exact_gradient()
    for kappa, row in enumerate(_measured(mg.MLMCSum(2, r)).rows):
        shares = [r**k * (1.0 - r if k < kappa else 1.0) for k in range(kappa + 1)]
        second = sum(s * e[1] for s, e in zip(shares, exact, strict=False))
        bias = float((problem.average_gradient(2**kappa) - target).norm())
        assert abs(row.bias - bias) < 5.0 * row.bias_se
        assert abs(row.second_moment - second) < 5.0 * row.second_moment_se
        if kappa > 1:  # planted bug: the shares of the single-term estimator
            single = [2.0**-kappa, *(2.0**-k for k in range(1, kappa + 1))]
            wrong = sum(s * e[1] for s, e in zip(single, exact, strict=False))
            assert abs(row.second_moment - wrong) > 5.0 * row.second_moment_se
        assert row.length == 2**kappa
        assert row.cost == pytest.approx(row.expected_cost, rel=0.03)


def test_errors_of_a_row_by_hand() -> None:
    """Two strata with shares ¼ and ¾, b = (3, 4) and Σ̂ = diag(1, 2): all numbers are known.

    ‖b‖² − tr Σ̂ = 25 − 3 = 22; its variance is 4·(9·1 + 16·2) + 2·(1 + 4) = 174.
    """
    mean = torch.tensor([3.0, 4.0], dtype=torch.float64)
    covariance = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    first = Stratum(10, 1, mean + 3.0, 80.0 * covariance, 50.0, 160.0, 400.0, 320.0, 3.0)
    second = Stratum(20, 2, mean - 1.0, 160.0 / 9.0 * covariance, 60.0, 320.0, 500.0, 640.0, 3.0)
    reference = Reference(torch.zeros(2).double(), torch.zeros(2).double())
    rung = LadderRung(2.0, 2, (0.25, 0.75), (0, 1), 1.5, 1.5)
    (row,) = Accuracy((rung,), (first, second), reference).rows
    assert row.bias == pytest.approx(math.sqrt(22.0))
    assert row.bias_se == pytest.approx(math.sqrt(174.0) / (2.0 * math.sqrt(22.0)))
    half = 1.959963984540054 * math.sqrt(174.0)
    assert row.bias_low == 0.0  # 22 − 25.9
    assert row.bias_high == pytest.approx(math.sqrt(22.0 + half))
    assert row.second_moment == pytest.approx(0.25 * 50.0 + 0.75 * 60.0)
    assert row.variance == pytest.approx(57.5 - 25.0)
    assert row.second_moment_se == pytest.approx(math.sqrt(1.0 + 9.0))  # ¹⁄₁₆·16 + ⁹⁄₁₆·16
    assert row.third_moment == pytest.approx(475.0)
    assert row.third_moment_se == pytest.approx(math.sqrt(2.0 + 18.0))
    # The reference's own error is part of Σ̂; a bias that drowns in noise is 0, its error √(√174).
    vague = Reference(torch.zeros(2).double(), torch.tensor([4.0, 4.0]).double())
    (drowned,) = Accuracy((rung,), (first, second), vague).rows
    assert drowned.bias == drowned.bias_low == 0.0
    noise = 4.0 * (9.0 * 17.0 + 16.0 * 18.0) + 2.0 * (17.0**2 + 18.0**2)
    assert drowned.bias_se == pytest.approx(noise**0.25)


def test_slopes_begin_where_they_are_told_to() -> None:
    """Biases 5, 1 and ½ at T = 1, 2, 4 without noise: slope −1 from T = 2 on, that row included."""
    none = torch.zeros(1, 1, dtype=torch.float64)
    strata = tuple(
        Stratum(10, 2**k, torch.tensor([mean]).double(), none, second, 0.0, third, 0.0, 3.0)
        for k, (mean, second, third) in enumerate(
            [(5.0, 9.0, 9.0), (1.0, 3.0, 2.0), (0.5, 5.0, 8.0)]
        )
    )
    rungs = tuple(LadderRung(2.0**k, 2**k, (1.0,), (k,), 3.0 * 4**k, 2.0**k) for k in range(3))
    zero = torch.zeros(1).double()
    found = Accuracy(rungs, strata, Reference(zero, zero))
    assert found.fit("bias", since=2.0).slope == pytest.approx(-1.0)
    assert found.fit("third_moment", since=2.0).slope == pytest.approx(2.0)
    assert found.fit("second_moment", since=2.0).slope == pytest.approx(2.0 / math.log(2.0))
    assert [rung.cost for rung in found.rungs] == [3.0, 12.0, 48.0]
    assert found.fit("bias").slope < -1.5
    assert found.fit("third_moment").slope < 0.0
    assert found.fit("second_moment").slope < 0.0
    # Biases that are not on a line, but known without noise: so is the slope.
    assert found.fit("bias").slope_se == pytest.approx(0.0, abs=1e-12)
    assert found.rows[-1].bias_high == pytest.approx(0.5)


@pytest.mark.parametrize("estimator", [mg.MLMC(2), mg.Average(1)], ids=["mlmc", "average"])
def test_the_share_that_is_done_is_reported(estimator: mg.estimators.Estimator) -> None:
    problem, shares = _problem(), list[float]()
    gradient = mg.MarkovGradient(
        problem.kernel(), problem.loss, estimator, parameters=problem.parameters
    )
    accuracy(
        gradient,
        problem.start(1),
        reference=problem,
        ladder=[8, 1, 4, 2],
        generator=rng(),
        replicates=10,
        least=10,
        report=shares.append,
    )
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_plain_average() -> None:
    problem = _problem()
    (target,) = problem.exact_gradient()
    found = _measured(mg.Average(1))
    for row in found.rows:
        exact = float((problem.average_gradient(row.length) - target).norm())
        assert abs(row.bias - exact) < 5.0 * row.bias_se
        assert row.cost == row.expected_cost == row.length
    assert [rung.cost for rung in found.rungs] == [1.0, 2.0, 4.0, 8.0]


def test_strata_beat_drawing_the_level() -> None:
    """The standard error of the mean is far below that of as many unstratified estimates."""
    row = _measured(mg.MLMC(2)).rows[-1]
    transitions = 4 * 40_000  # four levels
    unstratified = math.sqrt(row.variance / (transitions / row.cost))
    assert row.bias_se < 0.8 * unstratified


def test_slope_errors_are_honest() -> None:
    """The standard error of the bias slope is the spread over independent repetitions."""
    problem = _problem()
    gradient = mg.MarkovGradient(
        problem.kernel(), problem.loss, mg.MLMC(2), parameters=problem.parameters
    )
    fits = [
        accuracy(
            gradient,
            problem.start(1),
            reference=problem,
            ladder=[1, 2, 4, 8],
            generator=rng(seed),
            replicates=4000,
        ).fit("bias")
        for seed in range(20)
    ]
    spread = float(torch.tensor([f.slope for f in fits]).std())
    claimed = sum(f.slope_se for f in fits) / len(fits)
    assert 0.5 * spread < claimed < 2.0 * spread


def test_a_certificate_stands_in_for_the_answer() -> None:
    problem = problems.gaussian()
    gradient = mg.MarkovGradient(
        mg.kernels.MALA(problem.log_density, 0.5),
        problem.loss,
        mg.MLMC(2),
        parameters=problem.parameters,
    )
    reference = certify(gradient, problem.start(200), tolerance=0.02, generator=rng(1))
    (exact,) = problem.exact_gradient()
    assert ((reference.gradient - exact).abs() < 5.0 * reference.se).all()
    known = accuracy(
        gradient,
        problem.start(1),
        reference=problem,
        ladder=[2, 4],
        generator=rng(2),
        replicates=2000,
    )
    guessed = accuracy(
        gradient,
        problem.start(1),
        reference=reference,
        ladder=[2, 4],
        generator=rng(2),
        replicates=2000,
    )
    for a, b in zip(known.rows, guessed.rows, strict=True):
        assert abs(a.bias - b.bias) < 5.0 * float(reference.se.norm())
        assert b.bias_se > a.bias_se  # the reference's own error counts


@dataclasses.dataclass(frozen=True)
class _Other:
    """An estimator that is none of ours."""

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        return mg.Average(1).draw(chains, n, generator)

    def longest(self, n: int | None = None) -> int:
        return 1

    def expected_length(self, n: int | None = None) -> float:
        return 1.0


def test_bad_input() -> None:
    problem = _problem()
    gradient = mg.MarkovGradient(
        problem.kernel(), problem.loss, mg.MLMC(2), parameters=problem.parameters
    )
    with pytest.raises(ValueError, match="ladder must contain at least one"):
        accuracy(gradient, problem.start(1), reference=problem, ladder=[], generator=rng())
    other = dataclasses.replace(gradient, estimator=_Other())
    with pytest.raises(TypeError, match="must be MLMC, MLMCSum or Average, got _Other"):
        accuracy(other, problem.start(1), reference=problem, ladder=[2], generator=rng())
    with pytest.raises(ValueError, match="a finite entry for each of the 2 parameters"):
        accuracy(
            gradient, problem.start(1), reference=[torch.zeros(3)], ladder=[2], generator=rng()
        )
    vague = Reference(problem.average_gradient(2), torch.full((2,), 10.0).double())
    with pytest.raises(ValueError, match="the bias is below the noise"):
        accuracy(
            gradient,
            problem.start(1),
            reference=vague,
            ladder=[2, 4],
            generator=rng(),
            replicates=2000,
        ).fit("bias")


def test_the_autocorrelation_time_of_a_lazy_chain() -> None:
    """Stays with probability ρ, else draws independently: autocorrelation time (1+ρ)/(1−ρ) = 9."""
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    matrix = 0.8 * torch.eye(2, dtype=torch.float64) + 0.1
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: theta[x], mg.MLMC(2), parameters=[theta]
    )
    start = torch.zeros(4000, dtype=torch.int64)
    time, acceptance = autocorrelation_time(gradient, start, length=600, generator=rng())
    assert time == pytest.approx(9.0, rel=0.15)
    assert acceptance == pytest.approx(0.1, abs=0.01)


def test_the_time_is_that_of_the_worst_coordinate() -> None:
    """One coordinate is drawn afresh at each step, one never moves: 1, and the averaged half."""
    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def gradient(which: list[int]) -> mg.MarkovGradient:
        def step(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            fresh = torch.randn(len(x), dtype=x.dtype, generator=generator)
            return torch.stack([x[:, 0], fresh], 1)

        return mg.MarkovGradient(
            mg.kernels.FromStep(step),
            lambda x: (theta * x)[:, which].sum(1),
            mg.Average(1),
            parameters=[theta],
        )

    x0 = torch.randn(4000, 2, dtype=torch.float64, generator=rng())
    both, _ = autocorrelation_time(gradient([0, 1]), x0, length=20, generator=rng(1))
    assert both == pytest.approx(10.0)
    # Null: the ratio of two variances of 4000 values is 1; 5 standard errors of 0.03.
    fresh, _ = autocorrelation_time(gradient([1]), x0, length=20, generator=rng(1))
    assert 1.0 <= fresh < 1.16


def test_resampling_has_the_standard_errors() -> None:
    """Null: shifts of mean, second and third moment have variance σ²/count; 5 standard errors."""
    covariance = torch.tensor([[4.0, 1.0], [1.0, 9.0]], dtype=torch.float64)
    stratum = Stratum(100, 1, torch.zeros(2).double(), covariance, 50.0, 16.0, 90.0, 25.0, 3.0)
    generator, n = rng(1), 4000
    twins = [_resampled(stratum, generator) for _ in range(n)]
    means = torch.stack([twin.mean for twin in twins])
    tolerance = 5.0 * math.sqrt(2.0 / n)
    assert torch.allclose(means.T.cov(), covariance / 100.0, atol=tolerance * 0.09)
    for values, centre, variance in (
        ([twin.second for twin in twins], 50.0, 0.16),
        ([twin.third for twin in twins], 90.0, 0.25),
    ):
        sample = torch.tensor(values, dtype=torch.float64)
        assert float(sample.var()) == pytest.approx(variance, rel=tolerance)
        assert float(sample.mean()) == pytest.approx(centre, abs=5.0 * math.sqrt(variance / n))
    both = torch.tensor([[twin.second, twin.third] for twin in twins], dtype=torch.float64)
    correlation = torch.corrcoef(torch.cat([both, means], 1).T)
    assert abs(float(correlation[0, 1])) < 0.1
    assert float(correlation[:2, 2:].abs().max()) < 0.1
    assert torch.equal(_resampled(stratum, rng(2)).mean, _resampled(stratum, rng(2)).mean)
