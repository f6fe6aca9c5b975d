"""Optimizer steps against torch's own, 10 million parameters in 60 tensors.

`AMSGrad` against `torch.optim.Adam(amsgrad=True)`, `Adagrad` against `torch.optim.Adagrad`, all
with foreach. Ours check every gradient for NaN as well.
"""

from __future__ import annotations

import torch

import mlmcgrad as mg
from benchmarks.timing import Result, compare

TENSORS, ELEMENTS = 60, 10_000_000


def run() -> list[Result]:
    def parameters() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        made = []
        for _ in range(TENSORS):
            p = torch.randn(ELEMENTS // TENSORS, generator=generator).requires_grad_()
            p.grad = torch.randn(ELEMENTS // TENSORS, generator=generator)
            made.append(p)
        return made

    pairs = {
        "AMSGrad step / torch Adam(amsgrad)": (
            mg.optim.AMSGrad(parameters(), lr=1e-3, foreach=True),
            torch.optim.Adam(parameters(), lr=1e-3, amsgrad=True, foreach=True),
        ),
        "Adagrad step / torch Adagrad": (
            mg.optim.Adagrad(parameters(), lr=1e-3, clip=10.0, foreach=True),
            torch.optim.Adagrad(parameters(), lr=1e-3, foreach=True),
        ),
    }
    # At most 1.15 times the time of torch's: a ratio of at least 1/1.15.
    return [compare(name, a.step, b.step, target=1.0 / 1.15) for name, (a, b) in pairs.items()]
