"""The device under test: the stand-in, or with MLMCGRAD_DEVICE=cuda a GPU."""

from __future__ import annotations

import os
from typing import Any

import pytest

STAND_IN = os.environ.get("MLMCGRAD_DEVICE") == "standin"
if STAND_IN:
    from tests.device.standin import CPU, DEVICE, Draws, Record, recorded
else:
    from tests.device.hardware import CPU, DEVICE, Draws, Record, recorded  # type: ignore[assignment]

__all__ = ["CPU", "DEVICE", "STAND_IN", "Draws", "Record", "recorded", "same"]


def same(first: Any, second: Any) -> bool:
    """Return whether results are equal: to the bit on the stand-in, else up to rounding."""
    if STAND_IN or isinstance(first, (str, type(None), bool)):
        return bool(first == second) or (not STAND_IN and isinstance(first, str))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(second == pytest.approx(first, rel=1e-3, abs=1e-4, nan_ok=True))
