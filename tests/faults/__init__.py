"""Faults: processes killed, disks full, files damaged, options that make no sense.

`make test` tries each a few times, `make faults` as often as docs/reliability.md says.
"""

import os


def times(few: int, many: int) -> int:
    """How often to try something in `make test`, and in `make faults`."""
    return many if os.environ.get("MLMCGRAD_FAULTS") == "all" else few
