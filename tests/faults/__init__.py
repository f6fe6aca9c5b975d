"""Faults: processes killed, disks full, files damaged, options that make no sense.

`make test` tries each a few times, `make faults` as often as docs/reliability.md says.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def times(few: int, many: int) -> int:
    """How often to try something in `make test`, and in `make faults`."""
    return many if os.environ.get("MLMCGRAD_FAULTS") == "all" else few


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """The system writes no file larger than this many bytes: as good as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
