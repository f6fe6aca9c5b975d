"""Read an array from a pickle without letting the pickle do anything.

A pickle is a program: it names functions to import and call. Here every name is refused but the
five that numpy writes for a plain array, and these are answered by inert stand-ins, which note
what was asked for. Then the array is made from the noted bytes. No code of the pickle's choice
runs, not even numpy's.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from mlmcgrad.datasets.dataset import Images


class _Asked:
    """Something that a pickle asked for and did not get."""

    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> _Asked:
        self = super().__new__(cls)
        self.args, self.state = args, None
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _NDArray(_Asked): ...


class _Dtype(_Asked): ...


class _Reconstruct(_Asked): ...  # args (ndarray, (0,), b"b"), state (1, shape, dtype, fortran, raw)


class _FromBuffer(_Asked): ...  # args (raw, dtype, shape, order, …), protocol 5


_ADMITTED: dict[tuple[str, str], type[_Asked]] = {
    ("numpy", "ndarray"): _NDArray,
    ("numpy", "dtype"): _Dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FromBuffer for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (admitted := _ADMITTED.get((module, name))) is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no plain array")
        return admitted


def read_array(data: bytes, key: str, shape: tuple[int, int]) -> Images:
    """The uint8 array under a key of a pickled dictionary.

    Args:
        data: the pickle; Python 2's strings are bytes.
        key: of the array in the dictionary.
        shape: that the array must have.

    Raises:
        ValueError: if the pickle asks for anything but plain arrays, or holds another one.
    """
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a broken pickle can raise nearly anything
        raise ValueError(f"the pickle was refused: {error or type(error).__name__}") from error
    if not isinstance(content, dict):
        raise ValueError(f"the pickle holds {type(content).__name__}, not a dictionary")
    array = content.get(key.encode(), content.get(key))
    if isinstance(array, _Reconstruct) and isinstance(array.state, tuple) and len(array.state) == 5:
        _, found, dtype, fortran, raw = array.state
        order: Any = "F" if fortran else "C"
    elif isinstance(array, _FromBuffer) and len(array.args) >= 4:
        raw, dtype, found, order = array.args[:4]
    else:
        raise ValueError(f"the pickle has no array under the key {key!r}")
    kind = dtype.args[0] if isinstance(dtype, _Dtype) and dtype.args else None
    if kind not in ("u1", b"u1") or found != shape or order not in ("C", "F"):
        raise ValueError(f"the array under {key!r} is not of type uint8 and shape {shape}")
    if not isinstance(raw, bytes | bytearray) or len(raw) != shape[0] * shape[1]:
        raise ValueError(f"the array under {key!r} does not have {shape[0] * shape[1]} bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order=order)


__all__ = ["read_array"]
