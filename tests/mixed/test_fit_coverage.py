"""Intervals cover what they say: 200 data sets of a model, fitted one by one.

With a coverage of 95 % the share among 200 lies between 91 % and 98 % with probability 0.98 for
each parameter; the seeds are fixed, so the verdict is too.
"""

import numpy as np

from mlmcgrad import mixed
from tests.mixed.quadrature import simulate

DATA_SETS = 200


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    truth = np.array([-0.5, 0.8, np.log(1.5)])
    covered, narrow = np.zeros(3), 0
    for seed in range(DATA_SETS):
        model = simulate("bernoulli", 1, seed, groups=80, rows=6, sd=(1.5, 0.0))
        fit = mixed.fit(model.formula, model.data, "bernoulli", seed=seed, tolerance=0.05)
        assert fit.problem is None
        ends = np.vstack([fit.conf_int(), np.log(fit.sd_intervals["g"])])
        covered += (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        # Planted bug: the standard error of a model whose random effects are known.
        p = fit.predict().to_numpy()
        narrow += int(abs(fit.params["Intercept"] + 0.5) <= 1.96 * (p * (1.0 - p)).sum() ** -0.5)
    share = covered / DATA_SETS
    assert ((share >= 0.91) & (share <= 0.98)).all(), share.tolist()
    assert narrow / DATA_SETS < 0.91
