"""What the paper says of its experiments, checked against runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One claim, as measured."""

    id: str
    dataset: str
    optimizer: str
    method: str  # the one that is compared with BR-IWAE
    paper: str  # the paper's sentence; empty for what goes beyond it
    measured: str  # what the number is
    value: float | None  # None where no number can be given; the note says why
    low: float | None  # 95 % confidence interval over seeds
    high: float | None
    verdict: str  # holds, does not hold, undecided
    note: str = ""
