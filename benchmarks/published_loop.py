"""BR-IWAE as one writes it down from the paper (its Section 4): the other side of a comparison.

Every step of the chain encodes the images, draws candidates, decodes them, normalises the weights
and draws the next state with one multinomial; autograd keeps the graph of all steps until the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlmcgrad.iwae import LatentModel


def step(
    model: LatentModel, y: Tensor, candidates: int, length: int, generator: torch.Generator
) -> None:
    """Set `.grad` of both networks to the gradients of one batch."""
    chains = torch.arange(len(y))
    repeated = y.repeat_interleave(candidates, 0)
    kept: Tensor | None = None
    theta_loss = phi_loss = torch.zeros(())
    for p in range(length):
        mean, log_scale = model.encoder(y)
        noise = torch.randn(len(y), candidates, mean.shape[1], dtype=y.dtype, generator=generator)
        z = mean[:, None] + log_scale.exp()[:, None] * noise  # (batch, k, latent)
        if kept is not None:
            slot = torch.randint(candidates, (len(y),), generator=generator)
            z = z.index_put((chains, slot), kept)
        flat = z.flatten(0, 1)
        log_joint = model.log_joint(flat, repeated).reshape(len(y), candidates)
        rows = (t.repeat_interleave(candidates, 0) for t in (mean, log_scale))
        log_w = log_joint - model.log_q(flat, *rows).reshape(len(y), candidates)
        omega = log_w.detach().softmax(1)
        theta_loss = theta_loss - (omega * log_joint).sum(1).mean() / length
        if p == 0:
            phi_loss = -(omega * log_w).sum(1).mean()
        choice = torch.multinomial(omega, 1, generator=generator)[:, 0]
        kept = z[chains, choice].detach()
    for network, loss in ((model.decoder, theta_loss), (model.encoder, phi_loss)):
        parameters = tuple(network.parameters())
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
