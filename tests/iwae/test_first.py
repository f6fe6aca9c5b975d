"""What the weights of the first blocks say, by hand."""

import math

import numpy as np
import pytest

from mlmcgrad.iwae.first import findings
from mlmcgrad.kernels.proposing import FirstWeights


def test_findings_are_means_over_the_batch() -> None:
    """Effective numbers 1/(½² + ½²) = 2, 1 and 1/(0.9² + 0.1²); the pieces may be empty."""
    share = np.array([[0.5, 0.5], [1.0, 0.0], [0.9, 0.1]])
    log_sum = np.array([1.0, -2.0, 4.0])
    pieces = [FirstWeights(log_sum[:2], share[:2]), FirstWeights(log_sum[2:], share[2:])]
    found = findings([*pieces, FirstWeights(log_sum[:0], share[:0])])
    assert found.bound == pytest.approx(1.0 - math.log(2.0))
    assert found.effective == pytest.approx((2.0 + 1.0 + 1.0 / 0.82) / 3.0)
    assert found.largest == pytest.approx((0.5 + 1.0 + 0.9) / 3.0)


def test_a_datum_none_of_whose_draws_has_any_weight_is_refused() -> None:
    """The state that was kept has some, so that the chain goes on; the bound is −∞."""
    first = FirstWeights(np.array([0.0, -np.inf]), np.array([[1.0], [0.0]]))
    with pytest.raises(FloatingPointError, match="the bound is -inf"):
        findings([first])
