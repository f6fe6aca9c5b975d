"""Sentences, notes and numbers as text: they say what the claims say, losses included."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from mlmcgrad.paper.experiments.reproduce.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Axis,
    Claim,
    Quantity,
    Subject,
)
from mlmcgrad.paper.experiments.reproduce.findings import (
    Diagnostics,
    FinalTest,
    ReproductionFindings,
)
from mlmcgrad.paper.experiments.reproduce.sentences import (
    duration,
    estimate,
    measured,
    note,
    number,
    paper,
    spread,
    statement,
    takeaways,
)
from tests.paper.experiments.reproduce import fabricated

CASES = [(method, o) for method in ("mlmc", "mlmc-rb") for o in ("amsgrad", "adagrad")]


def _claims(
    quantity: Quantity, baseline: str | None, axis: Axis, verdicts: Sequence[str]
) -> list[Claim]:
    """For each method and optimizer; the values are 0.1, 0.2, …"""
    return [
        Claim(quantity, method, baseline, axis, optimizer, 3, 0.1 * i, None, None, verdict)
        for i, ((method, optimizer), verdict) in enumerate(zip(CASES, verdicts, strict=True), 1)
    ]


def _findings(claims: list[Claim]) -> ReproductionFindings:
    final = FinalTest("br", "amsgrad", 1, 8.0, 24.0, 0.25, 0.1, 0.01, 1000, 1.0, 64)
    about = {"settings": {}, "training": {"test_images": 100}}
    return ReproductionFindings(
        "digits", about, 3, 24, tuple(claims), (), (final,), (), fabricated.NO_CURVES
    )


def test_five_sentences() -> None:
    claims = [
        *_claims("nll", "br", "evaluations", [UNDECIDED, HOLDS, HOLDS, HOLDS]),
        *_claims("nll", "iwae", "evaluations", [FAILS, HOLDS, UNDECIDED, UNDECIDED]),
        *_claims("nll", "br", "iteration", [UNDECIDED] * 4),
        *_claims("rate", None, "iteration", [HOLDS, HOLDS, HOLDS, FAILS]),
        *_claims("gradient", "br", "evaluations", [HOLDS, UNDECIDED, UNDECIDED, FAILS]),
        *_claims("nll", "br", "seconds", [FAILS] * 4),
    ]
    budget, iwae, iteration, gradient, basis = takeaways(_findings(claims))
    assert budget == (
        "For the same number of network evaluations, multilevel gradients reach a better test NLL "
        "than BR-IWAE in 3 of 4 cases (MLMC-IWAE with Adagrad, RB-MLMC-IWAE with AMSGrad and "
        "Adagrad; by 0.2 to 0.4 nats); undecided: MLMC-IWAE with AMSGrad."
    )
    assert iwae == (
        "For the same number of network evaluations, plain IWAE, which the paper does not compare "
        "with, reaches a better test NLL than multilevel gradients in 1 of 4 cases (MLMC-IWAE with "
        "AMSGrad; by 0.1 nats); in 1 the opposite is true (MLMC-IWAE with Adagrad; by 0.2 nats); "
        "undecided: RB-MLMC-IWAE with AMSGrad and Adagrad."
    )
    assert iteration.endswith("in none of 4 cases; all are undecided.")
    every = _claims("nll", "br", "iteration", [HOLDS] * 4)
    assert takeaways(_findings(every))[0].endswith("in all 4 cases (by 0.1 to 0.4 nats).")
    assert "at least as fast as (log n)²/√n in 3 of 4 cases" in gradient
    assert gradient.endswith("than BR-IWAE in 1 of 4 cases and larger in 1; undecided: 2.")
    assert "3 seeds" in basis
    assert "the first 100 test images" in basis
    assert "standard error of one NLL: 0.25 nats" in basis


def test_sentences_need_their_runs() -> None:
    (basis,) = takeaways(_findings([]))
    assert basis.startswith("These results come from 3 seeds and")
    one = dataclasses.replace(_findings([]), seeds=1, final=(), about={})
    assert "1 seed and" in takeaways(one)[0]
    assert "standard error" not in takeaways(one)[0]


@pytest.mark.parametrize(
    ("verdict", "found"),
    [(HOLDS, ""), (FAILS, ": the opposite is true"), (UNDECIDED, ": undecided")],
)
def test_a_single_case_is_named_with_its_difference(verdict: str, found: str) -> None:
    claim = Claim("nll", "mlmc", "br", "evaluations", "amsgrad", 2, -0.2, -0.3, -0.1, verdict)
    text, _ = takeaways(_findings([claim]))
    assert text == (
        "For the same number of network evaluations, MLMC-IWAE reaches a better test NLL than "
        f"BR-IWAE{found} (difference −0.2 nats, 95 % interval −0.3 to −0.1)."
    )
    alone = dataclasses.replace(claim, low=None, high=None)
    assert takeaways(_findings([alone]))[0].endswith("(difference −0.2 nats).")


def test_no_sentence_is_about_seconds() -> None:
    seconds = _claims("nll", "br", "seconds", [FAILS] * 4)
    assert takeaways(_findings(seconds)) == takeaways(_findings([]))


@pytest.mark.parametrize(
    ("subject", "says", "number"),
    [
        (
            Subject("nll", "mlmc", "br", "iteration"),
            "BR-IWAE has a better test NLL than MLMC-IWAE after the same number of iterations.",
            "test NLL after equal iterations, MLMC-IWAE minus BR-IWAE (nats)",
        ),
        (
            Subject("nll", "mlmc-rb", "iwae", "iteration"),
            "RB-MLMC-IWAE has a better test NLL than IWAE after the same number of iterations.",
            "test NLL after equal iterations, RB-MLMC-IWAE minus IWAE (nats)",
        ),
        (
            Subject("gradient", "mlmc", "br", "seconds"),
            "MLMC-IWAE has a smaller ‖∇V‖² than BR-IWAE in the same training time.",
            "‖∇V‖² for equal seconds of training, MLMC-IWAE minus BR-IWAE, relative to BR-IWAE's",
        ),
        (
            Subject("rate", "br", None, "iteration"),
            "‖∇V‖² of BR-IWAE falls at least as fast as (log n)²/√n.",
            "slope of log ‖∇V‖² − log((log n)²/√n) against log n, BR-IWAE",
        ),
        (
            Subject("budget", "mlmc", "br", "evaluations"),
            "MLMC-IWAE reaches BR-IWAE's final test NLL with fewer network evaluations.",
            "network evaluations until MLMC-IWAE reaches BR-IWAE's final test NLL, over BR-IWAE's",
        ),
    ],
)
def test_statements_and_numbers(subject: Subject, says: str, number: str) -> None:
    assert statement(subject) == says
    assert measured(subject) == number


def test_the_paper_is_quoted_for_what_it_says() -> None:
    for claim in _claims("nll", "br", "evaluations", [HOLDS] * 4):
        assert (paper(claim) == "") == (claim.method == "mlmc-rb")
    assert paper(Subject("budget", "mlmc", "br", "evaluations")) == ""
    assert paper(Subject("nll", "mlmc", "iwae", "evaluations")) == ""
    assert paper(Subject("rate", "br", None, "iteration")).startswith("The empirical results match")


ROWS = [
    Diagnostics("mlmc", "amsgrad", 256, 16.0, 1.06, 0.4, 20.0, 3.0, 9.0, 2.5),
    Diagnostics("br", "amsgrad", 256, 16.0, 1.06, 0.4, 65.0, 5.0, 3.0, 1.0),
    Diagnostics("iwae", "amsgrad", 256, 1.0, 1.06, 0.4, 5.0, 1.0, 9.0, 0.5),
]
NLL = Claim("nll", "mlmc", "br", "evaluations", "amsgrad", 3, -0.5, -1.0, -0.1, HOLDS)


@pytest.mark.parametrize(
    ("quantity", "baseline", "axis", "value", "verdict", "expected"),
    [
        ("nll", "br", "evaluations", 0.5, FAILS, True),
        ("nll", "br", "evaluations", 0.5, UNDECIDED, True),
        ("nll", "br", "evaluations", -0.5, UNDECIDED, False),
        ("nll", "br", "evaluations", -0.5, HOLDS, False),
        ("budget", "br", "seconds", 0.9, UNDECIDED, False),
        ("budget", "br", "evaluations", 1.1, UNDECIDED, True),
        ("budget", "br", "evaluations", None, UNDECIDED, True),
        ("nll", "br", "iteration", -0.5, FAILS, False),
        ("decay", "br", "iteration", 0.5, FAILS, False),
        ("nll", "iwae", "evaluations", 0.5, FAILS, True),
        ("nll", "iwae", "iteration", 0.5, FAILS, False),
    ],
)
def test_reason(
    quantity: Quantity, baseline: str, axis: Axis, value: float | None, verdict: str, expected: bool
) -> None:
    claim = Claim(quantity, "mlmc", baseline, axis, "amsgrad", 3, value, 0.0, 1.0, verdict)
    text = note(claim, ROWS)
    if not expected:
        assert text == ""
        return
    assert "at T = 16 the effective number of candidates is 1.1" in text
    assert "moves with probability 0.40" in text
    times = {"iwae": "5.0 times those of IWAE", "br": "2.5 times those of BR-IWAE"}
    assert times[baseline] in text
    assert note(dataclasses.replace(claim, optimizer="adagrad"), ROWS) == ""


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (
            {"iterations": (1024.2, 256.0), "truncations": (32.0, 16.0)},
            "at n = 1024 (T = 32) against n = 256 (T = 16)",
        ),
        ({"reference": 24.256, "axis": "iteration"}, "BR-IWAE: 24.26"),
        (
            {"quantity": "decay", "axis": "iteration", "left_out": 1},
            "1 test was left out: estimate ≤ 0",
        ),
        (
            {"quantity": "decay", "axis": "iteration", "left_out": 2},
            "2 tests were left out: estimate ≤ 0",
        ),
        (
            {"quantity": "budget", "unreached": 2, "spent": 0.25},
            "2 of 3 runs did not reach it after spending at least 0.25 of BR-IWAE's budget",
        ),
        ({"quantity": "gradient", "value": None}, "‖∇V‖² of BR-IWAE is too noisy to compare with"),
    ],
)
def test_numbers_in_notes(numbers: dict[str, Any], expected: str) -> None:
    assert expected in note(dataclasses.replace(NLL, **numbers), ())
    assert note(NLL, ROWS) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0, "0"),
        (1.0, "1"),
        (-0.1234, "−0.123"),
        (54.77, "54.8"),
        (3000, "3,000"),
        (1234567.8, "1,234,568"),
        (1e-5, "1.00e−05"),
        (2.5e9, "2.50e+09"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (7.4, "7 s"),
        (59.7, "1 min 00 s"),
        (312.0, "5 min 12 s"),
        (3600.0, "1 h 00 min"),
        (9000.0, "2 h 30 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_intervals_and_spreads() -> None:
    assert estimate(-0.2, -0.35, -0.07) == "−0.2 (−0.35 to −0.07)"
    assert estimate(1.0, 0.5, float("inf")) == "1 (0.5 to –)"
    assert estimate(1.0, None, None) == "1"
    assert estimate(None, None, None) == "–"
    assert spread([1.0, 2.0, 3.0]) == "2.0 ± 1.0"
    assert spread([1234.56]) == "1,234.6"
    assert spread([]) == "–"
