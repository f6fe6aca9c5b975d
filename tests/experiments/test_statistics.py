"""Student's interval for a mean."""

import math

import numpy as np
import pytest
from scipy import stats

from mlmcgrad.experiments.statistics import student_interval


def test_interval_is_students() -> None:
    values = [1.0, 2.0, 4.0]
    expected = stats.t.interval(0.95, 2, np.mean(values), np.std(values, ddof=1) / math.sqrt(3))
    assert student_interval(values) == pytest.approx((7.0 / 3.0, *expected))
    assert student_interval([2.5]) == (2.5, None, None)
    assert student_interval([]) == (None, None, None)
    assert student_interval([1.0, math.nan]) == (None, None, None)


def test_interval_covers_as_often_as_it_says() -> None:
    """Null hypothesis: coverage is 95 %; a binomial bound with false-alarm rate 1e-5."""
    sample = np.random.default_rng(0).normal(size=(2000, 3))
    hits = 0
    for values in sample:
        _, low, high = student_interval(list(values))
        assert low is not None
        assert high is not None
        hits += low <= 0.0 <= high
    assert stats.binomtest(hits, 2000, 0.95).pvalue > 1e-5
    normal = sum(abs(v.mean()) <= 1.96 * v.std(ddof=1) / math.sqrt(3) for v in sample)
    assert stats.binomtest(int(normal), 2000, 0.95).pvalue < 1e-5  # the planted bug: no Student
