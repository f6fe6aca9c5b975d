"""What a certificate says: by hand, and its errors by simulation."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from scipy import stats
from torch import Tensor

from mlmcgrad.diagnostics._certify import Certificate, norm_interval, norm_of
from mlmcgrad.diagnostics._checks import Check, Mean, student_quantile
from tests.chains import rng

PASSED, FAILED = Check("levels", True, "all is well."), Check("law", False, "Look at the kernel.")
SKIPPED = Check("law", None, "The law itself was not checked.")


def sample(mean: list[float], seed: int = 0, count: int = 100, noise: float = 1.0) -> Mean:
    z = torch.randn(count, len(mean), dtype=torch.float64, generator=rng(seed))
    target = torch.zeros(count, dtype=torch.int64)
    return Mean.of(torch.tensor(mean, dtype=torch.float64) + noise * z, target)


def certificate(mean: Mean, *checks: Check, units: Tensor | None = None) -> Certificate:
    units = torch.ones_like(mean.value) if units is None else units
    return Certificate(mean, units, "standard deviations of H", 0.1, checks, 12345, 64, 100)


def test_intervals_are_for_all_components_together() -> None:
    mean, units = sample([0.0, 3.0]), torch.tensor([1.0, 10.0], dtype=torch.float64)
    found = certificate(mean, units=units)
    q = student_quantile(0.025, 99)
    torch.testing.assert_close(found.se, found.covariance.diagonal().sqrt())
    assert found.half_width == pytest.approx(float((q * found.se / units).max()))
    within = (found.gradient.abs() + q * found.se) / units
    assert found.zero_within == pytest.approx(float(within.max()))
    g = found.gradient
    statistic = float(g @ torch.linalg.solve(found.covariance, g))
    expected = stats.f.sf(statistic * 98.0 / (99.0 * 2.0), 2, 98)
    assert found.p_value == pytest.approx(expected, rel=1e-3)
    assert found.p_value_of(found.gradient) == pytest.approx(1.0)
    assert found.p_value_of(found.gradient.float().reshape(2, 1)) > 0.999


def test_one_check_that_fails_is_enough() -> None:
    mean = sample([0.0, 0.0])
    assert certificate(mean, PASSED, SKIPPED).certified
    found = certificate(mean, PASSED, FAILED)
    assert not found.certified
    assert found.verdict == "NOT certified: Look at the kernel."


def test_verdicts() -> None:
    zero, away = sample([0.0, 0.0]), sample([3.0, 4.0])
    assert "Certified: the gradient is 0 within ±" in certificate(zero, PASSED).verdict
    assert " (95 %; p = " in certificate(zero, PASSED).verdict
    assert certificate(zero, PASSED).verdict.endswith(").")
    text = certificate(away, PASSED, SKIPPED).verdict
    assert "Certified: the norm of the gradient is " in text
    low, high = norm_interval(*norm_of(away.value, away.spread))
    assert f" (95 %: {low:.3g} to {high:.3g}), not 0 (p = " in text
    assert text.endswith("The law itself was not checked.")
    assert "the gradient is 0" not in text


@pytest.mark.parametrize(("p", "zero"), [(1.5e-3, True), (0.7e-3, False)])
def test_from_which_p_value_on_a_gradient_is_not_0(p: float, zero: bool) -> None:
    noise = sample([0.0])
    value = student_quantile(p, 99) * noise.spread.square().sum(0).sqrt()
    found = certificate(dataclasses.replace(noise, value=value), PASSED)
    assert found.p_value == pytest.approx(p, rel=1e-3)
    assert ("the gradient is 0 within" in found.verdict) == zero


def test_the_report_has_a_line_for_each_check() -> None:
    lines = str(certificate(sample([0.0]), PASSED, FAILED, SKIPPED)).splitlines()
    assert lines[0].startswith(
        "100 simulations of length 64, 12,345 evaluations; 95 % intervals of ±"
    )
    assert lines[1:] == [
        "check",
        "levels  passed       all is well.",
        "law     FAILED       Look at the kernel.",
        "law     not checked  The law itself was not checked.",
        "NOT certified: Look at the kernel.",
    ]


def test_a_norm_by_hand() -> None:
    """‖(3, 4)‖² = 25 less tr C = 5; variance 4·(9 + 64) + 2·(1 + 16)."""
    value = torch.tensor([3.0, 4.0], dtype=torch.float64)
    spread = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    norm, se = norm_of(value, spread)
    assert norm == pytest.approx(20.0**0.5)
    assert se == pytest.approx((4.0 * 73.0 + 34.0) ** 0.5 / (2.0 * norm))
    wide = torch.cat([spread, torch.zeros(5, 2, dtype=torch.float64)])
    assert norm_of(value, wide) == pytest.approx((norm, se))
    norm, se = norm_of(0.1 * value, spread)  # all of it is noise
    assert norm == 0.0
    assert se == pytest.approx((4.0 * 0.73 + 34.0) ** 0.25)


def test_the_interval_of_a_norm() -> None:
    """That of its square: a norm may be 0 at any distance, and is never negative."""
    z = 1.959963984540054
    assert norm_interval(3.0, 0.1) == pytest.approx(((9 - z * 0.6) ** 0.5, (9 + z * 0.6) ** 0.5))
    assert norm_interval(0.1, 1.0) == pytest.approx((0.0, (0.01 + z * 0.2) ** 0.5))
    assert norm_interval(0.0, 0.5) == pytest.approx((0.0, 0.5 * z**0.5))
