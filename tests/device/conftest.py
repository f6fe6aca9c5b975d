"""Tests on the stand-in accelerator, which a process that imported it keeps: `make test` gives them
a process of their own, with MLMCGRAD_DEVICE=standin. Everywhere else they are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

if os.environ.get("MLMCGRAD_DEVICE") != "standin":
    collect_ignore_glob = ["*.py"]


@pytest.fixture(autouse=True)
def rules() -> Iterator[None]:
    """Draws follow the rules of a device too."""
    from tests.device import standin

    with standin.Draws():
        yield
