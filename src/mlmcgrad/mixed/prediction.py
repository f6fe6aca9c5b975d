"""Predictions of a fitted model with intervals, simulated responses, and residuals.

The linear predictor of a row is η = o + xᵀβ + zᵀb. Its interval is that of

- effects "none": xᵀβ, with the covariance of β from the observed information;
- effects "conditional": xᵀβ + zᵀb with the joint covariance of β and b given the covariance
  parameters, the inverse of the curvature of log p(y, b) in (β, b) (Henderson, 1975). With a
  gaussian response it is exact; otherwise it is a normal approximation, as in lme4;
- effects "marginal": the η* whose mean response is the mean over all groups, E F(η + s t) with
  t ~ N(0, 1) and s² = zᵀΣz, by the delta method in all parameters.

The ends on the scale of the response are the means of those of η.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from scipy.sparse.linalg import splu
from scipy.special import ndtri, roots_hermitenorm
from torch import Tensor

from mlmcgrad._checks import whole
from mlmcgrad.mixed.columns import Data
from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Bernoulli, Binomial, Family, Gaussian, Weighted

if TYPE_CHECKING:
    from mlmcgrad.mixed.result import Fit

Effects: TypeAlias = Literal["conditional", "marginal", "none"]
Scale: TypeAlias = Literal["response", "link"]
Residuals: TypeAlias = Literal["quantile", "pearson", "response"]

_NODES = 200  # of quadrature, for a marginal mean
_BISECTIONS = 60
_ENTRIES = 2**22  # numbers in a block of right-hand sides


def predict(
    fit: Fit, new: Data | None, scale: Scale, effects: Effects, interval: float | None
) -> pd.Series | pd.DataFrame:
    """Predict rows; see `Fit.predict`."""
    if scale not in ("response", "link"):
        raise ValueError(f"type must be 'response' or 'link', got {scale!r}")
    if effects not in ("conditional", "marginal", "none"):
        raise ValueError(f"effects must be 'conditional', 'marginal' or 'none', got {effects!r}")
    if interval is not None and not 0.0 < interval < 1.0:
        raise ValueError(f"interval must lie strictly between 0 and 1, got {interval!r}")
    design = _design(fit, new)
    log_dispersion = fit.layout.log_dispersion(fit.theta)
    error: Tensor | None = None
    if effects == "marginal":
        eta, error = _marginal(fit, design, interval is not None)
    else:
        eta = _predictor(fit, design, conditional=effects == "conditional")
        if interval is not None:
            variance = _conditional if effects == "conditional" else _fixed
            error = variance(fit, design).clamp(min=0.0).sqrt()
    columns = [eta]
    if interval is not None and error is not None:
        width = float(ndtri(0.5 + 0.5 * interval)) * error
        columns += [eta - width, eta + width]
    if scale == "response":
        columns = [fit.family.mean(each, log_dispersion) for each in columns]
    if interval is None:
        return pd.Series(columns[0].numpy(), name=_label(fit, design, scale, effects))
    values = torch.stack(columns, 1).numpy()
    return pd.DataFrame(values, columns=["estimate", "low", "high"])


def draw(fit: Fit, design: Design, generator: torch.Generator) -> Tensor:
    """Draw responses with new random effects for all groups, (rows,)."""
    eta = design.offset + design.fixed @ fit.layout.beta(fit.theta)
    factor = fit.layout.factor(fit.theta)
    for e, (_, part) in zip(design.effects, fit.parts, strict=True):
        alone = e.index < 0
        index = torch.where(alone, len(e.groups) - 1 + alone.cumsum(0), e.index)
        shape = (len(e.groups) + int(alone.sum()), len(e.terms))
        u = torch.randn(shape, dtype=torch.float64, generator=generator)
        eta = eta + (e.columns * (u @ factor[part, part].T)[index]).sum(1)
    family, trials, log_dispersion = _law(fit, design)
    return family.sample(eta, trials, log_dispersion, generator)


def simulate(fit: Fit, new: Data | None, seed: int) -> pd.Series:
    """Draw responses of rows; see `Fit.simulate`."""
    design = _design(fit, new)
    y = draw(fit, design, torch.Generator().manual_seed(seed))
    return pd.Series(y.numpy(), name=design.response)


def residuals(fit: Fit, kind: Residuals, draws: int, seed: int) -> pd.Series:
    """Return the residuals for the rows used in the fit; see `Fit.residuals`."""
    if kind not in ("quantile", "pearson", "response"):
        raise ValueError(f"type must be 'quantile', 'pearson' or 'response', got {kind!r}")
    whole(draws, "draws")
    design = _design(fit, None)
    if kind == "quantile":
        return _quantile(fit, design, draws, seed)
    log_dispersion = fit.layout.log_dispersion(fit.theta)
    eta = _predictor(fit, design, conditional=True)
    error = design.y / design.trials - fit.family.mean(eta, log_dispersion)
    if kind == "response":
        return pd.Series(error.numpy(), name="response residual")
    variance = getattr(fit.family, "variance", None)
    if variance is None:
        raise ValueError(
            f"type must be 'quantile' or 'response', because the family {fit.family.name!r} has no "
            "method variance(eta, log_dispersion)"
        )
    size = design.trials if design.weights is None else design.trials * design.weights
    scaled = error * (size / variance(eta, log_dispersion)).sqrt()
    return pd.Series(scaled.numpy(), name="Pearson residual")


def _quantile(fit: Fit, design: Design, draws: int, seed: int) -> pd.Series:
    """Return Φ^{−1}((rank of y − U)/(draws + 1)) among simulated responses, ties in random order.

    The rank of y among `draws` + 1 responses of the same law is uniform on 1 … draws + 1.
    """
    generator = torch.Generator().manual_seed(seed)
    below, equal = torch.zeros_like(design.y), torch.zeros_like(design.y)
    for _ in range(draws):
        y = draw(fit, design, generator)
        below += y < design.y
        equal += y == design.y
    uniform = torch.rand(design.y.shape, dtype=torch.float64, generator=generator)
    found = torch.special.ndtri((below + uniform * (equal + 1.0)) / (draws + 1.0))
    return pd.Series(found.numpy(), name="quantile residual")


def _law(fit: Fit, design: Design) -> tuple[Family, Tensor, Tensor]:
    """Return the family, trials and log dispersion of rows that may have weights."""
    log_dispersion = fit.layout.log_dispersion(fit.theta)
    if design.weights is None:
        return fit.family, design.trials, log_dispersion
    if isinstance(fit.family, Gaussian):
        return fit.family, design.trials, log_dispersion - 0.5 * design.weights.log()
    return Weighted(fit.family), design.weights, log_dispersion


def _design(fit: Fit, new: Data | None) -> Design:
    if new is not None:
        return fit.coding.design(new)
    if fit.live is None:
        raise ValueError("new: a loaded fit has no data of its own; pass the rows")
    return fit.live.design


def _label(fit: Fit, design: Design, scale: Scale, effects: Effects) -> str:
    marginal = "marginal " if effects == "marginal" else ""
    if scale == "link":
        return f"{marginal}linear predictor"
    kind = "probability" if isinstance(fit.family, (Bernoulli, Binomial)) else "mean"
    level = "" if fit.coding.success is None else f" = {fit.coding.success}"
    return f"{marginal}{kind} of {design.response}{level}"


def _predictor(fit: Fit, design: Design, conditional: bool) -> Tensor:
    """Return η, (rows,), with random effects at their posterior means or 0."""
    eta = design.offset + design.fixed @ fit.layout.beta(fit.theta)
    if conditional:
        for e, f in zip(design.effects, fit.factors, strict=True):
            # Unknown groups follow those of the fit; the last row is for −1, no group.
            unknown = f.mean.new_zeros(len(e.groups) - len(f.groups) + 1, len(f.terms))
            eta = eta + (e.columns * torch.cat([f.mean, unknown])[e.index]).sum(1)
    return eta


def _fixed(fit: Fit, design: Design) -> Tensor:
    """Return the variance of xᵀβ, (rows,)."""
    part = fit.parameter_covariance[: fit.layout.fixed, : fit.layout.fixed]
    return ((design.fixed @ part) * design.fixed).sum(1)


def _conditional(fit: Fit, design: Design) -> Tensor:
    """Return the variance of xᵀβ + zᵀb given the data and the covariance parameters, (rows,).

    With b = Λu and A = (X, ZΛ̃), the joint curvature in (β, u) is AᵀWA + diag(0, I).
    """
    if fit.live is None:
        raise ValueError(
            "interval must be None for conditional predictions of a loaded fit, which has no data; "
            "fit it again, or use effects='none'"
        )
    own = fit.live.design
    family, trials, log_dispersion = _law(fit, own)
    eta = _predictor(fit, own, conditional=True)
    _, _, curvature = family.slopes(eta, own.y, trials, log_dispersion)
    columns, _ = _joint_columns(fit, own)
    prior = np.r_[np.zeros(fit.layout.fixed), np.ones(columns.shape[1] - fit.layout.fixed)]
    weighted = columns.multiply(curvature.numpy()[:, None])
    solver = splu((columns.T @ weighted + sparse.diags_array(prior)).tocsc())
    wanted, found = _joint_columns(fit, design)
    size = max(1, _ENTRIES // columns.shape[1])
    for begin in range(0, len(found), size):
        part = wanted[begin : begin + size].toarray()
        found[begin : begin + size] += (part.T * solver.solve(part.T)).sum(0)
    return torch.from_numpy(found)


def _joint_columns(fit: Fit, design: Design) -> tuple[sparse.csr_array, np.ndarray]:
    """Return (X, ZΛ̃) for the groups of the fit, and the variance of zᵀb in unknown groups."""
    rows, blocks = len(design.y), [sparse.csr_array(design.fixed.numpy())]
    factor = fit.layout.factor(fit.theta)
    variance = torch.zeros(rows, dtype=torch.float64)
    for e, (f, part) in zip(design.effects, fit.parts, strict=True):
        q, scaled = len(f.terms), e.columns @ factor[part, part]
        known = (e.index >= 0) & (e.index < len(f.groups))
        variance += torch.where(known, 0.0, scaled.square().sum(1))
        row = known.nonzero()[:, 0]
        place = e.index[row][:, None] * q + torch.arange(q)
        where = (row.repeat_interleave(q).numpy(), place.reshape(-1).numpy())
        shape = (rows, len(f.groups) * q)
        blocks.append(sparse.csr_array((scaled[row].reshape(-1).numpy(), where), shape))
    return sparse.csr_array(sparse.hstack(blocks)), variance.numpy()


def _marginal(fit: Fit, design: Design, errors: bool) -> tuple[Tensor, Tensor | None]:
    """Return η* with F(η*) = E F(η + s t), and its standard error, (rows,) each.

    zᵀb is one normal number per row, so its mean is an integral over a line.
    """
    layout, family = fit.layout, fit.family
    columns = torch.cat([e.columns for e in design.effects], 1)
    pulled = columns @ layout.factor(fit.theta)
    spread = pulled.norm(dim=1)
    eta = _predictor(fit, design, conditional=False)
    log_dispersion = layout.log_dispersion(fit.theta).expand_as(eta)
    leaves = [each.detach().clone().requires_grad_() for each in (eta, spread, log_dispersion)]
    nodes, weights = roots_hermitenorm(_NODES)
    mean = torch.zeros_like(eta)
    for node, weight in zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True):
        mean = mean + weight * family.mean(leaves[0] + node * leaves[1], leaves[2])
    target = mean.detach()
    # η* is at most this far from η: s²/2 for a log link, less for bounded means.
    reach = 1e-9 + 10.0 * spread + spread.square()
    low, high = eta - reach, eta + reach
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        above = family.mean(middle, log_dispersion) >= target
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    found = 0.5 * (low + high)
    if not errors:
        return found, None
    of_eta, of_spread, of_phi = torch.autograd.grad(mean.sum(), leaves, materialize_grads=True)
    at, phi = found.clone().requires_grad_(), log_dispersion.detach().clone().requires_grad_()
    slope, own = torch.autograd.grad(family.mean(at, phi).sum(), [at, phi], materialize_grads=True)
    row, column = layout.entries
    unit = torch.where(spread[:, None] > 0.0, pulled / spread[:, None], 0.0)
    parts = [of_eta[:, None] * design.fixed, of_spread[:, None] * columns[:, row] * unit[:, column]]
    if layout.dispersion:
        parts.append((of_phi - own)[:, None])
    gradient = torch.cat(parts, 1) / slope[:, None]
    used = (gradient != 0.0).any(0)  # a dispersion that is not determined has no covariance
    gradient, covariance = gradient[:, used], fit.parameter_covariance[used][:, used]
    variance = ((gradient @ covariance) * gradient).sum(1)
    return found, variance.clamp(min=0.0).sqrt()
