"""Tests on a device, which a process that imported the stand-in keeps.

`make test` gives them a process of their own, with MLMCGRAD_DEVICE=standin, and `make test-device`
one with MLMCGRAD_DEVICE=cuda. Everywhere else they are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

NAME = os.environ.get("MLMCGRAD_DEVICE")
if NAME is None:
    collect_ignore_glob = ["*.py"]
elif NAME == "standin":
    collect_ignore = ["hardware.py"]
else:
    collect_ignore = ["standin.py", "test_standin.py", "test_mistakes.py"]
    if NAME == "cpu":  # tries the tests themselves; there is no other device to confuse it with
        collect_ignore += ["test_places.py"]


@pytest.fixture(autouse=True)
def rules() -> Iterator[None]:
    """Draws follow the rules of a device too."""
    from tests.device import place

    with place.Draws():
        yield
