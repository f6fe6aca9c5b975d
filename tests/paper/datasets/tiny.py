"""A dataset like CIFAR-10 with three batches of five images of 2×4 pixels, in every format."""

import dataclasses
import functools
import http.server
import io
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

from mlmcgrad.paper.datasets.dataset import Images, sha256
from mlmcgrad.paper.datasets.download import CIFAR10, Spec

ROWS, IMAGE, PIXELS = 5, (3, 2, 4), 24
IMAGES: Images = np.random.default_rng(7).integers(0, 256, (3 * ROWS, *IMAGE), dtype=np.uint8)
TRAIN, TEST = IMAGES[: 2 * ROWS], IMAGES[2 * ROWS :]
NAMES = ("data_batch_1", "data_batch_2", "test_batch")
BATCHES = dict(zip(NAMES, np.split(IMAGES, 3), strict=True))
SPEC = dataclasses.replace(
    CIFAR10,
    name="tiny",
    shapes={"train": TRAIN.shape, "test": TEST.shape},
    files={"train": NAMES[:2], "test": NAMES[2:]},
    sha256={"train": sha256(TRAIN), "test": sha256(TEST)},
    urls=("http://127.0.0.1:9/archive.tar.gz",),  # nobody listens there
    url_seconds=2.0,
)


def binary(images: Images) -> bytes:
    labels = np.arange(len(images), dtype=np.uint8)[:, None]
    return np.hstack([labels, images.reshape(len(images), -1)]).tobytes()


def strip(images: Images) -> bytes:
    rows = images.transpose(0, 2, 3, 1).reshape(len(images), -1, 3)
    file = io.BytesIO()
    Image.fromarray(rows).save(file, "PNG")
    return file.getvalue()


FORMATS = {".bin": binary, ".png": strip}


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
def served(folder: Path, content: dict[str, bytes]) -> Iterator[Spec]:
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
