"""The likelihood of a model with several grouping factors, nested or crossed.

No group is independent of the others, so the random effects of all groups are one vector
(`joint.py`). Its posterior is sampled by MALA chains over the whole vector, in coordinates that
move with θ (`derivatives.py`). The score is the mean over chains whose random lengths and signed
weights are those of `MLMCSum`: its expectation is that of the longest chain, T steps after the
discarded ones.

In the coordinates of Laplace's approximation, u = mode + Cx, x is nearly N(0, I), so one step size
serves all coordinates. For N(0, I) in D dimensions the best one is
h = ½ · 1.65² · D^{-1/3}, with an acceptance of 0.57 (Roberts and Rosenthal, 1998). Chains start
from x ~ N(0, I), independent of each other. The first 12/h steps are discarded: where it was
measured (binary responses, D = 80 and 300), the error of Laplace's approximation fell by a factor
of e in at most 3/h steps. Along the path

    log π_λ(x) = (1 − λ) log N(x; 0, I) + λ log p_θ(y, mode + Cx)

the start is λ = 0 and the posterior λ = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from mlmcgrad.estimators import Average, Estimator, MLMCSum
from mlmcgrad.kernels import MALA
from mlmcgrad.kernels.base import Outcome, Simulation
from mlmcgrad.measure import Measure, concatenate
from mlmcgrad.mixed.crossed.derivatives import (
    Motion,
    complete_information,
    information,
    laplace_information,
    moving_scores,
    positive,
)
from mlmcgrad.mixed.crossed.joint import Joint, Laplace, laplace
from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.search import LogLikelihood

_BEST = 0.5 * 1.65**2
_WARM = 12.0
_CHAINS = 32  # chains in an estimate of the score
# At most 64 steps after the discarded ones; 16, the fewest, is about the autocorrelation time.
_LEVELS = MLMCSum(64.0, assignment="balanced", base=16)
_LONG = Average(16)  # steps of the chains for information and effects
_MANY = 64  # number of these chains
_FEW = 16  # states for the complete-data information
_NEAR = 0.25  # change of the linear predictor up to which a motion is used again
_ACCEPTANCE = 0.57
_ANNEALED = 256  # chains for the log-likelihood
_FEWEST, _MOST = 32, 1024  # temperatures: at first, and at most
_SPREAD = 0.4  # standard deviation of log w above which a few chains have most of the weight


@final
class Crossed:
    """The likelihood as a function of θ, estimated by chains over all random effects.

    θ holds the entries of Λ of all factors, in the order of `design.effects`; see `Layout`.

    Args:
        design: the data; its columns have similar scales.
        family: the family of the response.
        generator: source of all randomness.

    Attributes:
        layout: the layout of θ.
    """

    def __init__(self, design: Design, family: Family, generator: torch.Generator) -> None:
        self._joint = Joint(design, family)
        self.layout: Layout = self._joint.layout
        self._generator = generator
        self._step = step_size(self._joint.dimension)
        self._mode: Tensor | None = None  # the last one
        self._motion: Motion | None = None

    def scores(self, theta: Tensor, count: int) -> Tensor:
        """Return estimates of the score, (count, θ), whose only bias is that of T steps."""
        here = self._laplace(theta)
        return torch.stack([self._score(here) for _ in range(count)])

    def adaptive(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score, and Laplace's information made positive definite.

        There are no independent groups whose outer products could stand for the information.
        Laplace's information needs no random numbers. Far from the maximum it may be indefinite;
        there the complete-data information bounds it on both sides (`derivatives.positive`).
        """
        here = self._laplace(theta)
        u = here.at(self._normal(_FEW, self._generator))
        complete = complete_information(self._joint, theta, u)
        return self._score(here), positive(laplace_information(here), complete)

    def information(self, theta: Tensor, effort: int = 1) -> Tensor:
        """Return estimates of the observed information, one for each chain, (64 · effort, θ, θ)."""
        here, chains = self._laplace(theta), effort * _MANY
        states = self._run(here, _LONG, chains)
        terms = information(here, states.points, states.coefficient / chains)
        terms = states.coefficient[:, None, None] * terms
        return terms.new_zeros(chains, *terms.shape[1:]).index_add_(0, states.owner, terms)

    def log_likelihood(self, theta: Tensor, generator: torch.Generator) -> LogLikelihood:
        """Estimate the log-likelihood, in one part."""
        here = self._laplace(theta)
        x = self._normal(_ANNEALED, generator)
        found = annealed(here, x, _FEWEST, self._step, generator)
        spread = float((1.0 + found.deviation).log().std())
        if spread > _SPREAD:
            # The variance of log w falls like 1/temperatures.
            temperatures = min(_MOST, math.ceil(_FEWEST * (spread / _SPREAD) ** 2))
            x = self._normal(_ANNEALED, generator)
            found = annealed(here, x, temperatures, self._step, generator)
        return found

    def effects(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return mean and covariance of b = Λu given the data, for each factor.

        With δ = u − mode and w = −H^{-1} ∇_u log p(y, u), the means of w and of
        ½(δwᵀ + wδᵀ) − H^{-1} are 0 (Stein's identity), so those of δ − w and
        δδᵀ − ½(δwᵀ + wδᵀ) + H^{-1} are the posterior moments. Where the posterior is normal, w = δ,
        and they are exact.
        """
        joint, here = self._joint, self._laplace(theta)
        states = self._run(here, _LONG, _MANY)
        c, root = states.coefficient / _MANY, here.root
        delta = here.at(states.points) - here.mode[:, None]
        w = -root @ (root.T @ here.density(states.points)[1])
        factor, found = self.layout.factor(theta), []
        for span in joint.spans:
            own = factor[span.effects, span.effects]
            of_delta, of_w = joint.blocks(span, delta), joint.blocks(span, w)
            of_root = joint.blocks(span, root)
            moved = (of_delta - of_w) @ c  # (groups, q_f)
            half = (c * of_delta) @ (0.5 * of_delta - 0.5 * of_w).mT
            second = of_root @ of_root.mT + half + half.mT
            mean = joint.blocks(span, here.mode[:, None])[..., 0] + moved
            covariance = second - moved[:, :, None] * moved[:, None, :]
            found.append((mean @ own.T, own @ covariance @ own.T))
        return found

    def length(self, step: Tensor) -> float:
        """Return how far a step of θ moves the linear predictor of groups with ‖u‖ about 2."""
        of_beta = self._joint.x @ self.layout.beta(step)
        of_factor = (self._joint.z @ self.layout.factor(step)).norm(dim=1)
        return float((of_beta.abs() + 2.0 * of_factor).max())

    def _laplace(self, theta: Tensor) -> Laplace:
        """Find Laplace's approximation at θ, starting from the mode of the last call."""
        found = laplace(self._joint, theta, self._mode)
        self._mode = found.mode
        return found

    def _score(self, here: Laplace) -> Tensor:
        motion = self._motion
        if motion is None or self.length(here.theta - motion.theta) > _NEAR:
            self._motion = motion = Motion.at(here)
        states = self._run(here, _LEVELS, _CHAINS)
        return states.coefficient @ moving_scores(here, motion, states.points) / _CHAINS

    def _run(self, here: Laplace, estimator: Estimator, chains: int) -> Measure:
        """Run chains and return their states; the acceptance rate adapts the next step size."""
        x = self._normal(chains, self._generator)
        states, outcome = run(here, estimator, x, self._step, self._generator)
        acceptance = outcome.accepted / (outcome.evaluations - chains)
        best = step_size(self._joint.dimension)
        changed = self._step * 2.0 ** (acceptance - _ACCEPTANCE)
        self._step = min(max(changed, 0.05 * best), best)
        return states

    def _normal(self, chains: int, generator: torch.Generator) -> Tensor:
        """Draw whitened states from Laplace's approximation, N(0, I)."""
        return torch.randn(chains, self._joint.dimension, dtype=torch.float64, generator=generator)


def step_size(dimension: int) -> float:
    """Return the h that is best for N(0, I)."""
    return _BEST * dimension ** (-1.0 / 3.0)


def run(
    here: Laplace, estimator: Estimator, x: Tensor, step: float, generator: torch.Generator
) -> tuple[Measure, Outcome]:
    """Run chains of the posterior from whitened states x, (chains, D).

    The estimator counts steps from the end of the discarded ones.
    """
    kernel = MALA(_path(here, 1.0), step)
    warm = Average(1, burn_in=math.ceil(_WARM / step) - 1)
    _, outcome = _simulate(kernel, x, warm, generator)
    return _simulate(kernel, outcome.last, estimator, generator)


def annealed(
    here: Laplace, x: Tensor, temperatures: int, step: float, generator: torch.Generator
) -> LogLikelihood:
    """Estimate the log-likelihood by annealed importance sampling (Neal, 2001).

    A chain takes one step at each λ_k = k/K, k = 1 … K − 1, from x_0 ~ N(0, I). The mean of

        w = det C · exp Σ_k (λ_k − λ_{k−1}) {log p_θ(y, mode + C x_{k−1}) − log N(x_{k−1}; 0, I)}

    is the likelihood, for any number K; the larger K is, the less log w varies. With plain
    importance sampling (K = 1) its variance grows with D. The value is corrected for the bias of
    the logarithm of a mean, half its relative variance.
    """
    log_w = x.new_zeros(len(x))
    for k in range(temperatures):
        if k:
            kernel = MALA(_path(here, k / temperatures), step)
            x = _simulate(kernel, x, Average(1), generator)[1].last
        log_w += (here.density(x)[0] + _minus_log_normal(x)) / temperatures
    top = log_w.max()
    w = (log_w - top).exp()
    deviation = w / w.mean() - 1.0
    value = top + w.mean().log() + 0.5 * deviation.var() / len(x) + here.log_volume
    return LogLikelihood(value[None], deviation[None])


def _path(here: Laplace, share: float) -> Callable[[Tensor], Tensor]:
    """Return log π_λ of whitened states, with the gradient in closed form."""

    def log_density(x: Tensor) -> Tensor:
        at = x.detach()
        value, gradient = here.density(at)
        value = share * value - (1.0 - share) * _minus_log_normal(at)
        gradient = share * (gradient.T @ here.root) - (1.0 - share) * at
        # The value with its slope in x: x − at is 0.
        return value + ((x - at) * gradient).sum(1)

    return log_density


def _simulate(
    kernel: MALA, x: Tensor, estimator: Estimator, generator: torch.Generator
) -> tuple[Measure, Outcome]:
    simulation = Simulation(kernel.run(x, (), estimator.draw(len(x), None, generator), generator))
    return concatenate(list(simulation)), simulation.outcome


def _minus_log_normal(x: Tensor) -> Tensor:
    return 0.5 * (x.square().sum(1) + x.shape[1] * math.log(2.0 * math.pi))
