"""Units in which the likelihood is well conditioned, and where the search starts.

The fixed columns are made orthonormal, X = QR with QᵀQ = rows · I, the random columns have mean
square 1, and a gaussian response has the standard deviation 1. What is found in these units is
brought back by θ = Tθ′ + t.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family, Gaussian
from mlmcgrad.mixed.parameters import Layout

_STEPS = 25
_LARGEST = 8.0  # of a linear predictor that the search starts with, unless a response asks for it
_RIDGE = 1e-6


@dataclass(frozen=True)
class Scale:
    """From the units of the search to those of the user: θ = Tθ′ + t."""

    matrix: Tensor  # T, (θ, θ)
    shift: Tensor  # t, (θ,)
    log_volume: float  # what is added to the log-likelihood
    columns: tuple[Tensor, ...]  # for each factor, what its random effects are divided by, (q,)

    def point(self, theta: Tensor) -> Tensor:
        """θ from θ′."""
        return self.matrix @ theta + self.shift

    def back(self, theta: Tensor) -> Tensor:
        """θ′ from θ."""
        return torch.linalg.solve(self.matrix, theta - self.shift)

    def covariance(self, covariance: Tensor) -> Tensor:
        """Of θ from that of θ′."""
        return self.matrix @ covariance @ self.matrix.T


def scaled(design: Design, family: Family) -> tuple[Design, Scale]:
    """The design in other units, and the way back."""
    rows = len(design.y)
    unit = float(design.y.std()) if isinstance(family, Gaussian) else 1.0
    q, r = torch.linalg.qr(design.fixed)
    columns = torch.cat([effects.columns for effects in design.effects], 1)
    sizes = columns.square().mean(0).sqrt()
    blocks = tuple(size for effects in design.effects for size in effects.blocks)
    layout = Layout(design.fixed.shape[1], blocks, dispersion=family.dispersion is not None)
    diagonal = torch.ones(layout.size, dtype=torch.float64)
    diagonal[layout.fixed : layout.fixed + len(layout.entries[0])] = unit / sizes[layout.entries[0]]
    matrix = torch.diag(diagonal)
    matrix[: layout.fixed, : layout.fixed] = torch.linalg.inv(r) * rows**0.5 * unit
    shift = torch.zeros(layout.size, dtype=torch.float64)
    if layout.dispersion and unit != 1.0:
        shift[-1] = torch.tensor(unit).log()
    parts = sizes.split([effects.columns.shape[1] for effects in design.effects])
    effects = tuple(
        replace(e, columns=e.columns / size) for e, size in zip(design.effects, parts, strict=True)
    )
    new = replace(
        design, y=design.y / unit, offset=design.offset / unit, fixed=q * rows**0.5, effects=effects
    )
    log_volume = -rows * float(torch.tensor(unit, dtype=torch.float64).log())
    return new, Scale(matrix, shift, log_volume, tuple(size / unit for size in parts))


def start(design: Design, family: Family, layout: Layout) -> Tensor:
    """Where to begin: the model without random effects, and standard deviations of about 1.

    Args:
        design: in units of the search.
        family: of the response.
        layout: of θ.
    """
    x, offset = design.fixed, design.offset
    log_dispersion = torch.zeros((), dtype=torch.float64)
    target = (family.start(design.y, design.trials) - offset)[:, None]
    beta = torch.linalg.lstsq(x, target).solution[:, 0]
    largest = max(_LARGEST, float(target.abs().max()))
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    for _ in range(_STEPS):
        eta = (x @ beta + offset).clamp(-largest, largest)
        _, slope, curvature = family.slopes(eta, design.y, design.trials, log_dispersion)
        weighted = x.T @ (curvature[:, None] * x)
        step = torch.linalg.solve(weighted + _RIDGE * weighted.diagonal().mean() * eye, x.T @ slope)
        new = beta + step
        reached = float((x @ new).abs().max())
        if reached > largest:  # separation, or a bad step: as far as is reasonable
            beta = new * (largest / reached)
            break
        beta = new
        if float(step.abs().max()) < 1e-6:
            break
    theta = torch.zeros(layout.size, dtype=torch.float64)
    theta[: layout.fixed] = beta
    theta[layout.diagonal] = 0.5
    if isinstance(family, Gaussian):
        residual = design.y - x @ beta - offset
        theta[-1] = (0.8 * residual.std()).log()
        theta[layout.diagonal] = 0.5 * residual.std()
    return theta
