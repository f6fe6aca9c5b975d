"""A real device in place of the stand-in, for `make test-device`: the same tests, up to rounding.

A GPU draws other numbers than a CPU from the same seed. So generators of the device are generators
of the host here, and what they draw is sent to the device: then results can be compared. Waits are
counted by torch's own debug mode for synchronisations; launches, arithmetic and bytes are not.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

NAME = os.environ.get("MLMCGRAD_DEVICE", "cuda")
if NAME == "cuda" and not torch.cuda.is_available():
    pytest.exit("torch sees no CUDA device here", returncode=1)
DEVICE = torch.device("cuda", torch.cuda.current_device()) if NAME == "cuda" else torch.device(NAME)
CPU = torch.device("cpu")


class Record:
    """Waits inside a block; what is not counted is 0."""

    launches = flops = bytes = 0

    def __init__(self) -> None:
        self.texts: list[str] = []

    @property
    def waits(self) -> int:
        """Times that the host waited for the device."""
        return len(self.texts)

    def where(self, _: str = "wait") -> str:
        """Return what torch says of each wait."""
        return "\n".join(self.texts)


@contextmanager
def recorded() -> Iterator[Record]:
    """Count the waits inside the block."""
    record = Record()
    if DEVICE.type != "cuda":
        yield record
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield record
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found = [f"{w.filename}:{w.lineno} {w.message}" for w in caught]
    record.texts += [text for text in found if "synchronizing" in text]


_PlainGenerator = torch.Generator
_of_device: set[int] = set()  # by address, because torch makes new Python objects of one generator


class HostGenerator(_PlainGenerator):
    """A generator of the CPU that says that it belongs to the device."""

    def __new__(cls, device: torch.device | str = "cpu") -> HostGenerator:
        """Make a generator of a device."""
        made = super().__new__(cls)
        belongs = torch.device(device).type == DEVICE.type
        (_of_device.add if belongs else _of_device.discard)(_address(made))
        return made

    def __init__(self, device: torch.device | str = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return the device of its draws."""
        return DEVICE if _address(self) in _of_device else CPU


def _address(generator: Any) -> int:
    return int(generator._cdata)


class Draws(TorchFunctionMode):
    """Draw on the host what a generator of the device draws, and send it there."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        if not isinstance(generator, HostGenerator) or generator.device.type == "cpu":
            return func(*args, **kwargs)
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        device = kwargs.get("device") or (tensors[0].device if tensors else CPU)
        if torch.device(device).type == "cpu" != DEVICE.type:
            raise RuntimeError(f"a generator of {DEVICE} draws on the CPU: {func}")
        there = {**kwargs, "device": CPU} if "device" in kwargs else kwargs
        host_args, host_kwargs = tree_map_only(Tensor, Tensor.cpu, (args, there))
        result = func(*host_args, **host_kwargs)
        if func.__name__.endswith("_"):
            return args[0].copy_(result)
        return result.to(DEVICE)


torch.Generator = HostGenerator  # type: ignore[misc, assignment]
