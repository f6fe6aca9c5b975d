"""Sentences say what the claims say, losses included."""

import dataclasses
from collections.abc import Sequence

import pytest

from mlmcgrad.experiments.reproduce.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Axis,
    Claim,
    Quantity,
    Subject,
)
from mlmcgrad.experiments.reproduce.findings import Final, Findings
from mlmcgrad.experiments.reproduce.sentences import (
    HEADLINES,
    measured,
    paper,
    statement,
    takeaways,
)
from tests.experiments.reproduce import fabricated

CASES = [(method, o) for method in ("mlmc", "mlmc-rb") for o in ("amsgrad", "adagrad")]


def _claims(
    quantity: Quantity, baseline: str | None, axis: Axis, verdicts: Sequence[str]
) -> list[Claim]:
    """For each method and optimizer; the values are 0.1, 0.2, …"""
    return [
        Claim(quantity, method, baseline, axis, optimizer, 3, 0.1 * i, None, None, verdict)
        for i, ((method, optimizer), verdict) in enumerate(zip(CASES, verdicts, strict=True), 1)
    ]


def _findings(claims: list[Claim]) -> Findings:
    final = Final("br", "amsgrad", 1, 8.0, 24.0, 0.25, 0.1, 0.01, 1000, 1.0, 64)
    about = {"settings": {}, "training": {"test_images": 100}}
    return Findings("digits", about, 3, 24, tuple(claims), (), (final,), (), fabricated.NO_CURVES)


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
    assert gradient.endswith("is undecided in 2 of 4 cases, true in 1, false in 1.")
    assert "3 seeds" in basis
    assert "the first 100 test images" in basis
    assert "standard error of one NLL: 0.25 nats" in basis


def test_sentences_need_their_runs() -> None:
    (basis,) = takeaways(_findings([]))
    assert basis.startswith("All of this rests on 3 seeds")
    one = dataclasses.replace(_findings([]), seeds=1, final=(), about={})
    assert "1 seed," in takeaways(one)[0]
    assert "standard error" not in takeaways(one)[0]


def test_no_sentence_is_about_seconds() -> None:
    seconds = _claims("nll", "br", "seconds", [FAILS] * 4)
    assert takeaways(_findings(seconds)) == takeaways(_findings([]))
    assert all(subject.axis != "seconds" for subject in HEADLINES)


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
            "network evaluations of MLMC-IWAE when it reaches BR-IWAE's final test NLL, over "
            "BR-IWAE's",
        ),
    ],
)
def test_statements_and_numbers(subject: Subject, says: str, number: str) -> None:
    assert statement(subject) == says
    assert measured(subject) == number


def test_the_paper_is_quoted_for_what_it_says() -> None:
    for subject in HEADLINES:
        beyond = "-" in subject.method or subject.baseline in ("iwae", "dreg")
        assert (paper(subject) == "") == (beyond or subject.quantity == "budget")
    assert paper(Subject("rate", "br", None, "iteration")).startswith("The empirical results match")
