"""Tests and checkpoints are no training time."""

import time

import pytest

from mlmcgrad.training.counters import Stopwatch


def test_a_pause_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    watch = Stopwatch(5.0)
    now = 102.0
    assert watch.seconds == 7.0
    with watch.paused():
        now = 150.0
        assert watch.seconds == 7.0
    now = 151.0
    assert watch.seconds == 8.0
    try:
        with watch.paused():
            now = 160.0
            raise OSError("disk full")
    except OSError:
        assert watch.seconds == 8.0
