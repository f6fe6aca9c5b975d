"""The observed information, by Louis' identity on fixed draws; and the log-likelihood.

With draws u_j of the proposal, w_j = p_θ(y, u_j)/q(u_j), the log-likelihood of a group is estimated
by log (1/m) Σ_j w_j, and its derivative for fixed draws is the self-normalised score

    s(θ) = Σ_j w_j ∇ log p_θ(y, u_j) / Σ_j w_j,

so that −∂s/∂θ is Louis' information on these draws: E[−∇² log p] − Var[∇ log p]. It is taken by
central differences of s, with the same draws: exact to about 1e-8, for any family. The bias of m
draws, of order 1/m, does not matter for a standard error.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mlmcgrad.mixed.buckets import Bucket
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.likelihood import LogLikelihood
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.proposal import Proposal
from mlmcgrad.mixed.score import PART, evaluate, group_scores

_STEP = 1e-5
_BLOCKS = 8  # of the estimate of the log-likelihood


def information(
    buckets: list[Bucket],
    proposals: list[Proposal],
    layout: Layout,
    family: Family,
    theta: Tensor,
    *,
    draws: int,
    generator: torch.Generator,
) -> Tensor:
    """Louis' information of all groups at θ, (θ, θ), symmetric."""
    total = theta.new_zeros(layout.size, layout.size)
    for bucket, proposal in _parts(buckets, proposals, draws):
        u, log_q = proposal.draw(torch.arange(len(bucket)), draws, generator)
        for i in range(layout.size):
            step = torch.zeros_like(theta)
            step[i] = _STEP * max(1.0, abs(float(theta[i])))
            ends = []
            for at in (theta + step, theta - step):
                log_joint, slope, of_phi = evaluate(bucket, layout, family, at, u)
                c = (log_joint - log_q).softmax(1)
                found = group_scores(bucket, proposal, layout, at, u, c, slope, of_phi)
                ends.append(found.sum(0))
            total[i] -= (ends[0] - ends[1]) / (2.0 * step[i])
    return 0.5 * (total + total.T)


def log_likelihood(
    buckets: list[Bucket],
    proposals: list[Proposal],
    layout: Layout,
    family: Family,
    theta: Tensor,
    *,
    draws: int,
    generator: torch.Generator,
) -> LogLikelihood:
    """The log-likelihood of each group, corrected for the bias of the logarithm of a mean."""
    values, deviations = [], []
    for bucket, proposal in _parts(buckets, proposals, draws):
        owner = torch.arange(len(bucket)).repeat_interleave(_BLOCKS)
        u, log_q = proposal.draw(owner, draws // _BLOCKS, generator)
        log_joint, _, _ = evaluate(bucket, layout, family, theta, u, owner)
        log_w = (log_joint - log_q).reshape(len(bucket), _BLOCKS, -1)
        top = log_w.amax((1, 2))
        w = (log_w - top[:, None, None]).exp().mean(2)
        mean = w.mean(1)
        deviation = w / mean[:, None] - 1.0
        values.append(top + mean.log() + 0.5 * deviation.var(1) / _BLOCKS)
        deviations.append(deviation)
    order = torch.cat([bucket.groups for bucket in buckets]).argsort()
    return LogLikelihood(torch.cat(values)[order], torch.cat(deviations)[order])


def posterior(
    buckets: list[Bucket],
    proposals: list[Proposal],
    layout: Layout,
    family: Family,
    theta: Tensor,
    *,
    draws: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of b = Λu given the data, (groups, q) and (groups, q, q)."""
    means, covariances = [], []
    for bucket, proposal in _parts(buckets, proposals, draws):
        u, log_q = proposal.draw(torch.arange(len(bucket)), draws, generator)
        log_joint, _, _ = evaluate(bucket, layout, family, theta, u)
        c = (log_joint - log_q).softmax(1)[..., None]
        b = u @ layout.factor(theta).T
        mean = (c * b).sum(1, keepdim=True)
        means.append(mean[:, 0])
        covariances.append((c * (b - mean)).mT @ (b - mean))
    order = torch.cat([bucket.groups for bucket in buckets]).argsort()
    return torch.cat(means)[order], torch.cat(covariances)[order]


def _parts(
    buckets: list[Bucket], proposals: list[Proposal], draws: int
) -> Iterator[tuple[Bucket, Proposal]]:
    """Buckets cut so that their draws fit into memory."""
    for bucket, proposal in zip(buckets, proposals, strict=True):
        for which in torch.arange(len(bucket)).split(max(1, PART // (draws * bucket.y.shape[1]))):
            whole = len(which) == len(bucket)
            yield (bucket, proposal) if whole else (bucket.select(which), proposal.select(which))
