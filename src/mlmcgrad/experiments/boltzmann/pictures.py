"""The binary pictures that the machines are trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from mlmcgrad.datasets import digits
from mlmcgrad.experiments.boltzmann.settings import Data
from mlmcgrad.kernels.gibbs import binary_states


def pictures(name: Data) -> Tensor:
    """Rows of 0 and 1, float32: (32, 16) bars and stripes, or (1500, 64) digits."""
    if name == "bars":
        return bars_and_stripes(4)
    return torch.from_numpy(digits().train.copy()).flatten(1).ge(8).float()


def bars_and_stripes(side: int) -> Tensor:
    """All pictures whose rows, or whose columns, are of one colour: 2^{side+1} with two doubles.

    Reference: Hinton, Sejnowski (1986); as in Schulz, Müller, Behnke (2010).
    """
    colours = binary_states(side)
    stripes = colours[:, :, None].expand(-1, side, side)
    return torch.cat([stripes, stripes.transpose(1, 2)]).flatten(1)


def ceiling(data: Tensor) -> float:
    """The largest mean log-likelihood that any model can have: that of the rows' own law."""
    _, counts = data.unique(dim=0, return_counts=True)
    share = counts.double() / len(data)
    return float((share * share.log()).sum())
