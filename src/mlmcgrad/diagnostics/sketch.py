"""Many parameters as few numbers that keep inner products: a count sketch.

Every parameter is added, with a random sign s_i, to one of m numbers b(i),

    S x = Σ_i s_i x_i e_{b(i)},     E ⟨Sx, Sy⟩ = ⟨x, y⟩,     sd ‖Sx‖² ≤ √(2/m) ‖x‖²,

which is 6 % for m = 512. Signs and places are the same everywhere, so that what is projected can be
compared. It takes the memory of two vectors.

Reference:
    Charikar, Chen, Farach-Colton (2004), Finding frequent items in data streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MOST = 512


@dataclass(frozen=True)
class Sketch:
    """A projection of gradients; up to 512 parameters stay as they are.

    Attributes:
        parameters: length of a gradient.

    Example:
        >>> few, many = Sketch(2), Sketch(100_000)
        >>> few(torch.ones(2, dtype=torch.float64)).tolist()
        [1.0, 1.0]
        >>> many(torch.ones(3, 100_000, dtype=torch.float64)).shape
        torch.Size([3, 512])
    """

    parameters: int

    @property
    def size(self) -> int:
        """m, numbers after the projection."""
        return min(self.parameters, _MOST)

    def __call__(self, x: Tensor) -> Tensor:
        """(…, parameters) float64 → (…, m), on the CPU."""
        if self.parameters <= _MOST:
            return x.cpu()
        place, sign = self._places()
        found = torch.zeros(*x.shape[:-1], _MOST, dtype=torch.float64)
        return found.index_add(-1, place, x.cpu() * sign)

    def variances(self, variance: Tensor) -> Tensor:
        """(parameters,) variances of independent coordinates → (m,)."""
        if self.parameters <= _MOST:
            return variance.cpu()
        place, _ = self._places()
        return torch.zeros(_MOST, dtype=torch.float64).index_add(0, place, variance.cpu())

    def _places(self) -> tuple[Tensor, Tensor]:
        """b(i) and s_i."""
        generator = torch.Generator().manual_seed(0)
        place = torch.randint(0, _MOST, (self.parameters,), generator=generator)
        sign = torch.randint(0, 2, (self.parameters,), generator=generator)
        return place, 2.0 * sign.double() - 1.0
