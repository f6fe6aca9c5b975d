"""Rows that are done in pieces: by this process, or by several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Spread: TypeAlias = Callable[[Sequence[Tensor], Callable[..., Tensor], int], Tensor]
"""`spread(rows, do, chunk)`: what a function makes of rows of tensors, a row for each, by calls
`do(*rows)` with at most `chunk` of them."""


def here(rows: Sequence[Tensor], do: Callable[..., Tensor], chunk: int) -> Tensor:
    """All of them in this process.

    Example:
        >>> here([torch.arange(3.0), torch.ones(3)], torch.add, chunk=2)
        tensor([1., 2., 3.])
    """
    return torch.cat([do(*piece) for piece in zip(*(t.split(chunk) for t in rows), strict=True)])
