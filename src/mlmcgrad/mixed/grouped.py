"""The likelihood of a model with one grouping factor: groups are independent of each other."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from mlmcgrad.estimators import Estimator, MLMCSum
from mlmcgrad.mixed.buckets import Bucket, buckets
from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.information import information, log_likelihood, posterior
from mlmcgrad.mixed.likelihood import LogLikelihood
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.proposal import Proposal, propose
from mlmcgrad.mixed.score import scores

_BATCH = 4096  # groups in a scoring step
_COPIES = 2**16  # groups at once, if several scores are wanted
_DRAWS = 64  # of a group, times q², for the information; fewer of many groups
_DRAWS_IN_ALL = 2**18
_EXACT_DRAWS = 512  # of a group, times q², for the log-likelihood


# Levels without an end: no bias at all, and a mean of 2.2 blocks for a group.
_ENDLESS = MLMCSum(math.inf, 2**-1.5, assignment="balanced", max_transitions=2**14)


@final
class Grouped:
    """The likelihood as a function of θ, estimated group by group.

    Args:
        design: the data; one grouping factor.
        family: of the response.
        estimator: how many blocks of draws a group has; by default without an end.
        candidates: draws of a block.
        generator: source of all randomness.
    """

    def __init__(
        self,
        design: Design,
        family: Family,
        *,
        estimator: Estimator | None = None,
        candidates: int = 32,
        generator: torch.Generator,
    ) -> None:
        (effects,) = design.effects
        rows = (design.y, design.trials, design.offset)
        self.layout = Layout(
            design.fixed.shape[1], effects.blocks, dispersion=family.dispersion is not None
        )
        self._family, self._generator = family, generator
        self._estimator = _ENDLESS if estimator is None else estimator
        self._candidates = candidates
        self._buckets = buckets(
            effects.index, len(effects.groups), design.fixed, effects.columns, *rows
        )
        self._known: list[Tensor | None] = [None] * len(self._buckets)  # the last modes

    def score(self, theta: Tensor) -> Tensor:
        """An unbiased estimate of the score, (θ,)."""
        return self.scores(theta, 1)[0]

    def scores(self, theta: Tensor, count: int) -> Tensor:
        """Independent estimates of the score, (count, θ)."""
        proposals, found = self.proposals(theta), []
        at_once = max(1, _COPIES // self._groups)
        for begin in range(0, count, at_once):
            copies = min(at_once, count - begin)
            found.append(self._scores(theta, self._buckets, proposals, copies).sum(1))
        return torch.cat(found)

    def adaptive(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The score and the outer products of the groups' scores; of many groups, of some."""
        count = self._groups
        if count <= _BATCH:
            (found,) = self._scores(theta, self._buckets, self.proposals(theta))
            return found.sum(0), found.T @ found
        share, some = _BATCH / count, []
        for bucket in self._buckets:
            number = max(1, round(share * len(bucket)))
            chosen = torch.randperm(len(bucket), generator=self._generator)[:number]
            some.append((bucket.select(chosen), share * len(bucket) / number))
        scale = torch.cat([torch.full((len(b),), f, dtype=theta.dtype) for b, f in some])[:, None]
        layout, family = self.layout, self._family
        parts = [bucket for bucket, _ in some]
        (found,) = self._scores(theta, parts, [propose(b, layout, family, theta) for b in parts])
        return (scale * found).sum(0), found.T @ (scale * found)

    def information(self, theta: Tensor) -> Tensor:
        """The observed information, (θ, θ)."""
        wanted = _DRAWS * self.layout.random**2
        draws = max(32, min(wanted, _DRAWS_IN_ALL // self._groups))
        return information(*self._model(theta), draws=draws, generator=self._generator)

    def log_likelihood(self, theta: Tensor, seed: int | None = None) -> LogLikelihood:
        """An estimate of the log-likelihood, a part for each group.

        Args:
            theta: θ.
            seed: of its random numbers, so that two models can have the same ones.
        """
        generator = self._generator if seed is None else torch.Generator().manual_seed(seed)
        return log_likelihood(*self._model(theta), draws=self._many(), generator=generator)

    def effects(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Mean and covariance of the random effects of each group."""
        draws, generator = self._many(), self._generator
        return [posterior(*self._model(theta), draws=draws, generator=generator)]

    def length(self, step: Tensor) -> float:
        """How far a step of θ moves the linear predictor, of a group with u about 2."""
        beta, factor = self.layout.beta(step), self.layout.factor(step)
        return max(
            float((b.x @ beta).abs().max() + 2.0 * (b.z @ factor).norm(dim=-1).max())
            for b in self._buckets
        )

    @property
    def _groups(self) -> int:
        return sum(map(len, self._buckets))

    def _many(self) -> int:
        """Draws of a group for a value without noise; fewer of many groups, whose errors cancel."""
        wanted = _EXACT_DRAWS * self.layout.random**2
        return max(32, min(wanted, 8 * _DRAWS_IN_ALL // self._groups))

    def proposals(self, theta: Tensor) -> list[Proposal]:
        """The proposals at θ, found from the modes of the last call."""
        found = [
            propose(bucket, self.layout, self._family, theta, start)
            for bucket, start in zip(self._buckets, self._known, strict=True)
        ]
        self._known = [proposal.mode for proposal in found]
        return found

    def _model(self, theta: Tensor) -> tuple[list[Bucket], list[Proposal], Layout, Family, Tensor]:
        return self._buckets, self.proposals(theta), self.layout, self._family, theta

    def _scores(
        self, theta: Tensor, parts: list[Bucket], proposals: list[Proposal], copies: int = 1
    ) -> Tensor:
        return scores(
            parts,
            proposals,
            self.layout,
            self._family,
            theta,
            self._estimator,
            self._candidates,
            self._generator,
            copies,
        )
