"""The score of each group, without bias: levels of importance sampling around the mode.

Fisher's identity: the score of group g is the mean of the complete-data score under p_θ(u | y_g),

    ∇_θ log p_θ(y_g) = E[ ∇_θ log p_θ(y_g, u) | y_g ],

and since b = Λu, the density of u does not depend on θ. With r_i = ∂ log p(y_i | η_i)/∂η_i,

    ∇_β = Xᵀr,    ∇_Λ = (Zᵀr)uᵀ (its free entries),    ∇_{log φ} = Σ_i ∂ log p(y_i | η_i)/∂ log φ.

Where a group has much to say about u, these vary far more than their mean. With f = log p(y, u) and
∇f = ΛᵀZᵀr − u, the mean of ∇f is 0 and that of ∇f uᵀ is −I (Stein's identity). So

    ∇_β → Xᵀr − E∇f,                              E = XᵀWZΛH^{-1},
    ∇_Λ → (Zᵀr − D∇f)uᵀ − D + Zᵀr_0 (H^{-1}∇f)ᵀ,    D = ZᵀWZΛH^{-1},

have the same mean, and are constant to first order in u around the mode m, where r = r_0, the
curvatures are W and H (`proposal.py`). With v and M the first and second derivatives of ∇_{log φ}
there, and B = ½H^{-1}M, in the same way and to second order

    ∇_{log φ} → ∇_{log φ} + vᵀH^{-1}∇f + ∇fᵀB(u − m) + tr B.

The mean is taken with coefficients c_j on draws u_j of the proposal, from their weights w_j: blocks
of k draws, the random number of blocks and their signs from `MLMCSum` (`kernels/groups.py`). Its
expectation is that of the longest ladder, whose bias falls like 1/(k·T); with an infinite
truncation there is none.

With V = (1, u) all this is linear in the moments Σ_j c_j r_j V_jᵀ and Σ_j c_j V_j V_jᵀ of a group.
Blocks of draws are worked on all together, whatever the number that a group has of them, and the
moments of a group are the sums of those of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.estimators import Estimator
from mlmcgrad.kernels.groups import Blocks, block_weights, shares
from mlmcgrad.measure import Floats, Integers
from mlmcgrad.mixed.buckets import Bucket
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.proposal import Proposal, predictor
from mlmcgrad.plan import joined

# Numbers (draws × rows) that are worked on at once: they stay in the cache of a processor.
PART = 2**18
_LOG_2PI = math.log(2.0 * math.pi)


def evaluate(
    bucket: Bucket,
    layout: Layout,
    family: Family,
    theta: Tensor,
    u: Tensor,
    owner: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log p(y, u) of draws, (b, m); r, (b, m, n); slopes in log φ, (b, m), if there is φ.

    Args:
        bucket: the groups.
        layout: of θ.
        family: of the response.
        theta: θ.
        u: draws in blocks, (b, m, q).
        owner: the group of each block, (b,); by default there is one block for each group.
    """
    base, columns = predictor(bucket, layout, theta)
    y, trials, present = bucket.y, bucket.trials, bucket.present
    if owner is not None:
        base, columns, y, trials, present = (
            tensor[owner] for tensor in (base, columns, y, trials, present)
        )
    eta = torch.baddbmm(base[:, None], u, columns.mT)
    log_dispersion = layout.log_dispersion(theta)
    rows = (y[:, None], trials[:, None])
    value, slope, _ = family.slopes(eta, *rows, log_dispersion)
    q = layout.random
    log_joint = (value @ present[..., None])[..., 0] - 0.5 * (u.square().sum(-1) + q * _LOG_2PI)
    of_dispersion = None
    if layout.dispersion:
        each = family.dispersion_slope(eta, *rows, log_dispersion)
        of_dispersion = (each @ present[..., None])[..., 0]
    return log_joint, slope * present[:, None], of_dispersion


def group_scores(
    bucket: Bucket,
    proposal: Proposal,
    layout: Layout,
    theta: Tensor,
    u: Tensor,
    c: Tensor,
    slope: Tensor,
    of_phi: Tensor | None,
    owner: Tensor | None = None,
) -> Tensor:
    """The mean score of each group, (g, θ).

    Args:
        bucket: the groups.
        proposal: what u was drawn from; its slopes need not be those of θ.
        layout: of θ.
        theta: θ.
        u: draws in blocks, (b, m, q).
        c: their coefficients, which sum to 1 in each group, (b, m).
        slope: r, (b, m, n).
        of_phi: slopes in log φ, (b, m).
        owner: the group of each block, (b,); by default there is one block for each group.
    """
    v = torch.cat([torch.ones_like(u[..., :1]), u], -1)
    weighted = c[..., None] * v

    def of_groups(blocks: Tensor) -> Tensor:
        if owner is None:
            return blocks
        return blocks.new_zeros(len(bucket), *blocks.shape[1:]).index_add_(0, owner, blocks)

    first = of_groups(slope.mT @ weighted)  # Σ c r Vᵀ, (g, n, 1 + q)
    second = of_groups(weighted.mT @ v)  # Σ c V Vᵀ, (g, 1 + q, 1 + q)
    columns = bucket.z @ layout.factor(theta)  # ZΛ
    inverse = proposal.root @ proposal.root.mT  # H^{-1}
    gain = (proposal.curvature[..., None] * columns) @ inverse  # WZΛH^{-1}: (g, n, q)
    d = bucket.z.mT @ gain
    gradient = columns.mT @ first - second[:, 1:]  # Σ c ∇f Vᵀ, (g, q, 1 + q)
    rest = gradient[..., :1]
    of_beta = bucket.x.mT @ (first[..., :1] - gain @ rest)
    at_mode = bucket.z.mT @ proposal.slope[..., None]
    of_factor = bucket.z.mT @ first[..., 1:] - d @ gradient[..., 1:] - d
    of_factor = of_factor + at_mode @ (rest.mT @ inverse)
    row, column = layout.entries
    parts = [of_beta[..., 0], of_factor[:, row, column]]
    if of_phi is not None:
        v_phi, second_phi = proposal.of_phi[:, :1], proposal.of_phi[:, 1:]
        b = 0.5 * inverse @ second_phi
        moved = gradient[..., 1:] - rest * proposal.mode[:, None]  # Σ c ∇f (u − m)ᵀ
        linear = (v_phi @ inverse @ rest)[:, 0, 0] + b.diagonal(dim1=1, dim2=2).sum(1)
        mean = of_groups((c * of_phi).sum(1))
        parts.append((mean + (b * moved).sum((1, 2)) + linear)[:, None])
    return torch.cat(parts, 1)


def scores(
    buckets: list[Bucket],
    proposals: list[Proposal],
    layout: Layout,
    family: Family,
    theta: Tensor,
    estimator: Estimator,
    candidates: int,
    generator: torch.Generator,
    copies: int = 1,
) -> Tensor:
    """Independent estimates of the scores of all groups.

    Args:
        buckets: all groups.
        proposals: of each bucket.
        layout: of θ.
        family: of the response.
        theta: θ.
        estimator: how many blocks of draws there are for a group.
        candidates: k, draws of a block.
        generator: source of the randomness.
        copies: so many estimates, independent of each other.

    Returns:
        (copies, groups, θ), bucket by bucket.
    """
    found = []
    for bucket, proposal in zip(buckets, proposals, strict=True):
        plan = joined([estimator.plan(len(bucket), None, generator) for _ in range(copies)])
        every, pieces = torch.arange(len(bucket)).repeat(copies), []
        for which in _parts(plan.longest, candidates * bucket.y.shape[1]):
            part, mine, here = plan.select(which), bucket, proposal
            if len(part.levels) != len(bucket) or copies > 1:
                mine, here = bucket.select(every[which]), proposal.select(every[which])
            blocks = Blocks.of(part.longest.numpy())
            owner = torch.from_numpy(blocks.chain)
            u, log_q = here.draw(owner, candidates, generator)
            log_joint, slope, of_phi = evaluate(mine, layout, family, theta, u, owner)
            log_w = (log_joint - log_q).numpy()
            log_sum, share = shares(np.where(np.isnan(log_w), -np.inf, log_w))
            weight, total = block_weights(log_sum, blocks, part)
            _check_alive(total, mine.groups.numpy(), theta)
            c = torch.from_numpy(weight[:, None] * share)
            pieces.append(group_scores(mine, here, layout, theta, u, c, slope, of_phi, owner))
        found.append(torch.cat(pieces).unflatten(0, (copies, -1)))
    return torch.cat(found, 1)


def _check_alive(log_total: Floats, groups: Integers, theta: Tensor) -> None:
    """Refuse groups in which no draw has any weight."""
    dead = ~(log_total > -np.inf)
    if dead.any():
        at = ", ".join(f"{value:.4g}" for value in theta.tolist())
        raise FloatingPointError(
            f"the likelihood of {dead.sum()} groups (number {groups[dead.argmax()]} is one of "
            f"them) is 0 or not a number at θ = ({at}), in units of the search; check the response "
            "and the columns for extreme values, or rescale them"
        )


def _parts(lengths: Tensor, numbers: int) -> Iterator[slice]:
    """Groups in pieces of a bounded number of numbers."""
    total = lengths.cumsum(0) * numbers
    # A piece ends with the group that crosses a multiple of PART.
    piece = torch.div(total - lengths * numbers, PART, rounding_mode="floor")
    begin = 0
    for size in piece.unique_consecutive(return_counts=True)[1].tolist():
        yield slice(begin, begin + size)
        begin += size
