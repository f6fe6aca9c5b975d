"""The reason is given where multilevel does not win, and only there."""

from pathlib import Path

import pytest

from mlmcgrad.experiments.reproduce import explain
from mlmcgrad.experiments.reproduce.claims import FAILS, HOLDS, UNDECIDED, Claim
from mlmcgrad.experiments.reproduce.gather import Reproduction
from mlmcgrad.experiments.reproduce.tables import Diagnostics

ROWS = [
    Diagnostics("mlmc", "amsgrad", 16.0, 1.06, 0.4, 20.0, 9.0, 2.5),
    Diagnostics("br", "amsgrad", 16.0, 1.06, 0.4, 65.0, 3.0, 1.0),
    Diagnostics("iwae", "amsgrad", 1.0, 1.06, 0.4, 5.0, 9.0, 0.5),
]


@pytest.mark.parametrize(
    ("identity", "value", "verdict", "expected"),
    [
        ("budget_nll", 0.5, FAILS, True),
        ("budget_nll", 0.5, UNDECIDED, True),
        ("budget_nll", -0.5, UNDECIDED, False),
        ("budget_nll", -0.5, HOLDS, False),
        ("rb_budget_ratio", 0.9, UNDECIDED, False),
        ("rb_budget_ratio", 1.1, UNDECIDED, True),
        ("budget_ratio", None, UNDECIDED, True),
        ("per_epoch", -0.5, FAILS, False),
        ("iwae_budget_nll", 0.5, FAILS, True),
        ("iwae_per_epoch", 0.5, FAILS, False),
    ],
)
def test_reason(
    identity: str,
    value: float | None,
    verdict: str,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = Claim(identity, "digits", "amsgrad", "mlmc", "", "", value, 0.0, 1.0, verdict, "before")
    monkeypatch.setattr(explain, "evaluate", lambda _: [claim])
    monkeypatch.setattr(explain, "diagnostics", lambda _: ROWS)
    (found,) = explain.explained(Reproduction(Path(), {}, []))
    assert found.note.startswith("before")
    if expected:
        assert "at T = 16 the weights count as 1.1 candidates" in found.note
        assert "moves with probability 0.40" in found.note
        times = (
            "5.0 times the variance × evaluations of IWAE's"
            if "iwae" in identity
            else ("2.5 times the variance × evaluations of BR-IWAE's")
        )
        assert times in found.note
    else:
        assert found == claim
