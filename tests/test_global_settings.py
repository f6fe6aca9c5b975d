"""Global settings of NumPy and torch change no result and cause no error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlmcgrad as mg
from mlmcgrad.kernels import MALA, Importance
from mlmcgrad.paper.training.loop import train
from mlmcgrad.schedules import power
from tests.paper.training import tiny


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def log_weight(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -5.0 * (z - y).square().sum(1)  # below 1e-308 for a draw in the tails


def propose(rows: int, y: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return 10.0 * torch.randn(rows, 1, dtype=y.dtype, generator=generator)


def gradient(kernel: Any, *context: torch.Tensor) -> list[float]:
    theta = torch.zeros(1, dtype=torch.float32, requires_grad=True)
    problem = mg.MarkovGradient(
        kernel, lambda x, *_: (x - theta).square().sum(1), mg.MLMC(64), chunk=16
    )
    x0 = None if context else torch.zeros(8, 1, dtype=torch.float32)
    problem.backward(x0, *context, generator=torch.Generator().manual_seed(0))
    assert theta.grad is not None
    return theta.grad.tolist()


def bound() -> list[float]:
    c = mg.theory.constants(1, mg.theory.ergodicity([[1 - 1e-3, 1e-3], [2e-3, 1 - 2e-3]]))
    problem = mg.theory.Assumptions(c, G=1.0, L=1.0, gap=1.0)
    gamma, truncation = power(0.1, -0.5), power(2.0, 0.5)
    found = mg.theory.bounds.amsgrad([10, 10**6], problem, gamma=gamma, truncation=truncation)
    return found.total.tolist()


CALLS: dict[str, Callable[[], list[float]]] = {
    "MALA": lambda: gradient(MALA(lambda x: -0.5 * x.square().sum(1), 0.5)),
    "Importance": lambda: gradient(
        Importance(log_weight, propose, candidates=64), torch.zeros(8, 1, dtype=torch.float32)
    ),
    "theory": bound,
}


@pytest.mark.parametrize("name", CALLS)
def test_numpy_that_raises(name: str) -> None:
    usual = CALLS[name]()
    with np.errstate(all="raise"):
        assert CALLS[name]() == usual


@pytest.mark.parametrize("name", CALLS)
def test_another_default_dtype(name: str, request: pytest.FixtureRequest) -> None:
    usual = CALLS[name]()
    request.getfixturevalue("double")
    assert CALLS[name]() == usual


def test_a_training_with_another_default_dtype(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = []
    for folder in ("usual", "double"):
        if folder == "double":
            request.getfixturevalue(folder)
        result = train(tiny.config(tmp_path / folder), _source=tiny.source())
        found.append([p.tolist() for p in result.model.parameters()])
    assert found[0] == found[1]
    assert torch.get_default_dtype() == torch.float64
