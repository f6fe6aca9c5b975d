"""Steps whose waits and launches are counted, with the bounds that they must keep.

`MLMCGRAD_DEVICE=standin python -m tests.device.steps` prints them as the table of `docs/gpu.md`.
The numbers of waits and launches do not depend on the widths of networks, so the tests use narrow
ones; the table has the real ones, which arithmetic and bytes depend on.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

import mlmcgrad as mg
from mlmcgrad import iwae, optim
from mlmcgrad.iwae.networks import CIFAR10, DIGITS, MNIST, LatentModel, Sizes
from mlmcgrad.paper.training import trainer as training
from mlmcgrad.paper.training.config import Config
from mlmcgrad.paper.training.trainer import Source
from tests.device.place import DEVICE, Draws, Record, recorded
from tests.device.scenarios import scenario

CALLS = 4
Step = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """A step, made ready by a function of the width of its networks (1 is the real one)."""

    name: str
    prepare: Callable[[int], Step]
    waits: int
    launches: int

    def count(self, width: int = 1) -> Record:
        """Return what some calls do, after a first one that allocates."""
        step = self.prepare(width)
        step()
        with recorded() as record:
            for _ in range(CALLS):
                step()
        return record


def gradient(kernel: str, truncation: int, _: int) -> Step:
    """A call of `backward` with 128 chains."""
    made = scenario(kernel, DEVICE, 128)
    markov = mg.MarkovGradient(made.kernel, made.loss, mg.MLMC(truncation))
    rng = torch.Generator(DEVICE).manual_seed(0)
    return partial(markov.backward, made.x0, *made.context, generator=rng)


def narrow(sizes: Sizes, width: int) -> Sizes:
    """Return the same layers with fewer channels and units."""
    channels, hidden = ([n // width for n in ns] for ns in (sizes.channels, sizes.hidden))
    return replace(sizes, channels=tuple(channels), hidden=tuple(hidden))


def autoencoder(sizes: Sizes, batch: int, width: int) -> Step:
    """A gradient of MLMC-IWAE with T = 64 on random images."""
    rng = torch.Generator(DEVICE).manual_seed(0)
    model = LatentModel(narrow(sizes, width), iwae.BernoulliLikelihood(), rng)
    y = torch.rand(batch, *sizes.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    return partial(iwae.Objective(model, truncation=64.0).backward, y, n=1, generator=rng)


def optimizer(make: Callable[..., torch.optim.Optimizer], _: int, **options: Any) -> Step:
    """A step with the gradients of 12 tensors."""
    rng = torch.Generator().manual_seed(0)
    params = [torch.randn(100, 10, generator=rng).to(DEVICE).requires_grad_() for _ in range(12)]
    for p in params:
        p.grad = torch.ones_like(p)
    return make(params, lr=0.01, **options).step


def digits(_: int) -> Step:
    """A step of a trainer: images, MLMC-IWAE with T = 64, AMSGrad, the lines of the metrics."""
    images = np.random.default_rng(0).integers(0, 17, (200, *DIGITS.shape), dtype=np.uint8)
    source = Source(images[:150], images[150:], 17, DIGITS)
    config = Config.from_flat(dataset="digits", truncation_scale=64.0, truncation_exponent=0.0)
    with mock.patch.object(training, "usable", return_value=DEVICE):
        return training.Trainer(config.settings(), source).step


ROWS = [
    Row("RWMH, `MLMC(64)`, 128 chains", partial(gradient, "RWMH", 64), 3, 1100),
    Row("MALA, the same", partial(gradient, "MALA", 64), 3, 1950),
    Row("Gibbs, `MLMC(128)`", partial(gradient, "Gibbs", 128), 3, 1050),
    Row("Finite, `MLMC(64)`", partial(gradient, "Finite", 64), 4, 500),
    Row("Regenerative", partial(gradient, "Regenerative", 64), 5, 90),
    Row("ISIR, `MLMC(64)`", partial(gradient, "ISIR", 64), 3, 45),
    Row("ISIR, Rao-Blackwell", partial(gradient, "ISIR, Rao-Blackwell", 64), 3, 45),
    Row("Importance, `MLMC(64)`", partial(gradient, "Importance", 64), 3, 45),
    Row("MLMC-IWAE, MNIST, batch 100", partial(autoencoder, MNIST, 100), 4, 190),
    Row("MLMC-IWAE, CIFAR-10, batch 128", partial(autoencoder, CIFAR10, 128), 4, 230),
    Row("AMSGrad", partial(optimizer, optim.AMSGrad), 1, 11),
    Row(
        "AMSGrad, `check_finite=False`",
        partial(optimizer, partial(optim.AMSGrad, check_finite=False)),
        0,
        9,
    ),
    Row("torch's Adam", partial(optimizer, partial(torch.optim.Adam, foreach=True)), 0, 15),
    Row("a trainer's step, digits, batch 50", digits, 6, 200),
]

# An assumed GPU. Launches: the time that Python and torch take for an operation, not the GPU.
LAUNCH_SECONDS, WAIT_SECONDS = 6e-6, 20e-6
FLOPS, BANDWIDTH = 15e12, 1.5e12


def estimate(waits: float, launches: float, flops: float, bytes_moved: float) -> float:
    """Return the seconds of a step: the host's or the device's, and what it costs to wait."""
    return max(LAUNCH_SECONDS * launches, flops / FLOPS + bytes_moved / BANDWIDTH) + (
        WAIT_SECONDS * waits
    )


def table() -> str:
    """Return waits, launches, work and an estimate of the time of each step, as Markdown."""
    lines = [
        "| a step | waits | launches | GFLOP | MB moved | estimate, ms |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in ROWS:
        record = row.count()
        work = record.waits, record.launches, record.flops, record.bytes
        waits, launches, flops, moved = (number / CALLS for number in work)
        cells = f"{waits:g} | {launches:.0f} | {flops / 1e9:.2g} | {moved / 1e6:.3g}"
        milliseconds = 1e3 * estimate(waits, launches, flops, moved)
        lines.append(f"| {row.name} | {cells} | {milliseconds:.2g} |")
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with Draws():
        sys.stdout.write(table() + "\n")
