"""One line on the terminal while a model is fitted."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

from mlmcgrad.mixed.result import Step

_PATIENCE = 2.0  # seconds before progress is shown


def reporter(
    progress: bool | Callable[[Step], None] | None, begun: float
) -> Callable[[Step | None], None]:
    """What is called with every iteration, and with None at the end."""
    if callable(progress):
        call = progress
        return lambda step: None if step is None else call(step)
    if progress is False or (progress is None and not sys.stderr.isatty()):
        return lambda step: None
    shown = False

    def show(step: Step | None) -> None:
        nonlocal shown
        if step is None:
            if shown:
                sys.stderr.write("\r\x1b[K")
            return
        if progress is None and time.monotonic() - begun < _PATIENCE:
            return
        shown = True
        error = f", error {step.noise:.3f} standard errors" if math.isfinite(step.noise) else ""
        sys.stderr.write(f"\r\x1b[Kiteration {step.iteration}: {step.text}{error}")
        sys.stderr.flush()

    return show
