"""The maximum likelihood of factor models with binary items, by importance sampling.

Each person's posterior has a normal proposal with its own mean and covariance, 1.2 times as wide.
Newton steps with the outer products of the persons' scores lead to the maximum; the first ones
adapt the proposals. Two likelihoods are compared by the same draws, so that most of the noise
cancels: by those of the search, where its maximum looks too good, and by others, where it looks too
bad by the same amount to first order; the mean of the two counts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from mlmcgrad.factors import FactorModel, Loadings

_DRAWS = 1500  # per person and stream
_STEPS = 30
_ADAPT = 6  # of these steps
_WIDER = 1.2
_PERSONS = 20  # at once


class ItemMaximum:
    """The maximum, and what other parameters lose of its log-likelihood.

    Args:
        start: parameters near the maximum, for example those that simulated the data.
        y: answers 0 and 1, (persons, items).
    """

    def __init__(self, start: Loadings, y: Tensor) -> None:
        self.theta, self.y = copy.deepcopy(start).double(), y.double()
        count = self.theta.shape[1]
        self.mean = torch.zeros(len(y), count, dtype=torch.float64)
        self.root = self.theta.root.detach().expand(len(y), count, count)
        with torch.no_grad():
            for step in range(_STEPS):
                decrement = self._newton(adapt=step < _ADAPT)
                if step >= _ADAPT and decrement < 1e-4:
                    break
        self.decrement = decrement

    @torch.no_grad()
    def lost(self, theta: Loadings) -> tuple[float, float]:
        """Return log p(y; maximum) − log p(y; θ), and its standard error."""
        theta = copy.deepcopy(theta).double()
        total = variance = 0.0
        for rows, z, log_q in (*self._draws(0), *self._draws(1)):
            best, other = (_log_joint(t, z, self.y[rows]) - log_q for t in (self.theta, theta))
            means = [w.logsumexp(1) - math.log(w.shape[1]) for w in (best, other)]
            total += 0.5 * float((means[0] - means[1]).sum())
            relative = (best - means[0][:, None]).exp() - (other - means[1][:, None]).exp()
            variance += 0.25 * float(relative.var(1).sum()) / relative.shape[1]
        return total, math.sqrt(variance)

    def errors(self, theta: Loadings) -> Tensor:
        """Return the errors of the free loadings in standard errors."""
        return (theta.free.detach().double() - self.theta.free.detach()) / self.se

    def _draws(self, stream: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield rows, draws (rows, draws, factors) and their log densities; always the same."""
        for rows in torch.arange(len(self.y)).split(_PERSONS):
            rng = torch.Generator().manual_seed(len(self.y) * stream + int(rows[0]))
            count = self.mean.shape[1]
            noise = torch.randn(len(rows), _DRAWS // 2, count, generator=rng, dtype=torch.float64)
            noise = torch.cat([noise, -noise], 1)
            root = _WIDER * self.root[rows]
            log_q = -0.5 * noise.square().sum(2) - 0.5 * count * math.log(2.0 * math.pi)
            log_q = log_q - root.diagonal(dim1=1, dim2=2).log().sum(1)[:, None]
            yield rows, self.mean[rows][:, None] + noise @ root.mT, log_q

    def _newton(self, *, adapt: bool) -> float:
        """Do a step; return how much it gains to second order, times two."""
        theta, scores = self.theta, []
        assert theta.raw is not None
        item, factor = theta.place
        means, seconds = [], []
        for rows, z, log_q in self._draws(0):
            y = self.y[rows]
            weight = torch.softmax(_log_joint(theta, z, y) - log_q, 1)
            centre = z @ theta.loadings.T + theta.intercept
            residual = (y[:, None] - centre.sigmoid()) * weight[:, :, None]
            means.append(torch.einsum("ns,nsf->nf", weight, z))
            seconds.append(torch.einsum("ns,nsf,nsg->nfg", weight, z, z))
            loadings = torch.einsum("nsj,nsf->njf", residual, z)[:, item, factor]
            scores.append(torch.cat([loadings, residual.sum(1)], 1))
        mean, second = torch.cat(means), torch.cat(seconds)
        score = torch.cat([torch.cat(scores), self._prior_score(second)], 1)
        information = score.T @ score
        step = torch.linalg.solve(information, score.sum(0))
        decrement = float(score.sum(0) @ step)
        # Half a step: outer products can be less than half of the observed information.
        step = step * min(0.5, 0.5 / float(step.abs().max()))
        parts = step.split([theta.free.numel(), len(theta.intercept), theta.raw.numel()])
        for parameter, part in zip((theta.free, theta.intercept, theta.raw), parts, strict=True):
            parameter.add_(part)
        self.se = torch.linalg.inv(information).diagonal().sqrt()[: theta.free.numel()]
        if adapt:
            covariance = second - mean[:, :, None] * mean[:, None, :]
            self.mean, self.root = mean, torch.linalg.cholesky(covariance)
        return decrement

    def _prior_score(self, second: Tensor) -> Tensor:
        """Return the gradient of E[log N(z; 0, Σ)] for each person, given its E[z zᵀ]."""
        theta = copy.deepcopy(self.theta)

        def terms(raw: Tensor) -> Tensor:
            lower = torch.eye(second.shape[1], dtype=torch.float64)
            i, j = torch.tril_indices(second.shape[1], second.shape[1], -1)
            lower = lower.index_put((i, j), raw)
            root = lower / lower.norm(dim=1, keepdim=True)
            precision = torch.cholesky_inverse(root)
            return torch.cat([precision.flatten(), root.diagonal().log().sum()[None]])

        assert theta.raw is not None
        with torch.enable_grad():
            slopes = torch.autograd.functional.jacobian(terms, theta.raw.detach())
        return -0.5 * second.flatten(1) @ slopes[:-1] - slopes[-1]


def _log_joint(theta: Loadings, z: Tensor, y: Tensor) -> Tensor:
    """Return log p(y, z), (rows, draws)."""
    centre = z @ theta.loadings.T + theta.intercept
    items = torch.einsum("nsj,nj->ns", centre, y) - functional.softplus(centre).sum(2)
    return items + theta.log_prior(z.flatten(0, 1)).view(z.shape[:2])


def simulated(seed: int) -> tuple[Tensor, FactorModel]:
    """Return answers of 1000 persons to 30 hard items of 5 correlated factors, and their model."""
    rng = torch.Generator().manual_seed(2000 + seed)
    persons, items, factors = 1000, 30, 5
    item = torch.arange(items)
    pattern = torch.zeros(items, factors)
    pattern[item, item % factors] = 1.5 + torch.rand(items, generator=rng)
    # Two items of three need a second trait, so that the posterior's traits depend on each other.
    second = item[factors:-factors]
    others = (second + second // factors) % factors
    pattern[second, others] += 0.5 + torch.rand(len(second), generator=rng)
    intercept = -1.5 - 2.0 * torch.rand(items, generator=rng)
    correlation = 0.4 + 0.6 * torch.eye(factors)
    root = torch.linalg.cholesky(correlation)
    z = torch.randn(persons, factors, generator=rng) @ root.T
    chance = torch.sigmoid(z @ pattern.T + intercept)
    y = (torch.rand(persons, items, generator=rng) < chance).float()
    model = FactorModel(y, pattern, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.decoder.intercept.copy_(intercept)
        assert model.decoder.raw is not None
        lower = root / root.diagonal()[:, None]
        model.decoder.raw.copy_(lower[tuple(torch.tril_indices(factors, factors, -1))])
    return y, model
