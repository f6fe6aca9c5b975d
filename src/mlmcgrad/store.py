"""Persistent states, one per datum of a finite data set, kept from one visit to the next.

    x0 = store[rows];  estimate = gradient.backward(x0, y, …);  store[rows] = estimate.last

A chain that continues from its state of an epoch ago is closer to its target than a new chain: with
`Average(1)` and `ISIR` this is joint stochastic approximation (Ou, Song 2020), with block Gibbs
steps of a Boltzmann machine it is persistent contrastive divergence (Tieleman 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from mlmcgrad._checks import whole

Rows: TypeAlias = Tensor | slice | Sequence[int]


@dataclass(frozen=True)
class Remembered:
    """A start for kernels with a proposal: the states of a store, some of which are not set yet."""

    points: Tensor  # (chains, *shape); 0 where no state is known
    known: Tensor  # (chains,) bool


@final
class Store:
    """A state for each of `size` data, set and read by the rows of a batch.

    Args:
        size: number of data.
        shape: shape of a state, without the chain dimension; an integer stands for one dimension.
        dtype: dtype of the states, by default torch's default dtype.
        device: the device of the store; states are moved to it when they are set.

    `store[rows]` is a tensor, a start x0 for `MarkovGradient`; its rows must have been set. Kernels
    with a proposal (`ISIR`) draw missing states: pass them `store.start(rows)`.

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
        """Whether each datum has a state, (size,) bool."""
        return self._known.clone()

    def __getitem__(self, rows: Rows) -> Tensor:
        """Return copies of the states, (rows, *shape).

        Raises:
            LookupError: some rows were never set; the message names them.
        """
        index = self._index(rows)
        unknown = index[~self._known[index]].tolist()
        if unknown:
            shown = ", ".join(map(str, unknown[:5])) + (", …" if len(unknown) > 5 else "")
            raise LookupError(
                f"the store has no state yet for {len(unknown)} of {len(index)} rows ({shown}); "
                "set them first, store[rows] = …, or pass store.start(rows) to a kernel with a "
                "proposal such as ISIR, which draws them"
            )
        return self._points[index]

    def start(self, rows: Rows) -> Remembered:
        """Return a start x0 for kernels with a proposal, which draw the states that are not set."""
        index = self._index(rows)
        return Remembered(self._points[index], self._known[index])

    def __setitem__(self, rows: Rows, states: Tensor) -> None:
        """Keep states, (rows, *shape). A row that is named twice keeps one of its states."""
        index = self._index(rows)
        expected = (len(index), *self._points.shape[1:])
        if not isinstance(states, Tensor) or tuple(states.shape) != expected:
            got = tuple(states.shape) if isinstance(states, Tensor) else type(states).__name__
            raise ValueError(f"states must be a tensor of shape {expected}, got {got}")
        # A complex number is not its real part.
        partial = states.is_complex() and not self._points.is_complex()
        kept = (states.real if partial else states).detach().to(self._points)
        if not bool(kept.isfinite().all()):
            raise ValueError(
                f"states must be finite in {kept.dtype}, got NaN or infinity, from which no chain "
                "can continue; the store is unchanged"
            )
        # Rounding of fractions is no loss.
        real = states.is_floating_point() or states.is_complex()
        rounded = real and torch.can_cast(states.dtype, kept.dtype)
        if partial or not (rounded or torch.equal(kept.to(states), states)):
            raise ValueError(
                f"states must be numbers that {kept.dtype} can hold, got others of {states.dtype}; "
                "the store is unchanged; give it the dtype of the states, Store(…, dtype=…)"
            )
        self._points[index] = kept
        self._known[index] = True

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of all states, for a checkpoint."""
        return {"points": self._points.clone(), "known": self._known.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned for a store of the same size, shape and dtype."""
        points, known, mine = state["points"], state["known"], self._points
        if (points.shape, points.dtype) != (mine.shape, mine.dtype):
            raise ValueError(
                f"state: points must be {mine.dtype} of shape {tuple(mine.shape)}, got "
                f"{points.dtype} of shape {tuple(points.shape)}; it is of another store"
            )
        self._points.copy_(points)
        self._known.copy_(known)

    def __repr__(self) -> str:
        shape, dtype = tuple(self._points.shape[1:]), self._points.dtype
        return f"Store({len(self)}, {shape}, {dtype}, known={int(self._known.sum())})"

    def _index(self, rows: Rows) -> Tensor:
        if isinstance(rows, slice):
            return torch.arange(len(self), device=self._points.device)[rows]
        index = torch.as_tensor(rows, device=self._points.device)
        if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(
                f"rows must be a list or tensor of integers, one for each chain, got {rows!r}"
            )
        return index.long()
