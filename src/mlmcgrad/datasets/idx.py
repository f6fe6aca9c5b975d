"""The IDX format, in which MNIST is published, plain or compressed with gzip.

bytes 0, 1     0
byte 2         type of the values; 8 is uint8, the only one that is read
byte 3         d, the number of dimensions
4·d bytes      the dimensions, big-endian
the rest       the values, the last dimension fastest
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from math import prod

import numpy as np

from mlmcgrad.datasets.dataset import Images

_GZIP = b"\x1f\x8b"


def read_idx(data: bytes, shape: tuple[int, ...]) -> Images:
    """An array of uint8.

    Args:
        data: content of a file, plain or compressed.
        shape: dimensions that it must have.

    Returns:
        A read-only array of this shape.

    Raises:
        ValueError: it is something else, or damaged; the message continues a sentence.

    Example:
        >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), (3,))
        array([7, 8, 9], dtype=uint8)
    """
    header = 4 + 4 * len(shape)
    expected = header + prod(shape)
    if data[:2] == _GZIP:
        data = _unpacked(data, expected)
    magic = bytes([0, 0, 8, len(shape)])
    if data[:4] != magic:
        raise ValueError(f"it begins with {data[:4].hex(' ')}, not {magic.hex(' ')}: no IDX file")
    if len(data) < header:
        raise ValueError(f"it has {len(data)} bytes, fewer than its header of {header}")
    dimensions = struct.unpack(f">{len(shape)}I", data[4:header])
    if dimensions != shape:
        raise ValueError(f"its dimensions are {dimensions}, not {shape}: another dataset")
    if len(data) != expected:
        size = f"{len(data)} bytes" if len(data) < expected else f"more than {expected} bytes"
        raise ValueError(f"it has {size}, not {expected}: truncated, or altered")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _unpacked(data: bytes, expected: int) -> bytes:
    """At most one byte more than expected, so that a small file cannot fill the memory."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"it is not readable as gzip: {error}") from error
