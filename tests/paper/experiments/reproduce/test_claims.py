"""Claims on runs whose curves are formulas: numbers, verdicts, and methods beyond the paper."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from mlmcgrad.paper.experiments.reproduce.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Claim,
    Subject,
    _verdict,
    decay,
    evaluate,
    iteration_at,
    matched,
    rate,
    reaches,
    student_interval,
)
from mlmcgrad.paper.experiments.reproduce.data import Reproduction, TrainingRun
from tests.paper.experiments.reproduce.fabricated import formula_run


def test_decay_finds_the_exponent() -> None:
    run = formula_run(lambda n: 0.0, lambda n: 3.0 * n**-0.7)
    assert decay(run, math.inf)[0] == pytest.approx(-0.7)
    exact = formula_run(
        lambda n: 0.0, lambda n: 5.0 * math.log(n) ** 2 / math.sqrt(n) if n > 1 else 1
    )
    assert decay(exact, math.inf, against_rate=True)[0] == pytest.approx(0.0, abs=1e-9)
    assert rate(np.array([100.0])) == pytest.approx(math.log(100.0) ** 2 / 10.0)


def test_decay_ends_where_it_should_and_leaves_out_what_has_no_logarithm() -> None:
    kink = formula_run(lambda n: 0.0, lambda n: n**-1.0 if n <= 64 else 1.0 / 64.0)
    assert decay(kink, 64)[0] == pytest.approx(-1.0)
    assert decay(kink, 2048)[0] > -1.0
    dips = formula_run(lambda n: 0.0, lambda n: -1.0 if n in (4, 16) else n**-0.5)
    slope, count = decay(dips, math.inf)
    assert slope == pytest.approx(-0.5)
    assert count == 2
    negative = formula_run(lambda n: 0.0, lambda n: -1.0)
    slope, count = decay(negative, math.inf)
    assert math.isnan(slope)
    assert count == len(negative.tests)


def test_two_tests_are_enough_for_a_slope() -> None:
    run = formula_run(lambda n: 0.0, lambda n: 3.0 * n**-0.7)
    assert decay(run, 2)[0] == pytest.approx(-0.7)  # n = 1, 2
    assert math.isnan(decay(run, 1)[0])
    # Against the rate from e⁴ ≈ 55 on: n = 64, 128.
    slope, _ = decay(run, 128, against_rate=True)
    expected = -0.2 - 2.0 * math.log2(math.log(128) / math.log(64))
    assert slope == pytest.approx(expected)
    zero = formula_run(lambda n: 0.0, lambda n: 0.0 if n == 1 else 3.0 * n**-0.7)
    assert decay(zero, 4) == pytest.approx((-0.7, 1))


def test_equal_iterations_and_equal_budgets() -> None:
    """NLL = 10 − log2 n for the one that costs 1, 9.5 − log2 n for the one that costs 4."""
    run = formula_run(lambda n: 10.0 - math.log2(n))
    baseline = formula_run(lambda n: 9.5 - math.log2(n), cost=4.0, last=256)
    assert matched(run, baseline, "nll", "iteration") == pytest.approx((0.5, 1.5))
    # Both have spent 1024 at n = 1024 and n = 256: 0 against 1.5.
    assert matched(run, baseline, "nll", "evaluations") == pytest.approx((-1.5, 1.5))
    assert matched(run, baseline, "nll", "seconds") == pytest.approx((-1.5, 1.5))
    assert iteration_at(run, "evaluations", 1000.0) == pytest.approx(1000.0)
    assert iteration_at(baseline, "evaluations", 1000.0) == pytest.approx(250.0)
    # 10 − log2 n = 1.5 at n = 2^8.5, of 1024.
    ratio, reached = reaches(run, baseline, "evaluations")
    assert reached
    assert ratio == pytest.approx(2.0**8.5 / 1024.0)
    short = formula_run(lambda n: 10.0 - math.log2(n), last=128)
    ratio, reached = reaches(short, baseline, "evaluations")
    assert not reached
    assert ratio == pytest.approx(128.0 / 1024.0)
    assert matched(short, baseline, "nll", "evaluations") == pytest.approx((3.0 - 4.5, 4.5))
    assert matched(short, baseline, "nll", "iteration") == pytest.approx((0.5, 2.5))
    assert run.truncation(64.0) == 16.0
    assert formula_run(lambda n: 0.0, method="iwae").truncation(64.0) == 1.0


def test_a_goal_is_reached_at_the_first_crossing() -> None:
    """NLL falls to −3 at n = 16, rises above the goal, falls again: the crossing is before 16."""
    values = {8: 1.0, 16: -3.0, 32: 2.0, 64: -1.0}
    run = formula_run(lambda n: values.get(int(n), 5.0), last=64)
    baseline = formula_run(lambda n: 0.0, last=64)
    ratio, reached = reaches(run, baseline, "evaluations")
    assert reached
    assert ratio == pytest.approx(2.0**3.25 / 64.0)  # a quarter of the way from 1 to −3
    # Exactly the goal, at n = 8, is the goal.
    exactly = formula_run(lambda n: {4: 3.0, 8: 0.0}.get(int(n), 5.0), last=64)
    assert reaches(exactly, baseline, "evaluations") == pytest.approx((8.0 / 64.0, True))
    at_once = formula_run(lambda n: -1.0)
    assert reaches(at_once, baseline, "evaluations") == (1.0 / 64.0, True)


DECAY = Subject("decay", "mlmc", "br", "iteration")
RATE = Subject("rate", "mlmc", None, "iteration")
PER_ITERATION = Subject("nll", "mlmc", "br", "iteration")
NLL = Subject("nll", "mlmc", "br", "evaluations")
GRADIENT = Subject("gradient", "mlmc", "br", "evaluations")
BUDGET = Subject("budget", "mlmc", "br", "evaluations")


def claims_of(runs: list[TrainingRun]) -> dict[Subject, Claim]:
    claims = evaluate(Reproduction(Path(), {"settings": {"dataset": "digits"}}, runs))
    assert len({(claim.subject, claim.optimizer) for claim in claims}) == len(claims)
    return {claim.subject: claim for claim in claims}


def _runs(
    offset: float,
    slope: float = -0.5,
    method: str = "mlmc",
    last: int = 2048,
    br_last: int = 256,
    spread: float = 0.01,
    seeds: int = 3,
) -> list[TrainingRun]:
    """BR: NLL 9.5 − log2 n, S = n^{-0.6}, cost 4. The other: 9.5 + offset − log2 n, n^slope, 1."""
    runs = []
    for seed in range(1, seeds + 1):
        wiggle = spread * (seed - 2)

        def nll(n: float, wiggle: float = wiggle) -> float:
            return 9.5 + offset + wiggle - math.log2(n)

        def gradient(n: float, wiggle: float = wiggle) -> float:
            return float(n ** (slope + wiggle / 5.0))

        runs += [
            formula_run(lambda n: 9.5 - math.log2(n), lambda n: n**-0.6, 4.0, br_last, seed, "br"),
            formula_run(nll, gradient, 1.0, last, seed, method),
        ]
    return runs


def test_the_papers_picture() -> None:
    """Slightly worse per iteration, better per budget: everything holds."""
    claims = claims_of(_runs(offset=0.5))
    assert claims[PER_ITERATION].value == pytest.approx(0.5)
    assert claims[PER_ITERATION].reference == pytest.approx(1.5)
    assert claims[PER_ITERATION].verdict == HOLDS
    nll = claims[NLL]
    assert nll.value == pytest.approx(-1.5)
    assert nll.verdict == HOLDS
    assert nll.iterations == pytest.approx((1024.0, 256.0))
    assert nll.truncations == pytest.approx((64.0, 32.0))
    assert claims[dataclasses.replace(NLL, axis="seconds")].verdict == HOLDS
    assert claims[DECAY].value == pytest.approx(0.1)
    assert claims[DECAY].verdict == HOLDS
    assert claims[BUDGET].value == pytest.approx(2.0**8.5 / 1024.0)
    assert claims[BUDGET].verdict == HOLDS
    # At n = 1024 and 256: 1024^-0.5 against 256^-0.6.
    expected = 1024.0**-0.5 / 256.0**-0.6 - 1.0
    assert claims[GRADIENT].value == pytest.approx(expected, abs=0.01)
    assert claims[GRADIENT].verdict == HOLDS
    assert dataclasses.replace(RATE, method="br") in claims
    assert {(claim.optimizer, claim.seeds) for claim in claims.values()} == {("amsgrad", 3)}
    assert len(claims) == 10


def test_the_opposite_picture() -> None:
    claims = claims_of(_runs(offset=2.5, slope=-0.1))
    assert claims[NLL].verdict == FAILS
    assert claims[GRADIENT].verdict == FAILS
    assert claims[DECAY].verdict == FAILS
    assert claims[RATE].verdict == FAILS
    assert claims[BUDGET].value == pytest.approx(2.0**10.5 / 1024.0)
    assert claims[BUDGET].verdict == FAILS
    better = claims_of(_runs(offset=-0.5, slope=-1.0))
    assert better[PER_ITERATION].verdict == FAILS
    assert better[RATE].verdict == HOLDS


def test_noise_decides_nothing() -> None:
    claims = claims_of(_runs(offset=0.5, spread=2.0))
    for subject in (PER_ITERATION, NLL, BUDGET, DECAY):
        assert claims[subject].verdict == UNDECIDED
    one_seed = claims_of(_runs(offset=0.5, seeds=1))
    assert one_seed[PER_ITERATION].value == pytest.approx(0.51, abs=0.05)
    assert one_seed[PER_ITERATION].low is None
    assert {claim.verdict for claim in one_seed.values()} == {UNDECIDED}


@pytest.mark.parametrize(
    ("subject", "low", "high", "verdict"),
    [
        (DECAY, -0.25, 0.25, HOLDS),
        (DECAY, 0.1, 0.4, UNDECIDED),
        (DECAY, -0.4, -0.1, UNDECIDED),
        (DECAY, 0.25, 0.4, UNDECIDED),
        (DECAY, -0.4, -0.25, UNDECIDED),
        (DECAY, 0.3, 0.4, FAILS),
        (DECAY, -0.4, -0.3, FAILS),
        (PER_ITERATION, 0.1, 0.2, HOLDS),
        (PER_ITERATION, -0.2, -0.1, FAILS),
        (dataclasses.replace(PER_ITERATION, baseline="iwae"), 0.1, 0.2, FAILS),
        (NLL, 0.1, 0.2, FAILS),
        (NLL, -0.2, -0.1, HOLDS),
        (NLL, -0.1, 0.1, UNDECIDED),
        (NLL, -0.1, 0.0, UNDECIDED),
        (NLL, 0.0, 0.1, UNDECIDED),
    ],
)
def test_verdicts(subject: Subject, low: float, high: float, verdict: str) -> None:
    assert _verdict(subject, low, high) == verdict


def test_a_goal_that_was_not_reached() -> None:
    short = claims_of(_runs(offset=0.5, last=256))[BUDGET]
    assert short.value is None
    assert short.verdict == UNDECIDED
    assert (short.unreached, short.seeds) == (3, 3)
    assert short.spent == pytest.approx(0.25)
    never = claims_of(_runs(offset=5.0))[BUDGET]
    assert never.value is None
    assert never.verdict == FAILS
    # One of three runs spends twice BR's budget in vain: that decides nothing.
    runs = _runs(offset=0.5)
    runs[3] = formula_run(lambda n: 20.0, lambda n: n**-0.5, seed=2)
    some = claims_of(runs)[BUDGET]
    assert (some.unreached, some.verdict) == (1, UNDECIDED)


def test_what_was_spent_in_vain() -> None:
    """Two of three seeds stop at a quarter and at half of BR's budget: the least is named."""
    runs = _runs(offset=0.5)
    runs[1] = formula_run(lambda n: 20.0, lambda n: n**-0.5, last=256, seed=1)
    runs[3] = formula_run(lambda n: 20.0, lambda n: n**-0.5, last=512, seed=2)
    claim = claims_of(runs)[BUDGET]
    assert (claim.unreached, claim.spent, claim.verdict) == (2, 0.25, UNDECIDED)
    # All of them spend exactly what BR spent: that is enough to fail.
    equal = claims_of(_runs(offset=5.0, last=1024))[BUDGET]
    assert (equal.unreached, equal.spent, equal.verdict) == (3, 1.0, FAILS)


def test_the_interval_of_a_budget_is_geometric() -> None:
    claim = claims_of(_runs(offset=0.5, spread=0.1))[BUDGET]
    logs = [(8.5 + w) * math.log(2.0) - math.log(1024.0) for w in (-0.1, 0.0, 0.1)]
    mean, low, high = student_interval(logs)
    assert mean is not None
    assert low is not None
    assert high is not None
    assert (claim.value, claim.low, claim.high) == pytest.approx(
        (math.exp(mean), math.exp(low), math.exp(high))
    )
    assert (claim.left_out, claim.unreached) == (0, 0)


def test_tests_without_a_logarithm_are_counted() -> None:
    """One test of every method's run and two of every BR's have S ≤ 0, beyond e⁴ each."""
    runs = _runs(offset=0.5)
    for run in runs:
        for row in run.tests[-2:] if run.method == "br" else run.tests[-5:-4]:
            row["gradient"] = -0.01
    claims = claims_of(runs)
    assert claims[DECAY].left_out == 3 * (2 + 1)
    assert claims[RATE].left_out == 3
    assert claims[dataclasses.replace(RATE, method="br")].left_out == 6


def test_slopes_are_compared_up_to_the_baseline_s_last_iteration() -> None:
    """The method's S falls as BR's up to n = 256, the last test included, and not beyond."""
    runs = _runs(offset=0.5, spread=0.0)
    for run in runs:
        for row in run.tests:
            n = row["iteration"]
            row["gradient"] = n**-0.6 if n < 256 else (1e-9 if n == 256 else 1.0)
    claim = claims_of(runs)[DECAY]
    assert claim.value == pytest.approx(0.0)
    some = [run for run in runs if run.method == "br"]
    for row in (row for run in some for row in run.tests):
        row["gradient"] = row["iteration"] ** -0.6
    assert claims_of(runs)[DECAY].value == pytest.approx(_slope_with_a_drop() + 0.6)


def _slope_with_a_drop() -> float:
    x = [math.log(2.0**i) for i in range(9)]
    y = [-0.6 * v for v in x[:-1]] + [math.log(1e-9)]
    mean = sum(x) / 9
    return sum((a - mean) * b for a, b in zip(x, y, strict=True)) / sum((a - mean) ** 2 for a in x)


def test_runs_are_paired_by_seed() -> None:
    """BR of seed 1 is missing: the others are compared with their own seed, not with the next."""

    def run(seed: int, method: str) -> TrainingRun:
        return formula_run(lambda n: 100.0 * seed + (method == "mlmc"), seed=seed, method=method)

    runs = [run(1, "mlmc"), run(2, "mlmc"), run(3, "mlmc"), run(2, "br"), run(3, "br")]
    claim = claims_of(runs)[NLL]
    assert claim.value == pytest.approx(1.0)
    assert claim.seeds == 2


def test_a_gradient_that_is_lost_in_noise_has_no_number() -> None:
    runs = _runs(offset=0.5)
    for run in runs:
        if run.method == "br":
            run.tests[-1]["gradient"] = -0.01
    claim = claims_of(runs)[GRADIENT]
    assert claim.value is None
    assert claim.verdict == UNDECIDED
    assert claim.seeds == 3
    for run in runs:
        if run.method == "br":
            run.tests[-1]["gradient"] = 0.0
    assert claims_of(runs)[GRADIENT].value is None


def test_beyond_the_paper_and_incomplete_runs() -> None:
    runs = _runs(offset=0.5, method="mlmc-rb")
    claims = claims_of(runs)
    beyond = [dataclasses.replace(s, method="mlmc-rb") for s in (DECAY, RATE, NLL, BUDGET)]
    assert set(claims) >= set(beyond)
    assert {subject.method for subject in claims} == {"mlmc-rb"}
    assert not claims_of([run for run in runs if run.method != "br"])
    assert not claims_of([])


def test_against_iwae() -> None:
    """IWAE: NLL 9 − log2 n at the cost 1/4; MLMC 8 − log2 n at 1: better per iteration only."""
    runs = [
        formula_run(
            lambda n, w=0.01 * seed, c=c: c + w - math.log2(n),  # type: ignore[misc]
            cost=cost,
            seed=seed,
            method=method,
        )
        for seed in (1, 2, 3)
        for method, c, cost in (("iwae", 9.0, 0.25), ("mlmc", 8.0, 1.0))
    ]
    claims = claims_of(runs)
    per_iteration = Subject("nll", "mlmc", "iwae", "iteration")
    per_budget = Subject("nll", "mlmc", "iwae", "evaluations")
    assert set(claims) == {per_iteration, per_budget, Subject("nll", "mlmc", "iwae", "seconds")}
    assert claims[per_iteration].value == pytest.approx(-1.0)
    assert claims[per_iteration].verdict == HOLDS
    # Both have spent 512 at n = 2048 (IWAE, −2) and n = 512 (MLMC, −1).
    assert claims[per_budget].value == pytest.approx(1.0)
    assert claims[per_budget].verdict == FAILS
    assert claims[per_budget].iterations == pytest.approx((512.0, 2048.0))
    assert claims[per_budget].truncations == pytest.approx((45.25, 1.0), abs=0.01)


def test_a_gradient_that_one_run_has_not_is_no_claim() -> None:
    runs = _runs(offset=0.5)
    for row in runs[0].tests:
        del row["gradient"]
    assert not {"decay", "rate", "gradient"} & {subject.quantity for subject in claims_of(runs)}


def test_without_gradient_norms_there_are_no_claims_on_them() -> None:
    runs = _runs(offset=0.5)
    for run in runs:
        for row in run.tests:
            del row["gradient"]
    assert {(subject.quantity, subject.axis) for subject in claims_of(runs)} == {
        ("nll", "iteration"),
        ("nll", "evaluations"),
        ("nll", "seconds"),
        ("budget", "evaluations"),
        ("budget", "seconds"),
    }


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
