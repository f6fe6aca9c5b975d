"""The paper's theory as numbers: constants, bounds and rates, with no sampling code.

Where the paper needs a correction, the modules cite its erratum by number: see docs/errata.md.

Example:
    >>> from mlmcgrad.schedules import power
    >>> c = constants(1, ergodicity([[0.7, 0.3], [0.2, 0.8]]))  # c1, c2, c3 from ζ, α, β
    >>> problem = Assumptions(c, G=1.0, L=1.0, gap=1.0)
    >>> b = bounds.general([10**4, 10**8], problem, gamma=power(0.01, -0.5),
    ...                    truncation=power(2.0, 0.5))
    >>> b.total.round(3)
    array([3.809, 0.104])
    >>> rates.general(gamma=0.5, alpha=0.5).exponent
    -0.5
    >>> f"{recommend(0.1, problem).iterations:.1e}"  # with the best scales of γ_n and T_n
    '3.8e+07'
"""

from mlmcgrad.theory import bounds, rates
from mlmcgrad.theory.bounds import AMSGradCoefficients, Assumptions, Bound, amsgrad_coefficients
from mlmcgrad.theory.ergodicity_constants import Ergodicity, ergodicity
from mlmcgrad.theory.estimator_constants import Constants, bias_bound, constants, moment_bound
from mlmcgrad.theory.rates import Rate
from mlmcgrad.theory.recommendation import (
    Method,
    Recommendation,
    UnreachableError,
    average_cost,
    expected_cost,
    recommend,
)

__all__ = [
    "AMSGradCoefficients",
    "Assumptions",
    "Bound",
    "Constants",
    "Ergodicity",
    "Method",
    "Rate",
    "Recommendation",
    "UnreachableError",
    "amsgrad_coefficients",
    "average_cost",
    "bias_bound",
    "bounds",
    "constants",
    "ergodicity",
    "expected_cost",
    "moment_bound",
    "rates",
    "recommend",
]
