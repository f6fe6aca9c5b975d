"""A dataset like CIFAR-10 with three batches of five images of 2×4 pixels, in every format."""

import dataclasses
import functools
import http.server
import io
import pickle
import struct
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mlmcgrad.datasets.cifar10_files import CIFAR10, BatchSpec
from mlmcgrad.datasets.dataset import Images, sha256

ROWS, IMAGE, PIXELS = 5, (3, 2, 4), 24
IMAGES: Images = np.random.default_rng(7).integers(0, 256, (3 * ROWS, *IMAGE), dtype=np.uint8)
TRAIN, TEST = IMAGES[: 2 * ROWS], IMAGES[2 * ROWS :]
NAMES = ("data_batch_1", "data_batch_2", "test_batch")
BATCHES = dict(zip(NAMES, np.split(IMAGES, 3), strict=True))
SPEC = dataclasses.replace(
    CIFAR10,
    name="tiny",
    batches=NAMES,
    shape=(ROWS, *IMAGE),
    sha256={"train": sha256(TRAIN), "test": sha256(TEST)},
    urls=("http://127.0.0.1:9/archive.tar.gz",),  # nobody listens there
    url_seconds=2.0,
)


def binary(images: Images) -> bytes:
    labels = np.arange(len(images), dtype=np.uint8)[:, None]
    return np.hstack([labels, images.reshape(len(images), -1)]).tobytes()


def python3(images: Images, protocol: int = 4) -> bytes:
    content = {"labels": [1] * len(images), "data": images.reshape(len(images), -1)}
    return pickle.dumps(content, protocol=protocol)


def python2(images: Images) -> bytes:
    """As Python 2 wrote the official files: strings without encoding, numpy 1's names."""
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04"
        b"]q\x05(K\x06K\tK\teU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07"
        b"cnumpy\nndarray\nq\x08K\x00\x85q\tU\x01b\x87q\nRq\x0b(K\x01K"
        + bytes([len(images)])
        + b"K\x18\x86q\x0ccnumpy\ndtype\nq\rU\x02u1q\x0eK\x00K\x01\x87q\x0fRq\x10(K\x03U\x01|"
        b"q\x11NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x12b\x89T"
        + struct.pack("<i", images.size)
        + images.tobytes()
        + b"q\x13tq\x14bu."
    )


def strip(images: Images) -> bytes:
    rows = images.transpose(0, 2, 3, 1).reshape(len(images), -1, 3)
    file = io.BytesIO()
    Image.fromarray(rows).save(file, "PNG")
    return file.getvalue()


FORMATS = {".bin": binary, "": python2, ".png": strip}


def files(suffix: str = ".bin", batches: dict[str, Images] = BATCHES) -> dict[str, bytes]:
    return {f"{name}{suffix}": FORMATS[suffix](images) for name, images in batches.items()}


def folder(path: Path, content: dict[str, bytes]) -> Path:
    path.mkdir(parents=True)
    for name, data in content.items():
        (path / name).write_bytes(data)
    return path


def tarball(path: Path, content: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextmanager
def served(folder: Path, content: dict[str, bytes]) -> Iterator[BatchSpec]:
    """A server on this machine whose archive holds these files."""
    folder.mkdir()
    tarball(folder / "archive.tar.gz", content)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/archive.tar.gz"
        yield dataclasses.replace(SPEC, urls=(url,))
        server.shutdown()
        thread.join()


def fake_npm(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an npm on the PATH (and nothing else) that runs some lines of Python."""
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\nimport sys, time, pathlib, shutil\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
