"""Is the chain itself healthy? Acceptance, effective sample size, weights.

Effective sample size of N chains with T states each (Geyer's initial monotone sequence on the
autocovariances that are averaged over the chains, as Stan does):

    ESS = N T / (1 + 2 Σ_{t≥1} ρ_t).

Of importance weights: ESS = (Σ w)² / Σ w² out of the number of draws, and the largest share
max w / Σ w: a share near 1 means that one draw decides everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.diagnostics.per_chain import chain_gradients
from mlmcgrad.estimators import Average
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import ISIR
from mlmcgrad.kernels.base import Start, take
from mlmcgrad.ranges import whole


@dataclass(frozen=True)
class Weights:
    """How even importance weights are, mean over the rows."""

    effective: float  # effective number of draws
    draws: int
    largest: float  # share of the largest weight
    spread: float  # standard deviation of the log weights, in nats


@dataclass(frozen=True)
class Health:
    """What `diagnose` reports of a kernel."""

    acceptance: float
    invalid: int  # proposals refused because they were NaN or infinite
    autocorrelation_time: float  # worst coordinate: states worth one independent draw
    effective: float  # independent draws that one chain of this length is worth
    weights: Weights | None  # for i-SIR


def effective_sample_size(x: Tensor) -> float:
    """Effective number of independent draws in (chains, steps) values of a scalar function.

    Example:
        >>> independent = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
        >>> 3000 < effective_sample_size(independent) < 5500
        True
    """
    if x.dim() != 2 or x.shape[1] < 4:
        raise ValueError(f"x must be (chains, steps) with at least 4 steps, got {tuple(x.shape)}")
    chains, steps = x.shape
    x = x.double()
    centred = x - x.mean(1, keepdim=True)
    size = 1 << (2 * steps - 1).bit_length()
    spectrum = torch.fft.rfft(centred, size)
    lagged = torch.fft.irfft(spectrum.abs() ** 2, size)[:, :steps].mean(0) / steps
    within = lagged[0] * steps / (steps - 1)
    between = x.mean(1).var() if chains > 1 else torch.zeros_like(within)
    total = within * (steps - 1) / steps + between
    if total <= 0.0:
        return float(chains * steps)  # a constant: every state says the same
    rho = 1.0 - (within - lagged) / total
    rho[0] = 1.0
    pairs = rho[: steps // 2 * 2].reshape(-1, 2).sum(1)
    stop = int((pairs <= 0.0).int().argmax()) if bool((pairs <= 0.0).any()) else len(pairs)
    time = float(-1.0 + 2.0 * torch.cummin(pairs[:stop], 0).values.sum()) if stop else 1.0
    return chains * steps / max(time, 1.0 / chains / steps)


def weights(log_w: Tensor) -> Weights:
    """Effective size, largest share and spread of log weights, (rows, draws)."""
    share = log_w.double().softmax(1)
    return Weights(
        effective=float((1.0 / share.square().sum(1)).mean()),
        draws=log_w.shape[1],
        largest=float(share.max(1).values.mean()),
        spread=float(log_w.double().std(1).mean()),
    )


def diagnose(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    length: int,
    generator: torch.Generator,
    draws: int = 256,
) -> Health:
    """Run chains of a length and look at what they did.

    The autocorrelation time is that of the gradient itself, by the variance between chains:
    length · Var H^{(length)} / Var H(X), so it needs many rows (some hundred) and a chain that
    forgets its start within its length.

    Args:
        gradient: with `parameters` given; its kernel and loss are used.
        x0: where chains start, (chains, *shape).
        context: as for `gradient.backward`.
        length: transitions of each chain; the first half is not averaged.
        generator: source of all randomness.
        draws: proposals per row whose weights are looked at, for i-SIR.
    """
    half = whole(length, "length", 4) // 2
    chains = gradient.kernel.chains(x0, context)
    averaged, outcome = chain_gradients(
        gradient,
        x0,
        *context,
        plan=Average(half, half).plan(chains, None, generator),
        generator=generator,
    )
    single, _ = chain_gradients(
        gradient,
        x0,
        *context,
        plan=Average(1, 2 * half - 1).plan(chains, None, generator),
        generator=generator,
    )
    ratio = half * averaged.var(0) / single.var(0).clamp(min=torch.finfo(torch.float64).tiny)
    time = max(1.0, float(ratio.max()))
    return Health(
        acceptance=outcome.accepted / (chains * 2 * half),
        invalid=outcome.invalid,
        autocorrelation_time=time,
        effective=half / time,
        weights=_proposal_weights(gradient.kernel, context, chains, draws, generator)
        if isinstance(gradient.kernel, ISIR)
        else None,
    )


@torch.no_grad()
def _proposal_weights(
    kernel: ISIR, context: tuple[object, ...], chains: int, draws: int, generator: torch.Generator
) -> Weights:
    rows = torch.arange(chains, device=generator.device).repeat_interleave(draws)
    repeated = take(context, rows)
    z = kernel.propose(len(rows), *repeated, generator=generator)
    return weights(kernel.log_weight(z, *repeated).reshape(chains, draws))
