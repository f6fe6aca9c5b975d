"""Settings of `mlmcgrad data`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


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
