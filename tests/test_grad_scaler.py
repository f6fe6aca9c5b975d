"""`torch.amp.GradScaler` with `backward(scale=)`: an overflow is skipped as in torch's loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.iwae import DIGITS, BernoulliLikelihood, LatentModel, Objective
from mlmcgrad.kernels import RWMH
from mlmcgrad.optim import AMSGrad
from tests.chains import rng

Backward = Callable[..., Any]
STEPS = 20


def chains() -> tuple[list[Tensor], Backward]:
    theta = torch.ones(3, requires_grad=True)
    kernel = RWMH(lambda x: -0.5 * x.square().sum(1), 0.5)
    gradient = mg.MarkovGradient(kernel, lambda x: (theta * x).square().sum(1), mg.MLMC(8))
    x0 = torch.randn(6, 3, generator=rng())
    return [theta], lambda **options: gradient.backward(x0, generator=rng(1), **options)


def autoencoder(encoder: Any = "dreg") -> tuple[list[Tensor], Backward]:
    model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
    y = torch.rand(6, 1, 8, 8, generator=rng(1))
    objective = Objective(model, "mlmc", truncation=8.0, encoder=encoder)
    return list(model.parameters()), lambda **options: objective.backward(
        y, generator=rng(2), **options
    )


def train(prepare: Any, scaler: torch.amp.GradScaler | None, steps: int) -> list[Tensor]:
    """Return the parameters after some steps; without a scaler, as torch's loop has it."""
    parameters, backward = prepare()
    optimizer = AMSGrad(parameters, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        if scaler is None:
            backward()
            optimizer.step()
        else:
            backward(scale=scaler.scale(torch.ones(())))
            scaler.step(optimizer)
            scaler.update()
    return [p.detach() for p in parameters]


@pytest.mark.parametrize("prepare", [chains, autoencoder])
def test_an_overflow_is_skipped(prepare: Any) -> None:
    """The other steps are those without a scaler, to the bit: its factors are powers of two."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    found = train(prepare, scaler, STEPS)
    skipped = 127 - int(math.log2(scaler.get_scale()))
    assert 0 < skipped < STEPS
    for a, b in zip(found, train(prepare, None, STEPS - skipped), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("encoder", ["iwae", "dreg", "stl", "wake", "mixed"])
def test_a_scale_is_a_factor_of_all_gradients(encoder: Any) -> None:
    gradients = []
    for scale in (None, torch.tensor(2.0**10)):
        parameters, backward = autoencoder(encoder)
        info = backward(scale=scale)
        gradients.append([p.grad for p in parameters])
        assert math.isfinite(info.estimate.value)
    for plain, scaled in zip(*gradients, strict=True):
        assert torch.equal(plain * 2.0**10, scaled)


def test_numbers_that_are_not_finite_are_refused_without_a_scale() -> None:
    theta = torch.ones(1, requires_grad=True)
    gradient = mg.MarkovGradient(
        RWMH(lambda x: -0.5 * x.square().sum(1), 0.5),
        lambda x: theta.expand(len(x)) * torch.inf,
        mg.Average(2),
    )
    with pytest.raises(FloatingPointError):
        gradient.backward(torch.zeros(2, 1), generator=rng())
    gradient.backward(torch.zeros(2, 1), generator=rng(), scale=1.0)
    assert theta.grad is not None
    assert not theta.grad.isfinite().any()
