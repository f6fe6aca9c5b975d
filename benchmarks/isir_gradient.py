"""i-SIR against the loop of Algorithm 3: weigh and select at every step, autograd through all.

A decoder of two layers, 64 observations, latent 20, k = 5 candidates, average over 32 steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

import mlmcgrad as mg
from benchmarks.timing import Result, compare

ROWS, LATENT, PIXELS, K, STEPS = 64, 20, 200, 5, 32


def run() -> list[Result]:
    generator = torch.Generator().manual_seed(0)
    decoder = torch.nn.Sequential(
        torch.nn.Linear(LATENT, 200), torch.nn.Tanh(), torch.nn.Linear(200, PIXELS)
    )
    y = torch.rand(ROWS, PIXELS, generator=generator)

    def negative_log_joint(z: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (y - decoder(z)).square().sum(1) / 0.1 + 0.5 * z.square().sum(1)

    def log_weight(z: Tensor, y: Tensor) -> Tensor:
        return -negative_log_joint(z, y) + 0.5 * z.square().sum(1)

    def propose(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, LATENT, generator=generator)

    def make(rao_blackwell: bool) -> mg.MarkovGradient:
        kernel = mg.kernels.ISIR(log_weight, propose, K, rao_blackwell=rao_blackwell)
        return mg.MarkovGradient(kernel, negative_log_joint, mg.Average(STEPS), chunk=4096)

    def theirs() -> None:
        decoder.zero_grad()
        kept = propose(ROWS, y, generator)
        repeated = y.repeat_interleave(K, 0)
        total = torch.zeros(())
        for _ in range(STEPS):
            fresh = propose(ROWS * (K - 1), y, generator).reshape(ROWS, K - 1, LATENT)
            z = torch.cat([kept[:, None], fresh], 1)
            flat = z.reshape(-1, LATENT)
            joint = negative_log_joint(flat, repeated).reshape(ROWS, K)
            log_w = (-joint + 0.5 * z.square().sum(2)).detach()
            omega = log_w.softmax(1)
            total = total + (omega * joint).sum(1).mean() / STEPS
            pick = torch.multinomial(omega, 1, generator=generator)[:, 0]
            kept = z[torch.arange(ROWS), pick]
        total.backward()

    results = []
    for name, rao_blackwell in (("sampled", False), ("Rao-Blackwell", True)):
        gradient = make(rao_blackwell)

        def ours(gradient: mg.MarkovGradient = gradient) -> None:
            decoder.zero_grad()
            gradient.backward(None, y, n=1, generator=generator)

        results.append(compare(f"i-SIR gradient, {name} / plain loop", ours, theirs, target=1.0))
    return results
