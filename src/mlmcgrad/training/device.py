"""The device that a run computes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def usable(name: str) -> torch.device:
    """The device of this name, if torch can train on it here.

    Raises:
        ValueError: it cannot; the message says which it can use.
    """
    # Not mps: weights are kept in float64, which it does not have.
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if name not in found:
        raise ValueError(
            f"device must be {' or '.join(found)}, where torch can compute in float64 here, got "
            f"{name!r}"
        )
    return torch.device(name)


@contextmanager
def flushed() -> Iterator[None]:
    """Take subnormal numbers, below 1e-38 in float32, for 0 on this thread, as long as it lasts.

    Most draws of an importance sampler have such weights, and processors compute with them ten
    times as slowly as with others.
    """
    before = flushing()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def flushing() -> bool:
    """Whether this thread takes subnormal numbers for 0."""
    return bool(torch.tensor(torch.finfo(torch.float32).tiny) / 2 == 0.0)
