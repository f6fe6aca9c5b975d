"""Whether a state that was read has the structure of one that a program can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def check_structure(found: Any, expected: Any, where: str = "it") -> None:
    """Compare keys, lengths, types, and shapes and dtypes of tensors; numbers may differ.

    Args:
        found: dicts, lists, tensors, numbers and text.
        expected: the same with other numbers.
        where: the beginning of the message.

    Raises:
        ValueError: there is a difference; the message says where.
    """
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or set(found) != set(expected):
            names = sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
            raise ValueError(f"{where} has {names}, not {sorted(map(str, expected))}")
        for name, value in expected.items():
            check_structure(found[name], value, f"{where}[{name!r}]")
    elif isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            raise ValueError(f"{where} is not a list of {len(expected)}")
        for i, value in enumerate(expected):
            check_structure(found[i], value, f"{where}[{i}]")
    elif isinstance(expected, Tensor):
        kind = (expected.dtype, tuple(expected.shape))
        if not isinstance(found, Tensor) or (found.dtype, tuple(found.shape)) != kind:
            raise ValueError(f"{where} is not a tensor of {kind[0]} and shape {kind[1]}")
    elif not isinstance(found, _kinds(expected)) or isinstance(found, bool) != isinstance(
        expected, bool
    ):
        raise ValueError(f"{where} is {found!r}, not {type(expected).__name__}")


def _kinds(expected: Any) -> type | tuple[type, ...]:
    return (int, float) if isinstance(expected, float) else type(expected)
