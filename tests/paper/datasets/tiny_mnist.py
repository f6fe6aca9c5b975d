"""A dataset like MNIST with 70 images of 28×28 pixels, in files that are made here."""

import dataclasses
import functools
import gzip
import http.server
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mlmcgrad.paper.datasets.dataset import Images, sha256
from mlmcgrad.paper.datasets.download import MNIST, Spec
from tests.paper.datasets import tiny

# Grey values of all kinds, and black and white ones that no draw may change.
IMAGES: Images = np.random.default_rng(3).integers(0, 256, (70, 1, 28, 28), dtype=np.uint8)
IMAGES[:, :, :4] = 0
IMAGES[:, :, 4:6] = 255
TRAIN, TEST = IMAGES[:50], IMAGES[50:]
SPEC = dataclasses.replace(
    MNIST,
    name="tiny",
    shapes={"train": TRAIN.shape, "test": TEST.shape},
    sha256={"train": sha256(TRAIN), "test": sha256(TEST)},
    urls=("http://127.0.0.1:9/a.gz", "http://127.0.0.1:9/b.gz"),  # nobody listens there
    url_seconds=2.0,
)


def idx(images: Images) -> bytes:
    array = images[:, 0]
    return bytes([0, 0, 8, 3]) + struct.pack(">3I", *array.shape) + array.tobytes()


def files(suffix: str = ".gz") -> dict[str, bytes]:
    content = {"train-images-idx3-ubyte": idx(TRAIN), "t10k-images-idx3-ubyte": idx(TEST)}
    labels = {"train-labels-idx1-ubyte": b"labels"}  # never looked at
    every = content | labels
    if suffix == ".gz":
        return {f"{name}.gz": gzip.compress(data) for name, data in every.items()}
    return every


@contextmanager
def served(folder: Path) -> Iterator[Spec]:
    """A server on this machine that has the official archives."""
    tiny.folder(folder, files())
    handler = functools.partial(tiny.Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = f"http://127.0.0.1:{server.server_port}"
        names = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")
        yield dataclasses.replace(SPEC, urls=tuple(f"{place}/{name}" for name in names))
        server.shutdown()
        thread.join()
