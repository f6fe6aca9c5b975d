"""Every family passes these tests: a new one adds a row to `cases.py`."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from mlmcgrad.mixed.families import Family, Weighted
from tests.mixed.cases import CASES, Case
from tests.statistics import mean_is

ETA = torch.linspace(-3.0, 2.0, 21, dtype=torch.float64)
TAILS = torch.tensor([-700.0, -300.0, -40.0, -8.0, 8.0, 40.0, 300.0, 700.0], dtype=torch.float64)

each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def _log(dispersion: float) -> Tensor:
    return torch.tensor(dispersion, dtype=torch.float64).log()


@each
def test_is_a_family(case: Case) -> None:
    assert isinstance(case.family, Family)


@each
def test_log_likelihood_is_that_of_scipy(case: Case) -> None:
    for dispersion in case.dispersions:
        arguments = ETA[:, None], case.responses, case.counts, _log(dispersion)
        found, _, _ = case.family.slopes(*arguments)
        expected = np.stack([case.log_prob(float(eta), dispersion) for eta in ETA])
        # scipy itself loses digits: of log Γ at large sizes, of 1 − p where that is small.
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


@each
def test_slopes_are_the_derivatives(case: Case) -> None:
    for dispersion in case.dispersions:
        eta = ETA[:, None].expand(-1, len(case.y)).clone().requires_grad_()
        arguments = case.responses, case.counts, _log(dispersion)
        (first,) = torch.autograd.grad(
            case.family.slopes(eta, *arguments)[0].sum(), eta, create_graph=True
        )
        (second,) = torch.autograd.grad(first.sum(), eta)
        _, slope, curvature = case.family.slopes(eta.detach(), *arguments)
        for found, expected in ((slope, first), (curvature, -second)):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-9)


@each
def test_the_slope_of_the_dispersion_is_the_derivative(case: Case) -> None:
    for dispersion in case.dispersions:
        log = _log(dispersion).expand(len(ETA), len(case.y)).clone().requires_grad_()
        arguments = ETA[:, None].expand_as(log), case.responses, case.counts
        found = case.family.dispersion_slope(*arguments, log.detach())
        if case.family.dispersion is None:
            assert torch.equal(found, torch.zeros_like(log))
            continue
        (expected,) = torch.autograd.grad(case.family.slopes(*arguments, log)[0].sum(), log)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@each
def test_nothing_overflows(case: Case) -> None:
    for dispersion in case.dispersions:
        y, counts = case.responses.clamp(max=100.0), case.counts
        # For the gamma law α y e^{−η} itself is beyond double precision at η = −700.
        eta = (TAILS / 2.0 if case.family.name == "gamma" else TAILS)[:, None]
        value, slope, curvature = case.family.slopes(eta, y, counts, _log(dispersion))
        assert torch.equal(value.isfinite(), torch.ones_like(value, dtype=torch.bool))
        assert slope.isfinite().all()
        assert curvature.isfinite().all()
        assert (curvature >= 0.0).all()


@each
def test_shapes_broadcast(case: Case) -> None:
    eta = torch.zeros(3, len(case.y)).double()
    for log in (_log(2.0), torch.zeros(3, 1).double()):
        arguments = eta, case.responses, case.counts, log
        outputs = [
            *case.family.slopes(*arguments),
            case.family.dispersion_slope(*arguments),
            case.family.sample(eta, case.counts, log, torch.Generator().manual_seed(0)),
        ]
        assert {tuple(output.shape) for output in outputs} == {(3, len(case.y))}
        assert {output.dtype for output in outputs} == {torch.float64}


def _moments(case: Case, sampled: float, eta: float, dispersion: float) -> bool:
    law = case.law(eta, dispersion)
    etas = torch.full((20_000, 1), eta, dtype=torch.float64)
    trials = torch.tensor([case.trials], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    y = case.family.sample(etas, trials, _log(sampled), generator)
    quantities = torch.cat([y, (y - law.mean()) ** 2], 1)
    return mean_is(quantities, torch.tensor([law.mean(), law.var()], dtype=torch.float64))


@each
def test_samples_have_the_mean_and_the_variance(case: Case) -> None:
    """H0: mean and variance are those of scipy's law; false alarm 1e-5 for each η."""
    for eta in (-1.2, 0.9):
        assert _moments(case, 4.0, eta, 4.0)


@each
def test_the_variance_is_that_of_a_trial(case: Case) -> None:
    variance = getattr(case.family, "variance")  # noqa: B009  # not every family has it
    for eta, dispersion in product((-1.2, 0.9), case.dispersions):
        found = variance(torch.full((2,), eta, dtype=torch.float64), _log(dispersion))
        assert found.tolist() == pytest.approx([case.law(eta, dispersion).var() / case.trials] * 2)


@each
def test_a_weight_counts_a_row_several_times(case: Case) -> None:
    weighted, log = Weighted(case.family), _log(case.dispersions[-1])
    weights, one = torch.arange(1.0, 1.0 + len(case.y)).double(), torch.ones_like(case.responses)
    y = case.responses if case.trials == 1.0 else (case.responses > 0.0).double()
    eta = torch.linspace(-1.0, 1.0, len(y), dtype=torch.float64)
    assert (weighted.name, weighted.dispersion) == (case.family.name, case.family.dispersion)
    plain = (*case.family.slopes(eta, y, one, log), case.family.dispersion_slope(eta, y, one, log))
    found = (
        *weighted.slopes(eta, y, weights, log),
        weighted.dispersion_slope(eta, y, weights, log),
    )
    for of_weighted, of_one in zip(found, plain, strict=True):
        assert torch.equal(of_weighted, weights * of_one)
    assert torch.equal(weighted.mean(eta, log), case.family.mean(eta, log))
    assert torch.equal(weighted.start(y, weights), case.family.start(y, one))
    weighted.check(y, weights)
    with pytest.raises(ValueError, match="a fit with weights cannot simulate responses"):
        weighted.sample(eta, weights, log, torch.Generator())


def test_samples_with_another_dispersion_are_noticed() -> None:
    for name in ("negative_binomial", "gaussian", "gamma"):
        assert not _moments(CASES[name], 3.0, 0.9, 4.0)


@each
def test_start_is_near_the_predictor_of_each_response(case: Case) -> None:
    """The mean at the start lies between the response and the middle of its range."""
    start = case.family.start(case.responses, case.counts)
    mean = case.family.mean(start, _log(1.0)) * case.trials
    assert (torch.diff(start) > 0.0).all()
    assert ((mean - case.responses).abs() <= 0.5 + 1e-12).all()


@each
def test_its_own_responses_are_accepted(case: Case) -> None:
    case.family.check(case.responses, case.counts)


@each
def test_samples_come_from_the_generator(case: Case) -> None:
    eta = torch.zeros(50, len(case.y)).double()
    one, two = (
        case.family.sample(eta, case.counts, _log(2.0), torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert torch.equal(one, two)
