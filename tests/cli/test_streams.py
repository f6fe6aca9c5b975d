"""Printing never raises: whatever the encoding, and whether or not anyone reads."""

import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from mlmcgrad.cli.streams import ascii_of, lasting


def _print() -> None:
    sys.stdout.write("plain, then ‖∇V(θ)‖² ≥ 1e−3 …\n")
    Console().print("[bold]γ, κ and ∞[/bold]")
    sys.stdout.flush()
    sys.stderr.write("mlmcgrad: x must be ≥ 1\n")
    sys.stderr.flush()


def _pipe_without_reader() -> io.TextIOWrapper:
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w", encoding="utf-8", closefd=False)


def _closed_terminal() -> io.TextIOWrapper:
    master, terminal = os.openpty()
    os.close(master)
    return open(terminal, "w", encoding="utf-8", closefd=False)


def _full_disk() -> io.TextIOWrapper:
    return open(os.open("/dev/full", os.O_WRONLY), "w", encoding="ascii", closefd=False)


def _closed() -> None:
    return None


@pytest.mark.parametrize("make", [_pipe_without_reader, _closed_terminal, _full_disk, _closed])
def test_nobody_reads(
    make: Callable[[], io.TextIOWrapper | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    with lasting():
        for _ in range(3):
            _print()
    assert sys.stdout is stream
    if stream is not None:
        descriptor = stream.fileno()
        stream.close()  # nothing is left in it that could fail at the end of the process
        os.close(descriptor)


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("ascii", "plain, then ||grad V(theta)||^2 >= 1e-3 ...\ngamma, kappa and inf\n"),
        ("latin-1", "plain, then ||grad V(theta)||² >= 1e-3 ...\ngamma, kappa and inf\n"),
        ("utf-8", "plain, then ‖∇V(θ)‖² ≥ 1e−3 …\nγ, κ and ∞\n"),
    ],
)
def test_every_encoding_has_words(
    encoding: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    with path.open("w", encoding=encoding) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        stream.write("before ")  # the order is kept
        with lasting():
            _print()
    assert path.read_text(encoding) == "before " + said


def test_spelling() -> None:
    spelled = {"½": "1/2", "Σ": "Sigma", "γ": "gamma", "é": "e", "³": "^3", "\u0304": "", "語": "?"}
    assert {character: ascii_of(character) for character in spelled} == spelled
    # A name of a file that is not text in the encoding of the system:
    assert ascii_of("\udcff") == "?"


def test_a_full_pipe_that_does_not_block_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    line = "x" * 99 + "\n"
    heard: list[bytes] = []

    def read() -> None:
        with os.fdopen(reader, "rb") as file:
            heard.append(file.read())

    thread = threading.Thread(target=read)
    with os.fdopen(writer, "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with lasting():
            thread.start()
            for _ in range(10_000):  # a pipe holds 64 KiB
                sys.stdout.write(line)
    thread.join()
    assert heard == [line.encode() * 10_000]
