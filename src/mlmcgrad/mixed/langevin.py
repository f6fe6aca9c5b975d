"""Chains over the random effects of all groups, by `MALA`.

In the coordinates of Laplace's approximation, u = mode + Cx (`laplace.py`), x is nearly N(0, I), so
one step size serves all of them. For N(0, I) in D dimensions the best one is
h = ½ · 1.65² · D^{-1/3}, with an acceptance of 0.57 (Roberts and Rosenthal, 1998). Chains start
from x ~ N(0, I), independent of each other. The first 12/h steps do not count: what Laplace's
approximation is wrong by fell by a factor e in at most 3/h steps where it was measured (binary
responses, D = 80 and 300). Along the path

    log π_λ(x) = (1 − λ) log N(x; 0, I) + λ log p_θ(y, mode + Cx)

the start is λ = 0 and the posterior λ = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mlmcgrad.estimators import Average, Estimator
from mlmcgrad.kernels import MALA
from mlmcgrad.kernels.base import Outcome, Simulation
from mlmcgrad.measure import Measure, concatenate
from mlmcgrad.mixed.joint import Joint
from mlmcgrad.mixed.laplace import Laplace
from mlmcgrad.mixed.likelihood import LogLikelihood

_BEST = 0.5 * 1.65**2
_WARM = 12.0


def step_size(dimension: int) -> float:
    """The h that is best for N(0, I)."""
    return _BEST * dimension ** (-1.0 / 3.0)


def run(
    joint: Joint,
    theta: Tensor,
    approximation: Laplace,
    estimator: Estimator,
    *,
    chains: int,
    step: float,
    generator: torch.Generator,
) -> tuple[Measure, Outcome]:
    """Chains of the posterior from draws of Laplace's approximation; states are whitened.

    Args:
        joint: the density.
        theta: θ.
        approximation: Laplace's at θ.
        estimator: of what follows the steps that do not count.
        chains: how many there are.
        step: h.
        generator: source of all randomness.
    """
    kernel = MALA(_path(joint, theta, approximation, 1.0), step)
    x = _start(chains, joint.dimension, generator)
    warm = Average(1, burn_in=math.ceil(_WARM / step) - 1)
    x = _outcome(kernel, x, warm, generator).last
    plan = estimator.plan(chains, None, generator)
    simulation = Simulation(kernel.run(x, (), plan, generator))
    return concatenate(list(simulation)), simulation.outcome


def annealed(
    joint: Joint,
    theta: Tensor,
    approximation: Laplace,
    *,
    temperatures: int,
    chains: int,
    step: float,
    generator: torch.Generator,
) -> LogLikelihood:
    """The log-likelihood, by annealed importance sampling (Neal, 2001).

    A chain takes one step at each λ_k = k/K, k = 1 … K − 1, from x_0 ~ N(0, I). The mean of

        w = det C · exp Σ_k (λ_k − λ_{k−1}) {log p_θ(y, mode + C x_{k−1}) − log N(x_{k−1}; 0, I)}

    is the likelihood, for any number K; log w varies the less, the larger K is. With importance
    sampling (K = 1) its variance grows with D. The value is corrected for the bias of the
    logarithm of a mean, half its relative variance.
    """
    x = _start(chains, joint.dimension, generator)
    log_w = x.new_zeros(chains)
    for k in range(temperatures):
        if k:
            kernel = MALA(_path(joint, theta, approximation, k / temperatures), step)
            x = _outcome(kernel, x, Average(1), generator).last
        log_p, _ = joint.density(theta, approximation.at(x))
        log_w += (log_p + _minus_log_normal(x)) / temperatures
    top = log_w.max()
    w = (log_w - top).exp()
    deviation = w / w.mean() - 1.0
    value = top + w.mean().log() + 0.5 * deviation.var() / chains + approximation.log_volume
    return LogLikelihood(value[None], deviation[None])


def _path(
    joint: Joint, theta: Tensor, approximation: Laplace, share: float
) -> Callable[[Tensor], Tensor]:
    """Log π_λ of whitened states, with the gradient in closed form."""

    def log_density(x: Tensor) -> Tensor:
        at = x.detach()
        value, gradient = joint.density(theta, approximation.at(at))
        value = share * value - (1.0 - share) * _minus_log_normal(at)
        gradient = share * (gradient.T @ approximation.root) - (1.0 - share) * at
        # The value with its slope in x: x − at is 0.
        return value + ((x - at) * gradient).sum(1)

    return log_density


def _outcome(kernel: MALA, x: Tensor, estimator: Average, generator: torch.Generator) -> Outcome:
    """Run chains of equal length for where they end."""
    simulation = Simulation(kernel.run(x, (), estimator.plan(len(x), None, generator), generator))
    for _ in simulation:
        pass
    return simulation.outcome


def _start(chains: int, dimension: int, generator: torch.Generator) -> Tensor:
    return torch.randn(chains, dimension, dtype=torch.float64, generator=generator)


def _minus_log_normal(x: Tensor) -> Tensor:
    return 0.5 * (x.square().sum(1) + x.shape[1] * math.log(2.0 * math.pi))
