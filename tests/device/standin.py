"""A stand-in accelerator: tensors in host memory that are labelled "gpu", with CUDA's rules.

It finds, on a machine without a GPU, code that would fail or wait on one:

- An operation on tensors of both devices is refused, where CUDA refuses it, and so is a draw by a
  generator of the other device. Everything else is computed on the CPU: the same bits.
- `recorded()` counts launches (operations on the device), waits (the host reads what the device
  computed, so that it must finish everything before) and copies that nobody waits for, each with
  the line of the library that asked for it; and the arithmetic and the bytes of all launches.

It is torch's device type for backends of third parties, PrivateUse1. A tensor is relabelled by the
device in its DLPack capsule; one fallback for all operations checks, counts, and calls that of the
CPU. Importing this module registers the device, for as long as the process lives, and replaces
`torch.Generator`. It uses private parts of torch, so it asks for the version it was written for.

What it cannot show: speed, memory, kernels that differ in their last bits, streams.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

VERSION = "2.13."
if not torch.__version__.startswith(VERSION):
    pytest.skip(
        f"the stand-in accelerator is written for torch {VERSION}x, this is {torch.__version__}",
        allow_module_level=True,
    )

from torch.utils.backend_registration import _setup_privateuseone_for_python_backend  # noqa: E402

_setup_privateuseone_for_python_backend("gpu")
DEVICE = torch.device("gpu", 0)
# Asked for by torch.utils.checkpoint, which saves the state of autocast.
torch.gpu.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # type: ignore[attr-defined]
CPU = torch.device("cpu")

LAUNCH, WAIT, COPY = "launch", "wait", "copy"
_LIBRARY = "/src/mlmcgrad/"
# Only another view of the same memory.
_VIEWS = {"view", "as_strided", "_reshape_alias", "unfold", "set_"}
# Index tensors may be on the CPU.
_INDEXING = {"index", "index_put_", "_index_put_impl_"}
# The shape or the value of their result depends on data, so CUDA synchronises.
_WAITS = {
    "_linalg_check_errors",
    "_linalg_eigh",
    "_linalg_svd",
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}


class Record(collections.Counter[tuple[str, str, str]]):
    """How often something happened, by kind, operation and line of the library.

    Attributes:
        flops: of products of matrices and convolutions, as torch counts them.
        bytes: of the arguments and results of all launches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.bytes = 0

    def number(self, kind: str) -> int:
        """Return the number of launches, waits or copies."""
        return sum(count for (each, _, _), count in self.items() if each == kind)

    @property
    def waits(self) -> int:
        """Times that the host waited for the device."""
        return self.number(WAIT)

    @property
    def launches(self) -> int:
        """Operations on the device that nobody waits for."""
        return self.number(LAUNCH)

    def where(self, kind: str = WAIT) -> str:
        """Return the lines that caused events of a kind, most frequent first."""
        rows = [(count, op, site) for (each, op, site), count in self.items() if each == kind]
        return "\n".join(f"{count:5} {op:24} {site}" for count, op, site in sorted(rows)[::-1])


_records: list[Record] = []


@contextmanager
def recorded() -> Iterator[Record]:
    """Count what happens on the device inside the block."""
    record = Record()
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)


def _site() -> str:
    frame = sys._getframe()
    while frame.f_back is not None and _LIBRARY not in frame.f_code.co_filename:
        frame = frame.f_back
    _, inside, module = frame.f_code.co_filename.partition(_LIBRARY)
    return f"{module}:{frame.f_lineno}" if inside else "outside"


_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_OF_CPU, _OF_THIRD_PARTIES = 1, 12  # device types of DLPack
_DEVICE_TYPE = 8  # bytes from the start of a DLManagedTensor: behind its pointer to the data


def _labelled(tensor: Tensor, device_type: int) -> Tensor:
    """Return the same memory as a tensor of another device."""
    capsule = torch._C._to_dlpack(tensor)
    start = _pointer(capsule, b"dltensor")
    ctypes.c_int32.from_address(start + _DEVICE_TYPE).value = device_type
    return torch._C._from_dlpack(capsule)


def on_host(tensor: Tensor) -> Tensor:
    """Return a tensor of the CPU that shares the memory."""
    return _labelled(tensor, _OF_CPU) if tensor.device.type == "gpu" else tensor


def on_device(tensor: Tensor) -> Tensor:
    """Return a tensor of the stand-in that shares the memory."""
    return _labelled(tensor, _OF_THIRD_PARTIES) if tensor.device.type == "cpu" else tensor


_PlainGenerator = torch.Generator
# By address, because torch makes new Python objects of one generator.
_of_device: set[int] = set()


class StandInGenerator(_PlainGenerator):
    """A generator of the CPU that may say that it belongs to the stand-in."""

    def __new__(cls, device: torch.device | str = "cpu") -> StandInGenerator:
        """Make a generator of a device."""
        made = super().__new__(cls)
        belongs = torch.device(device).type == "gpu"
        (_of_device.add if belongs else _of_device.discard)(_address(made))
        return made

    def __init__(self, device: torch.device | str = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return the device of its draws."""
        return _device_of(self)


def _address(generator: Any) -> int:
    return int(generator._cdata)


def _device_of(generator: torch.Generator) -> torch.device:
    return DEVICE if _address(generator) in _of_device else CPU


class Draws(TorchFunctionMode):
    """Refuse draws on the CPU by a generator of the stand-in, which `_run` never sees."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch if the generator fits the device of its result."""
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        if isinstance(generator, _PlainGenerator) and _device_of(generator) == DEVICE:
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
            device = kwargs.get("device") or (tensors[0].device if tensors else CPU)
            if torch.device(device).type == "cpu":
                raise RuntimeError(
                    f"Expected a 'cpu' device type for generator but found 'gpu': {func}"
                )
        return func(*args, **kwargs)


def _check(op: Any, name: str, args: Any, leaves: list[Any]) -> None:
    """Raise what CUDA would raise for tensors and generators of other devices."""
    for leaf in leaves:
        if isinstance(leaf, _PlainGenerator) and _device_of(leaf) != DEVICE:
            raise RuntimeError(f"Expected a 'gpu' device type for generator but found 'cpu': {op}")
        foreign = isinstance(leaf, Tensor) and leaf.device.type != "gpu"
        # A number on the CPU may stand for a scalar.
        scalar = foreign and leaf.dim() == 0 and torch.Tag.pointwise in op.tags
        if foreign and not scalar and name != "_copy_from" and name not in _INDEXING:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found gpu:0 and cpu: {op}"
            )
    if name in _INDEXING:
        values = [t for t in (args[0], *args[2:3]) if isinstance(t, Tensor)]
        if any(t.device.type != "gpu" and t.dim() for t in values):
            raise RuntimeError(f"index and values are on different devices: {op}")


def _event(op: Any, name: str, args: Any, kwargs: dict[str, Any]) -> tuple[str, str]:
    """Return whether an operation is a launch, a wait or a copy, and its name."""
    if name == "_copy_from":
        source, target = args[:2]
        later = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        if source.device != target.device:
            return COPY if later else WAIT, f"{source.device.type} to {target.device.type}"
    if name in _WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        return WAIT, name
    if name in _INDEXING and name != "index":  # `index` itself calls nonzero, or copies indices
        for index in args[1]:
            mask = index is not None and index.dtype == torch.bool and args[2].numel() > 1
            if mask or (index is not None and index.device.type == "cpu"):
                return WAIT, name
    return LAUNCH, name


def _written(op: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes to, and returns."""
    schema = [(i, s) for i, s in enumerate(op._schema.arguments) if s.alias_info is not None]
    return [
        args[i] if i < len(args) else kwargs[s.name]
        for i, s in schema
        if s.alias_info.is_write and (i < len(args) or s.name in kwargs)
    ]


def _add_work(op: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Count the arithmetic and the bytes of a launch."""
    count = flop_registry.get(op.overloadpacket)
    flops = 0 if count is None else int(count(*args, **kwargs, out_val=result))
    tensors = [leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor)]
    for record in _records:
        record.flops += flops
        record.bytes += sum(tensor.nbytes for tensor in tensors)


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute any operation of the stand-in on the CPU, after checks."""
    name = op.overloadpacket.__name__
    if name in _VIEWS:
        of_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        return op.redispatch(of_cpu, *args, **kwargs)
    _check(op, name, args, tree_leaves((args, kwargs)))
    event = None
    if _records and not name.startswith("empty"):
        event = (*_event(op, name, args, kwargs), _site())
        for record in _records:
            record[event] += 1
    if name == "_copy_from":
        on_host(args[1]).copy_(on_host(args[0]))
        return args[1]
    there = {k: CPU if isinstance(v, torch.device) else v for k, v in kwargs.items()}
    there_args, there = tree_map_only(Tensor, on_host, (args, there))
    out = kwargs.get("out")
    if isinstance(out, Tensor) and not out.numel():  # that of a factory, to be resized
        empty = torch.empty(0, dtype=out.dtype)
        made: Any = on_device(op(*there_args, **{**there, "out": empty}))
        return out.set_(made)
    # A number that torch wrapped in a tensor is a number again, which another overload takes.
    pairs = zip(args, op._schema.arguments, strict=False)
    number = any(isinstance(a, (int, float)) and "Tensor" in str(s.type) for a, s in pairs)
    result = (op.overloadpacket if number else op)(*there_args, **there)
    if event is not None and event[0] == LAUNCH:
        _add_work(op, there_args, there, result)
    written = _written(op, args, kwargs)
    if not written:
        return tree_map_only(Tensor, on_device, result)
    if not op._schema.returns:
        return None
    return written[0] if len(written) == 1 else tuple(written)


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, mask: Any,
) -> Any:  # fmt: skip
    bias = [weight.shape[1] * groups if transposed else weight.shape[0]]
    return _run(
        torch.ops.aten.convolution_backward.default, grad, x, weight, bias, stride, padding,
        dilation, transposed, output_padding, groups, mask,
    )  # fmt: skip


def _register() -> list[torch.library.Library]:
    """Make `_run` the kernel of all operations; the libraries must be kept."""
    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(_run, "PrivateUse1")
    # These have kernels that take lists apart, before the fallback is asked.
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeExplicitAutograd")
    for name in (n.removeprefix("aten::") for n in names if n.startswith("aten::_foreach_")):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(name, functools.partial(_run, op), "PrivateUse1")
    forward = functools.partial(_run, torch.ops.aten.convolution.default)
    aten.impl("convolution_overrideable", forward, "PrivateUse1")
    aten.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
    return [everything, aten]


_libraries = _register()
torch.Generator = StandInGenerator  # type: ignore[misc, assignment]
_deepcopy: Callable[[Tensor, dict[int, Any]], Any] = Tensor.__deepcopy__


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Any:
    """Copy a tensor of the stand-in, which torch would do through its storage."""
    if type(tensor) is not Tensor or tensor.device.type != "gpu":
        return _deepcopy(tensor, memo)
    copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo.setdefault(id(tensor), copy)


Tensor.__deepcopy__ = _copied  # type: ignore[method-assign]
