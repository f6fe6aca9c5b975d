"""BR-IWAE steps against the loop that one publishes (`published_loop.py`), CIFAR-10 networks.

Batch 128, k = 5, processor time of one thread; both sides call the same network code. That both
have the same gradient in expectation is the test `tests/iwae/test_published_loop.py`. The weights
of most candidates are so small that the loop computes with subnormal numbers, which processors do
slowly; so a second time with these flushed to zero, which a user would have to know of. In brackets
is the most that could be reached: the time of the loop over that of the network calls in our step,
made again as bare calls on the same tensors.

What thinning adds to the variance is measured on the same chains with and without it, given the
images: it is unbiased given the chains, so E‖thinned − whole‖² is just what it adds.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch
from torch import Tensor

from benchmarks import networks, published_loop
from benchmarks.iwae_mlmc_step import bare, record
from benchmarks.timing import Result, seconds, summary
from mlmcgrad.iwae import LatentModel, Objective
from mlmcgrad.paper.runs.process import threads

K = 5
# The loop holds the graph of T · 128 · k decoder passes: 4 GB at T = 64.
LENGTHS = {16: (4.0, 3), 64: (5.0, 2)}  # T: target, repeats


def run() -> list[Result]:
    model, y, trained = networks.cifar10()
    what = "" if trained else ", untrained"
    results = []
    with threads(1):
        for length, (target, repeats) in LENGTHS.items():
            ratios, most = _ratios(model, y, length, repeats)
            for note, values in zip(("", ", subnormals flushed"), ratios, strict=True):
                name = f"BR-IWAE step, T = {length}{what} / published loop{note}"
                ceiling = f"its network calls alone: {statistics.median(most):.2f}" if note else ""
                results.append(summary(name, values, target, note=ceiling))
        shares = _added_variance(model, y[:16], calls=40)
    for name, values in zip(("decoder", "encoder"), shares, strict=True):
        label = f"variance that thinning adds, {name}, BR T = 16{what}"
        results.append(_mean(label, values))
    return results


def _ratios(
    model: LatentModel, y: Tensor, length: int, repeats: int
) -> tuple[tuple[list[float], ...], list[float]]:
    """Time of the loop over ours, as it is and with subnormal numbers flushed to zero.

    And with these flushed, over that of our network calls alone.
    """
    generator = torch.Generator().manual_seed(0)
    step = Objective(model, "br", candidates=K, truncation=length).backward
    ours = partial(step, y, n=1, generator=generator)
    theirs = partial(published_loop.step, model, y, K, length, generator)
    passes = record(model, ours)
    found: tuple[list[float], ...] = ([], [])
    most = []
    for _ in range(repeats):
        for flush, values in enumerate(found):
            torch.set_flush_denormal(bool(flush))
            loop = seconds(theirs, time.process_time)
            values.append(loop / seconds(ours, time.process_time))
        most.append(loop / sum(bare(model, y, passes).values()))
    torch.set_flush_denormal(False)
    return found, most


def _mean(label: str, values: list[float]) -> Result:
    """A variance is a mean, not a median: rare large differences count. Quartiles by bootstrap."""
    sample = torch.tensor(values)
    rows = torch.randint(
        len(sample), (2000, len(sample)), generator=torch.Generator().manual_seed(0)
    )
    low, high = sample[rows].mean(1).quantile(torch.tensor([0.25, 0.75])).tolist()
    return Result(label, float(sample.mean()), low, high, target=0.05, at_most=True)


def _added_variance(model: LatentModel, y: Tensor, calls: int) -> list[list[float]]:
    """‖thinned − whole‖² of each call over the variance of whole, for both networks."""
    whole, thinned = (
        [_gradients(objective, y, seed) for seed in range(calls)]
        for objective in (
            Objective(model, "br", candidates=K, truncation=16, thinning=0.0),
            Objective(model, "br", candidates=K, truncation=16),
        )
    )
    shares = []
    for full, few in zip(zip(*whole, strict=True), zip(*thinned, strict=True), strict=True):
        difference = (torch.stack(few) - torch.stack(full)).square().sum(1)
        shares.append((difference / torch.stack(full).var(0).sum()).tolist())
    return shares


def _gradients(objective: Objective, y: Tensor, seed: int) -> list[Tensor]:
    for parameter in objective.parameters:
        parameter.grad = None
    objective.backward(y, n=1, generator=torch.Generator().manual_seed(seed))
    return [
        torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        for network in (objective.model.decoder, objective.model.encoder)
    ]
