"""The likelihood of a model with several grouping factors, nested or crossed.

No group is independent of the others, so the random effects of all groups are one vector
(`joint.py`), and its law given the data is sampled by chains over the whole vector
(`langevin.py`), in coordinates that move with θ (`moving.py`). The score is the mean over chains
whose random lengths and signed weights are those of `MLMCSum`: its expectation is that of the
longest chain, T steps after those that do not count.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from mlmcgrad.estimators import Average, Estimator, MLMCSum
from mlmcgrad.kernels.base import Outcome
from mlmcgrad.measure import Measure
from mlmcgrad.mixed.curvature import (
    complete_information,
    information,
    laplace_information,
    positive,
)
from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.joint import Joint
from mlmcgrad.mixed.langevin import annealed, run, step_size
from mlmcgrad.mixed.laplace import Laplace, laplace
from mlmcgrad.mixed.likelihood import LogLikelihood
from mlmcgrad.mixed.moving import Motion, moving_scores
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.ranges import whole

_BASE = 16  # steps of the shortest chain, about those that a state is remembered for
_LONG = Average(16)  # steps of the chains for information and effects
_MANY = 64  # of them
_FEW = 16  # states for the complete-data information
_NEAR = 0.25  # steps of the linear predictor for which a motion is good enough
_ACCEPTANCE = 0.57
_ANNEALED = 256  # chains of the log-likelihood
_FEWEST, _MOST = 32, 256  # its temperatures: at first, and if they are too few for
_PRECISE = 0.03  # this error


@final
class Crossed:
    """The likelihood as a function of θ, estimated by chains over all random effects.

    θ holds the entries of Λ of all factors, in the order of `design.effects`; see `Layout`.

    Args:
        design: the data; its columns have similar scales.
        family: of the response.
        chains: of an estimate of the score.
        truncation: T, how many steps of the longest of these chains count.
        generator: source of all randomness.

    Attributes:
        layout: what θ holds.
        acceptance: of the last chains.
        transitions: how many have been made so far.
    """

    def __init__(
        self,
        design: Design,
        family: Family,
        *,
        chains: int = 32,
        truncation: float = 64.0,
        generator: torch.Generator,
    ) -> None:
        self._joint = Joint(design, family)
        self.layout: Layout = self._joint.layout
        self._chains = whole(chains, "chains")
        self._estimator = MLMCSum(truncation, assignment="balanced", base=_BASE)
        self._generator = generator
        self._step = step_size(self._joint.dimension)
        self._mode: Tensor | None = None  # the last one
        self._motion: Motion | None = None
        self.acceptance, self.transitions = 1.0, 0

    def score(self, theta: Tensor) -> Tensor:
        """An estimate of the score, (θ,), without bias but that of T steps."""
        return self._score(theta, self._laplace(theta))

    def scores(self, theta: Tensor, count: int) -> Tensor:
        """So many of them, (count, θ)."""
        return torch.stack([self.score(theta) for _ in range(count)])

    def adaptive(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The score, and Laplace's information made positive definite.

        There are no independent groups whose outer products could stand for the information.
        Laplace's takes no random numbers, and far from the maximum, where it may be indefinite, the
        complete-data information bounds it on both sides (`curvature.positive`).
        """
        approximation = self._laplace(theta)
        x = torch.randn(_FEW, self._joint.dimension, dtype=torch.float64, generator=self._generator)
        complete = complete_information(self._joint, theta, approximation.at(x))
        observed = laplace_information(self._joint, theta, approximation.mode)
        return self._score(theta, approximation), positive(observed, complete)

    def information(self, theta: Tensor) -> Tensor:
        """The observed information, (θ, θ)."""
        approximation = self._laplace(theta)
        states = self._run(theta, approximation, _LONG, _MANY)
        c = states.coefficient / _MANY
        return information(self._joint, theta, approximation.mode, states.points, c)

    def log_likelihood(self, theta: Tensor, seed: int | None = None) -> LogLikelihood:
        """An estimate of the log-likelihood, in one part.

        Args:
            theta: θ.
            seed: of its random numbers, so that two models can have the same ones.
        """
        generator = self._generator if seed is None else torch.Generator().manual_seed(seed)
        approximation = self._laplace(theta)

        def estimate(temperatures: int) -> LogLikelihood:
            return annealed(
                self._joint,
                theta,
                approximation,
                temperatures=temperatures,
                chains=_ANNEALED,
                step=self._step,
                generator=generator,
            )

        found = estimate(_FEWEST)
        if found.error > _PRECISE:
            # The variance falls like 1/temperatures.
            found = estimate(min(_MOST, math.ceil(_FEWEST * (found.error / _PRECISE) ** 2)))
        return found

    def effects(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each factor, mean and covariance of b = Λu given the data.

        With δ = u − mode and w = −H^{-1} ∇_u log p(y, u), the means of w and of
        ½(δwᵀ + wδᵀ) − H^{-1} are 0 (Stein's identity), so those of δ − w and
        δδᵀ − ½(δwᵀ + wδᵀ) + H^{-1} are what is sought; where the posterior is normal w = δ, and
        they are exact.
        """
        joint, approximation = self._joint, self._laplace(theta)
        states = self._run(theta, approximation, _LONG, _MANY)
        c, root = states.coefficient / _MANY, approximation.root
        u = approximation.at(states.points)
        delta = u - approximation.mode[:, None]
        w = -root @ (root.T @ joint.density(theta, u)[1])
        factor, found = self.layout.factor(theta), []
        for span in joint.spans:
            own = factor[span.effects, span.effects]
            of_delta, of_w = joint.blocks(span, delta), joint.blocks(span, w)
            of_root = joint.blocks(span, root)
            moved = (of_delta - of_w) @ c  # (groups, q_f)
            half = (c * of_delta) @ (0.5 * of_delta - 0.5 * of_w).mT
            second = of_root @ of_root.mT + half + half.mT
            mean = joint.blocks(span, approximation.mode[:, None])[..., 0] + moved
            covariance = second - moved[:, :, None] * moved[:, None, :]
            found.append((mean @ own.T, own @ covariance @ own.T))
        return found

    def length(self, step: Tensor) -> float:
        """How far a step of θ moves the linear predictor, of groups with u about 2."""
        of_beta = self._joint.x @ self.layout.beta(step)
        of_factor = (self._joint.z @ self.layout.factor(step)).norm(dim=1)
        return float((of_beta.abs() + 2.0 * of_factor).max())

    def _laplace(self, theta: Tensor) -> Laplace:
        """Laplace's approximation at θ, found from the mode of the last call."""
        found = laplace(self._joint, theta, self._mode)
        self._mode = found.mode
        return found

    def _score(self, theta: Tensor, approximation: Laplace) -> Tensor:
        motion = self._motion
        if motion is None or self.length(theta - motion.theta) > _NEAR:
            self._motion = motion = Motion.at(self._joint, theta, approximation.mode)
        states = self._run(theta, approximation, self._estimator, self._chains)
        found = moving_scores(self._joint, theta, approximation, motion, states.points)
        return states.coefficient @ found / self._chains

    def _run(
        self, theta: Tensor, approximation: Laplace, estimator: Estimator, chains: int
    ) -> Measure:
        """States of chains; their acceptance changes the step size of the next call."""
        states, outcome = run(
            self._joint,
            theta,
            approximation,
            estimator,
            chains=chains,
            step=self._step,
            generator=self._generator,
        )
        self._learn(outcome, chains)
        return states

    def _learn(self, outcome: Outcome, chains: int) -> None:
        transitions = outcome.evaluations - chains
        self.transitions += transitions
        self.acceptance = outcome.accepted / transitions
        best = step_size(self._joint.dimension)
        changed = self._step * 2.0 ** (self.acceptance - _ACCEPTANCE)
        self._step = min(max(changed, 0.05 * best), best)
