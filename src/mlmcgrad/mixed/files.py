"""JSON files of fits: numbers, names and labels, no code and no data.

A file holds the SHA-256 of its content, so that a damaged one is refused as a whole.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from mlmcgrad._files import write_atomically

_FORMAT = "mlmcgrad mixed model 3"


def write(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a file atomically, replacing an old one; values may be tensors and dataclasses."""
    numbers = encoded(content)
    record = {"format": _FORMAT, "sha256": _digest(numbers), **numbers}
    text = json.dumps(record, ensure_ascii=False, indent=1, allow_nan=False)
    write_atomically(Path(path), text.encode())


@contextmanager
def opened(path: str | Path) -> Iterator[dict[str, Any]]:
    """Read a file that `write` has written; name the file in errors raised while it is decoded."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        del content["format"]
        if content.pop("sha256", None) != _digest(content):
            raise ValueError("its content was changed")
        yield content
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"path {str(path)!r} is not a fit written by this version of Fit.save, or is damaged: "
            f"{error}"
        ) from None


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def encoded(value: Any) -> Any:
    """Return a value for strict JSON, with null instead of NaN."""
    if isinstance(value, Tensor):
        return encoded(value.tolist())
    if is_dataclass(value):
        return {f.name: encoded(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: encoded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decoded(kind: Any, value: Any) -> Any:
    """Return the value of a type whose JSON is `value`; the inverse of `encoded`."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is float:
        return math.nan if value is None else float(value)
    if kind is Tensor:
        return torch.tensor(np.array(value, dtype=np.float64))
    if hasattr(kind, "__dataclass_fields__"):
        kinds = get_type_hints(kind)
        return kind(**{name: decoded(kinds[name], each) for name, each in value.items()})
    if origin is tuple:
        return tuple(decoded(parts[0], each) for each in value)
    if origin is Mapping:
        return {key: decoded(parts[1], each) for key, each in value.items()}
    if isinstance(value, dict):  # of an optional dataclass
        return decoded(parts[0], value)
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of the type {kind}")
    return value
