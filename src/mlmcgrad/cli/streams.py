"""The streams of the command: printing never ends a run.

What the encoding of a stream lacks is spelled in ASCII (≥ as >=, γ as gamma). What cannot be
written (the reader of a pipe has gone, the terminal was closed, the disk is full) is lost, and
nothing else is.
"""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_SPELLED = {
    "−": "-", "–": "-", "·": "*", "•": "*", "×": "x", "±": "+/-", "∓": "-/+", "≥": ">=", "≤": "<=",
    "≠": "!=", "≈": "~", "→": "->", "…": "...", "‖": "||", "∇": "grad ", "∂": "d", "√": "sqrt ",
    "∞": "inf", "∝": "~", "∈": " in ", "∫": "int ", "∧": "min", "ℓ": "l", "½": "1/2", "⅓": "1/3",
    "⌊": "floor(", "⌋": ")", "⌈": "ceil(", "⌉": ")", "“": '"', "”": '"', "✓": "yes", "✗": "no",
}  # fmt: skip


@contextmanager
def lasting() -> Iterator[None]:
    """While it is entered, standard output and error take everything and never raise."""
    for descriptor in range(3):  # a file that took the place of a closed one would be printed into
        try:
            os.fstat(descriptor)
        except OSError:  # workers need it too
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    codecs.register_error(__name__, _spell)
    out, err = _lasting(sys.stdout), _lasting(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.flush()
            err.flush()


def ascii_of(character: str) -> str:
    """How to write a character with ASCII; a question mark if there is no way."""
    if character in _SPELLED:
        return _SPELLED[character]
    name = unicodedata.name(character, "").split()
    if name[:1] == ["GREEK"]:  # GREEK CAPITAL LETTER SIGMA
        return name[-1].capitalize() if "CAPITAL" in name else name[-1].lower()
    raised = "^" if unicodedata.decomposition(character).startswith("<super>") else ""
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return raised + plain if plain else "" if unicodedata.combining(character) else "?"


class _Lasting(io.FileIO):
    """A file descriptor that swallows what cannot be written to it."""

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        try:
            # None: another program has made the terminal or the pipe non-blocking, and it is full.
            while (written := super().write(data)) is None:
                select.select([], [self], [])
        except OSError:
            return size
        return written


def _lasting(stream: TextIO | None) -> TextIO:
    """The same stream, without its errors."""
    if stream is None:  # it was closed when the process began
        descriptor = os.open(os.devnull, os.O_WRONLY)
    else:
        with suppress(OSError):
            stream.flush()
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):  # it is in memory
            return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Lasting(descriptor, "w", closefd=False)),
        encoding=getattr(stream, "encoding", None),
        errors=__name__,
        line_buffering=stream is sys.stderr or os.isatty(descriptor),
        write_through=getattr(stream, "write_through", False),
    )


def _spell(error: UnicodeError) -> tuple[str, int]:
    """What encoders call for characters that they lack."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(ascii_of, error.object[error.start : error.end])), error.end
