"""Fetch a dataset, verify it, and say where it came from and where it is cached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from mlmcgrad.datasets import Dataset, cifar10, digits
from mlmcgrad.datasets.dataset import sha256
from mlmcgrad.runs.progress import bars


@dataclass(frozen=True)
class Data:
    """Fetch a dataset, verify it and say where it is cached."""

    dataset: tyro.conf.Positional[Literal["cifar10", "digits"]]
    """Which one: cifar10 is downloaded once (140 to 170 MB), digits ships with scikit-learn."""
    source: Path | None = None
    """Folder or tarball that holds CIFAR-10, to use instead of the cache or a download."""

    def __post_init__(self) -> None:
        if self.source is not None and self.dataset != "cifar10":
            raise ValueError(
                f"source is for cifar10 only, got {self.source} for {self.dataset}, which ships "
                "with scikit-learn; leave it out"
            )


def run(settings: Data, console: Console) -> Dataset:
    """Get the dataset with a progress bar and print what it is."""
    with bars(console) as bar:
        task = bar.add_task("looking in the cache", total=None)

        def show(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        data = digits() if settings.dataset == "digits" else cifar10(settings.source, progress=show)
    lines = {"dataset": data.name, "from": data.source}
    lines |= {"cached in": str(data.folder)} if data.folder else {}
    for part, images in (("train", data.train), ("test", data.test)):
        lines[part] = f"{images.shape}, {images.dtype}, values 0 to {data.levels - 1}"
        lines[f"{part} sha256"] = sha256(images)
    for name, value in lines.items():
        console.print(f"{name:>12}  {value}", soft_wrap=True, markup=False, highlight=False)
    return data
