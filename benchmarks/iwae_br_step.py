"""BR-IWAE steps against the loop that one publishes (`published_loop.py`), CIFAR-10 networks.

Batch 128, k = 5, processor time of one thread; both sides call the same network code. That both
have the same gradient in expectation is the test `tests/iwae/test_published_loop.py`. What thinning
adds to the variance is measured on the same chains with and without it, given the images: it is
unbiased given the chains, so E‖thinned − whole‖² is just what it adds.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from benchmarks import networks, published_loop
from benchmarks.timing import Result, compare, one_thread
from mlmcgrad.iwae import LatentModel, Objective

K = 5
# A step of the loop holds the graph of T · 128 · k decoder passes: 6 GB at T = 64.
LENGTHS = {16: (4.0, 5), 64: (5.0, 3)}  # T: target, repeats


def run() -> list[Result]:
    model, y, trained = networks.cifar10()
    what = "" if trained else ", untrained"
    results = []
    with one_thread():
        for length, (target, repeats) in LENGTHS.items():
            objective = Objective(model, "br", K, length)
            generator = torch.Generator().manual_seed(0)

            def ours(
                objective: Objective = objective, generator: torch.Generator = generator
            ) -> None:
                model.zero_grad()
                objective.backward(y, n=1, generator=generator)

            def theirs(length: int = length, generator: torch.Generator = generator) -> None:
                published_loop.step(model, y, K, length, generator)

            name = f"BR-IWAE step, T = {length}{what} / published loop"
            results.append(compare(name, ours, theirs, target, repeats, time.process_time))
        shares = _added_variance(model, y[:16], calls=40)
    for name, values in zip(("decoder", "encoder"), shares, strict=True):
        label = f"variance that thinning adds, {name}, BR T = 16{what}"
        results.append(_mean(label, values))
    return results


def _mean(label: str, values: list[float]) -> Result:
    """A variance is a mean, not a median: rare large differences count. Quartiles by bootstrap."""
    sample = torch.tensor(values)
    rows = torch.randint(len(sample), (2000, len(sample)),
                         generator=torch.Generator().manual_seed(0))  # fmt: skip
    low, high = sample[rows].mean(1).quantile(torch.tensor([0.25, 0.75])).tolist()
    return Result(label, float(sample.mean()), low, high, target=0.05, at_most=True)


def _added_variance(model: LatentModel, y: Tensor, calls: int) -> list[list[float]]:
    """‖thinned − whole‖² of each call over the variance of whole, for both networks."""
    whole, thinned = (
        [_gradients(objective, y, seed) for seed in range(calls)]
        for objective in (
            Objective(model, "br", K, 16, thinning=0.0),
            Objective(model, "br", K, 16),
        )
    )
    shares = []
    for full, few in zip(zip(*whole, strict=True), zip(*thinned, strict=True), strict=True):
        difference = (torch.stack(few) - torch.stack(full)).square().sum(1)
        shares.append((difference / torch.stack(full).var(0).sum()).tolist())
    return shares


def _gradients(objective: Objective, y: Tensor, seed: int) -> list[Tensor]:
    objective.model.zero_grad()
    objective.backward(y, n=1, generator=torch.Generator().manual_seed(seed))
    return [
        torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        for network in (objective.model.decoder, objective.model.encoder)
    ]
