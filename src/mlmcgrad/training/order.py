"""The order in which the images are used: a fresh permutation for every epoch.

What is left over at the end of an epoch and does not fill a batch is not used in that epoch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Order:
    """Batches of indices without end.

    Args:
        count: images.
        batch_size: indices in a batch.
        seed: of the permutations.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        if batch_size > count:
            raise ValueError(f"batch_size must be at most {count}, the images, got {batch_size}")
        self.count, self.batch_size = count, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self._begin_epoch()

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.count // self.batch_size

    def next(self) -> Tensor:
        """The next batch of indices."""
        if self._position == self.per_epoch:
            self._begin_epoch()
        begin = self._position * self.batch_size
        self._position += 1
        return self._permutation[begin : begin + self.batch_size]

    def state(self) -> dict[str, Any]:
        """Where it is: the generator before this epoch's permutation, and the batches used."""
        return {"before": self._before, "position": self._position}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.generator.set_state(state["before"])
        self._begin_epoch()
        self._position = state["position"]

    def _begin_epoch(self) -> None:
        self._before = self.generator.get_state()
        self._permutation = torch.randperm(self.count, generator=self.generator)
        self._position = 0


__all__ = ["Order"]
