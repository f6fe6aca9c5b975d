"""The likelihood of a model with one grouping factor: one integral per group.

**Quadrature.** With at most two effects per group the integral over u is adaptive Gauss–Hermite
quadrature: with the mode m and the curvature H = (CCᵀ)^{-1} of f = log p(y, u) there,

    p_θ(y) ≈ Σ_j |C| w_j exp{f(m + Ct_j) + ½‖t_j‖²},

where t_j and w_j are the nodes and weights for the density exp(−½‖t‖²). Their number is doubled
until the log-likelihood changes by less than 1e-6. Score and posterior moments are means with the
same weights. For a normal response f is quadratic, and two nodes in each direction are exact. With
more effects, and for the certificate of any fit, the integral is sampled:

**Scores.** Fisher's identity: the score of group g is the mean of the complete-data score under
p_θ(u | y_g),

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

The mean uses coefficients c_j of the draws u_j from the proposal, computed from their weights w_j.
Draws are made in blocks of k; `MLMCSum` sets the random number of blocks and their signs. The
estimate has the bias of the longest simulation, which falls like 1/(k·T); with an infinite
truncation there is no bias.

With V = (1, u) all this is linear in the moments Σ_j c_j r_j V_jᵀ and Σ_j c_j V_j V_jᵀ of a group.
All blocks of draws are processed together, and the moments of a group are the sums over its blocks.

**Likelihood and information.** The log-likelihood of a group is estimated by log (1/m) Σ_j w_j with
w_j = p_θ(y, u_j)/q(u_j). Its derivative for fixed draws is the self-normalised score

    s(θ) = Σ_j w_j ∇ log p_θ(y, u_j) / Σ_j w_j,

with the gradients above. The information is −∂s/∂θ, by central differences with draws that move
with θ: the quantiles t of the proposal stay the same, and u = mode + Ct. If the posterior is
normal, neither s nor −∂s/∂θ depends on t. With fixed draws this would be Louis' identity, a small
difference of two large terms, E[−∇² log p] and Var[∇ log p], in groups that are informative about
u. The draws are made in blocks; the terms s + w̄_b (s_b − s), with s_b the score of block b and
w̄_b its share of the weights times the number of blocks, have the mean s, and their spread gives
its error. The bias of m draws, of order 1/m, is negligible for a standard error.

**Buckets.** Groups have different numbers of rows. To process all groups at once, they are put into
buckets of groups of similar size, and within a bucket padded to the largest group with absent rows
(`present` is 0). The overhead of each bucket is taken as the cost of _PRICE rows; the buckets
minimise the total cost. Small data form a single bucket, and large data need little padding.

**Proposals.** For one group, with η = Xβ + offset + ZΛu,

    f(u) = Σ_i log p(y_i | η_i) − ½‖u‖²,      ∇f = ΛᵀZᵀr − u,      −∇²f ≈ H = I + ΛᵀZᵀWZΛ,

where r and W are the slope and the (expected) curvature of log p in η. Newton's method finds the
modes of all groups at once, starting from the previous modes. The proposal is u = mode + Ct with
CCᵀ = H^{-1} and independent coordinates of t, Student's with 4 degrees of freedom: its tails are
heavier than the target's, and its quantile function has a closed form,

    t(p) = sign(p − ½) · 2 √(cos(arccos(√a)/3)/√a − 1),      a = 4p(1 − p).

The k draws of a block use k evenly spaced points p with one common uniform shift. Each draw has the
distribution of the proposal, blocks are independent, and the mean over a block has far less
variance than that of k independent draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmcgrad.estimators import Estimator, MLMCSum
from mlmcgrad.kernels.importance import Blocks, block_weights, shares
from mlmcgrad.lengths import join
from mlmcgrad.measure import Floats, Integers
from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family, Gaussian
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
_FIRST_NODES, _MOST_NODES, _MOST_POINTS = 8, 256, 4096  # the last one for all directions
_SETTLED = 1e-6  # change of the log-likelihood by twice the nodes
_LOG_2PI = math.log(2.0 * math.pi)

# An infinite truncation: no bias at all, and 2.2 blocks per group on average.
ENDLESS = MLMCSum(math.inf, 2**-1.5, assignment="balanced", max_transitions=2**14)
_PRICE = 500  # of a bucket, in rows
_LEAST = 1e-15
_DIFFERENCE = 1e-3
_NEWTON_STEPS, _HALVINGS = 30, 8
_ENOUGH = 1e-4  # Newton's decrement at which a proposal is good enough
_EXACT = 1e-20


@final
class Grouped:
    """The likelihood as a function of θ, estimated group by group.

    Args:
        design: the data, with one grouping factor.
        family: the family of the response.
        estimator: sets the number of blocks per group; None means without truncation.
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
        self._estimator = ENDLESS if estimator is None else estimator
        self._candidates = candidates
        self._buckets = buckets(design)
        self._order = torch.cat([bucket.groups for bucket in self._buckets]).argsort()
        self._modes: list[Tensor | None] = [None] * len(self._buckets)  # of the last call
        self._closed, effects = isinstance(family, Gaussian), self.layout.random
        self._nodes = 2 if self._closed else _FIRST_NODES  # in each direction
        self._rough = self._nodes  # where less precision is enough
        self._settled: tuple[Tensor, Tensor] | None = None  # the last θ, and the values there
        self.exact = estimator is None and (self._closed or effects <= 2) and self._more()

    @property
    def method(self) -> str:
        """How the integrals are computed, in words."""
        if not self.exact:
            return "by levels of importance sampling"
        if self._closed:
            return "in closed form"
        return f"by adaptive Gauss–Hermite quadrature with {self._nodes} nodes per effect"

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
            if self.exact:
                _, found = self._values_and_scores(theta, self._rough)
            else:
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

    def value_and_score(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the log-likelihood and the score by quadrature."""
        values, scores = self._values_and_scores(theta, self._nodes)
        return float(values.sum()), scores.sum(0)

    def _values_and_scores(self, theta: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
        """Return them for each group, in the order of the buckets."""
        values, scores = [], []
        for part, u, log_w, slope, of_phi in self._quadrature(theta, nodes):
            values.append(log_w.logsumexp(1))
            c = log_w.softmax(1)
            scores.append(self._group_scores(part, theta, u, c, slope, of_phi))
        return torch.cat(values), torch.cat(scores)

    def settle(self, theta: Tensor) -> bool:
        """Use as many nodes as the likelihood at θ needs; return whether that changes anything."""
        if self._settled is not None and torch.equal(self._settled[0], theta):
            return False
        before = self._nodes
        values = self._values(theta, self._nodes)
        while self.exact:
            if not self._more():
                self.exact = False
                break
            found = self._values(theta, 2 * self._nodes)
            if abs(float((found - values).sum())) <= _SETTLED:
                self._settled = theta.clone(), found
                break
            self._nodes, values = 2 * self._nodes, found
        return not self.exact or self._nodes != before

    def _more(self) -> bool:
        """Return whether there may be twice as many nodes."""
        nodes = 2 * self._nodes
        return nodes <= _MOST_NODES and nodes**self.layout.random <= _MOST_POINTS

    def _values(self, theta: Tensor, nodes: int) -> Tensor:
        """Return the log-likelihood of each group by quadrature, (groups,)."""
        found = [log_w.logsumexp(1) for _, _, log_w, _, _ in self._quadrature(theta, nodes)]
        return torch.cat(found)[self._order]

    def _quadrature(
        self, theta: Tensor, nodes: int
    ) -> Iterator[tuple[Proposal, Tensor, Tensor, Tensor, Tensor | None]]:
        """Iterate over groups: their u, log weights, and what `_evaluate` returns beside them."""
        t, log_weight = gauss_hermite(nodes, self.layout.random)
        for part in self._parts(theta, len(t), exact=True):
            u = part.mode[:, None] + t @ part.root.mT
            log_volume = part.root.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
            log_joint, slope, of_phi = self._evaluate(part, theta, u)
            yield part, u, log_joint + log_weight + log_volume, slope, of_phi

    def information(self, theta: Tensor, effort: int = 1) -> Tensor:
        """Return estimates of the observed information, symmetric: 8, or 2 equal exact ones."""
        if self.exact:  # its relative error may be far larger than that of the likelihood
            nodes = max(self._rough, self._nodes // 2)
            return self._curvature(theta, nodes).expand(2, -1, -1)
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

    def curvature(self, theta: Tensor) -> Tensor:
        """Return the information to the precision that a Newton step needs, (θ, θ)."""
        return self._curvature(theta, self._rough)

    def _curvature(self, theta: Tensor, nodes: int) -> Tensor:
        rows = []
        for h in torch.diag(_STEP * theta.abs().clamp(min=1.0)):
            below, above = (
                self._values_and_scores(at, nodes)[1].sum(0) for at in (theta - h, theta + h)
            )
            rows.append((below - above) / (2.0 * h.sum()))
        found = torch.stack(rows)
        return 0.5 * (found + found.T)

    def _terms(self, blocks: Proposal, theta: Tensor, t: Tensor) -> Tensor:
        """Return terms whose mean is the score, summed over the groups, (blocks, θ).

        The proposals are those of each block of each group, and t has their quantiles.
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
        """Compute or estimate the log-likelihood; each group is one part."""
        if self.exact:
            self.settle(theta)
        if self.exact:
            assert self._settled is not None
            value = self._settled[1]
            return LogLikelihood(value, value.new_zeros(len(value), 2))
        draws, found = self._many(), []
        for part in self._parts(theta, draws):
            owner = torch.arange(len(part)).repeat_interleave(_BLOCKS)
            u, log_q = part.draw(owner, draws // _BLOCKS, generator)
            log_joint, _, _ = self._evaluate(part, theta, u, owner)
            found.append(LogLikelihood.of((log_joint - log_q).reshape(len(part), _BLOCKS, -1)))
        value = torch.cat([part.value for part in found])
        deviation = torch.cat([part.deviation for part in found])
        return LogLikelihood(value[self._order], deviation[self._order])

    def effects(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return mean and covariance of b = Λu given the data, (groups, q) and (groups, q, q)."""
        means, covariances = [], []
        for u, log_w in self._posterior(theta):
            c = log_w.softmax(1)[..., None]
            b = u @ self.layout.factor(theta).T
            mean = (c * b).sum(1, keepdim=True)
            means.append(mean[:, 0])
            covariances.append((c * (b - mean)).mT @ (b - mean))
        return [(torch.cat(means)[self._order], torch.cat(covariances)[self._order])]

    def _posterior(self, theta: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over groups: u, (g, m, q), and log weights that give their law, (g, m)."""
        if self.exact:
            for _, u, log_w, _, _ in self._quadrature(theta, self._nodes):
                yield u, log_w
            return
        draws = self._many()
        for part in self._parts(theta, draws):
            u, log_q = part.draw(torch.arange(len(part)), draws, self._generator)
            yield u, self._evaluate(part, theta, u)[0] - log_q

    def length(self, step: Tensor) -> float:
        """Return how far a step of θ moves the linear predictor of a group with ‖u‖ about 2."""
        beta, factor = self.layout.beta(step), self.layout.factor(step)
        return max(
            float((b.x @ beta).abs().max() + 2.0 * (b.z @ factor).norm(dim=-1).max())
            for b in self._buckets
        )

    def proposals(self, theta: Tensor, exact: bool = False) -> list[Proposal]:
        """Return the proposals at θ; Newton's method starts from the modes of the last call."""
        found = [
            propose(bucket, self.layout, self._family, theta, start, exact)
            for bucket, start in zip(self._buckets, self._modes, strict=True)
        ]
        self._modes = [proposal.mode for proposal in found]
        return found

    def _many(self) -> int:
        """Return the draws per group for a precise value; errors of many groups cancel."""
        wanted = _EXACT_DRAWS * self.layout.random**2
        return max(32, min(wanted, 8 * _DRAWS_IN_ALL // len(self._order)))

    def _parts(self, theta: Tensor, draws: int, exact: bool = False) -> Iterator[Proposal]:
        """Iterate over the proposals of all groups, cut so that their draws fit into memory."""
        for proposal in self.proposals(theta, exact):
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

        The draws u, (b, m, q), come in blocks of the groups `owner`, (b,), by default one of each.
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


def _pieces(lengths: Tensor, numbers: int) -> list[slice]:
    """Cut the groups into pieces of a bounded number of numbers."""
    before = (lengths.cumsum(0) - lengths) * numbers
    # A piece ends with the group that crosses a multiple of _PART.
    sizes = (before // _PART).unique_consecutive(return_counts=True)[1]
    ends = sizes.cumsum(0).tolist()
    return [slice(begin, end) for begin, end in pairwise([0, *ends])]


class _Groups:
    """A dataclass whose fields have one row per group."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self, which: Tensor) -> Self:
        """Return some of the groups."""
        return type(self)(*(part[which] for part in vars(self).values()))


@dataclass(frozen=True)
class Bucket(_Groups):
    """Groups of similar size: `g` of them with up to `n` rows, `p` fixed and `q` random columns."""

    groups: Tensor  # (g,) int64: their numbers
    x: Tensor  # (g, n, p)
    z: Tensor  # (g, n, q)
    y: Tensor  # (g, n)
    trials: Tensor  # (g, n)
    offset: Tensor  # (g, n)
    present: Tensor  # (g, n): 1, or 0 for a row that is not there


def buckets(design: Design) -> list[Bucket]:
    """Put the rows of a design with one grouping factor into buckets."""
    (effects,) = design.effects
    who = effects.index.numpy()
    order, sizes = who.argsort(kind="stable"), np.bincount(who)
    first = sizes.cumsum() - sizes
    found = []
    kind = np.searchsorted(_ends(sizes), sizes)
    for value in np.unique(kind):
        groups = np.flatnonzero(kind == value)
        n = int(sizes[groups].max())
        present = np.arange(n) < sizes[groups, None]
        place = np.where(present, first[groups, None] + np.arange(n), first[groups, None])
        rows = torch.from_numpy(order[place])
        columns = (design.fixed, effects.columns, design.y, design.trials, design.offset)
        parts = [torch.from_numpy(groups), *(column[rows] for column in columns)]
        parts.append(torch.from_numpy(present).double())
        found.append(Bucket(*parts))
    return found


@dataclass(frozen=True)
class Proposal(_Groups):
    """Student's t around the mode of each group of a bucket, and slopes there."""

    bucket: Bucket
    mode: Tensor  # (g, q)
    root: Tensor  # (g, q, q): C with CCᵀ = H^{-1}
    slope: Tensor  # (g, n): r at the mode
    curvature: Tensor  # (g, n): W at the mode
    of_phi: Tensor  # (g, 1 + q, q): derivatives of ∂ log p/∂ log φ in u at the mode

    def draw(
        self, owner: Tensor, candidates: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw independent blocks of k candidates for the groups `owner`, (b,).

        Returns:
            u, (b, k, q), and log q(u), (b, k), all constants included.
        """
        return self.at(self.quantiles(len(owner), candidates, generator), owner)

    def quantiles(self, blocks: int, candidates: int, generator: torch.Generator) -> Tensor:
        """Draw independent blocks of k candidates t, (blocks, k, q)."""
        q = self.mode.shape[1]
        shift = torch.rand(blocks, 1, q, dtype=torch.float64, generator=generator)
        p = (shift + lattice(candidates, q)).frac_().clamp_(_LEAST, 1.0 - _LEAST)
        return quantile(p)

    def at(self, t: Tensor, owner: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return u = mode + Ct, (b, k, q), and log q(u), (b, k), for the groups `owner`, (b,)."""
        mode, root = self.mode[owner], self.root[owner]
        q = mode.shape[1]
        u = torch.baddbmm(mode[:, None], t, root.mT)
        log_volume = root.diagonal(dim1=1, dim2=2).log().sum(1) - q * math.log(0.375)
        log_q = -2.5 * torch.log1p(0.25 * t.square()).sum(-1)
        return u, log_q - log_volume[:, None]


@cache
def gauss_hermite(nodes: int, dimension: int) -> tuple[Tensor, Tensor]:
    """Return points t, (nodes^d, d), and log weights of ∫ f(t) dt ≈ Σ_j exp(log_w_j) f(t_j)."""
    t, w = (torch.from_numpy(values) for values in np.polynomial.hermite_e.hermegauss(nodes))
    grid = torch.cartesian_prod(*[torch.arange(nodes)] * dimension).reshape(-1, dimension)
    return t[grid], (w.log() + 0.5 * t.square())[grid].sum(1)


@cache
def lattice(points: int, dimension: int) -> Tensor:
    """Return evenly spread points in the unit cube, (points, dimension).

    The first coordinate is j/k, the others are multiples of powers of the root ρ of
    ρ^{d} = ρ + 1, which spread evenly for any number of points (Roberts' sequence).
    """
    j = torch.arange(points, dtype=torch.float64)
    ratio = 2.0
    for _ in range(60):
        ratio = (1.0 + ratio) ** (1.0 / dimension)
    powers = [ratio**-i for i in range(1, dimension)]
    return torch.stack([j / points, *((j * power).frac() for power in powers)], 1)


def quantile(p: Tensor) -> Tensor:
    """Return quantiles of Student's t distribution with 4 degrees of freedom."""
    root = (4.0 * p * (1.0 - p)).sqrt()
    size = 2.0 * ((root.clamp(max=1.0).acos() / 3.0).cos() / root - 1.0).clamp(min=0.0).sqrt()
    return torch.where(p < 0.5, -size, size)


def propose(
    bucket: Bucket,
    layout: Layout,
    family: Family,
    theta: Tensor,
    start: Tensor | None = None,
    exact: bool = False,
) -> Proposal:
    """Find the mode and the curvature of every group, by Newton's method from `start`, (g, q).

    An exact mode, to rounding, may be differenced in θ.
    """
    base, columns = predictor(bucket, layout, theta)
    log_dispersion = layout.log_dispersion(theta)
    u = base.new_zeros(len(bucket), layout.random) if start is None else start
    eye, rows = torch.eye(layout.random, dtype=base.dtype), (bucket.y, bucket.trials)

    def terms(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return f, r and W."""
        eta = base + (columns @ u[..., None])[..., 0]
        value, slope, curvature = family.slopes(eta, *rows, log_dispersion)
        value = (value * bucket.present).sum(1) - 0.5 * u.square().sum(1)
        return value, slope * bucket.present, curvature * bucket.present

    value, slope, curvature = terms(u)
    for _ in range(_NEWTON_STEPS):
        hessian = eye + columns.mT @ (curvature[..., None] * columns)
        gradient = (columns.mT @ slope[..., None])[..., 0] - u
        lower = torch.linalg.cholesky(hessian)
        step = torch.cholesky_solve(gradient[..., None], lower)[..., 0]
        if float((gradient * step).sum(1).max()) < (_EXACT if exact else _ENOUGH):
            break
        size = torch.ones_like(value)
        for _ in range(_HALVINGS):
            u_new = u + size[:, None] * step
            found = terms(u_new)
            worse = ~(found[0] >= value - 1e-12 * value.abs())
            if not bool(worse.any()):
                break
            size = torch.where(worse, 0.5 * size, size)
        u, (value, slope, curvature) = u_new, found
    # H = RRᵀ: C = R^{-ᵀ}.
    root = torch.linalg.solve_triangular(lower.mT, eye.expand_as(lower), upper=True)
    of_phi = u.new_zeros(len(u), 1 + layout.random, layout.random)
    if layout.dispersion:
        eta = base + (columns @ u[..., None])[..., 0]
        below, here, above = (
            family.dispersion_slope(eta + h, *rows, log_dispersion) * bucket.present
            for h in (-_DIFFERENCE, 0.0, _DIFFERENCE)
        )
        first = (above - below) / (2.0 * _DIFFERENCE)
        second = (above - 2.0 * here + below) / _DIFFERENCE**2
        gradient = first[:, None] @ columns
        of_phi = torch.cat([gradient, columns.mT @ (second[..., None] * columns)], 1)
    return Proposal(bucket, u, root, slope, curvature, of_phi)


def predictor(bucket: Bucket, layout: Layout, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return Xβ + offset, (g, n), and ZΛ, (g, n, q); η is affine in u."""
    return bucket.x @ layout.beta(theta) + bucket.offset, bucket.z @ layout.factor(theta)


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest size in each bucket, ascending."""
    each, counts = np.unique(sizes, return_counts=True)
    total = np.concatenate([[0], counts.cumsum()])  # groups before each size
    # least[i]: the smallest sum for the first i sizes, whose last bucket begins at first[i].
    least, first = np.zeros(len(each) + 1), np.zeros(len(each) + 1, dtype=np.int64)
    for i, size in enumerate(each.tolist(), start=1):
        sums = least[:i] + _PRICE + (total[i] - total[:i]) * size
        first[i] = sums.argmin()
        least[i] = sums[first[i]]
    ends, i = [], len(each)
    while i > 0:
        ends.append(each[i - 1])
        i = int(first[i])
    return np.array(ends[::-1])
