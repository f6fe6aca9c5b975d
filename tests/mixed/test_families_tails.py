"""Values and slopes where a probability is next to 0 or 1, against 60 digits."""

import mpmath as mp
import pytest
import torch

from mlmcgrad.mixed.families import (
    Bernoulli,
    Binomial,
    Cloglog,
    Family,
    Gamma,
    Link,
    Logit,
    Poisson,
    Probit,
    family,
    gap,
    remainder,
)
from mlmcgrad.mixed.families import NegativeBinomial as Negative

ETAS = (-700.0, -120.0, -35.0, -9.0, -2.0, 0.0, 2.0, 5.0, 9.0, 35.0, 120.0, 700.0)
ONE = torch.tensor(1.0, dtype=torch.float64)


def _logs(link: Link, eta: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """log p and log(1 − p)."""
    if isinstance(link, Logit):
        return -mp.log1p(mp.exp(-eta)), -mp.log1p(mp.exp(eta))
    if isinstance(link, Probit):
        below, above = (mp.erfc(s * eta / mp.sqrt(2)) / 2 for s in (-1, 1))
        small = mp.log(min(below, above)), mp.log1p(-min(below, above))
        return small if eta < 0 else small[::-1]
    return mp.log(-mp.expm1(-mp.exp(eta))), -mp.exp(eta)


@pytest.mark.parametrize("link", [Logit(), Probit(), Cloglog()], ids=lambda link: link.name)
def test_links(link: Link) -> None:
    with mp.workdps(60):
        for eta in ETAS:
            # The digits of 1 − e^{−t} next to 1 are beyond what −e^{−t} of double precision has.
            if isinstance(link, Cloglog) and eta > 3.0:
                continue
            at = torch.tensor(eta, dtype=torch.float64)
            for y in (0.0, 1.0):
                which = 0 if y else 1
                value, slope, _ = Bernoulli(link).slopes(at, ONE * y, ONE, ONE)
                exact = _logs(link, mp.mpf(eta))[which]
                assert float(value) == pytest.approx(float(exact), rel=1e-10, abs=1e-300)
                step = mp.mpf(10) ** -20
                above, below = (_logs(link, mp.mpf(eta) + s)[which] for s in (step, -step))
                rate = float((above - below) / (2 * step))
                assert float(slope) == pytest.approx(rate, rel=1e-10, abs=1e-15)
            p, q = _logs(link, mp.mpf(eta))
            found = Binomial(link).slopes(at, ONE * 2.0, ONE * 7.0, ONE)[0]
            exact = mp.log(mp.binomial(7, 2)) + 2 * p + 5 * q
            assert float(found) == pytest.approx(float(exact), rel=1e-10)


def test_cloglog_of_a_sure_success() -> None:
    for eta in (5.0, 100.0, 700.0):
        value, slope, curvature = Cloglog().one_slopes(ONE * eta, ONE)
        assert 0.0 >= float(value) > -1e-60
        assert 0.0 <= float(slope) < 1e-60
        assert 0.0 <= float(curvature) < 1e-60


def test_a_large_size_is_the_poisson_law() -> None:
    """y log r + … cancels to y(y − 1)/(2r); the slope in log r is of the order 1/r."""
    y, eta = 7.0, 1.3
    with mp.workdps(60):
        for size in (1e2, 1e4, 1e8, 1e12):
            log_size = torch.tensor(size, dtype=torch.float64).log()
            exactly = mp.exp(mp.mpf(float(log_size)))

            def log_prob(r: mp.mpf) -> mp.mpf:
                mean = mp.exp(mp.mpf(eta))
                binomial = mp.loggamma(y + r) - mp.loggamma(r) - mp.loggamma(y + 1)
                return binomial + y * mp.log(mean / (mean + r)) - r * mp.log1p(mean / r)

            arguments = ONE * eta, ONE * y, ONE, log_size
            exact = float(log_prob(exactly))
            assert float(Negative().slopes(*arguments)[0]) == pytest.approx(exact, rel=1e-13)
            rate = float(exactly * mp.diff(log_prob, exactly, h=exactly * mp.mpf(10) ** -20))
            found = float(Negative().dispersion_slope(*arguments))
            assert found == pytest.approx(rate, rel=1e-6, abs=1e-13)


def test_a_large_shape_keeps_its_digits() -> None:
    with mp.workdps(60):
        for shape in (1e2, 1e6, 1e10):
            log_shape = torch.tensor(shape, dtype=torch.float64).log()
            a, y = mp.exp(mp.mpf(float(log_shape))), 1.0 + shape**-0.5

            # With μ = 1: the log density at a standard deviation from the mean.
            exact = a * mp.log(a) + (a - 1) * mp.log(mp.mpf(y)) - a * y - mp.loggamma(a)
            found = Gamma().slopes(ONE * 0.0, ONE * y, ONE, log_shape)[0]
            assert float(found) == pytest.approx(float(exact), rel=1e-9)


def test_stirling() -> None:
    with mp.workdps(60):
        for x in (1e-3, 0.5, 3.0, 99.9, 100.1, 1e4, 1e12):
            at = mp.mpf(x)
            exact = mp.loggamma(at) - ((at - 0.5) * mp.log(at) - at + mp.log(2 * mp.pi) / 2)
            assert float(remainder(ONE * x)) == pytest.approx(float(exact), rel=1e-13, abs=2e-13)
            exact = mp.log(at) - mp.digamma(at)
            assert float(gap(ONE * x)) == pytest.approx(float(exact), rel=1e-12)


def test_series_of_stirling_keep_all_digits() -> None:
    with mp.workdps(60):
        for x in (100.5, 101.0, 150.0, 199.0, 1e3):
            at = mp.mpf(x)
            exact = mp.loggamma(at) - ((at - 0.5) * mp.log(at) - at + mp.log(2 * mp.pi) / 2)
            assert float(remainder(ONE * x)) == pytest.approx(float(exact), rel=4e-15)
            exact = mp.log(at) - mp.digamma(at)
            assert float(gap(ONE * x)) == pytest.approx(float(exact), rel=4e-15)


@pytest.mark.parametrize("law", [Poisson(), Gamma(), family("bernoulli", "cloglog")])
def test_slopes_of_the_far_tails_are_not_nan(law: Family) -> None:
    """They may be infinite: then the density is 0."""
    eta = torch.tensor([-1e4, -800.0, 800.0, 1e4], dtype=torch.float64)
    for y in (1.0, 0.0):
        if law == Gamma() and y == 0.0:
            continue
        one = torch.ones_like(eta)
        for found in law.slopes(eta, y * one, one, 0.0 * one):
            assert not found.isnan().any()


def test_cloglog_in_its_tails() -> None:
    """Success has log p = η far below, where e^η underflows; failure has slope −e^η."""
    eta = torch.tensor([-1e4, -746.0, -700.0], dtype=torch.float64)
    one = torch.ones_like(eta)
    value, slope, curvature = Cloglog().one_slopes(eta, one)
    torch.testing.assert_close(value, eta, rtol=1e-15, atol=0.0)
    torch.testing.assert_close(slope, one)
    assert curvature.abs().max() < 1e-300
    value, slope, curvature = Cloglog().many_slopes(eta, 0.0 * one, 5.0 * one)
    assert max(t.abs().max() for t in (value, slope, curvature)) < 1e-300
    value, slope, curvature = Cloglog().one_slopes(-eta, one)
    assert value.tolist() == slope.tolist() == curvature.tolist() == [0.0] * 3


def test_logit_keeps_its_digits_where_the_other_outcome_is_rare() -> None:
    with mp.workdps(60):
        for eta in (21.0, 25.0, 30.0):
            exact = -float(mp.log1p(mp.exp(mp.mpf(eta))))
            for value, _, _ in (
                Logit().one_slopes(ONE * eta, 0.0 * ONE),
                Logit().many_slopes(ONE * eta, 0.0 * ONE, ONE),
            ):
                assert float(value) == pytest.approx(exact, rel=4e-16)
