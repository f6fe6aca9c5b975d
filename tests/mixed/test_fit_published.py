"""Published estimates of a published table.

Seeds: Crowder (1978), "Beta-binomial anova for proportions", Applied Statistics 27, Table 3:
germinated seeds of 21 plates, two kinds of seed and two root extracts. The maximum of the exact
likelihood is that of Breslow and Clayton (1993), "Approximate inference in generalized linear mixed
models", JASA 88, and of the BUGS manual ("Seeds", by quadrature): coefficients −0.548 (0.167),
0.097 (0.278), 1.337 (0.237), −0.811 (0.385), and σ = 0.236 (0.110).
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mlmcgrad import mixed

SEEDS = Path(__file__).with_name("seeds.csv")


@pytest.mark.parametrize("left", ["germinated | trials(n)", "proportion(germinated, n)"])
def test_crowder_s_seeds(left: str) -> None:
    data = pd.read_csv(SEEDS)
    data["kind"] = data["seed"].str.endswith("73").astype(int)
    data["root"] = (data["extract"] == "cucumber").astype(int)
    fit = mixed.fit(f"{left} ~ kind * root + (1 | plate)", data, "binomial")
    assert fit.problem is None
    assert np.allclose(fit.params, [-0.548, 0.097, 1.337, -0.811], atol=0.0015)
    assert np.allclose(fit.bse, [0.167, 0.278, 0.237, 0.385], atol=0.0015)
    sd = fit.sd["plate"]["Intercept"]
    assert sd == pytest.approx(0.236, abs=0.001)
    assert sd * float(fit.log_sd_errors[0]) == pytest.approx(0.110, abs=0.001)
