"""Evaluation of a model: test likelihood, and the squared norm of the gradient.

NLL: −log (1/K) Σ_ℓ w_ℓ, mean over the data: the IWAE bound with K = 1000 draws.

‖∇V(θ)‖² on a probe set: with R independent estimates g_r of ∇V,

    S = (1/(R(R−1))) Σ_{r≠s} g_r·g_s

has the expectation ‖E g‖²: unlike ‖g‖² it does not contain the noise of an estimate, so S may be
negative where the noise dominates. If each estimate has its own images, S does not contain the
noise of choosing them either: it then refers to V over all images. Its standard error is the
jackknife's. The estimates are averages of i-SIR chains, so E g differs from ∇V by the bias of a
chain of this length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mlmcgrad._checks import whole
from mlmcgrad.estimators import Average
from mlmcgrad.finish import PointEstimate, off_diagonal_mean
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.kernels import ISIR


@torch.no_grad()
def negative_log_likelihood(
    model: LatentModel,
    y: Tensor,
    *,
    generator: torch.Generator,
    samples: int = 1000,
    chunk: int = 256,
) -> PointEstimate:
    """Estimate the test NLL by the IWAE bound, in nats per image.

    Args:
        model: the latent model.
        y: images, (data, channels, h, w).
        generator: source of the draws.
        samples: K, draws per image.
        chunk: decoder rows in one pass: it bounds the memory.

    Returns:
        Mean over the images with its standard error.
    """
    whole(samples, "samples")
    whole(chunk, "chunk")
    each = []
    images = max(1, chunk // samples)
    draws = min(samples, chunk)
    for part in y.split(images):
        mean, log_scale = model.encoder(part)
        total = torch.full((len(part),), -math.inf, dtype=torch.float64, device=part.device)
        done = 0
        while done < samples:
            now = min(draws, samples - done)
            who, m, s = (t.repeat_interleave(now, 0) for t in (part, mean, log_scale))
            z = model.propose(len(who), who, m, s, generator)
            log_w = model.log_weight(z, who, m, s).double().reshape(len(part), now)
            total = torch.logaddexp(total, log_w.logsumexp(1))
            done += now
        each.append(math.log(samples) - total)
    values = torch.cat(each)
    if not bool(values.isfinite().all()):
        bad = int((~values.isfinite()).sum())
        raise FloatingPointError(
            f"the likelihood of {bad} of {len(values)} images is not finite: the weights collapsed "
            "or overflowed; train with a smaller learning rate"
        )
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return PointEstimate(float(values.mean()), error)


def squared_gradient_norm(
    model: LatentModel,
    y: Tensor | Sequence[Tensor],
    *,
    generator: torch.Generator,
    candidates: int = 5,
    length: int = 64,
    repeats: int = 8,
    chunk: int = 256,
) -> PointEstimate:
    """Estimate ‖∇V(θ)‖² on a probe set, without bias from the noise of the gradients.

    Args:
        model: the latent model.
        y: probe images; or a list of R such tensors, one per estimate.
        generator: source of all randomness.
        candidates: k of i-SIR.
        length: chain length of each estimate.
        repeats: R ≥ 3 independent estimates; for a list of images, its length.
        chunk: states in one backward pass.
    """
    images = [y] * repeats if isinstance(y, Tensor) else list(y)
    if len(images) < 3:
        raise ValueError(
            f"repeats (or the images in a list) must be ≥ 3 for a standard error, got {len(images)}"
        )
    gradient = MarkovGradient(
        ISIR(model.log_weight, model.propose, candidates, rao_blackwell=True, chunk=chunk),
        lambda z, y, mean, log_scale: -model.log_joint(z, y),
        Average(length),
        parameters=tuple(model.decoder.parameters()),
        chunk=chunk,
        thinning=0.1 / length,  # as in training: most candidates have almost no weight
    )
    rows = []
    for part in images:
        with torch.no_grad():
            mean, log_scale = model.encoder(part)
        tensors, _ = gradient.gradient(None, part, mean, log_scale, generator=generator)
        rows.append(torch.cat([t.flatten() for t in tensors]).double())
    products = torch.stack(rows) @ torch.stack(rows).T  # (R, R)
    return off_diagonal_mean(products)
