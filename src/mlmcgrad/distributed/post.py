"""Messages from one process to another, of which the others need not know.

A message is tensors and numbers, as bytes of `torch.save`, after their number; or it is None, the
number 0 alone. Messages between two processes arrive in the order in which they were sent.
"""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mlmcgrad.distributed.collectives import explained
from mlmcgrad.distributed.worlds import current
from mlmcgrad.kernels.base import map_tensors


class Post:
    """Sends without waiting; whoever sends waits at the end of a step, when all was taken."""

    def __init__(self) -> None:
        # A tensor must be there until it is sent.
        self._sending: list[tuple[Any, Tensor]] = []

    def send(self, message: Any, rank: int) -> None:
        """Send tensors in tuples, or None, to a process that will receive."""
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


def receive(rank: int, device: torch.device) -> Any:
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
    content = io.BytesIO(data.cpu().numpy().tobytes())
    return torch.load(content, map_location=device, weights_only=True)


def packed(message: Any) -> Tensor:
    """The bytes of a message, (bytes,) uint8; none for None."""
    if message is None:
        return torch.empty(0, dtype=torch.uint8)
    content = io.BytesIO()
    # A copy: of a part of a tensor, all of it would be saved.
    torch.save(map_tensors(lambda tensor: tensor.detach().cpu().clone(), message), content)
    return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
