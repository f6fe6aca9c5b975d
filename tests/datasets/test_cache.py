"""The cache is whole or not used, and a failed write leaves the old one."""

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest

from mlmcgrad.datasets import cache
from tests.datasets.tiny import SPEC, TEST, TRAIN
from tests.faults import files_at_most

ARRAYS = {"train": TRAIN, "test": TEST}
LARGER = {"train": TRAIN, "test": np.concatenate([TEST, TEST, TEST])}


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_round_trip(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    cache.store(folder, ARRAYS)
    arrays = cache.open_arrays(folder, SPEC)
    for part, array in ARRAYS.items():
        assert isinstance(arrays[part], np.memmap)
        assert not arrays[part].flags.writeable
        np.testing.assert_array_equal(arrays[part], array)
        np.testing.assert_array_equal(np.load(folder / f"{part}.npy", allow_pickle=False), array)
    assert sorted(p.name for p in folder.iterdir()) == ["test.npy", "train.npy"]


def test_a_reader_of_the_old_file_is_not_disturbed(tmp_path: Path) -> None:
    """A file is replaced by renaming another over it, never written over."""
    cache.store(tmp_path, {"train": TRAIN, "test": TEST[::-1].copy()})
    old = np.load(tmp_path / "test.npy", mmap_mode="r", allow_pickle=False)
    cache.store(tmp_path, ARRAYS)
    np.testing.assert_array_equal(old, TEST[::-1])
    np.testing.assert_array_equal(cache.open_arrays(tmp_path, SPEC)["test"], TEST)


@pytest.mark.parametrize("part", ["train", "test"])
def test_damage_is_noticed(part: str, tmp_path: Path) -> None:
    cache.store(tmp_path, ARRAYS)
    path = tmp_path / f"{part}.npy"
    whole = path.read_bytes()
    other = np.zeros((3, 3), np.uint8)
    for damaged in (
        b"",
        whole[:50],
        whole[:-1],
        whole[:-1] + bytes([whole[-1] ^ 1]),
        whole[:130] + bytes([whole[130] ^ 128]) + whole[131:],
        whole.replace(b"|u1", b"|i1"),
        whole.replace(b"|u1", b"|O1"),
        whole.replace(b"(", b"["),
        b"PK\x03\x04" + whole[4:],
        whole[:128] + other.tobytes(),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{part}.npy is damaged|tiny: its {part} array"):
            cache.open_arrays(tmp_path, SPEC)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        cache.open_arrays(tmp_path, SPEC)


def test_another_shape_is_damage(tmp_path: Path) -> None:
    cache.store(tmp_path, {"train": TEST, "test": TEST})
    with pytest.raises(ValueError, match=r"uint8 of shape \(5, 3, 2, 4\), not uint8 of shape \(10"):
        cache.open_arrays(tmp_path, SPEC)


def test_a_full_disk_leaves_the_old_files(tmp_path: Path) -> None:
    cache.store(tmp_path, ARRAYS)
    before = _content(tmp_path)
    for limit in (0, 100, 200, 370):  # train.npy has 368 bytes
        with (
            pytest.raises(
                OSError, match=r"cannot write to the cache .*; free some space, or .*MLMCGRAD_DATA"
            ),
            files_at_most(limit),
        ):
            cache.store(tmp_path, LARGER)
        assert _content(tmp_path) == before


def test_an_error_of_the_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache.store(tmp_path, ARRAYS)
    before = _content(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        cache.store(tmp_path, ARRAYS)
    assert caught.value.errno == errno.ENOSPC
    assert _content(tmp_path) == before


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write to the cache .*file/tiny .*MLMCGRAD_DATA"):
        cache.store(tmp_path / "file" / "tiny", ARRAYS)


def test_leftovers_of_a_killed_process_are_deleted_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / ".making-old", tmp_path / ".making-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "archive.tar.gz").write_bytes(b"half")
    yesterday = time.time() - 100_000.0
    os.utime(old, (yesterday, yesterday))
    with cache.workspace(tmp_path) as room:
        assert room.parent == tmp_path
        assert not old.exists()
        assert new.exists()
    assert not room.exists()


def test_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLMCGRAD_DATA", str(tmp_path / "here"))
    assert cache.root() == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLMCGRAD_DATA", "~/there")
    assert cache.root() == tmp_path / "there"
    monkeypatch.setenv("MLMCGRAD_DATA", "")
    assert cache.root().name == "mlmcgrad"
