"""Claims on the methods that are not in the paper."""

import math

import pytest

from mlmcgrad.experiments.reproduce.claims import FAILS, HOLDS, Subject
from tests.experiments.reproduce.test_claims import claims_of
from tests.experiments.reproduce.test_compare import formula_run


def test_every_new_method_is_judged_against_iwae_and_dreg() -> None:
    """DReG is 1 nat better than IWAE, JSA 2, importance levels 1 worse, MLMC 2; equal cost."""
    ends = {"iwae": 9.0, "dreg": 8.0, "jsa": 7.0, "mlmc-is": 10.0, "mlmc": 11.0}
    runs = [
        formula_run(
            lambda n, w=0.01 * seed * c, c=c: c + w - math.log2(n),  # type: ignore[misc]
            seed=seed,
            method=method,
        )
        for seed in (1, 2, 3)
        for method, c in ends.items()
    ]
    claims = claims_of(runs)
    pairs = {
        ("dreg", "iwae"): HOLDS,
        ("jsa", "iwae"): HOLDS,
        ("jsa", "dreg"): HOLDS,
        ("mlmc-is", "iwae"): FAILS,
        ("mlmc-is", "dreg"): FAILS,
        ("mlmc", "iwae"): FAILS,
        ("mlmc", "dreg"): FAILS,
    }
    expected = {(m, b, a) for m, b in pairs for a in ("iteration", "evaluations", "seconds")}
    assert {(s.method, s.baseline, s.axis) for s in claims} == expected
    for (method, baseline), verdict in pairs.items():
        claim = claims[Subject("nll", method, baseline, "evaluations")]
        assert claim.verdict == verdict
        assert claim.value == pytest.approx((ends[method] - ends[baseline]) * 1.02)
