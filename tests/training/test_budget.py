"""What a run needs is known before anything is allocated, and what is too much is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.experiments.reproduce.presets import PRESETS, decide, training_runs
from mlmcgrad.experiments.reproduce.settings import Reproduce
from mlmcgrad.iwae.likelihoods import Bernoulli, DiscretizedLogistic, Likelihood
from mlmcgrad.iwae.networks import CIFAR10, DIGITS, LatentModel, Sizes
from mlmcgrad.training import budget
from mlmcgrad.training.config import Config
from mlmcgrad.training.data import Source, load
from mlmcgrad.training.trainer import Trainer
from tests.training import tiny

HUGE = 10**8


@pytest.mark.parametrize("sizes", [DIGITS, CIFAR10, tiny.SIZES])
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


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_is_affordable(preset: Any) -> None:
    images = tiny.source()
    for run in training_runs(decide(Reproduce(preset=preset))).values():
        sizes = DIGITS if run.dataset == "digits" else CIFAR10
        budget.check(run, Source(images.train, images.test, images.levels, sizes))
