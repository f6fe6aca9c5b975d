"""Numbers as text."""

import pytest

from mlmcgrad.experiments.reproduce.text import duration, estimate, number, spread


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
