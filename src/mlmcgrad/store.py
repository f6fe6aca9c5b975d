"""Persistent states: one for each datum of a finite data set, kept from one visit to the next.

    x0 = store[rows];  estimate = gradient.backward(x0, y, …);  store[rows] = estimate.last

A chain that goes on where it stopped an epoch ago is closer to its target than one that starts
anew: with `Average(1)` and `ISIR` this is joint stochastic approximation (Ou, Song 2020), with
block Gibbs steps of a Boltzmann machine it is persistent contrastive divergence (Tieleman 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from mlmcgrad.ranges import whole

Rows: TypeAlias = Tensor | slice | Sequence[int]


@dataclass(frozen=True)
class Remembered:
    """States of a store, some of which are not there yet: a start for kernels with a proposal."""

    points: Tensor  # (chains, *shape); 0 where nothing is known
    known: Tensor  # (chains,) bool


@final
class Store:
    """A state for each of `size` data, set and read by the rows of a batch.

    Args:
        size: how many data there are.
        shape: of a state, without the chain dimension; an integer stands for one dimension.
        dtype: of the states, torch's default one if not given.
        device: where they are kept; states are moved there when they are set.

    `store[rows]` is a start x0 for `MarkovGradient`. Rows that were never set are drawn from the
    proposal by `ISIR`; other kernels have none, so that their rows must be set first.

    Example:
        >>> store = Store(100, 2)
        >>> store[[3, 7]] = torch.ones(2, 2)
        >>> store[[7]].tolist(), int(store.known.sum())
        ([[1.0, 1.0]], 2)
    """

    def __init__(
        self,
        size: int,
        shape: int | Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        whole(size, "size")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        for length in shape:
            whole(length, "shape")
        self._points = torch.zeros((size, *shape), dtype=dtype, device=device)
        self._known = torch.zeros(size, dtype=torch.bool, device=device)

    def __len__(self) -> int:
        return len(self._points)

    @property
    def known(self) -> Tensor:
        """Which data have a state, (size,) bool."""
        return self._known.clone()

    def __getitem__(self, rows: Rows) -> Tensor | Remembered:
        """Copies of the states: a tensor, or `Remembered` if some of them are not there yet."""
        index = self._index(rows)
        known = self._known[index]
        if bool(known.all()):
            return self._points[index]
        return Remembered(self._points[index], known)

    def __setitem__(self, rows: Rows, states: Tensor) -> None:
        """Keep states, (rows, *shape). A row that is named twice keeps one of its states."""
        index = self._index(rows)
        expected = (len(index), *self._points.shape[1:])
        if not isinstance(states, Tensor) or tuple(states.shape) != expected:
            got = tuple(states.shape) if isinstance(states, Tensor) else type(states).__name__
            raise ValueError(f"states must be a tensor of shape {expected}, got {got}")
        if states.is_floating_point() and not bool(states.isfinite().all()):
            raise ValueError(
                "states must be finite, got NaN or infinity, from which no chain could go on; the "
                "store is as it was"
            )
        self._points[index] = states.detach().to(self._points)
        self._known[index] = True

    def state_dict(self) -> dict[str, Tensor]:
        """Everything there is, for a checkpoint; copies."""
        return {"points": self._points.clone(), "known": self._known.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take what `state_dict` returned for a store of the same size, shape and type."""
        for name, mine in (("points", self._points), ("known", self._known)):
            other = state.get(name)
            if not isinstance(other, Tensor) or (other.shape, other.dtype) != (
                mine.shape,
                mine.dtype,
            ):
                got = f"{other.dtype} {tuple(other.shape)}" if isinstance(other, Tensor) else other
                raise ValueError(
                    f"state: {name} must be {mine.dtype} of shape {tuple(mine.shape)}, got {got}; "
                    "it is of another store"
                )
        self._points.copy_(state["points"])
        self._known.copy_(state["known"])

    def __repr__(self) -> str:
        shape, dtype = tuple(self._points.shape[1:]), self._points.dtype
        return f"Store({len(self)}, {shape}, {dtype}, known={int(self._known.sum())})"

    def _index(self, rows: Rows) -> Tensor:
        every = torch.arange(len(self), device=self._points.device)
        if isinstance(rows, slice):
            return every[rows]
        index = torch.as_tensor(rows, device=self._points.device)
        if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(
                f"rows must be a list or tensor of integers, one for each chain, got {rows!r}"
            )
        if len(index) and not (index.min() >= 0 and index.max() < len(self)):
            raise IndexError(
                f"rows must be from 0 to {len(self) - 1}, got {int(index.min())} to "
                f"{int(index.max())}"
            )
        return index.long()
