"""The score of each group without bias: levels of importance sampling around its mode.

Fisher's identity: the score of group g is the mean of the complete-data score under p_θ(u | y_g),

    ∇_θ log p_θ(y_g) = E[ ∇_θ log p_θ(y_g, u) | y_g ],

and since b = Λu, the density of u does not depend on θ. With r_i = ∂ log p(y_i | η_i)/∂η_i,

    ∇_β = Xᵀr,    ∇_Λ = (Zᵀr)uᵀ (its free entries),    ∇_{log φ} = Σ_i ∂ log p(y_i | η_i)/∂ log φ.

In a group that is informative about u, these vary far more than their mean. With f = log p(y, u)
and ∇f = ΛᵀZᵀr − u, the mean of ∇f is 0 and that of ∇f uᵀ is −I (Stein's identity). So

    ∇_β → Xᵀr − E∇f,                              E = XᵀWZΛH^{-1},
    ∇_Λ → (Zᵀr − D∇f)uᵀ − D + Zᵀr_0 (H^{-1}∇f)ᵀ,    D = ZᵀWZΛH^{-1},

have the same mean, and are constant to first order in u around the mode m, where r = r_0 and the
curvatures are W and H. With v and M the first and second derivatives of ∇_{log φ} there, and
B = ½H^{-1}M, in the same way and to second order

    ∇_{log φ} → ∇_{log φ} + vᵀH^{-1}∇f + ∇fᵀB(u − m) + tr B.

The mean is taken with coefficients c_j on draws u_j of the proposal, from their weights w_j. Draws
come in blocks of k; `MLMCSum` sets the random number of blocks and their signs. The expectation is
that of the longest ladder, whose bias falls like 1/(k·T); with an infinite truncation there is no
bias.

With V = (1, u) all this is linear in the moments Σ_j c_j r_j V_jᵀ and Σ_j c_j V_j V_jᵀ of a group.
All blocks of draws are processed together, however many a group has, and the moments of a group are
the sums of those of its blocks.

The log-likelihood of a group is estimated by log (1/m) Σ_j w_j with w_j = p_θ(y, u_j)/q(u_j). Its
derivative for fixed draws is the self-normalised score

    s(θ) = Σ_j w_j ∇ log p_θ(y, u_j) / Σ_j w_j,

with the gradients above. The information is −∂s/∂θ, by central differences with draws that move
with θ: the quantiles t of the proposal stay the same, and u = mode + Ct. Where the posterior is
normal, s does not depend on t, and neither does −∂s/∂θ. With draws that do not move it would be
Louis' identity, the small difference of E[−∇² log p] and Var[∇ log p] where a group says much about
its u. The draws come in blocks; the terms s + w̄_b (s_b − s), with s_b the score of block b and w̄_b
its share of the weights times their number, have the mean s, and spread as much as its error says.
The bias of m draws, of order 1/m, does not matter for a standard error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import final

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.estimators import Estimator, MLMCSum
from mlmcgrad.kernels.importance import Blocks, block_weights, shares
from mlmcgrad.lengths import join
from mlmcgrad.measure import Floats, Integers
from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.grouped.proposal import Proposal, buckets, predictor, propose
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.search import LogLikelihood

_PART = 2**18  # numbers (draws × rows) that are processed at once: they stay in the cache
_BATCH = 4096  # groups in a scoring step
_COPIES = 2**16  # groups at once when several scores are wanted
_DRAWS = 64  # per group, times q², for the information; fewer with many groups
_DRAWS_IN_ALL = 2**18
_EXACT_DRAWS = 512  # per group, times q², for the log-likelihood
_BLOCKS = 8  # in an estimate of the log-likelihood or of the information
_STEP = 1e-4
_LOG_2PI = math.log(2.0 * math.pi)

# An infinite truncation: no bias at all, and 2.2 blocks per group on average.
_ENDLESS = MLMCSum(math.inf, 2**-1.5, assignment="balanced", max_transitions=2**14)


@final
class Grouped:
    """The likelihood as a function of θ, estimated group by group.

    Args:
        design: the data, with one grouping factor.
        family: the family of the response.
        estimator: the law of the number of blocks per group; None means without truncation.
        candidates: draws in a block.
        generator: source of all randomness.
    """

    def __init__(
        self,
        design: Design,
        family: Family,
        estimator: Estimator | None,
        candidates: int,
        generator: torch.Generator,
    ) -> None:
        self.layout = Layout.of(design, family)
        self._family, self._generator = family, generator
        self._estimator = _ENDLESS if estimator is None else estimator
        self._candidates = candidates
        self._buckets = buckets(design)
        self._order = torch.cat([bucket.groups for bucket in self._buckets]).argsort()
        self._modes: list[Tensor | None] = [None] * len(self._buckets)  # of the last call

    def scores(self, theta: Tensor, count: int) -> Tensor:
        """Return independent unbiased estimates of the score, (count, θ)."""
        proposals, found = self.proposals(theta), []
        at_once = max(1, _COPIES // len(self._order))
        for begin in range(0, count, at_once):
            copies = min(at_once, count - begin)
            found.append(self._scores(theta, proposals, copies).sum(1))
        return torch.cat(found)

    def adaptive(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score and the outer products of the groups' scores, of a subset if large."""
        count = len(self._order)
        if count <= _BATCH:
            (found,) = self._scores(theta, self.proposals(theta))
            return found.sum(0), found.T @ found
        share, proposals, scales = _BATCH / count, [], []
        for bucket in self._buckets:
            number = max(1, round(share * len(bucket)))
            chosen = bucket[torch.randperm(len(bucket), generator=self._generator)[:number]]
            proposals.append(propose(chosen, self.layout, self._family, theta))
            scales.append(theta.new_full((number, 1), share * len(bucket) / number))
        (found,), scale = self._scores(theta, proposals), torch.cat(scales)
        return (scale * found).sum(0), found.T @ (scale * found)

    def information(self, theta: Tensor, effort: int = 1) -> Tensor:
        """Return estimates of the observed information, (8, θ, θ), symmetric."""
        wanted = _DRAWS * self.layout.random**2
        draws = effort * max(32, min(wanted, _DRAWS_IN_ALL // len(self._order)))
        size, family = self.layout.size, self._family
        total = theta.new_zeros(_BLOCKS, size, size)
        steps = torch.diag(_STEP * theta.abs().clamp(min=1.0))
        for part in self._parts(theta, draws):
            owner = torch.arange(len(part)).repeat_interleave(_BLOCKS)
            t = part.quantiles(len(owner), draws // _BLOCKS, self._generator)
            for i, step in enumerate(steps):
                for h in (step, -step):
                    moved = propose(part.bucket, self.layout, family, theta + h, part.mode, True)
                    total[:, i] -= self._terms(moved[owner], theta + h, t) / (2.0 * h[i])
        return 0.5 * (total + total.mT)

    def _terms(self, blocks: Proposal, theta: Tensor, t: Tensor) -> Tensor:
        """Return terms whose mean is the score, summed over the groups, (blocks, θ).

        Args:
            blocks: the proposal at θ for each block of each group.
            theta: θ.
            t: quantiles, (groups · blocks, draws, q).
        """
        u, log_q = blocks.at(t)
        log_joint, slope, of_phi = self._evaluate(blocks, theta, u)
        log_w = log_joint - log_q
        own = self._group_scores(blocks, theta, u, log_w.softmax(1), slope, of_phi)
        own = own.unflatten(0, (-1, _BLOCKS))
        share = log_w.logsumexp(1).unflatten(0, (-1, _BLOCKS)).softmax(1)[..., None]
        mean = (share * own).sum(1, keepdim=True)
        return (mean + _BLOCKS * share * (own - mean)).sum(0)

    def log_likelihood(self, theta: Tensor, generator: torch.Generator) -> LogLikelihood:
        """Estimate the log-likelihood, corrected for the bias of the logarithm of a mean.

        Each group is one part.
        """
        draws, values, deviations = self._many(), [], []
        for part in self._parts(theta, draws):
            owner = torch.arange(len(part)).repeat_interleave(_BLOCKS)
            u, log_q = part.draw(owner, draws // _BLOCKS, generator)
            log_joint, _, _ = self._evaluate(part, theta, u, owner)
            log_w = (log_joint - log_q).reshape(len(part), _BLOCKS, -1)
            top = log_w.amax((1, 2))
            w = (log_w - top[:, None, None]).exp().mean(2)
            mean = w.mean(1)
            deviation = w / mean[:, None] - 1.0
            values.append(top + mean.log() + 0.5 * deviation.var(1) / _BLOCKS)
            deviations.append(deviation)
        return LogLikelihood(torch.cat(values)[self._order], torch.cat(deviations)[self._order])

    def effects(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return mean and covariance of b = Λu given the data, (groups, q) and (groups, q, q)."""
        draws, means, covariances = self._many(), [], []
        for part in self._parts(theta, draws):
            u, log_q = part.draw(torch.arange(len(part)), draws, self._generator)
            log_joint, _, _ = self._evaluate(part, theta, u)
            c = (log_joint - log_q).softmax(1)[..., None]
            b = u @ self.layout.factor(theta).T
            mean = (c * b).sum(1, keepdim=True)
            means.append(mean[:, 0])
            covariances.append((c * (b - mean)).mT @ (b - mean))
        return [(torch.cat(means)[self._order], torch.cat(covariances)[self._order])]

    def length(self, step: Tensor) -> float:
        """Return how far a step of θ moves the linear predictor of a group with ‖u‖ about 2."""
        beta, factor = self.layout.beta(step), self.layout.factor(step)
        return max(
            float((b.x @ beta).abs().max() + 2.0 * (b.z @ factor).norm(dim=-1).max())
            for b in self._buckets
        )

    def proposals(self, theta: Tensor) -> list[Proposal]:
        """Return the proposals at θ; Newton's method starts from the modes of the last call."""
        found = [
            propose(bucket, self.layout, self._family, theta, start)
            for bucket, start in zip(self._buckets, self._modes, strict=True)
        ]
        self._modes = [proposal.mode for proposal in found]
        return found

    def _many(self) -> int:
        """Return the draws per group for a precise value; errors of many groups cancel."""
        wanted = _EXACT_DRAWS * self.layout.random**2
        return max(32, min(wanted, 8 * _DRAWS_IN_ALL // len(self._order)))

    def _parts(self, theta: Tensor, draws: int) -> Iterator[Proposal]:
        """Iterate over the proposals of all groups, cut so that their draws fit into memory."""
        for proposal in self.proposals(theta):
            size = max(1, _PART // (draws * proposal.bucket.y.shape[1]))
            for which in torch.arange(len(proposal)).split(size):
                yield proposal if len(which) == len(proposal) else proposal[which]

    def _scores(self, theta: Tensor, proposals: list[Proposal], copies: int = 1) -> Tensor:
        """Estimate the scores of all groups `copies` times, (copies, groups, θ)."""
        found, k, generator = [], self._candidates, self._generator
        for proposal in proposals:
            count = len(proposal)
            lengths = join([self._estimator.draw(count, None, generator) for _ in range(copies)])
            every, pieces = torch.arange(count).repeat(copies), []
            for which in _pieces(lengths.longest, k * proposal.bucket.y.shape[1]):
                part, here = lengths.select(which), proposal
                if len(part.levels) != count or copies > 1:
                    here = proposal[every[which]]
                blocks = Blocks.of(part.longest.numpy())
                owner = torch.from_numpy(blocks.chain)
                u, log_q = here.draw(owner, k, generator)
                log_joint, slope, of_phi = self._evaluate(here, theta, u, owner)
                log_sum, share = shares((log_joint - log_q).numpy())
                weight, total = block_weights(log_sum, blocks, part)
                _check_alive(total, here.bucket.groups.numpy(), theta)
                c = torch.from_numpy(weight[:, None] * share)
                pieces.append(self._group_scores(here, theta, u, c, slope, of_phi, owner))
            found.append(torch.cat(pieces).unflatten(0, (copies, -1)))
        return torch.cat(found, 1)

    def _evaluate(
        self, here: Proposal, theta: Tensor, u: Tensor, owner: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return log p(y, u) of draws, (b, m); r, (b, m, n); slopes in log φ, (b, m), if any.

        Args:
            here: the groups.
            theta: θ.
            u: draws in blocks, (b, m, q).
            owner: the group of each block, (b,); by default each group has one block.
        """
        bucket = here.bucket
        base, columns = predictor(bucket, self.layout, theta)
        y, trials, present = bucket.y, bucket.trials, bucket.present
        if owner is not None:
            base, columns, y, trials, present = (
                tensor[owner] for tensor in (base, columns, y, trials, present)
            )
        eta = torch.baddbmm(base[:, None], u, columns.mT)
        log_dispersion = self.layout.log_dispersion(theta)
        rows = (y[:, None], trials[:, None])
        value, slope, _ = self._family.slopes(eta, *rows, log_dispersion)
        q = self.layout.random
        log_joint = (value @ present[..., None])[..., 0] - 0.5 * (u.square().sum(-1) + q * _LOG_2PI)
        log_joint = torch.where(log_joint.isnan(), -torch.inf, log_joint)
        of_phi = None
        if self.layout.dispersion:
            each = self._family.dispersion_slope(eta, *rows, log_dispersion)
            of_phi = (each @ present[..., None])[..., 0]
        return log_joint, slope * present[:, None], of_phi

    def _group_scores(
        self,
        here: Proposal,
        theta: Tensor,
        u: Tensor,
        c: Tensor,
        slope: Tensor,
        of_phi: Tensor | None,
        owner: Tensor | None = None,
    ) -> Tensor:
        """Return the mean score of each group, (g, θ).

        Args:
            here: the groups, and the proposal that u was drawn from, of θ or of a point nearby.
            theta: θ.
            u: draws in blocks, (b, m, q).
            c: their coefficients, which sum to 1 in each group, (b, m).
            slope: r, (b, m, n).
            of_phi: slopes in log φ, (b, m).
            owner: the group of each block, (b,); by default each group has one block.
        """
        if not math.isfinite(float(slope.sum())):  # a draw of weight 0 has no slope
            slope = slope.masked_fill(c[..., None] == 0.0, 0.0)
        v = torch.cat([torch.ones_like(u[..., :1]), u], -1)
        weighted = c[..., None] * v

        def of_groups(blocks: Tensor) -> Tensor:
            if owner is None:
                return blocks
            return blocks.new_zeros(len(here), *blocks.shape[1:]).index_add_(0, owner, blocks)

        first = of_groups(slope.mT @ weighted)  # Σ c r Vᵀ, (g, n, 1 + q)
        second = of_groups(weighted.mT @ v)  # Σ c V Vᵀ, (g, 1 + q, 1 + q)
        bucket = here.bucket
        columns = bucket.z @ self.layout.factor(theta)  # ZΛ
        inverse = here.root @ here.root.mT  # H^{-1}
        gain = (here.curvature[..., None] * columns) @ inverse  # WZΛH^{-1}: (g, n, q)
        d = bucket.z.mT @ gain
        gradient = columns.mT @ first - second[:, 1:]  # Σ c ∇f Vᵀ, (g, q, 1 + q)
        rest = gradient[..., :1]
        of_beta = bucket.x.mT @ (first[..., :1] - gain @ rest)
        at_mode = bucket.z.mT @ here.slope[..., None]
        of_factor = bucket.z.mT @ first[..., 1:] - d @ gradient[..., 1:] - d
        of_factor = of_factor + at_mode @ (rest.mT @ inverse)
        row, column = self.layout.entries
        parts = [of_beta[..., 0], of_factor[:, row, column]]
        if of_phi is not None:
            v_phi, second_phi = here.of_phi[:, :1], here.of_phi[:, 1:]
            b = 0.5 * inverse @ second_phi
            moved = gradient[..., 1:] - rest * here.mode[:, None]  # Σ c ∇f (u − m)ᵀ
            linear = (v_phi @ inverse @ rest)[:, 0, 0] + b.diagonal(dim1=1, dim2=2).sum(1)
            mean = of_groups((c * of_phi.masked_fill(c == 0.0, 0.0)).sum(1))
            parts.append((mean + (b * moved).sum((1, 2)) + linear)[:, None])
        return torch.cat(parts, 1)


def _check_alive(log_total: Floats, groups: Integers, theta: Tensor) -> None:
    """Raise if no draw of a group has a positive weight."""
    dead = ~(log_total > -np.inf)
    if dead.any():
        at = ", ".join(f"{value:.4g}" for value in theta.tolist())
        raise FloatingPointError(
            f"the likelihood of {dead.sum()} groups (number {groups[dead.argmax()]} is one of "
            f"them) is 0 or not a number at θ = ({at}), in units of the search; check the response "
            "and the columns for extreme values, or rescale them"
        )


def _pieces(lengths: Tensor, numbers: int) -> Iterator[slice]:
    """Cut the groups into pieces of a bounded number of numbers."""
    total = lengths.cumsum(0) * numbers
    # A piece ends with the group that crosses a multiple of _PART.
    piece = torch.div(total - lengths * numbers, _PART, rounding_mode="floor")
    begin = 0
    for size in piece.unique_consecutive(return_counts=True)[1].tolist():
        yield slice(begin, begin + size)
        begin += size
