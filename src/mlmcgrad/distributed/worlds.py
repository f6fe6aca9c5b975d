"""The processes that compute together: how many there are, and which one this is.

`torchrun` starts them and says so in their environment; `group` joins them. In one process there
is nothing to join, and everything works the same.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
# Who waits longer for another process gives up. A process that ends is noticed at once.
_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class World:
    """How many processes compute together, and which one this is."""

    rank: int = 0
    size: int = 1
    # Where they exchange tensors.
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


class LostError(ConnectionError):
    """Another process has ended, or did not answer in time."""


def current() -> World:
    """The processes that this one has joined: itself only, if none."""
    if not (dist.is_available() and dist.is_initialized()):
        return World()
    cuda = "nccl" in dist.get_backend()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    return World(dist.get_rank(), dist.get_world_size(), device)


@contextmanager
def group(device: str = "cpu", timeout: timedelta = _TIMEOUT) -> Iterator[World]:
    """Join the processes that `torchrun` started with this one; leave them at the end.

    Args:
        device: where they compute: `cpu` (over gloo) or `cuda` (over nccl, one GPU each).
        timeout: how long one waits for another. One that is killed is noticed at once.

    Yields:
        Who is there. Without torchrun, or with one process, there is nothing to join; who has
        called `torch.distributed.init_process_group` before keeps that group.

    Raises:
        LostError: they did not find each other.
    """
    if not announced() or dist.is_initialized():
        yield current()
        return
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        with _mortal():
            _join("nccl" if cuda else "gloo", timeout)
    except (RuntimeError, ValueError) as error:
        where = ", ".join(f"{name}={os.environ[name]}" for name in _NAMES)
        raise LostError(f"cannot join the other processes ({error}); {where}") from error
    try:
        yield current()
    finally:
        dist.destroy_process_group()


def _join(backend: str, timeout: timedelta) -> None:
    # Not where torch was built without them.
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(rendezvous("env://", timeout=timeout))
    # torchrun keeps its store when it starts processes again: addresses of dead ones are in it.
    store = PrefixStore(f"attempt {os.environ.get(_RESTARTS, '0')}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


@contextmanager
def _mortal() -> Iterator[None]:
    """A signal ends the process at once, also while it waits inside torch."""
    ours: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and callable(signal.getsignal(number)):
                ours[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def announced() -> bool:
    """Whether the environment says that there are other processes, as torchrun does."""
    size = os.environ.get("WORLD_SIZE", "1")
    return all(name in os.environ for name in _NAMES) and size.isdigit() and int(size) > 1


def launch() -> str:
    """Which call of torchrun started this process, the same after a restart; empty if none did."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    name = os.environ["TORCHELASTIC_RUN_ID"]
    # Without a name of its own, a call is known by the process that waits for this one.
    return f"{socket.gethostname()} {os.getppid()}" if name in ("", "none") else name


def restarted() -> bool:
    """Whether torchrun has started these processes again, after one of them had failed."""
    return os.environ.get(_RESTARTS, "0") not in ("", "0")
