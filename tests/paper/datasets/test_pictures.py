"""Files of pictures: every layout is read, and everything else is refused in one line."""

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlmcgrad.paper.datasets import pictures

RNG = np.random.default_rng(11)
COLOUR = RNG.integers(0, 256, (7, 3, 6, 5), dtype=np.uint8)
GREY = COLOUR[:, :1]


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (GREY[:, 0], GREY),
        (GREY, GREY),
        (GREY.transpose(0, 2, 3, 1), GREY),
        (COLOUR, COLOUR),
        (COLOUR.transpose(0, 2, 3, 1), COLOUR),
        (np.asfortranarray(COLOUR.transpose(0, 2, 3, 1)), COLOUR),
    ],
    ids=["NHW", "N1HW", "NHW1", "N3HW", "NHW3", "Fortran"],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_layout(save: Any, stored: Any, expected: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    save(path, train=stored, test=stored[:2], labels=np.arange(7))
    data = pictures(path)
    np.testing.assert_array_equal(data.train, expected)
    np.testing.assert_array_equal(data.test, expected[:2])
    assert data.train.flags.c_contiguous
    assert not data.train.flags.writeable
    assert (data.name, data.levels, data.source) == ("mine.npz", 256, str(path))


def test_train_and_test_may_have_different_layouts(tmp_path: Path) -> None:
    data = pictures(write(tmp_path / "a.npz", train=GREY[:, 0], test=GREY))
    np.testing.assert_array_equal(data.train, data.test)


def test_a_path_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.npz", train=GREY, test=GREY)
    assert len(pictures("~/a.npz").train) == 7
    with pytest.raises(FileNotFoundError, match=r"dataset ~nobody-here/a.npz does not exist"):
        pictures("~nobody-here/a.npz")


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"train": GREY}, "test is not a file in the archive.*; write it with numpy.savez"),
        ({"test": GREY}, "train is not a file in the archive.*; write it with numpy.savez"),
        ({"train": GREY.astype(np.float32), "test": GREY}, "train is float32, not uint8; convert"),
        ({"train": GREY, "test": GREY.astype(np.int8)}, "test is int8, not uint8; convert"),
        ({"train": GREY[:0], "test": GREY}, r"train has the shape \(0, 1, 6, 5\), not \(N, height"),
        (
            {"train": GREY, "test": GREY[:, :, :, :0]},
            r"test has the shape \(7, 1, 6, 0\), not \(N, hei",
        ),
        ({"train": GREY[0, 0], "test": GREY}, r"train has the shape \(6, 5\), not \(N, height, "),
        ({"train": np.uint8(3), "test": GREY}, r"train has the shape \(\), not \(N, height, width"),
        ({"train": GREY[..., None], "test": GREY}, r"shape \(7, 1, 6, 5, 1\), not \(N, height"),
        ({"train": COLOUR[:, :2], "test": GREY}, r"shape \(7, 2, 6, 5\), not .* with C = 1 or 3"),
        (
            {"train": COLOUR[..., :3], "test": GREY},
            r"\(7, 3, 6, 3\): channels may be first or last",
        ),
        (
            {"train": GREY, "test": COLOUR},
            r"pictures of train and test differ, \(1, 6, 5\) and \(3, 6, 5\) \(channels, height",
        ),
    ],
)
def test_what_is_wrong_is_said(arrays: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=rf"^dataset {path}:? .*{why}") as caught:
        pictures(path)
    assert "\n" not in str(caught.value)


class _Trap:
    sprung = False

    def __reduce__(self) -> Any:
        return (setattr, (_Trap, "sprung", True))


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", train=np.array([_Trap()], object), test=GREY)
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        pictures(path)
    (tmp_path / "b.npz").write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(ValueError, match=r"b.npz is not a readable .npz \(.*; write it with numpy"):
        pictures(tmp_path / "b.npz")
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("train.npy", pickle.dumps(_Trap()))
        archive.writestr("test.npy", pickle.dumps(_Trap()))
    with pytest.raises(ValueError, match=r"c.npz: train is .*, not uint8"):
        pictures(tmp_path / "c.npz")
    assert not _Trap.sprung


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"dataset .*nothing.npz does not exist; name d"):
        pictures(tmp_path / "nothing.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(OSError, match=r"cannot read the dataset .*folder.npz \(Is a directory\)"):
        pictures(tmp_path / "folder.npz")
    for content in (b"", b"some text", b"\x93NUMPY\x01\0"):
        (tmp_path / "text.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"text.npz is not a readable .npz \(not a zip file"):
            pictures(tmp_path / "text.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_files(save: Any, tmp_path: Path) -> None:
    """A byte altered or a piece cut off: an error with the name of the file, or the same images."""
    path = tmp_path / "a.npz"
    save(path, train=COLOUR, test=COLOUR)
    whole = path.read_bytes()
    cut = [whole[:end] for end in range(0, len(whole), 97)]
    bent = [
        whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :] for at in range(0, len(whole), 5)
    ]
    said = []
    for content in (*cut, *bent):
        path.write_bytes(content)
        try:
            data = pictures(path)
        except (ValueError, OSError) as error:
            said.append(str(error))
            continue
        np.testing.assert_array_equal(data.train, COLOUR)
        np.testing.assert_array_equal(data.test, COLOUR)
    assert len(said) > (len(cut) + len(bent)) // 2
    assert all(str(path) in message and "\n" not in message for message in said)


def test_a_header_that_promises_too_much(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 1000, 1000)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("train.npy", file.getvalue() + bytes(100))
        archive.writestr("test.npy", file.getvalue() + bytes(100))
    with pytest.raises(ValueError, match=r"not a readable .npz \(Unable to allocate"):
        pictures(tmp_path / "a.npz")


def test_later_versions_of_the_header(tmp_path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (7, 1, 6, 5), }\n"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for part in ("train", "test"):
            start = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header
            archive.writestr(f"{part}.npy", start + GREY.tobytes())
    np.testing.assert_array_equal(pictures(tmp_path / "a.npz").train, GREY)
