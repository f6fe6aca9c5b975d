"""Files that are written whole or not at all, whatever else is in the folder."""

import os
import secrets
import stat
import threading
from pathlib import Path

import pytest

from mlmcgrad._files import write_atomically


def test_a_file_of_the_user_with_the_name_of_a_part_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "summary.json.part"
    mine.write_text("mine")
    write_atomically(tmp_path / "summary.json", b"new")
    assert mine.read_text() == "mine"
    assert (tmp_path / "summary.json").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.json", mine.name]


def test_links_are_replaced_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    for name in ("summary.json", "summary.json.part"):
        (tmp_path / name).symlink_to(target)
    write_atomically(tmp_path / "summary.json", b"new")
    assert target.read_text() == "precious"
    assert not (tmp_path / "summary.json").is_symlink()


def test_whatever_has_the_name_of_the_new_file_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are random; if one could be guessed, a link of that name would not be followed."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    target, link = tmp_path / "target", tmp_path / ".guessed.part"
    target.write_text("precious")
    link.symlink_to(target)
    with pytest.raises(OSError, match=r"cannot write file in .*exists"):
        write_atomically(tmp_path / "file", b"new")
    assert link.is_symlink()
    assert target.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_folders_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "file", b"new")
    write_atomically(tmp_path / "a" / "b" / "other", b"new")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"new"


def _free_descriptor() -> int:
    """Return the lowest number that no open file has."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut it is old or new, never empty; the folder is flushed after the renaming."""
    path, seen = tmp_path / "file", []

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        seen.append(path.exists() if stat.S_ISDIR(found.st_mode) else found.st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    before = _free_descriptor()
    write_atomically(path, b"new")
    assert seen == [3, True]
    assert _free_descriptor() == before


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_an_interrupt_leaves_the_old_file_and_nothing_else(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os if where == "fsync" else Path, where, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"old")]


def _with_a_fixed_name(path: Path, data: bytes) -> None:
    """The planted bug."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_bytes(data)
    temporary.replace(path)


def test_a_fixed_name_would_follow_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "file.part").symlink_to(target)
    _with_a_fixed_name(tmp_path / "file", b"new")
    assert target.read_bytes() == b"new"


def test_a_long_name_and_the_mode_of_the_umask(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)  # 254 bytes: no room for a suffix
    before = os.umask(0o027)
    try:
        write_atomically(path, b"new")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_two_writers_never_mix_their_bytes(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([letter]) * 50_000 for letter in b"ab"]
    write_atomically(path, contents[0])

    def write(data: bytes) -> None:
        for _ in range(30):
            write_atomically(path, data)

    writers = [threading.Thread(target=write, args=(data,)) for data in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    assert [path] == list(tmp_path.iterdir())


def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write file in .*No space left on device"):
        write_atomically(path, b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"old")]
