"""The processes that compute together: their number, and the rank of this one.

`torchrun` starts the processes and describes them in their environment; `group` joins them. A
single process has nothing to join, and everything works the same.

Every process must call the functions that exchange numbers in the same order.
"""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mlmcgrad._checks import whole
from mlmcgrad.backward import at_once, check_plain

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
# How long a process waits for another one. The end of a process is noticed at once.
_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class World:
    """Number of processes that compute together, and the rank of this one."""

    rank: int = 0
    size: int = 1
    # Where they exchange tensors.
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


class LostError(ConnectionError):
    """Another process has ended, or did not answer in time."""


def current() -> World:
    """Return the processes that this one has joined; without a group, a world of size 1."""
    if not (dist.is_available() and dist.is_initialized()):
        return World()
    cuda = "nccl" in dist.get_backend()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    return World(dist.get_rank(), dist.get_world_size(), device)


@contextmanager
def group(device: str = "cpu", timeout: timedelta = _TIMEOUT) -> Iterator[World]:
    """Join the processes that `torchrun` started with this one; leave them at the end.

    Args:
        device: `cpu` (exchange over gloo) or `cuda` (over NCCL, one GPU per process).
        timeout: how long a process waits for another; 30 minutes by default. A process that is
            killed is noticed at once.

    Yields:
        The processes. Without torchrun, or with one process, there is nothing to join. A group
        made earlier by `torch.distributed.init_process_group` is used as it is.

    Raises:
        LostError: the processes could not connect to each other.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    peers = all(name in os.environ for name in _NAMES) and size.isdigit() and int(size) > 1
    if not peers or dist.is_initialized():
        yield current()
        return
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        _join("nccl" if cuda else "gloo", timeout)
    except (RuntimeError, ValueError) as error:
        where = ", ".join(f"{name}={os.environ[name]}" for name in _NAMES)
        raise LostError(f"cannot join the other processes ({error}); {where}") from error
    try:
        yield current()
    finally:
        dist.destroy_process_group()


def _join(backend: str, timeout: timedelta) -> None:
    # Imported here because torch may have been built without them.
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(rendezvous("env://", timeout=timeout))
    # torchrun keeps its store over restarts: it still holds the addresses of dead processes.
    store = PrefixStore(f"attempt {os.environ.get(_RESTARTS, '0')}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def launch() -> str:
    """Return an identifier of the call of torchrun, the same after a restart; empty without one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    name = os.environ["TORCHELASTIC_RUN_ID"]
    # A call without a name is identified by its process, which is the parent of this one.
    return f"{socket.gethostname()} {os.getppid()}" if name in ("", "none") else name


def restarted() -> bool:
    """Return whether torchrun has restarted the processes after a failure."""
    return os.environ.get(_RESTARTS, "0") not in ("", "0")


Value = TypeVar("Value")


def reduce(parameters: Iterable[Tensor], *, chains: int = 1) -> None:
    """Replace `.grad` of the parameters by its mean over the processes, weighted by their chains.

    Call it after `MarkovGradient.backward` in processes that have chains of their own; `Sharded`
    needs no such call. Every process passes the same parameters in the same order. A parameter
    without a gradient in some processes counts as 0 there; without any gradient, it keeps none.

    Args:
        parameters: tensors whose `.grad` is a mean over the chains of this process.
        chains: number of chains of this process; by default the same in every process.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> weight.grad = torch.tensor([1.0, 2.0])
        >>> reduce([weight], chains=50)  # one process: nothing changes
        >>> weight.grad.tolist()
        [1.0, 2.0]
    """
    whole(chains, "chains")
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    check_plain(tensors)
    if not tensors:
        return
    counts = torch.tensor([chains, *(int(p.grad is not None) for p in tensors)])
    all_reduce(counts)
    total, *present = counts.tolist()
    # One message, in which half precision is added in float32. Shares of the mean are added, not
    # sums over the chains, which could overflow.
    wide = functools.reduce(torch.promote_types, {p.dtype for p in tensors}, torch.float32)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in tensors]
    flat = torch.cat([gradient.reshape(-1).to(tensors[0].device, wide) for gradient in gradients])
    flat *= chains / total
    all_reduce(flat)
    parts = flat.split([p.numel() for p in tensors])
    at_once(
        [
            functools.partial(setattr, p, "grad", part.to(p).view_as(p))
            for p, part, there in zip(tensors, parts, present, strict=True)
            if there
        ]
    )


def all_reduce(tensor: Tensor) -> None:
    """Replace a contiguous tensor by its sum over the processes, in place."""
    world = current()
    if world.size > 1:
        buffer = tensor.to(world.device)
        with lost_processes():
            dist.all_reduce(buffer)
        tensor.copy_(buffer)


def gather(number: int) -> list[int]:
    """Return the numbers of all processes, in the order of their ranks."""
    world = current()
    numbers = torch.zeros(world.size, dtype=torch.int64)
    numbers[world.rank] = number
    all_reduce(numbers)
    return [int(each) for each in numbers]


def broadcast(value: Value) -> Value:
    """Return the value of rank 0: text, numbers or tensors, in dicts and lists."""
    world = current()
    if world.size == 1:
        return value
    values = [value]
    with lost_processes():
        dist.broadcast_object_list(values, src=0, device=world.device)
    return values[0]


def check_same(name: str, tensors: Iterable[Tensor], remedy: str) -> None:
    """Raise in all processes if the tensors are not the same, bit for bit, in all of them."""
    if current().size > 1:
        check_equal(name, gather(fingerprint(name, tensors)), remedy)


def check_equal(name: str, numbers: Sequence[float], remedy: str) -> None:
    """Raise if the numbers of all processes, in the order of their ranks, are not the same."""
    others = [rank for rank, number in enumerate(numbers) if number != numbers[0]]
    if others:
        raise ValueError(f"{name} of rank {others[0]} differs from that of rank 0; {remedy}")


def fingerprint(text: str, tensors: Iterable[Tensor]) -> int:
    """Return a number that differs where text or tensors differ; a float64 holds it exactly."""
    digest = hashlib.sha256(text.encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return int.from_bytes(digest.digest()[:6], "big")


@contextmanager
def lost_processes() -> Iterator[None]:
    """Raise a LostError in place of torch's error for a process that does not answer."""
    try:
        yield
    except RuntimeError as error:
        # "[file:line] Connection closed by peer … . Advice …"
        world, reason = current(), str(error).split("] ", 1)[-1].split(". ")[0].strip()
        raise LostError(
            f"rank {world.rank} of {world.size} stops: another process was killed, ended with an "
            f"error of its own, or did not answer in time ({reason}). Start all of them again, "
            "from a checkpoint if there is one, or let torchrun do so with --max-restarts"
        ) from error


def seed_for(seed: int, purpose: str) -> int:
    """Return a separate seed for each purpose, the same on every machine and in every process."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8], "big") >> 1
