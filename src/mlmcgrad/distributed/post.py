"""Messages from one process to another, of which the others need not know.

A message is some tensors that are not empty, as bytes after their number; or it is None, the number
0 alone. The bytes are a line of JSON, with the type and the shape of each tensor, and then their
numbers. Messages between two processes arrive in the order in which they were sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mlmcgrad.distributed.collectives import explained
from mlmcgrad.distributed.worlds import current


class Post:
    """Sends without waiting; whoever sends waits at the end of a step, when all was taken."""

    def __init__(self) -> None:
        # A tensor must be there until it is sent.
        self._sending: list[tuple[Any, Tensor]] = []

    def send(self, message: Sequence[Tensor] | None, rank: int) -> None:
        """Send tensors, or None, to a process that will receive."""
        device, data = current().device, packed(message)
        tensors = [torch.tensor([len(data)], device=device)]
        if len(data):
            tensors.append(data.to(device))
        with explained():
            self._sending += [(dist.isend(tensor, rank), tensor) for tensor in tensors]

    def wait(self) -> None:
        """Wait until everything is sent."""
        with explained():
            for work, _ in self._sending:
                work.wait()
        self._sending.clear()


def receive(rank: int, device: torch.device) -> tuple[Tensor, ...] | None:
    """Wait for the next message of a process; its tensors come on this device."""
    world = current()
    size = torch.zeros(1, dtype=torch.int64, device=world.device)
    with explained():
        dist.recv(size, rank)
    if not size:
        return None
    data = torch.empty(int(size), dtype=torch.uint8, device=world.device)
    with explained():
        dist.recv(data, rank)
    return unpacked(data.cpu().numpy().tobytes(), device)


def packed(message: Sequence[Tensor] | None) -> Tensor:
    """The bytes of a message, (bytes,) uint8; none for None."""
    if message is None:
        return torch.empty(0, dtype=torch.uint8)
    kinds = [(str(tensor.dtype).removeprefix("torch."), tensor.shape) for tensor in message]
    data = bytearray(json.dumps(kinds).encode() + b"\n")
    for tensor in message:
        data += tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return torch.frombuffer(data, dtype=torch.uint8)


def unpacked(data: bytes, device: torch.device) -> tuple[Tensor, ...]:
    """The tensors of a message.

    Example:
        >>> message = torch.ones(2, 1), torch.tensor([True])
        >>> unpacked(packed(message).numpy().tobytes(), torch.device("cpu"))
        (tensor([[1.],
                [1.]]), tensor([True]))
    """
    begin, tensors = data.index(b"\n") + 1, []
    for name, shape in json.loads(data[:begin]):
        dtype: torch.dtype = getattr(torch, name)
        end = begin + dtype.itemsize * math.prod(shape)
        content = bytearray(data[begin:end])  # a tensor's own, which may be written to
        tensors.append(torch.frombuffer(content, dtype=dtype).reshape(shape).to(device))
        begin = end
    return tuple(tensors)
