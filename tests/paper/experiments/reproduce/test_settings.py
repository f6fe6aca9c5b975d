"""Settings of a reproduction: presets, and options that are refused."""

from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.paper.experiments.reproduce import run as reproduce
from mlmcgrad.paper.experiments.reproduce.data import method_name
from mlmcgrad.paper.experiments.reproduce.settings import (
    LABELS,
    OPTIMIZERS,
    PRESETS,
    Reproduce,
    decide,
    training_runs,
)
from mlmcgrad.paper.runs.folder import as_record


def test_presets_are_what_the_paper_and_the_help_say() -> None:
    paper = training_runs(decide(Reproduce(preset="paper")))
    assert len(paper) == 5 * 2 * 7
    for run in paper.values():
        assert (run.dataset, run.batch_size, run.candidates, run.latent) == ("cifar10", 128, 5, 100)
        assert run.iterations * 128 >= 200 * 50_000 > (run.iterations - 200) * 128
        assert (run.truncation_scale, run.truncation_exponent) == (1.0, 0.5)
        assert (run.lr, run.rho1, run.rho2) == (0.001, 0.9, 0.999)
    for name, preset in PRESETS.items():
        every: Any = {"optimizer": tuple(OPTIMIZERS), "methods": tuple(LABELS)}
        runs = training_runs(decide(Reproduce(preset=name, **every)))
        br = runs["amsgrad-br-1"]
        assert br.tests_at(br.iterations)
        assert runs["adagrad-mlmc-rb-1"].rao_blackwell
        assert runs["adagrad-mlmc-rb-1"].optimizer == "adagrad"
        importance, persistent, dreg = (runs[f"amsgrad-{m}-1"] for m in ("mlmc-is", "jsa", "dreg"))
        assert (importance.method, importance.kernel, importance.estimator) == (
            "mlmc",
            "importance",
            "sum",
        )
        assert (persistent.method, persistent.encoder, persistent.persistent) == (
            "iwae",
            "wake",
            True,
        )
        assert (dreg.method, dreg.encoder, dreg.persistent) == ("iwae", "dreg", False)
        assert all(
            method_name(as_record(run)) == name.split("-", 1)[1].rsplit("-", 1)[0]
            for name, run in runs.items()
        )
        assert runs["amsgrad-mlmc-1"].tests_at(br.iterations)  # so that N can be compared exactly
        assert runs["amsgrad-mlmc-1"].iterations == preset["stretch"] * preset["iterations"]
        assert preset["seeds"] >= 3 or name in ("smoke", "minute")
    assert list(training_runs(decide(Reproduce(preset="minute")))) == [
        f"amsgrad-{method}-{seed}" for seed in (1, 2) for method in ("br", "mlmc")
    ]


def test_command_says_what_differs_from_the_preset() -> None:
    options = Reproduce(preset="full", seeds=4, methods=("br", "mlmc"), out=Path("x"), jobs=1)
    expected = "mlmcgrad reproduce --preset full --methods br mlmc --seeds 4"
    assert reproduce.command(decide(options)) == expected
    assert reproduce.command(decide(Reproduce())) == "mlmcgrad reproduce --preset quick"


def test_what_the_options_leave_open_the_preset_decides() -> None:
    settings = decide(Reproduce(preset="full", iterations=32))
    assert (settings.dataset, settings.seeds, settings.stretch) == ("cifar10", 3, 3)
    assert (settings.iterations, settings.device) == (32, "cpu")
    assert settings.folder == Path("runs/reproduce-full")
    assert decide(Reproduce(dataset="cifar10", out=Path("x"))).folder == Path("x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds must be an integer from 1 to 1000, got 0"),
        ({"iterations": 15}, "iterations must be an integer from 16 to 2147483648, got 15"),
        ({"methods": ()}, "methods must name each choice once"),
        ({"optimizer": ("adagrad", "adagrad")}, "optimizer must name each choice once"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reproduce(**changes)
