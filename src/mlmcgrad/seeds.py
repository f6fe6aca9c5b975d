"""Seeds that follow from a seed and a purpose: one for each thing that is drawn."""

from __future__ import annotations

import hashlib


def seed_for(seed: int, purpose: str) -> int:
    """A separate seed for each purpose, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8], "big") >> 1
