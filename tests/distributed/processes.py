"""Processes that compute together, forked from one that has loaded torch: so it is quick."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from mlmcgrad import distributed

SERVER = multiprocessing.get_context("forkserver")
# With what a training imports late, which takes each process most of a second.
LATE = ["torch._dynamo", "PIL.PngImagePlugin", "filelock", "rich.progress"]
SERVER.set_forkserver_preload([__name__, "tests.paper.training.tiny", *LATE])
SECONDS = 60.0


def together(
    size: int, function: Callable[..., Any], *arguments: Any, ended: bool = False
) -> list[Any]:
    """What a function of a module returns in each of `size` processes that have joined.

    With `ended`, a process may end without an answer: it has an EOFError.
    """
    port, jobs = _free_port(), []
    for rank in range(size):
        here, there = SERVER.Pipe(duplex=False)
        process = SERVER.Process(target=_run, args=(rank, size, port, there, function, arguments))
        process.start()
        there.close()
        jobs.append((process, here))
    results = []
    for process, here in jobs:
        results.append(_received(here))
        process.join(SECONDS)
    allowed = EOFError if ended else ()
    errors = [r for r in results if isinstance(r, Exception) and not isinstance(r, allowed)]
    if errors:
        raise errors[0]
    return results


def _received(connection: Connection) -> Any:
    if not connection.poll(SECONDS):
        return TimeoutError(f"no answer within {SECONDS} s")
    try:
        return pickle.loads(connection.recv_bytes())
    except EOFError as error:
        return error


def message(function: Callable[..., Any], *arguments: Any) -> str:
    """What a function says when it raises, and nothing else."""
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _run(
    rank: int,
    size: int,
    port: int,
    connection: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), **where})
    try:
        with distributed.group():
            result = function(*arguments)
    except Exception:
        result = RuntimeError(traceback.format_exc())
    connection.send_bytes(pickle.dumps(result))  # not `send`, which would share its tensors


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
