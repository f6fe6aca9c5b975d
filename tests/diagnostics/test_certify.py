"""Right kernels are certified, planted bugs are not; `benchmarks/certify.py` has ten seeds each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.certify import run
from benchmarks.certify_cases import Case, planted, right

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics import Certificate, certify, compare
from tests.chains import rng

RIGHT = {case.name: case for case in right()}
PLANTED = {case.name: case for case in planted()}


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_right_kernels_are_certified_and_the_interval_contains_the_gradient(case: Case) -> None:
    """Null hypotheses: all checks are right, rate 1e-5; and the exact gradient, rate 1e-6."""
    found = run(case, seed=20, tolerance=0.1)
    assert found.certified, str(found)
    assert found.p_value_of(case.exact) > 1e-6
    assert found.half_width <= 0.1
    assert found.evaluations <= 1e6
    assert {check.name for check in found.checks} >= {"levels", "mixing", "law", "interval"}
    assert all(check.passed for check in found.checks)


@pytest.mark.parametrize("case", PLANTED.values(), ids=PLANTED)
def test_planted_bugs_are_not_certified(case: Case) -> None:
    found = run(case, seed=20, evaluations=1e5)
    assert not found.certified
    assert case.fails in {check.name for check in found.checks if check.passed is False}
    assert found.verdict.startswith("NOT certified: ")


def finite(**options: Any) -> Certificate:
    problem = problems.finite_chain(states=6, seed=1)
    gradient = mg.MarkovGradient(
        problem.kernel(), problem.loss, mg.MLMC(2), parameters=problem.parameters
    )
    return certify(gradient, problem.start(1), generator=rng(), **options)


def test_a_certificate_is_a_reference_for_the_bias_of_a_method() -> None:
    """Against the exact bias, to 5 standard errors."""
    problem = problems.finite_chain(states=6, seed=1)
    exact, reference = problem.exact_gradient()[0], finite(tolerance=0.02, evaluations=3e6)
    contenders = {
        str(each): mg.MarkovGradient(
            problem.kernel(), problem.loss, each, parameters=problem.parameters
        )
        for each in (mg.Average(2), mg.Average(8), mg.MLMCSum(1024))
    }
    found = compare(contenders, problem.start(1), reference=reference, generator=rng(1))
    for row, length in zip(found.rows, (2, 8, 1024), strict=True):
        true = float((problem.average_gradient(length) - exact).square().sum())
        assert abs(row.squared - true) < 5.0 * row.squared_se
    assert found.rows[1].bias2.low > 0.0


def test_units_and_tolerance() -> None:
    usual = finite(tolerance=0.1)
    given = finite(tolerance=0.1, units=usual.units)
    assert torch.equal(given.gradient, usual.gradient)
    assert given.half_width == usual.half_width
    assert given.unit_name == "units"
    assert finite(units=1.0, tolerance=0.1).units.tolist() == [1.0, 1.0]
    fine = finite(tolerance=0.04)
    assert fine.certified
    assert fine.half_width <= 0.04 < usual.half_width
    assert fine.length > usual.length
    narrow = finite(tolerance=1e-4, evaluations=5e4)
    assert not narrow.certified
    assert "Increase evaluations or tolerance." in narrow.verdict
    assert narrow.evaluations <= 5e4


def test_the_default_unit_is_the_deviation_of_h() -> None:
    problem = problems.finite_chain(states=6, seed=1)
    law, f = problem.law(), problem.features
    exact = (law @ f.square() - (law @ f).square()).sqrt()
    assert finite().units.tolist() == pytest.approx(exact.tolist(), rel=0.3)


def test_a_component_without_noise_is_measured_by_the_others() -> None:
    problem = problems.gaussian()
    fixed = torch.ones(1, dtype=torch.float64, requires_grad=True)
    gradient = mg.MarkovGradient(
        mg.kernels.MALA(problem.log_density, 0.5),
        lambda x: problem.loss(x) + 3.0 * fixed,
        mg.MLMC(2),
        parameters=[*problem.parameters, fixed],
    )
    found = certify(gradient, problem.start(1), generator=rng(), tolerance=0.1)
    assert found.certified
    assert found.gradient[-1].item() == pytest.approx(3.0)
    assert found.units[-1].item() == pytest.approx(
        float(found.units[:-1].square().sum() / 3) ** 0.5, rel=0.01
    )
    assert found.p_value < 1e-10


def test_rows_of_different_data_are_one_mean_with_the_noise_within_them() -> None:
    """N(y, 1) with y = ±100: the mean over rows is known far better than they are apart."""
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    gradient = mg.MarkovGradient(
        mg.kernels.RWMH(lambda x, y: -0.5 * (x - y).square().sum(1), 2.0),
        lambda x, y: x @ theta,
        mg.MLMC(2),
        parameters=[theta],
    )
    y = torch.tensor([[-100.0], [101.0]], dtype=torch.float64)
    found = certify(gradient, y.clone(), y, generator=rng())
    assert found.certified
    assert found.gradient.item() == pytest.approx(0.5, abs=5.0 * found.se.item())
    assert found.se.item() < 0.05
    assert found.units.item() == pytest.approx(1.0, rel=0.3)
    assert found.estimate.freedom == 126


def test_the_same_seed_gives_the_same_bits_and_progress_is_reported() -> None:
    shares: list[float] = []
    first, second = finite(report=shares.append), finite()
    assert torch.equal(first.gradient, second.gradient)
    assert str(first) == str(second)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert all(0.0 < share <= 1.0 for share in shares)


def test_the_users_gradients_are_left_alone() -> None:
    problem = problems.finite_chain(states=6, seed=1)
    gradient = mg.MarkovGradient(
        problem.kernel(), problem.loss, mg.MLMC(2), parameters=problem.parameters
    )
    certify(gradient, problem.start(1), generator=rng(), evaluations=2e4)
    assert problem.theta.grad is None


def test_errors_name_argument_value_and_remedy() -> None:
    with pytest.raises(
        ValueError, match="evaluations must be ≥ 1,024 for 128 simulations of 8 steps"
    ):
        finite(evaluations=1000)
    for name in ("evaluations", "tolerance"):
        with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
            finite(**{name: 0})
    for units in (0.0, [1.0, 2.0, 3.0], torch.tensor([1.0, torch.inf])):
        with pytest.raises(ValueError, match="units must be a positive number, or one for each of"):
            finite(units=units)
    problem = problems.finite_chain()
    gradient = mg.MarkovGradient(problem.kernel(), problem.loss, mg.MLMC(2))
    with pytest.raises(ValueError, match="gradient must have parameters"):
        certify(gradient, problem.start(1), generator=rng())
    case = RIGHT["i-SIR, log weights ±1"]
    start = mg.Store(1, 2).start([0])
    with pytest.raises(TypeError, match=r"x0 must be a tensor .* got Remembered"):
        certify(case.gradient, start, torch.zeros(1), generator=rng())
