"""The likelihood-ratio test of two models, with the Monte Carlo error of the difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from scipy.special import chdtrc

from mlmcgrad.mixed.likelihood import LogLikelihood

if TYPE_CHECKING:
    from mlmcgrad.mixed.result import Fit


@final
@dataclass(frozen=True)
class Comparison:
    """Twice the difference of two log-likelihoods, larger model minus smaller one.

    If a standard deviation of the larger model is 0 in the smaller one, the p-value is too large
    (it lies on the boundary of the parameter space): for one such standard deviation, halve it.
    """

    statistic: float
    error: float  # its Monte Carlo standard error
    degrees: int
    p_value: float

    def __str__(self) -> str:
        return (
            f"2 × difference of log-likelihoods {self.statistic:.3f} ± {self.error:.2g} "
            f"on {self.degrees} degrees of freedom, p = {self.p_value:.4g}"
        )


def compare(one: Fit, other: Fit) -> Comparison:
    """The test; both models have the same random numbers for their log-likelihoods."""
    small, large = sorted((one, other), key=lambda fit: fit.parameters)
    degrees = large.parameters - small.parameters
    if degrees == 0:
        raise ValueError(
            f"other must have more or fewer parameters than this model, which has {one.parameters} "
            "as well; compare their AIC instead"
        )
    values = []
    for fit in (large, small):
        if fit.live is None:
            raise ValueError("other: a fit that was loaded has no data to compare on; fit it again")
        values.append(fit.live.design.y)
    if not torch.equal(*values):
        raise ValueError(
            f"other must be a fit of the same responses, got {one.rows} and {other.rows} rows; "
            "leave out the rows with missing values from both"
        )
    difference, error = _value(large).minus(_value(small))
    statistic = 2.0 * difference
    return Comparison(statistic, 2.0 * error, degrees, float(chdtrc(degrees, max(0.0, statistic))))


def _value(fit: Fit) -> LogLikelihood:
    assert fit.live is not None
    found = fit.live.likelihood.log_likelihood(fit.live.theta, seed=0)
    # The units of a gaussian response are part of its density.
    shift = torch.full_like(found.value, fit.live.scale.log_volume / len(found.value))
    return LogLikelihood(found.value + shift, found.deviation)
