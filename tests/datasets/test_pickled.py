"""A pickle gives an array or is refused; it never runs anything."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.datasets.pickled import read_array
from tests.datasets.tiny import PIXELS, ROWS, TEST, python2, python3

FLAT = TEST.reshape(ROWS, PIXELS)


class _Evil:
    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "data",
    [python2(TEST), python3(TEST, 3), python3(TEST, 4), python3(TEST, 5)],
    ids=["python2", "3", "4", "5"],
)
def test_arrays_are_read(data: bytes) -> None:
    np.testing.assert_array_equal(read_array(data, "data", (ROWS, PIXELS)), FLAT)


@pytest.mark.parametrize("protocol", [4, 5])
def test_the_order_of_axes_is_kept(protocol: int) -> None:
    data = pickle.dumps({"data": np.asfortranarray(FLAT)}, protocol)
    np.testing.assert_array_equal(read_array(data, "data", (ROWS, PIXELS)), FLAT)


def test_the_handwritten_pickle_is_what_python_reads() -> None:
    content = pickle.loads(python2(TEST), encoding="bytes")
    np.testing.assert_array_equal(content[b"data"], FLAT)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_pickle_is_refused_and_not_run(protocol: int, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    for evil in (
        _Evil(os.mkdir, str(victim)),
        _Evil(eval, f"open({str(victim)!r}, 'w')"),
        _Evil(getattr, FLAT, "tofile"),
        _Evil(np.save, str(victim), FLAT),
    ):
        data = pickle.dumps({"data": FLAT, "extra": evil}, protocol)
        with pytest.raises(ValueError, match=r"refused: it asks for .*, which is no plain array"):
            read_array(data, "data", (ROWS, PIXELS))
        assert not victim.exists()
    pickle.loads(pickle.dumps(_Evil(os.mkdir, str(victim)), protocol))
    assert victim.exists()  # it would have been run


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([1, 2], "holds list, not a dictionary"),
        ({"labels": [1]}, "no array under the key 'data'"),
        ({"data": FLAT.tobytes()}, "no array under the key 'data'"),
        ({"data": FLAT.astype(np.int8)}, "not of type uint8 and shape"),
        ({"data": FLAT[:, 1:].copy()}, "not of type uint8 and shape"),
        ({"data": FLAT.astype(object)}, "not of type uint8 and shape"),
        ({"data": np.uint8(3)}, "refused"),
    ],
)
@pytest.mark.parametrize("protocol", [4, 5])
def test_anything_else_is_refused(content: Any, why: str, protocol: int) -> None:
    with pytest.raises(ValueError, match=why):
        read_array(pickle.dumps(content, protocol), "data", (ROWS, PIXELS))


def test_the_stand_ins_cannot_be_altered() -> None:
    """BUILD with a dictionary sets attributes of what is on the stack; here that is a class."""
    with pytest.raises(ValueError, match="refused"):
        read_array(b"\x80\x02cnumpy\nndarray\n}U\x04argsK\x01sb.", "data", (ROWS, PIXELS))


def test_bytes_that_do_not_match_the_shape() -> None:
    whole = python2(TEST)
    short = whole.replace(
        b"T" + (ROWS * PIXELS).to_bytes(4, "little") + FLAT.tobytes(), b"U\x03abc"
    )
    with pytest.raises(ValueError, match=f"does not have {ROWS * PIXELS} bytes"):
        read_array(short, "data", (ROWS, PIXELS))


@pytest.mark.parametrize("data", [python2(TEST), python3(TEST, 5)], ids=["2", "5"])
@given(position=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_damage_gives_an_array_or_a_value_error(
    data: bytes, position: int, value: int, cut: bool
) -> None:
    at = position % len(data)
    damaged = data[:at] if cut else data[:at] + bytes([value]) + data[at + 1 :]
    try:
        array = read_array(damaged, "data", (ROWS, PIXELS))
    except ValueError:
        return
    assert array.shape == (ROWS, PIXELS)
