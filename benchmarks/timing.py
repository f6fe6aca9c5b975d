"""Interleaved timing: A, B, A, B, … in one process, so that a noisy machine troubles both alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TypeAlias

from mlmcgrad.paper.runs.process import threads

Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True)
class Result:
    """A ratio with quartiles, and the number that it should reach.

    Most are the time of the alternative over our time: above 1 we are faster. Those that should be
    small have `at_most` set.
    """

    name: str
    ratio: float
    low: float
    high: float
    target: float
    at_most: bool = False
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the ratio reached its target."""
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    def row(self) -> dict[str, object]:
        """As a line of results.json."""
        return {**asdict(self), "met": self.met}


def compare(
    name: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    target: float,
    repeats: int = 15,
    clock: Clock = time.perf_counter,
    at_most: bool = False,
) -> Result:
    """Median and quartiles of the ratio of times, over interleaved pairs after one warm-up each."""
    ours(), theirs()
    ratios = [seconds(theirs, clock) / seconds(ours, clock) for _ in range(repeats)]
    return summary(name, ratios, target, at_most)


def summary(
    name: str, values: Sequence[float], target: float, at_most: bool = False, note: str = ""
) -> Result:
    """Median and quartiles of repeated measurements."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Result(name, median, low, high, target, at_most, note)


def seconds(function: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Time that one call takes."""
    start = clock()
    function()
    return clock() - start


@contextmanager
def one_core() -> Iterator[None]:
    """One core and one thread for everything inside; libraries that start there see no more.

    Threads that wait for each other would time whatever else the machine does.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        with threads(1):
            yield
    finally:
        os.sched_setaffinity(0, cores)
