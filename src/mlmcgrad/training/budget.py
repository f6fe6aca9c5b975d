"""What a run needs, from its settings alone: nothing is allocated before that is affordable.

Memory: parameters with their gradients and the moments of the optimizer, the first k draws of a
batch, and one pass through the networks. These are lower estimates of what is really used, so that
only what cannot work is refused. Work: decoder passes of one iteration with the longest chain, and
of one test; a run can be stopped and resumed between them, not inside.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import torch

from mlmcgrad.datasets import pictures_dataset
from mlmcgrad.iwae.networks import Sizes
from mlmcgrad.training.config import Config, Dataset, Settings
from mlmcgrad.training.data import Source
from mlmcgrad.training.device import usable

PASSES = 10**11
"""Decoder passes that an iteration or a test may take: more than a day at a million a second."""
# Copies of the parameters: values, gradients, the two or three moments of the optimizer.
_COPIES = 4
# Copies of the first draws: noise, z, its gradient and the slopes.
_DRAWS = 4
_TEST_ROWS = 256  # of a pass in a test, see `iwae.evaluate`
_SINGLE, _DOUBLE = 4, 8  # bytes


@dataclass(frozen=True)
class Need:
    """What one thing needs, and the settings that it grows with."""

    what: str
    amount: int
    names: str


def check(settings: Settings, source: Source) -> None:
    """Refuse a device that is not there, and what no machine of this size can do.

    Raises:
        ValueError: it names the setting that exceeds its default the most, and what it would need.
    """
    device = usable(settings.device)
    for need in passes(settings, source):
        if need.amount > PASSES:
            amount = f"{need.amount:.3g} decoder passes, and the limit is {PASSES:.0e}"
            raise ValueError(_refusal(need, settings, amount))
    limit, needs = _memory(device), list(memory(settings, source))
    if limit is not None and sum(need.amount for need in needs) > limit:
        largest = max(needs, key=lambda need: need.amount)
        amount = f"{largest.amount / 1e9:,.0f} GB, and there are {limit / 1e9:,.0f} GB of memory"
        raise ValueError(_refusal(largest, settings, amount))


def check_pictures(settings: Settings) -> None:
    """Refuse a file of pictures that does not fit into memory, before a pixel is read.

    Raises:
        ValueError: it is too large, or no file of pictures.
        OSError: it cannot be read.
    """
    if settings.dataset in get_args(Dataset):
        return
    limit = _memory(torch.device("cpu"))
    size = {p: math.prod(s) for p, s in pictures_dataset.shapes(settings.dataset).items()}
    # What is drawn once is in memory beside what it was drawn from.
    train, test = {"none": (1, 1), "dynamic": (1, 2), "static": (2, 2)}[settings.binarisation]
    amount = train * size["train"] + test * size["test"]
    if limit is not None and amount > limit:
        raise ValueError(
            f"dataset {settings.dataset} must have fewer pictures, or smaller ones: they take "
            f"{amount / 1e9:,.0f} GB, and there are {limit / 1e9:,.0f} GB of memory"
        )


def passes(settings: Settings, source: Source) -> Iterator[Need]:
    """Decoder passes of an iteration and of a test."""
    fresh = max(settings.candidates, 2) - 1
    draws = "candidates batch_size"
    if settings.method == "iwae":
        length, chain = 1, ""
    else:
        truncation = settings.truncation_scale * settings.iterations**settings.truncation_exponent
        length = max(math.floor(truncation), settings.base if settings.method == "mlmc" else 1)
        chain = "base truncation_scale" + " iterations" * (settings.truncation_exponent > 0.0)
    batch = min(settings.batch_size, len(source.train))
    count = 1 + fresh * length
    if settings.kernel == "importance":
        count = settings.candidates * length
    yield Need("an iteration", batch * count, f"{draws} {chain}")
    images = min(settings.test_images, len(source.test))
    yield Need("a test", images * settings.nll_samples, "nll_samples test_images")
    if settings.probe_images:
        probed = min(settings.probe_images, len(source.train) * settings.probe_repeats)
        amount = probed * (1 + fresh * settings.probe_length)
        yield Need("a test", amount, "probe_length probe_repeats candidates")


def memory(settings: Settings, source: Source) -> Iterator[Need]:
    """Bytes that are needed at the same time."""
    sizes, outputs = source.sizes, 1 if settings.likelihood == "bernoulli" else 2
    count = parameters(sizes, outputs)
    yield Need("the networks", _SINGLE * _COPIES * count, "latent")
    draws = min(settings.batch_size, len(source.train)) * settings.candidates
    each = _SINGLE * _DRAWS * sizes.latent + _DOUBLE
    yield Need("the draws of a batch", each * draws, "candidates latent batch_size")
    rows = max(min(settings.chunk, draws), _TEST_ROWS)
    width = sizes.latent + math.prod(sizes.shape) * outputs
    yield Need("a pass through the decoder", _SINGLE * width * rows, "chunk latent candidates")
    if settings.persistent:
        amount = _SINGLE * sizes.latent * len(source.train)
        yield Need("the states of the chains", amount, "latent")
    pixels = _SINGLE * math.prod(sizes.shape)
    tested = min(settings.test_images, len(source.test))
    yield Need("the test images", pixels * tested, "test_images")
    if settings.probe_images:
        probed = min(settings.probe_images, len(source.train))
        if source.dynamic and probed == len(source.train):  # all, drawn anew for each estimate
            probed *= settings.probe_repeats
        yield Need("the images of ∇V", pixels * probed, "probe_images")
        amount = _DOUBLE * count * settings.probe_repeats
        yield Need("the estimates of ∇V in a test", amount, "probe_repeats latent")


def parameters(sizes: Sizes, outputs: int) -> int:
    """Numbers that encoder and decoder have.

    Args:
        sizes: of the networks.
        outputs: numbers that the likelihood takes for each pixel channel.
    """
    inner = math.prod(sizes.inner)
    dense = (inner, *sizes.hidden, 2 * sizes.latent)
    last = inner if sizes.channels else inner * outputs
    mirrored = (sizes.latent, *reversed(sizes.hidden), last)
    total = sum((a + 1) * b for widths in (dense, mirrored) for a, b in pairwise(widths))
    if sizes.channels:
        down = (sizes.shape[0], *sizes.channels)
        up = (*reversed(sizes.channels), outputs * sizes.shape[0])
        total += sum((16 * a + 1) * b for widths in (down, up) for a, b in pairwise(widths))
    return total


def _memory(device: torch.device) -> int | None:
    """Bytes that a device has; None where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system says
        return None


def _refusal(need: Need, settings: Settings, amount: str) -> str:
    usual: Mapping[str, float] = vars(Config(dataset=settings.dataset).settings())
    chosen: Mapping[str, float] = vars(settings)
    name = max(need.names.split(), key=lambda name: chosen[name] / (usual[name] or 1))
    return f"{name} must be lower, got {chosen[name]!r}: {need.what} would take {amount}"
