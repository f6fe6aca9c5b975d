"""What processes do together. Every one of them must call the same functions in the same order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mlmcgrad.distributed.worlds import LostError, current

# Tensors are copied into buffers of this size: large enough for the network, small for the memory.
BUCKET_BYTES = 2**26
_NARROW = (torch.float16, torch.bfloat16)
Thing = TypeVar("Thing")


def add_up(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over the processes, in place.

    Those of one type and device share flat buffers; half precision is added in float32.
    """
    world = current()
    if world.size == 1:
        return
    for bucket in buckets(tensors):
        whole = bucket[0].dim() == 1 and len(bucket) == 1 and bucket[0].is_contiguous()
        wide = torch.float32 if bucket[0].dtype in _NARROW else bucket[0].dtype
        flat = bucket[0] if whole else torch.cat([t.reshape(-1) for t in bucket])
        carried = flat.to(world.device, wide)
        with explained():
            dist.all_reduce(carried)
        if carried is not bucket[0]:
            parts = carried.split([t.numel() for t in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))


def buckets(tensors: Iterable[Tensor], size: int = BUCKET_BYTES) -> list[list[Tensor]]:
    """Tensors of one type and device together, up to `size` bytes, in the order given."""
    done: list[list[Tensor]] = []
    filling: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    room: dict[tuple[torch.dtype, torch.device], int] = {}
    for tensor in tensors:
        key, needs = (tensor.dtype, tensor.device), tensor.numel() * tensor.element_size()
        if key not in filling or needs > room[key]:
            filling[key], room[key] = [], size
            done.append(filling[key])
        filling[key].append(tensor)
        room[key] -= needs
    return done


def most(number: int) -> int:
    """The largest of the numbers that the processes have."""
    world = current()
    if world.size == 1:
        return number
    tensor = torch.tensor([number], device=world.device)
    with explained():
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor)


def from_first(thing: Thing) -> Thing:
    """What the first process has: text, numbers, tensors, in dicts and lists."""
    world = current()
    if world.size == 1:
        return thing
    things = [thing]
    with explained():
        dist.broadcast_object_list(things, src=0, device=world.device)
    return things[0]


def check_same(name: str, tensors: Iterable[Tensor], remedy: str) -> None:
    """Refuse tensors that are not the same, bit for bit, in all processes; all of them raise."""
    world = current()
    if world.size == 1:
        return
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    # A float64 has such a number exactly, and adding 0 to it changes nothing.
    seen = torch.zeros(world.size, dtype=torch.float64, device=world.device)
    seen[world.rank] = int.from_bytes(digest.digest()[:6], "big")
    add_up([seen])
    others = [rank for rank, number in enumerate(seen.tolist()) if number != seen[0]]
    if others:
        raise ValueError(f"{name} of rank {others[0]} differs from that of rank 0; {remedy}")


@contextmanager
def explained() -> Iterator[None]:
    """What torch raises when another process is not there becomes a LostError."""
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
