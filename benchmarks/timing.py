"""Interleaved timing: A, B, A, B, … in one process, so that a noisy machine troubles both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Result:
    """Time of the alternative over our time: above 1 we are faster."""

    name: str
    ratio: float
    low: float
    high: float
    target: float

    def row(self) -> dict[str, object]:
        """As a line of results.json."""
        return {**asdict(self), "met": self.ratio >= self.target}


def compare(
    name: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    target: float,
    repeats: int = 15,
) -> Result:
    """Median and quartiles of the ratio of times, over interleaved pairs after one warm-up each."""
    ours(), theirs()
    ratios = [_seconds(theirs) / _seconds(ours) for _ in range(repeats)]

    low, median, high = statistics.quantiles(ratios, n=4)
    return Result(name, median, low, high, target)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
