"""Three formats, in folders and tarballs, whole and damaged."""

import io
import os
import pickle
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.datasets.cifar10_files import (
    CIFAR10,
    READERS,
    read_binary,
    read_python,
    read_source,
    read_strip,
)
from mlmcgrad.datasets.dataset import Images
from tests.datasets import tiny
from tests.datasets.tiny import BATCHES, FORMATS, SPEC, TEST, TRAIN


def _same(arrays: dict[str, Images]) -> None:
    np.testing.assert_array_equal(arrays["train"], TRAIN)
    np.testing.assert_array_equal(arrays["test"], TEST)


@pytest.mark.parametrize("suffix", list(READERS))
def test_a_batch_in_every_format(suffix: str) -> None:
    np.testing.assert_array_equal(READERS[suffix](FORMATS[suffix](TEST), SPEC), TEST)


@pytest.mark.parametrize("suffix", list(READERS))
@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin", "cifar-10-batches-py"])
def test_folder(suffix: str, below: str, tmp_path: Path) -> None:
    tiny.folder(tmp_path / "source" / below, tiny.files(suffix) | {"readme.html": b"hello"})
    _same(read_source(tmp_path / "source", SPEC))


@pytest.mark.parametrize("suffix", list(READERS))
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tarball_in_any_order(suffix: str, mode: str, tmp_path: Path) -> None:
    content = {f"package/{name}": data for name, data in reversed(tiny.files(suffix).items())}
    path = tiny.tarball(tmp_path / "any.name", content | {"package/index.js": b"x"}, mode)
    steps: list[tuple[str, int, int | None]] = []
    _same(read_source(path, SPEC, lambda *step: steps.append(step)))
    assert steps == [("decoding", i, 3) for i in range(4)]
    assert [p.name for p in tmp_path.iterdir()] == ["any.name"]  # nothing was unpacked


@pytest.mark.parametrize("change", [-1, 1, -25])
def test_a_binary_batch_of_the_wrong_size(change: int, tmp_path: Path) -> None:
    content = tiny.files(".bin")
    whole = content["data_batch_2.bin"]
    content["data_batch_2.bin"] = whole[:change] if change < 0 else whole + b"!"
    tiny.folder(tmp_path / "source", content)
    with pytest.raises(ValueError, match=rf"data_batch_2.bin in .*{125 + change} bytes, not 125"):
        read_source(tmp_path / "source", SPEC)


@pytest.mark.parametrize(
    "data",
    [tiny.python2(TEST), *(tiny.python3(TEST, protocol) for protocol in (2, 3, 4, 5))],
    ids=["python2", "2", "3", "4", "5"],
)
def test_pickles_of_every_protocol(data: bytes) -> None:
    np.testing.assert_array_equal(read_python(data, SPEC), TEST)


def test_the_handwritten_pickle_is_what_python_reads() -> None:
    content = pickle.loads(tiny.python2(TEST), encoding="bytes")
    np.testing.assert_array_equal(content[b"data"].reshape(TEST.shape), TEST)


@pytest.mark.parametrize(
    ("content", "count"),
    [
        ({"data": TRAIN}, 0),
        ({"data": TEST[:, 1:].copy()}, 0),
        ({"labels": [1, 2]}, 0),
        ([1, 2], 0),
        ({"data": TEST, "again": TEST.copy()}, 2),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_of_something_else(content: object, count: int, protocol: int) -> None:
    with pytest.raises(ValueError, match=f"a pickle with {count} strings of 120 bytes, not one"):
        read_python(pickle.dumps(content, protocol), SPEC)


class _Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_pickle_is_not_run(protocol: int, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    for call in (
        _Call(os.mkdir, str(victim)),
        _Call(eval, f"open({str(victim)!r}, 'w')"),
        _Call(np.save, str(victim), TEST[0]),
    ):
        data = pickle.dumps({"extra": call}, protocol)
        with pytest.raises(ValueError, match="a pickle with 0 strings"):
            read_python(data, SPEC)
        both = pickle.dumps({"data": TEST, "extra": call}, max(protocol, 2))
        np.testing.assert_array_equal(read_python(both, SPEC), TEST)  # the hash decides later
        assert not victim.exists()
    pickle.loads(pickle.dumps(_Call(os.mkdir, str(victim)), protocol))
    assert victim.exists()  # it would have been run


def test_a_malicious_batch_is_named_and_not_run(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    evil = b"cos\nmkdir\n(V" + str(victim).encode() + b"\ntR."
    tiny.folder(tmp_path / "source", tiny.files("") | {"data_batch_2": evil})
    with pytest.raises(ValueError, match=r"cannot read data_batch_2 in .*: it is a pickle with 0"):
        read_source(tmp_path / "source", SPEC)
    assert not victim.exists()


@pytest.mark.parametrize("data", [tiny.python2(TEST), tiny.python3(TEST, 5)], ids=["2", "5"])
@given(position=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_pickle_gives_images_or_a_value_error(
    data: bytes, position: int, value: int, cut: bool
) -> None:
    at = position % len(data)
    try:
        images = read_python(
            data[:at] if cut else data[:at] + bytes([value]) + data[at + 1 :], SPEC
        )
    except ValueError:
        return
    assert images.shape == TEST.shape


def test_strip_of_another_size_or_kind() -> None:
    with pytest.raises(ValueError, match=r"RGB of size \(8, 10\), not RGB of size \(8, 5\)"):
        read_strip(tiny.strip(TRAIN), SPEC)
    with pytest.raises(ValueError, match="not a readable PNG"):
        read_strip(b"GIF89a" + tiny.strip(TEST), SPEC)


@pytest.mark.parametrize("side", [1_000, 10_000, 20_000])
def test_a_strip_that_claims_to_be_huge_is_not_decoded(side: int) -> None:
    whole = tiny.strip(TEST)
    header = struct.pack(">II", side, side) + whole[24:29]
    bomb = whole[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + whole[33:]
    with pytest.raises(ValueError, match=r"00 pixels|not RGB of size"):
        read_strip(bomb, SPEC)


@given(position=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_strip_gives_images_or_a_value_error(
    position: int, value: int, cut: bool
) -> None:
    whole = tiny.strip(TEST)
    at = position % len(whole)
    try:
        images = read_strip(
            whole[:at] if cut else whole[:at] + bytes([value]) + whole[at + 1 :], SPEC
        )
    except ValueError:
        return
    assert images.shape == TEST.shape


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"source .*nothing does not exist; name a folder"):
        read_source(tmp_path / "nothing", SPEC)


def test_missing_batches_are_named(tmp_path: Path) -> None:
    content = tiny.files(".bin")
    del content["data_batch_1.bin"]
    for path in (tiny.folder(tmp_path / "f", content), tiny.tarball(tmp_path / "t", content)):
        with pytest.raises(ValueError, match=r"lacks data_batch_1 .*must hold all of data_batch_1"):
            read_source(path, SPEC)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="lacks data_batch_1, data_batch_2, test_batch"):
        read_source(tmp_path / "empty", SPEC)


def test_a_batch_twice_is_refused(tmp_path: Path) -> None:
    content = tiny.files(".bin") | {"old/test_batch.bin": tiny.binary(TEST)}
    with pytest.raises(ValueError, match="holds test_batch twice"):
        read_source(tiny.tarball(tmp_path / "t", content), SPEC)


@pytest.mark.parametrize("name", ["../../test_batch.bin", "/tmp/test_batch.bin", "a/../../passwd"])
def test_tarball_with_names_outside_of_itself(name: str, tmp_path: Path) -> None:
    path = tiny.tarball(tmp_path / "t", {name: tiny.binary(TEST)} | tiny.files(".bin"))
    with pytest.raises(ValueError, match="outside of itself"):
        read_source(path, SPEC)


def test_links_in_a_tarball_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(tiny.binary(TEST))
    path = tmp_path / "t"
    with tarfile.open(path, "w") as archive:
        for name, images in list(BATCHES.items())[:2]:
            member = tarfile.TarInfo(f"{name}.bin")
            member.size = len(tiny.binary(images))
            archive.addfile(member, io.BytesIO(tiny.binary(images)))
        link = tarfile.TarInfo("test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        archive.addfile(link)
    with pytest.raises(ValueError, match="lacks test_batch"):
        read_source(path, SPEC)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    content = tiny.files("") | {"test_batch": bytes(2**20 + 241)}
    for path in (tiny.folder(tmp_path / "f", content), tiny.tarball(tmp_path / "t", content)):
        with pytest.raises(ValueError, match="test_batch has 1048817 bytes, more than the 1048816"):
            read_source(path, SPEC)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_damaged_tarballs(mode: str, tmp_path: Path) -> None:
    whole = tiny.tarball(tmp_path / "t", tiny.files(".bin"), mode).read_bytes()
    for end in (0, 10, 100, len(whole) // 4):
        (tmp_path / "cut").write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"not a readable tarball|lacks"):
            read_source(tmp_path / "cut", SPEC)
    (tmp_path / "text").write_text("not a tarball at all")
    with pytest.raises(ValueError, match=r"^source .*text is not a readable tarball: .*[^:]\Z"):
        read_source(tmp_path / "text", SPEC)
    for at in range(20, len(whole), 7):
        (tmp_path / "bent").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            read_source(tmp_path / "bent", SPEC)
        except ValueError:
            continue


def test_read_binary_drops_the_label() -> None:
    data = bytearray(tiny.binary(TEST))
    data[:: 1 + tiny.PIXELS] = bytes([99] * tiny.ROWS)
    np.testing.assert_array_equal(read_binary(bytes(data), SPEC), TEST)


def test_the_real_dataset() -> None:
    assert CIFAR10.shape == (10_000, 3, 32, 32)
    assert CIFAR10.batches == (*(f"data_batch_{i}" for i in (1, 2, 3, 4, 5)), "test_batch")


def test_verify() -> None:
    SPEC.verify({"train": TRAIN, "test": TEST}, "here")
    for part, array, problem in (
        ("test", TEST ^ 1, f"has the SHA-256 [0-9a-f]{{64}}, not {SPEC.sha256['test']}"),
        ("train", TEST, r"is uint8 of shape \(5, 3, 2, 4\), not uint8 of shape \(10, 3, 2, 4\)"),
        ("train", TRAIN.view(np.int8), r"is int8 of shape \(10, 3, 2, 4\), not uint8"),
    ):
        arrays: dict[str, Any] = {"train": TRAIN, "test": TEST, part: array}
        with pytest.raises(
            ValueError, match=f"here does not hold tiny: its {part} array {problem}"
        ):
            SPEC.verify(arrays, "here")
