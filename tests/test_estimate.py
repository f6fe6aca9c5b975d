"""Chains that cannot have explored anything are warned of, once, and only these."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from tests.chains import rng


def _backward(kernel: Any, chains: int = 16, length: int = 4) -> None:
    theta = torch.zeros(2, requires_grad=True)
    gradient = mg.MarkovGradient(
        kernel, lambda x, *_: ((x - theta) ** 2).sum(1), mg.Average(length)
    )
    context = (torch.zeros(chains),) if isinstance(kernel, mg.kernels.ISIR) else ()
    gradient.backward(torch.zeros(chains, 2), *context, generator=rng())


def _normal(x: Tensor) -> Tensor:
    return -0.5 * x.square().sum(1)


def _only_at_zero(x: Tensor) -> Tensor:
    return torch.where((x == 0.0).all(1), 0.0, torch.nan)


def _isir(spread: float, k: int = 5, rao_blackwell: bool = False) -> mg.kernels.ISIR:
    return mg.kernels.ISIR(
        lambda z, _: spread * z.sum(1),
        lambda rows, _, generator: torch.randn(rows, 2, generator=generator),
        k,
        rao_blackwell=rao_blackwell,
    )


@pytest.mark.parametrize("size", [1e6, 1e18])
def test_no_proposal_accepted(size: float) -> None:
    with pytest.warns(RuntimeWarning, match="no transition moved any chain.*lower the step size"):
        _backward(mg.kernels.RWMH(_normal, size))


@pytest.mark.parametrize("kernel", [mg.kernels.RWMH, mg.kernels.MALA])
def test_every_proposal_invalid(kernel: Any) -> None:
    def log_density(x: Tensor) -> Tensor:
        return x.sum(1) * 0.0 + _only_at_zero(x.detach())

    with pytest.warns(RuntimeWarning, match="every proposal was refused.*check log_density"):
        _backward(kernel(log_density, 1.0))


@pytest.mark.parametrize("rao_blackwell", [False, True])
def test_every_candidate_invalid(rao_blackwell: bool) -> None:
    kernel = mg.kernels.ISIR(
        lambda z, _: _only_at_zero(z), _isir(1.0).propose, 5, rao_blackwell=rao_blackwell
    )
    with pytest.warns(RuntimeWarning, match="every proposal was refused"):
        _backward(kernel)


def test_one_weight_has_everything() -> None:
    with pytest.warns(RuntimeWarning, match="one candidate of the first step has more than 99.9"):
        _backward(_isir(1000.0))


def test_nothing_is_said_of_healthy_or_short_chains() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _backward(mg.kernels.RWMH(_normal, 2.0))
        _backward(_isir(1.0))
        _backward(_isir(1000.0), chains=4)  # chance
        _backward(mg.kernels.RWMH(_normal, 1e6), chains=4, length=4)
        theta = torch.zeros(2, requires_grad=True)
        still = mg.kernels.Finite(torch.eye(2))
        gradient = mg.MarkovGradient(still, lambda x: theta[x], mg.Average(9))
        gradient.backward(torch.zeros(99, dtype=torch.int64), generator=rng())


def test_python_shows_a_warning_once() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(5):
            _backward(mg.kernels.RWMH(_normal, 1e6))
    assert len(seen) == 1
    assert seen[0].filename == __file__
