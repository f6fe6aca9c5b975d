"""Settings: errors name the field, choices are those of the objective."""

import dataclasses
from pathlib import Path
from typing import Any, get_args

import pytest

from mlmcgrad import levels
from mlmcgrad.iwae import objective
from mlmcgrad.training import config
from mlmcgrad.training.config import Config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset", "mnist"),
        ("method", "elbo"),
        ("iterations", 0),
        ("seed", -1),
        ("batch_size", 0),
        ("candidates", 1),
        ("truncation_scale", 0.5),
        ("truncation_exponent", 2.0),
        ("assignment", "other"),
        ("base", 0),
        ("encoder", "x"),
        ("kernel", "hmc"),
        ("step_size", 0.0),
        ("optimizer", "adam"),
        ("learning_rate", -1.0),
        ("rho1", 1.0),
        ("thinning", -1.0),
        ("likelihood", "gauss"),
        ("latent", 0),
        ("nll_samples", 0),
        ("checkpoint_seconds", float("nan")),
        ("threads", 0),
        ("evaluate_grid", "odd"),
        ("probe_length", 0),
        ("probe_repeats", 2),
        ("probe_images", 3),
    ],
)
def test_errors_name_the_field(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be .*{value}"):
        Config(**{name: value})


def test_the_choices_are_those_of_the_library() -> None:
    for name in ("Method", "EncoderGradient", "KernelName"):
        assert get_args(getattr(config, name)) == get_args(getattr(objective, name))
    assert get_args(config.Assignment) == get_args(levels.Assignment)
    defaults = {field.name: field.default for field in dataclasses.fields(objective.Objective)}
    for name in (
        "candidates",
        "rao_blackwell",
        "assignment",
        "base",
        "encoder",
        "kernel",
        "step_size",
        "thinning",
    ):
        assert getattr(Config(), name) == defaults[name]


def test_the_dataset_fills_in_what_is_left_open() -> None:
    digits, cifar = Config().resolved(), Config(dataset="cifar10", latent=7).resolved()
    assert (digits.batch_size, digits.learning_rate, digits.latent) == (50, 0.01, 16)
    assert (cifar.batch_size, cifar.learning_rate, cifar.latent) == (128, 0.001, 7)
    assert (digits.chunk, cifar.chunk) == (1024, 256)
    assert Config(seed=3).folder == Path("runs/digits-mlmc-3")
    assert Config().settings() == digits.settings()


def test_tests_are_evenly_or_geometrically_spaced() -> None:
    even = Config(evaluate_every=7)
    assert [n for n in range(1, 30) if even.tests_at(n)] == [7, 14, 21, 28]
    geometric = Config(evaluate_every=3, evaluate_grid="geometric")
    assert [n for n in range(1, 50) if geometric.tests_at(n)] == [3, 4, 6, 8, 12, 17, 24, 34, 48]
    dense = Config(evaluate_every=1, evaluate_grid="geometric")
    assert [n for n in range(1, 17) if dense.tests_at(n)] == [1, 2, 3, 4, 6, 8, 11, 16]
