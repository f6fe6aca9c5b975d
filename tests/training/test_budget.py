"""What a run needs is known before anything is allocated, and what is too much is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlmcgrad.experiments.reproduce.presets import PRESETS, decide, training_runs
from mlmcgrad.experiments.reproduce.settings import Reproduce
from mlmcgrad.iwae.likelihoods import Bernoulli, DiscretizedLogistic, Likelihood
from mlmcgrad.iwae.networks import CIFAR10, DIGITS, MNIST, LatentModel, Sizes
from mlmcgrad.training import budget
from mlmcgrad.training.config import Config
from mlmcgrad.training.data import Source, load, sizes_for
from mlmcgrad.training.loop import train
from mlmcgrad.training.trainer import Trainer
from tests.training import tiny

HUGE = 10**8


@pytest.mark.parametrize("sizes", [DIGITS, MNIST, CIFAR10, tiny.SIZES])
@pytest.mark.parametrize("likelihood", [Bernoulli(), DiscretizedLogistic()])
def test_parameters_are_those_of_the_networks(sizes: Sizes, likelihood: Likelihood) -> None:
    model = LatentModel(sizes, likelihood, torch.Generator())
    count = sum(parameter.numel() for parameter in model.parameters())
    assert budget.parameters(sizes, likelihood.outputs) == count


@pytest.mark.parametrize("kernel", ["isir", "importance"])
@pytest.mark.parametrize("method", ["iwae", "br", "mlmc"])
def test_passes_of_an_iteration_are_those_of_the_longest_chain(method: Any, kernel: Any) -> None:
    """With a constant T all of them are made: by `br` always, by `mlmc` below its base."""
    config = tiny.config(
        Path("unused"),
        method=method,
        kernel=kernel,
        truncation_scale=6.0,
        truncation_exponent=0.0,
        base=7,
    )
    trainer = Trainer(config.settings(), tiny.source())
    trainer.step()
    (iteration, *_) = budget.passes(config.settings(), tiny.source())
    assert iteration.amount == trainer.spent["evaluations"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"candidates": HUGE}, "candidates must be lower, got 100000000: an iteration would take"),
        (
            {"candidates": HUGE, "method": "iwae"},
            "candidates must be lower, got 100000000: the draws of a batch would take 1,320 GB",
        ),
        ({"latent": HUGE}, "latent must be lower, got 100000000: the networks would take"),
        ({"latent": 2**53}, "latent must be lower, got 9007199254740992: the networks"),
        ({"base": 10**12}, "base must be lower, got 1000000000000: an iteration would take 2e"),
        ({"nll_samples": 10**15}, "nll_samples must be lower, got 1000000000000000: a test"),
        ({"truncation_scale": 2e9}, "truncation_scale must be lower, got 2000000000.0: an iter"),
        (
            {"iterations": 2**53, "truncation_exponent": 1.0},
            "iterations must be lower, got 9007199254740992: an iteration",
        ),
        (
            {"probe_images": 2**53, "probe_repeats": 2**53},
            "probe_repeats must be lower, got 9007199254740992: a test",
        ),
        ({"probe_images": 4, "probe_length": 2**53}, "probe_length must be lower"),
        (
            {"kernel": "importance", "base": 10**12},
            "base must be lower, got 1000000000000: an iter",
        ),
    ],
)
def test_what_is_too_much_is_named(settings: dict[str, Any], message: str) -> None:
    config = Config(**settings).settings()
    with pytest.raises(ValueError, match=f"^{message}"):
        budget.check(config, load(config))


def test_where_the_memory_is_not_known_only_work_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("os.sysconf")  # as on Windows
    config = Config(latent=HUGE, nll_samples=10**15).settings()
    with pytest.raises(ValueError, match="nll_samples"):
        budget.check(config, load(config))
    config = Config(latent=HUGE).settings()
    budget.check(config, load(config))


def _images(count: int, shape: tuple[int, int, int]) -> Any:
    """Images of zeros that take no memory."""
    return np.broadcast_to(np.uint8(0), (count, *shape))


def test_test_images_count() -> None:
    """Pictures of 1024×1024 pixels in colour, 12 MB each as numbers."""
    shape = (3, 1024, 1024)
    source = Source(_images(2000, shape), _images(10**6, shape), 256, sizes_for(shape))
    budget.check(Config(dataset=Path("a.npz")).settings(), source)
    config = Config(dataset=Path("a.npz"), test_images=10**6).settings()
    with pytest.raises(
        ValueError, match=r"^test_images must be lower, got 1000000: the test images would take 12,"
    ):
        budget.check(config, source)


def test_images_of_the_probe_count() -> None:
    shape = (3, 1024, 1024)
    source = Source(_images(10**6, shape), _images(200, shape), 256, sizes_for(shape))
    config = Config(dataset=Path("a.npz"), probe_images=10**6).settings()
    for dynamic, amount in ((False, "12,583"), (True, "50,332")):  # four estimates
        what = f"the images of ∇V would take {amount} GB"
        with pytest.raises(ValueError, match=f"^probe_images must be lower, got 1000000: {what}"):
            budget.check(config, dataclasses.replace(source, dynamic=dynamic))


def test_a_file_of_pictures_is_measured_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, train=np.zeros((50, 4, 4), np.uint8), test=np.zeros((10, 4, 4), np.uint8))
    settings = Config(dataset=path).settings()
    budget.check_pictures(settings)
    budget.check_pictures(Config().settings())
    copies: dict[Any, int] = {"none": 60, "dynamic": 70, "static": 120}
    for binarisation, images in copies.items():
        settings = Config(dataset=path, binarisation=binarisation).settings()
        monkeypatch.setattr(budget, "_memory", lambda device, size=16 * images: size)
        budget.check_pictures(settings)
        monkeypatch.setattr(budget, "_memory", lambda device, size=16 * images - 1: size)
        with pytest.raises(ValueError, match=r"^dataset .*mine.npz must have fewer pictures"):
            budget.check_pictures(settings)
    monkeypatch.setattr(budget, "_memory", lambda device: 100)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(ValueError, match=r"^dataset .*mine.npz must have fewer pictures, or small"):
        train(Config(dataset=path, out=tmp_path / "run"))
    monkeypatch.setattr(budget, "_memory", lambda device: None)
    budget.check_pictures(settings)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_is_affordable(preset: Any) -> None:
    images = tiny.source()
    for run in training_runs(decide(Reproduce(preset=preset))).values():
        sizes = DIGITS if run.dataset == "digits" else CIFAR10
        budget.check(run, Source(images.train, images.test, images.levels, sizes))
