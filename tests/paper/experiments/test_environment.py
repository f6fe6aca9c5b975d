"""Experiments give the same numbers whatever the process has set for NumPy and torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from mlmcgrad.paper.experiments import boltzmann, bound, demo, rates, scaling
from mlmcgrad.paper.experiments.settings import BoundSettings, DemoSettings

QUIET = Console(quiet=True)
METHODS = ("cd-7", "ucd", "mlmc-persistent", "exact")  # every kind of `boltzmann`


def _nothing(share: float) -> None:
    """Report to nobody."""


def _bound(optimizer: Any) -> Any:
    return bound.evaluate(BoundSettings(preset="smoke", optimizer=optimizer))


def _rates(optimizer: rates.Name) -> Any:
    return rates._summarise(
        {
            f"{alpha}": rates.train(
                _nothing,
                optimizer=optimizer,
                alpha=alpha,
                iterations=20,
                replicas=8,
                seed=0,
                stream=0,
            )
            for alpha in (0.0, 0.5)
        }
    )


def _boltzmann(method: str) -> Any:
    options: Any = {"data": "bars", "iterations": 2, "chains": 5, "seed": 0}
    curve = boltzmann.train(_nothing, method=method, **options)["curve"]
    return [(point["last"], point["averaged"]) for point in curve]


def _scaling(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling, "_STEPS", 20)
        patch.setitem(scaling.EFFORT, "smoke", {name: scaling.ScalingEffort(2_000, 50, 5)})
        return scaling.measure(_nothing, name=name, estimator="mlmc", preset="smoke", seed=0)


RUNS: dict[str, Callable[[], Any]] = {
    **{f"bound-{name}": partial(_bound, name) for name in rates.OPTIONS},
    **{f"rates-{name}": partial(_rates, name) for name in rates.OPTIONS},
    **{f"boltzmann-{name}": partial(_boltzmann, name) for name in METHODS},
    **{f"scaling-{name}": partial(_scaling, name) for name in scaling.KERNELS},
    "demo": partial(
        demo._compute, DemoSettings(chains=100, truncation=4, budget=8, seeds=1), QUIET
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_numbers_do_not_depend_on_the_process(name: str) -> None:
    """np.seterr(all="raise") makes an underflow an error; float64 changes what torch makes."""
    expected = RUNS[name]()
    torch.set_default_dtype(torch.float64)
    try:
        with np.errstate(all="raise"):
            assert RUNS[name]() == expected
    finally:
        torch.set_default_dtype(torch.float32)
