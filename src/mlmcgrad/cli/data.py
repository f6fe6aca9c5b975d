"""Fetch a dataset, verify it, and say where it came from and where it is cached."""

from __future__ import annotations

from rich.console import Console

from mlmcgrad.cli.settings import Data
from mlmcgrad.datasets import Dataset, cifar10, digits
from mlmcgrad.datasets.dataset import sha256
from mlmcgrad.runs.progress import bars


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
