"""IDX files: whole ones are read, anything else is refused with what is wrong."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.datasets.idx import read_idx
from tests.datasets.tiny_mnist import TEST, idx

WHOLE, SHAPE = idx(TEST), (20, 28, 28)


@pytest.mark.parametrize("data", [WHOLE, gzip.compress(WHOLE)], ids=["plain", "gzip"])
def test_plain_and_compressed(data: bytes) -> None:
    array = read_idx(data, SHAPE)
    assert array.dtype == np.uint8
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, TEST[:, 0])


def test_dimensions_are_big_endian_and_any_number_of_them() -> None:
    labels = bytes([0, 0, 8, 1, 0, 0, 1, 2]) + bytes(range(256)) + b"ab"
    assert read_idx(labels, (258,))[-3:].tolist() == [255, 97, 98]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it begins with , not 00 00 08 03: no IDX file"),
        (b"\x89PNG and so on", "it begins with 89 50 4e 47, not 00 00 08 03"),
        (bytes([0, 0, 13]) + WHOLE[3:], "it begins with 00 00 0d 03, not"),  # float32
        (bytes([0, 0, 8, 1]) + WHOLE[4:], "it begins with 00 00 08 01, not"),  # labels
        (WHOLE[:15], "it has 15 bytes, fewer than its header of 16"),
        (WHOLE[:4], "it has 4 bytes, fewer than its header of 16"),
        (
            WHOLE[:4] + struct.pack(">3I", 21, 28, 28) + WHOLE[16:],
            r"its dimensions are \(21, 28, 28\), not \(20, 28, 28\): another dataset",
        ),
        (
            WHOLE[:4] + struct.pack("<3I", *SHAPE) + WHOLE[16:],
            r"its dimensions are \(335544320, 469762048, 469762048\), not",
        ),
        (WHOLE[:-1], "it has 15695 bytes, not 15696: truncated, or altered"),
        (WHOLE + b"!", "it has more than 15696 bytes, not 15696: truncated, or altered"),
    ],
)
def test_what_is_wrong_is_said(pack: type[bytes], data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        read_idx(pack(data), SHAPE)


@pytest.mark.parametrize("end", [2, 9, 100, -4, -1])
def test_compressed_and_cut_short(end: int) -> None:
    with pytest.raises(ValueError, match="it is not readable as gzip: "):
        read_idx(gzip.compress(WHOLE)[:end], SHAPE)


def test_a_small_file_does_not_fill_the_memory() -> None:
    bomb = gzip.compress(WHOLE + bytes(10**8))
    with pytest.raises(ValueError, match="more than 15696 bytes"):
        read_idx(bomb, SHAPE)


@given(st.integers(0, len(gzip.compress(WHOLE, mtime=0)) - 1), st.integers(1, 255))
def test_a_bent_byte_is_noticed_or_harmless(at: int, change: int) -> None:
    """The checksum of gzip sees what the format does not; the header has bytes without meaning."""
    bent = bytearray(gzip.compress(WHOLE, mtime=0))
    bent[at] ^= change
    try:
        array = read_idx(bytes(bent), SHAPE)
    except ValueError:
        return
    np.testing.assert_array_equal(array, TEST[:, 0])
