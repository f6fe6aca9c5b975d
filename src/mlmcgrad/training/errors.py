"""How a training run ends before its time."""

from __future__ import annotations

from pathlib import Path


class Stopped(KeyboardInterrupt):
    """A signal asked the run to stop, and it did, with everything saved.

    Attributes:
        code: exit code for the process, 128 + the number of the signal.
        iteration: the last iteration, which is in the checkpoint.
    """

    def __init__(self, message: str, code: int, iteration: int) -> None:
        super().__init__(message)
        self.code, self.iteration = code, iteration


class DivergedError(FloatingPointError):
    """The loss, the weights or the gradient stopped being numbers.

    Attributes:
        dump: file with the batch, the generator before the iteration and the parameters.
    """

    def __init__(self, message: str, dump: Path) -> None:
        super().__init__(message)
        self.dump = dump


__all__ = ["DivergedError", "Stopped"]
