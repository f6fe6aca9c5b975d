"""Factor models: a few hidden traits behind many items, fitted by the exact likelihood.

    z ~ N(0, Σ) with unit variances,     η_j = b_j + Σ_f W_jf z_f,

    gaussian   y_j | z ~ N(η_j, ψ_j)                             confirmatory factor analysis
    graded     P(y_j ≥ c | z) = σ(η_j − κ_jc), c = 1, 2, …       graded response model; with two
                                                                 categories the 2PL model, κ_j1 = 0

A pattern says which loadings W are free. The likelihood of the gaussian model is known, so that it
shows what a gradient loses; that of items has an integral over z for each person. The proposal
q(z | y) is normal with independent coordinates, whose means and log scales a network maps from the
standardised items. Missing answers are NaN, and do not count.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlmcgrad.iwae.networks import LatentModel

Items: TypeAlias = Literal["gaussian", "graded"]
_LOG_SCALE = 7.0  # as for autoencoders


class Loadings(nn.Module):
    """The parameters θ of a factor model.

    Args:
        y: data, (persons, items), for starting values.
        pattern: starting values of the loadings, (items, factors); where they are 0, they stay 0.
        items: `gaussian`, or `graded` for answers 0, 1, 2, ….
        correlated: whether the correlations of the factors are free, or 0.
    """

    def __init__(self, y: Tensor, pattern: Tensor, items: Items, *, correlated: bool) -> None:
        super().__init__()
        self.place: Tensor  # of the free loadings, (2, loadings)
        self.register_buffer("place", pattern.nonzero().T)
        self.shape = tuple(pattern.shape)
        count = self.shape[1]
        self.free = nn.Parameter(pattern[pattern != 0.0].clone())
        # Free entries below the diagonal of the Cholesky factor, before its rows are normalised.
        self.raw = nn.Parameter(torch.zeros(count * (count - 1) // 2)) if correlated else None
        self.items = items
        if items == "gaussian":
            centre, variance = _moments(y)
            self.intercept = nn.Parameter(centre)
            self.log_variance = nn.Parameter(variance.log() - 1.0)
            return
        highest = int(y.nan_to_num(0.0).max())
        self.intercept = nn.Parameter(torch.zeros(self.shape[0]))
        # κ_1 = 0, and the distances of the others are exp(spacing).
        self.spacing = nn.Parameter(torch.zeros(self.shape[0], highest - 1))

    @property
    def loadings(self) -> Tensor:
        """W, (items, factors)."""
        zeros = self.free.new_zeros(self.shape)
        return zeros.index_put(tuple(self.place), self.free)

    @property
    def root(self) -> Tensor:
        """Cholesky factor of the correlations Σ, whose rows have length 1."""
        count = self.shape[1]
        lower = torch.eye(count, dtype=self.free.dtype, device=self.free.device)
        if self.raw is not None:
            i, j = torch.tril_indices(count, count, -1, device=self.raw.device)
            lower = lower.index_put((i, j), self.raw)
        return lower / lower.norm(dim=1, keepdim=True)

    @property
    def thresholds(self) -> Tensor:
        """κ of graded items, (items, categories − 1)."""
        first = torch.zeros_like(self.intercept)[:, None]
        return torch.cat([first, self.spacing.exp().cumsum(1)], 1)

    def log_prior(self, z: Tensor) -> Tensor:
        """Return log N(z; 0, Σ), (rows,)."""
        constant = 0.5 * z.shape[1] * math.log(2.0 * math.pi)
        if self.raw is None:
            return -0.5 * z.square().sum(1) - constant
        root = self.root
        white = torch.linalg.solve_triangular(root, z.T, upper=False)
        return -0.5 * white.square().sum(0) - root.diagonal().log().sum() - constant

    def log_likelihood(self, z: Tensor, y: Tensor) -> Tensor:
        """Return log p(y | z), (rows,), over the answers that are there."""
        centre = torch.addmm(self.intercept, z, self.loadings.T)
        known = ~y.isnan()
        y = torch.where(known, y, 0.0)
        if self.items == "gaussian":
            error = (y - centre).square() * torch.exp(-self.log_variance)
            each = -0.5 * (error + self.log_variance + math.log(2.0 * math.pi))
        elif not self.spacing.numel():
            each = y * centre - functional.softplus(centre)
        else:
            # P(y ≥ c) falls with c: from 1 at c = 0 to 0 above the last category.
            edges = functional.pad(self.thresholds, (1, 1))
            edges[:, 0], edges[:, -1] = -math.inf, math.inf
            category, item = y.long(), torch.arange(len(edges), device=y.device)
            above, below = (centre - edges[item, category + k] for k in (0, 1))
            # log(σ(a) − σ(b)) = log σ(a) + log σ(−b) + log(1 − e^{b−a}), without cancellation.
            gap = (below - above).clamp(max=-1e-7)
            inner = torch.log(-torch.expm1(gap))
            each = functional.logsigmoid(above) + functional.logsigmoid(-below) + inner
        return torch.where(known, each, 0.0).sum(1)


class FactorModel(nn.Module):
    """A factor model and its proposal q(z | y).

    Args:
        y: data, (persons, items), for starting values and to standardise the items.
        pattern: starting values of the loadings, (items, factors); where they are 0, they stay 0.
        items: `gaussian`, or `graded` for answers 0, 1, 2, ….
        correlated: whether the correlations of the factors are free, or 0.
        hidden: units of the hidden layer of q; 0 for linear means and log scales.
        generator: source of the initial parameters of q.
    """

    log_q = staticmethod(LatentModel.log_q)
    propose = staticmethod(LatentModel.propose)

    def __init__(
        self,
        y: Tensor,
        pattern: Tensor,
        items: Items = "graded",
        *,
        correlated: bool = True,
        hidden: int = 0,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if items not in get_args(Items):
            raise ValueError(f"items must be one of {get_args(Items)}, got {items!r}")
        if pattern.shape[0] != y.shape[1] or not bool((pattern != 0.0).any(0).all()):
            raise ValueError(
                f"pattern must have a row for each of the {y.shape[1]} items and a free loading "
                f"in each column, got shape {tuple(pattern.shape)}"
            )
        self.factors = pattern.shape[1]
        self.decoder = Loadings(y, pattern, items, correlated=correlated)
        self.encoder = _Encoder(y, pattern.shape[1], hidden, generator)

    def log_joint(self, z: Tensor, y: Tensor) -> Tensor:
        """Return log p_θ(y, z), (rows,)."""
        return self.decoder.log_likelihood(z, y) + self.decoder.log_prior(z)

    def log_weight(self, z: Tensor, y: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
        """Return log w = log p_θ(y, z) − log q_φ(z | y), (rows,)."""
        return self.log_joint(z, y) - self.log_q(z, mean, log_scale)


class _Encoder(nn.Module):
    """Maps items to mean and log scale of q(z | y), (rows, factors) each."""

    def __init__(self, y: Tensor, factors: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        centre, variance = _moments(y)
        self.centre: Tensor
        self.scale: Tensor
        self.register_buffer("centre", centre)
        self.register_buffer("scale", variance.sqrt())
        widths = [y.shape[1], *([hidden] if hidden else []), 2 * factors]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layer = nn.utils.skip_init(nn.Linear, before, after)
            bound = math.sqrt(3.0 / before)
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.ReLU()]
        with torch.no_grad():  # q begins close to the prior
            layer.weight.mul_(0.1)
        self.body = nn.Sequential(*layers[:-1])

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log scale."""
        x = ((y - self.centre) / self.scale).nan_to_num(0.0)
        mean, log_scale = self.body(x).chunk(2, dim=1)
        return mean, log_scale.clamp(-_LOG_SCALE, _LOG_SCALE)


def gaussian_log_likelihood(model: FactorModel, y: Tensor) -> float:
    """Return the exact log-likelihood of gaussian items without missing values."""
    theta = model.decoder
    with torch.no_grad():
        loadings, root = theta.loadings.double(), theta.root.double()
        covariance = loadings @ root @ root.T @ loadings.T
        covariance += torch.diag(theta.log_variance.double().exp())
        law = torch.distributions.MultivariateNormal(theta.intercept.double(), covariance)
        return float(law.log_prob(y.double()).sum())


def _moments(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each item over the answers that are there."""
    centre = y.nanmean(0)
    variance = (y - centre).square().nanmean(0)
    if not bool((variance > 0.0).all()):
        constant = (~(variance > 0.0)).nonzero()[:, 0].tolist()
        raise ValueError(f"y must vary in each item; constant or empty: items {constant}")
    return centre, variance
