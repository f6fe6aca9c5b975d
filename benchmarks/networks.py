"""The networks of CIFAR-10 and digits in the state that training mostly finds them in.

Which states carry weight depends on the networks: after a few hundred iterations one candidate of
a step has nearly all of it. So they are trained for a minute, once; without the pictures the
benchmarks run on random ones and say so.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from mlmcgrad.iwae.networks import CIFAR10, BernoulliLikelihood, LatentModel
from mlmcgrad.paper import datasets
from mlmcgrad.paper.datasets import DataUnavailableError
from mlmcgrad.paper.training.config import Config, Settings
from mlmcgrad.paper.training.trainer import Source, Trainer, load

ITERATIONS, BATCH = 300, 32


@cache
def cifar10() -> tuple[LatentModel, Tensor, bool]:
    """The model, 128 test images, and whether it is trained (and the images are pictures)."""
    model = LatentModel(CIFAR10, BernoulliLikelihood(), torch.Generator().manual_seed(0))
    try:
        data = datasets.cifar10(fetch=False)
    except DataUnavailableError:
        Console().print("CIFAR-10 is not there (mlmcgrad data cifar10): untrained networks instead")
        y = torch.rand(128, *CIFAR10.shape, generator=torch.Generator().manual_seed(1))
        return model, y, False
    source = Source(data.train, data.test, data.levels, CIFAR10)
    model.load_state_dict(_trained(source))
    return model, source.images(source.test, slice(0, 128), torch.device("cpu")), True


def digits() -> tuple[LatentModel, Tensor]:
    """The model, trained, and 128 test images."""
    config = Config.from_flat(dataset="digits", batch_size=BATCH).settings()
    source = load(config)
    model = _train(config, source)
    return model, source.images(source.test, slice(0, 128), torch.device("cpu"))


def _trained(source: Source) -> dict[str, Tensor]:
    path = Path(tempfile.gettempdir()) / f"mlmcgrad-bench-cifar10-{ITERATIONS}-{BATCH}.pt"
    if not path.exists():
        config = Config.from_flat(dataset="cifar10", batch_size=BATCH).settings()
        torch.save(dict(_train(config, source).state_dict()), path)
    state: dict[str, Tensor] = torch.load(path, weights_only=True)
    return state


def _train(config: Settings, source: Source) -> LatentModel:
    trainer = Trainer(config, source)
    for _ in range(ITERATIONS):
        trainer.step()
    return trainer.model
