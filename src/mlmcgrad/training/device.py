"""The device that a run computes on."""

from __future__ import annotations

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
