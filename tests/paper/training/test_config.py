"""Settings: errors name the field, choices are those of the objective."""

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from mlmcgrad import levels
from mlmcgrad.iwae import objective
from mlmcgrad.paper.runs.folder import as_record
from mlmcgrad.paper.training import config
from mlmcgrad.paper.training.config import Config, Gradient, Model, Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset", "imagenet"),
        ("dataset", Path("pictures.png")),
        ("binarisation", "always"),
        ("binarisation_seed", -1),
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
        ("estimator", "all"),
        ("step_size", 0.0),
        ("optimizer", "lbfgs"),
        ("lr", -1.0),
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
        ("iterations", 10**23),
        ("seed", 2**63),
        ("threads", 2**64),
        ("threads", 257),
        ("lr", 1e300),
        ("lr", 1e-320),
        ("lr", float("nan")),
        ("step_size", float("inf")),
        ("thinning", float("nan")),
        ("rho2", float("nan")),
        ("truncation_scale", float("inf")),
    ],
)
def test_errors_name_the_field(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be .*{re.escape(str(value))}"):
        Config.from_flat(**{name: value})


@pytest.mark.parametrize("other", [{"kernel": "importance"}, {"candidates": 1}])
def test_persistent_needs_a_chain(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^persistent needs a chain to continue: .* isir"):
        Config.from_flat(persistent=True, method="iwae", **other)
    Config.from_flat(persistent=True, method="iwae")
    Config.from_flat(persistent=True, method="iwae", kernel="mala", candidates=1)


def test_the_choices_are_those_of_the_library() -> None:
    for name in ("Method", "EncoderGradient", "KernelName"):
        assert get_args(getattr(config, name)) == get_args(getattr(objective, name))
    assert get_args(config.EstimatorName) == get_args(objective.MultilevelName)
    assert get_args(config.Assignment) == get_args(levels.Assignment)
    defaults = {field.name: field.default for field in dataclasses.fields(objective.Objective)}
    defaults["estimator"] = defaults["multilevel"]
    for name in (
        "candidates",
        "rao_blackwell",
        "assignment",
        "base",
        "estimator",
        "encoder",
        "kernel",
        "step_size",
        "thinning",
    ):
        assert getattr(Config().settings(), name) == defaults[name]


def test_what_is_left_open_depends_on_the_dataset() -> None:
    digits, cifar = Config().settings(), Config(dataset="cifar10", model=Model(latent=7)).settings()
    assert (digits.batch_size, digits.lr, digits.latent) == (50, 0.01, 16)
    assert (cifar.batch_size, cifar.lr, cifar.latent) == (128, 0.001, 7)
    assert (digits.chunk, cifar.chunk) == (1024, 256)
    assert Config(seed=3).settings().out == Path("runs/digits-mlmc-3")


def test_what_is_left_open_for_mnist_and_for_pictures() -> None:
    mnist, mine = Config(dataset="mnist").settings(), Config(dataset=Path("a/me.npz")).settings()
    assert (mnist.batch_size, mnist.lr, mnist.latent, mnist.chunk) == (100, 0.003, 50, 1024)
    assert (mine.batch_size, mine.lr, mine.latent, mine.chunk) == (100, 0.001, 50, 256)
    assert (mnist.test_images, mine.test_images) == (100, 100)
    assert (mnist.out, mine.out) == (Path("runs/mnist-mlmc-0"), Path("runs/me-mlmc-0"))
    assert as_record(mine)["dataset"] == "a/me.npz"


def test_binarisation_is_dynamic_for_mnist_and_none_for_others() -> None:
    names: tuple[Any, ...] = ("digits", "cifar10", Path("a.npz"))
    assert {Config(dataset=name).settings().binarisation for name in names} == {"none"}
    assert Config(dataset="mnist").settings().binarisation == "dynamic"
    chosen: tuple[Any, ...] = ("static", "dynamic", "none")
    for choice in chosen:
        for name in ("mnist", "digits"):
            settings = Config(dataset=name, model=Model(binarisation=choice)).settings()
            assert settings.binarisation == choice


def test_binary_pixels_have_the_likelihood_of_bernoulli() -> None:
    logistic = Config(dataset="mnist", model=Model(likelihood="discretized_logistic"))
    assert logistic.settings().binarisation == "none"
    for name in ("static", "dynamic"):
        with pytest.raises(
            ValueError, match=f"^likelihood must be bernoulli for binarisation {name}, got 'discr"
        ):
            Config.from_flat(binarisation=name, likelihood="discretized_logistic")


def test_settings_are_complete_and_their_own_settings() -> None:
    settings = Config(out=Path("x"), gradient=Gradient(thinning=0.0)).settings()
    assert None not in vars(settings).values()
    assert (settings.out, settings.thinning) == (Path("x"), 0.0)
    assert list(as_record(settings)) == list(Config().flat())
    with pytest.raises(TypeError, match="lr"):
        Settings(**{name: v for name, v in vars(settings).items() if name != "lr"})


def test_tests_are_evenly_or_geometrically_spaced() -> None:
    def tests(count: int, **changes: Any) -> list[int]:
        settings = Config.from_flat(**changes).settings()
        return [n for n in range(1, count) if settings.tests_at(n)]

    assert tests(30, evaluate_every=7) == [7, 14, 21, 28]
    geometric = tests(50, evaluate_every=3, evaluate_grid="geometric")
    assert geometric == [3, 4, 6, 8, 12, 17, 24, 34, 48]
    dense = tests(17, evaluate_every=1, evaluate_grid="geometric")
    assert dense == [1, 2, 3, 4, 6, 8, 11, 16]


def test_groups_are_a_reading_order() -> None:
    """A setting is in one group, and from_flat puts it there."""
    config = Config.from_flat(dataset="mnist", method="br", lr=0.5, latent=3, seed=2)
    assert (config.gradient.method, config.optimizer.lr, config.model.latent) == ("br", 0.5, 3)
    assert Config.from_flat(**config.flat()) == config
    assert len(config.flat()) == 46
    with pytest.raises(TypeError, match="nonsense"):
        Config.from_flat(nonsense=1)
