"""Notes on claims: the reason is given where multilevel does not win, and only there."""

import dataclasses
from typing import Any

import pytest

from mlmcgrad.experiments.reproduce.claims import FAILS, HOLDS, UNDECIDED, Axis, Claim, Quantity
from mlmcgrad.experiments.reproduce.diagnostics import Diagnostics
from mlmcgrad.experiments.reproduce.explain import note

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
    assert "at T = 16 the weights count as 1.1 candidates" in text
    assert "moves with probability 0.40" in text
    times = {"iwae": "5.0 times the variance × evaluations of IWAE's", "br": "2.5 times"}
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
        ({"quantity": "decay", "axis": "iteration", "left_out": 1}, "1 test with an estimate ≤ 0"),
        ({"quantity": "decay", "axis": "iteration", "left_out": 2}, "2 tests with an estimate ≤ 0"),
        (
            {"quantity": "budget", "unreached": 2, "spent": 0.25},
            "2 of 3 runs ended before they reached it, having spent 0.25 of BR-IWAE's budget",
        ),
        ({"quantity": "gradient", "value": None}, "‖∇V‖² of BR-IWAE is lost in noise"),
    ],
)
def test_numbers_in_notes(numbers: dict[str, Any], expected: str) -> None:
    assert expected in note(dataclasses.replace(NLL, **numbers), ())
    assert note(NLL, ROWS) == ""
