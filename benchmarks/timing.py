"""Interleaved timing: A, B, A, B, … in one process, so that a noisy machine troubles both alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch


@dataclass(frozen=True)
class Result:
    """Time of the alternative over our time: above 1 we are faster.

    With `smaller` it is a number that should not exceed its target.
    """

    name: str
    ratio: float
    low: float
    high: float
    target: float
    smaller: bool = False

    def row(self) -> dict[str, object]:
        """As a line of results.json."""
        values = asdict(self)
        smaller = values.pop("smaller")
        met = self.ratio <= self.target if smaller else self.ratio >= self.target
        return {**values, "met": met}


def compare(
    name: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    target: float,
    repeats: int = 15,
    smaller: bool = False,
) -> Result:
    """Median and quartiles of the ratio of times, over interleaved pairs after one warm-up each."""
    ours(), theirs()
    ratios = [_seconds(theirs) / _seconds(ours) for _ in range(repeats)]
    return summary(name, ratios, target, smaller)


def summary(name: str, values: Iterable[float], target: float, smaller: bool = False) -> Result:
    """Median and quartiles of repeated measurements."""
    low, median, high = statistics.quantiles(values, n=4)
    return Result(name, median, low, high, target, smaller)


@contextmanager
def one_core() -> Iterator[None]:
    """One core and one thread for everything inside; libraries that start there see no more.

    Threads that wait for each other would time whatever else the machine does.
    """
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {max(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
