"""Fetch a dataset, verify it, and say where it came from and where it is cached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import tyro
from rich.console import Console

from mlmcgrad.runs.progress import bars
from mlmcgrad.training import config

if TYPE_CHECKING:
    from mlmcgrad.datasets import Dataset


@dataclass(frozen=True)
class Data:
    """Fetch a dataset, verify it and say where it is cached."""

    dataset: tyro.conf.Positional[config.Dataset | Path]
    """Which one: mnist (10 to 12 MB) and cifar10 (140 to 170 MB) are downloaded once, digits ships
    with scikit-learn, and a file NAME.npz of yours is checked."""
    source: Path | None = None
    """Folder or tarball that holds mnist or cifar10, to use instead of the cache or a download."""

    def __post_init__(self) -> None:
        names = get_args(config.Dataset)
        if self.dataset not in names and Path(self.dataset).suffix != ".npz":
            choices = ", ".join(names)
            raise ValueError(
                f"dataset must be one of {choices}, or a file NAME.npz, got {str(self.dataset)!r}"
            )
        if self.source is not None and self.dataset not in ("mnist", "cifar10"):
            raise ValueError(
                f"source is for mnist and cifar10 only, got {self.source} for {self.dataset}; "
                "leave it out"
            )


def run(settings: Data, console: Console) -> Dataset:
    """Get the dataset with a progress bar and print what it is."""
    from mlmcgrad import datasets  # a third of the time of `mlmcgrad --help`
    from mlmcgrad.datasets.dataset import sha256

    with bars(console) as bar:
        task = bar.add_task("looking in the cache", total=None)

        def show(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        if settings.dataset == "digits":
            data = datasets.digits()
        elif settings.dataset == "mnist":
            data = datasets.mnist(settings.source, progress=show)
        elif settings.dataset == "cifar10":
            data = datasets.cifar10(settings.source, progress=show)
        else:
            data = datasets.pictures(settings.dataset)
    lines = {"dataset": data.name, "from": data.source}
    lines |= {"cached in": str(data.folder)} if data.folder else {}
    for part, images in (("train", data.train), ("test", data.test)):
        lines[part] = f"{images.shape}, {images.dtype}, values 0 to {data.levels - 1}"
        lines[f"{part} sha256"] = sha256(images)
    for name, value in lines.items():
        console.print(f"{name:>12}  {value}", soft_wrap=True, markup=False, highlight=False)
    return data
