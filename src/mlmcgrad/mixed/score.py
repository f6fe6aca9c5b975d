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

Groups with the same number of draws are worked on together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.estimators import Estimator
from mlmcgrad.kernels.groups import Blocks, block_weights, shares
from mlmcgrad.mixed.buckets import Bucket
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.proposal import Proposal, predictor

# Numbers (draws × rows) that are worked on at once: they stay in the cache of a processor.
PART = 2**18
_LOG_2PI = math.log(2.0 * math.pi)


def evaluate(
    bucket: Bucket, layout: Layout, family: Family, theta: Tensor, u: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log p(y, u) of draws, (g, m); r, (g, m, n); slopes in log φ, (g, m), if there is φ."""
    base, columns = predictor(bucket, layout, theta)
    eta = base[:, None] + u @ columns.mT
    log_dispersion = layout.log_dispersion(theta)
    rows = (bucket.y[:, None], bucket.trials[:, None])
    value, slope, _ = family.slopes(eta, *rows, log_dispersion)
    present = bucket.present[:, None]
    q = layout.random
    log_joint = (value * present).sum(-1) - 0.5 * u.square().sum(-1) - 0.5 * q * _LOG_2PI
    of_dispersion = None
    if layout.dispersion:
        of_dispersion = (family.dispersion_slope(eta, *rows, log_dispersion) * present).sum(-1)
    return log_joint, slope * present, of_dispersion


def group_scores(
    bucket: Bucket,
    proposal: Proposal,
    layout: Layout,
    theta: Tensor,
    u: Tensor,
    c: Tensor,
    slope: Tensor,
    of_phi: Tensor | None,
) -> Tensor:
    """The mean score of each group, (g, θ).

    Args:
        bucket: the groups.
        proposal: what u was drawn from; its slopes need not be those of θ.
        layout: of θ.
        theta: θ.
        u: draws, (g, m, q).
        c: their coefficients, which sum to 1 in each group, (g, m).
        slope: r, (g, m, n).
        of_phi: slopes in log φ, (g, m).
    """
    columns = bucket.z @ layout.factor(theta)  # ZΛ
    inverse = proposal.root @ proposal.root.mT  # H^{-1}
    gain = (proposal.curvature[..., None] * columns) @ inverse  # WZΛH^{-1}: (g, n, q)
    d = bucket.z.mT @ gain
    mean_slope, mean_u = c[:, None] @ slope, c[:, None] @ u  # (g, 1, n), (g, 1, q)
    rest = mean_slope @ columns - mean_u  # the mean of ∇f, as a row
    of_beta = (mean_slope - rest @ gain.mT) @ bucket.x
    rho = slope @ (bucket.z - columns @ d.mT) + u @ d.mT  # Zᵀr − D∇f, as rows
    at_mode = bucket.z.mT @ proposal.slope[..., None]
    of_factor = (c[..., None] * rho).mT @ u - d + at_mode @ (rest @ inverse)
    row, column = layout.entries
    parts = [of_beta[:, 0], of_factor[:, row, column]]
    if of_phi is not None:
        v, second = proposal.of_phi[:, :1], proposal.of_phi[:, 1:]
        b = 0.5 * inverse @ second
        gradient, moved = slope @ columns - u, u - proposal.mode[:, None]
        quadratic = ((gradient @ b) * moved).sum(-1)
        linear = (rest @ inverse @ v.mT)[:, 0, 0] + b.diagonal(dim1=1, dim2=2).sum(1)
        parts.append(((c * (of_phi + quadratic)).sum(1) + linear)[:, None])
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
) -> tuple[Tensor, int]:
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

    Returns:
        The scores, (groups, θ), in no particular order; and the number of draws.
    """
    found, count = [], 0
    for bucket, proposal in zip(buckets, proposals, strict=True):
        plan = estimator.plan(len(bucket), None, generator)
        for which in _parts(plan.longest, candidates * bucket.y.shape[1]):
            part, mine, here = plan.select(which), bucket.select(which), proposal.select(which)
            blocks = int(part.longest[0])
            u, log_q = here.draw(blocks, candidates, generator)
            log_joint, slope, of_phi = evaluate(mine, layout, family, theta, u)
            log_w = (log_joint - log_q).reshape(-1, candidates).numpy()
            log_sum, share = shares(np.where(np.isnan(log_w), -np.inf, log_w))
            weight, _ = block_weights(log_sum, Blocks.of(part.longest.numpy()), part)
            c = torch.from_numpy(weight[:, None] * share).reshape(len(mine), -1)
            found.append(group_scores(mine, here, layout, theta, u, c, slope, of_phi))
            count += u.shape[0] * u.shape[1]
    return torch.cat(found), count


def _parts(lengths: Tensor, numbers: int) -> Iterator[Tensor]:
    """Groups with equally many blocks, a bounded number of numbers at a time."""
    for length in lengths.unique().tolist():
        groups = (lengths == length).nonzero()[:, 0]
        yield from groups.split(max(1, PART // (length * numbers)))
