"""How an objective is called: options, schedules, starts, what is refused."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mlmcgrad as mg
from mlmcgrad.iwae import Objective
from mlmcgrad.iwae.networks import DIGITS, BernoulliLikelihood, LatentModel
from tests.chains import rng
from tests.iwae.models import linear

Y = torch.tensor([[1.3, -0.4, 0.8]], dtype=torch.float64)


def test_the_same_generator_gives_the_same_gradient() -> None:
    model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
    y = torch.rand(10, 1, 8, 8, generator=rng(1))
    found = []
    for _ in range(2):
        model.zero_grad()
        Objective(model, truncation=16).backward(y, n=9, generator=rng(3))
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_defaults_of_torch_and_numpy_are_no_matter() -> None:
    """The same gradients with float64 as the default dtype, and where NumPy raises."""
    y, found = torch.rand(10, 1, 8, 8, generator=rng(1)), []
    modes: dict[torch.dtype, Literal["ignore", "raise"]]
    modes = {torch.float32: "ignore", torch.float64: "raise"}
    for default, mode in modes.items():
        torch.set_default_dtype(default)
        try:
            model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
            with torch.no_grad():
                for parameter in model.decoder.parameters():
                    parameter.mul_(10.0)
            with np.errstate(all=mode):
                for options in ({"encoder": "dreg"}, {"kernel": "importance"}, {"kernel": "mala"}):
                    objective = Objective(model, truncation=16, **options)  # type: ignore[arg-type]
                    found.append(objective.gradient(y, generator=rng(3))[0])
        finally:
            torch.set_default_dtype(torch.float32)
    for one, other in zip(found[:3], found[3:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_chains_are_as_long_as_the_options_say() -> None:
    """base 3 and T = 13: chains of 3, 6 or 12 steps, one level for all of them if it is shared."""
    model, y = linear(), Y.expand(40, -1)
    options: Any = {"candidates": 2, "truncation": 13, "base": 3}
    step = Objective(model, **options).backward(y, generator=rng(1))
    assert set(step.estimate.lengths.tolist()) == {3, 6, 12}
    shared = Objective(model, assignment="shared", **options).backward(y, generator=rng(1))
    assert len(set(shared.estimate.levels.tolist())) == 1


def test_a_schedule_is_read_at_the_iteration() -> None:
    """T_n = n of `br`: chains of n steps, and without n a message instead of a guess."""
    objective = Objective(linear(), "br", candidates=2, truncation=mg.schedules.power(1.0, 1.0))
    for n in (3, 7):
        step = objective.backward(Y, n=n, generator=rng())
        assert step.estimate.lengths.tolist() == [n]
    with pytest.raises(TypeError, match="n must be given"):
        objective.backward(Y, generator=rng())


def test_chains_that_would_never_end_are_refused_before_they_are_planned() -> None:
    with pytest.raises(ValueError, match=r"may ask for a chain of 1,099,511,627,776 transitions"):
        Objective(linear(), "br", truncation=2**40).draw_lengths(1, None, rng())
    many = Objective(linear(), "br", truncation=2**20)
    assert many.draw_lengths(2, None, rng()).longest.tolist() == [2**20] * 2
    with pytest.raises(ValueError, match="in all, beyond max_transitions"):
        many.draw_lengths(2**20, None, rng())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "vae"}, "method must be one of"),
        ({"encoder": "vimco"}, "encoder must be one of"),
        ({"kernel": "hmc"}, "kernel must be one of"),
        ({"thinning": -0.1}, "thinning must be ≥ 0, got -0.1"),
        ({"thinning": math.nan}, "thinning must be a finite number, got nan"),
        ({"method": "br", "candidates": 1}, "candidates must be an integer ≥ 2"),
        ({"method": "iwae", "candidates": 0}, "candidates must be an integer ≥ 1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Objective(linear(), **options)


def test_weights_that_are_not_finite_are_refused() -> None:
    model, y = linear(), torch.full((2, 3), torch.nan, dtype=torch.float64)
    with pytest.raises(FloatingPointError, match=r"log_weight is −inf \(or NaN\) for all 5"):
        Objective(model, "iwae").backward(y, generator=rng())


def test_a_gradient_leaves_grad_alone_and_takes_a_plan() -> None:
    model, y = linear(latent=2), torch.randn(11, 3, dtype=torch.float64, generator=rng(1))
    objective = Objective(model, candidates=3, truncation=8)
    gradients, step = objective.gradient(y, generator=rng(3))
    assert all(parameter.grad is None for parameter in objective.parameters)
    assert step.bound == objective.backward(y, generator=rng(3)).bound
    for parameter, gradient in zip(objective.parameters, gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
    plan = objective.draw_lengths(11, None, rng(4))
    _, planned = objective.gradient(y, generator=rng(3), lengths=plan)
    assert torch.equal(planned.estimate.levels, plan.levels)
    with pytest.raises(
        ValueError, match=r"lengths must have a row for each of the 4 chains, got 11"
    ):
        objective.gradient(y[:4], generator=rng(3), lengths=plan)


def test_the_estimate_is_of_the_decoder() -> None:
    model = linear()
    step = Objective(model, candidates=2).backward(Y, generator=rng())
    assert list(map(id, step.estimate.parameters)) == list(map(id, model.decoder.parameters()))


class _Steep(nn.Module):
    """A finite mean whose derivative in one parameter is infinite."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.root = inner, nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = self.inner(y)
        return mean + self.root.sqrt(), log_scale


def test_a_gradient_of_the_encoder_that_is_not_finite_is_refused() -> None:
    model = linear()
    model.encoder = _Steep(model.encoder)
    with pytest.raises(FloatingPointError, match=r"1 entries that are NaN or infinite, out of 1,"):
        Objective(model, candidates=2).backward(Y, generator=rng())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kernel", ["mala", "rwmh"])
def test_a_chain_starts_with_the_first_draw_or_goes_on(kernel: Any) -> None:
    """Steps of 1e-30: where a chain ends is where it began."""
    model, y = linear(latent=2), torch.randn(4, 3, dtype=torch.float64, generator=rng(1))
    objective = Objective(model, "br", candidates=3, truncation=2, kernel=kernel, step_size=1e-30)
    mean, log_scale = (t.detach() for t in model.encoder(y))
    noise = torch.randn(4, 3, 2, dtype=torch.float64, generator=rng(2))
    step = objective.backward(y, generator=rng(2))
    torch.testing.assert_close(step.estimate.last, mean + log_scale.exp() * noise[:, 0])
    kept = 5.0 + torch.arange(8.0, dtype=torch.float64).reshape(4, 2)
    step = objective.backward(y, x0=kept, generator=rng(2))
    torch.testing.assert_close(step.estimate.last, kept)


def test_two_candidates_are_enough_to_go_on() -> None:
    """The state that was kept, and one draw: the bound is the mean log weight of the draws."""
    model, y = linear(latent=2), torch.randn(4, 3, dtype=torch.float64, generator=rng(1))
    objective = Objective(model, "iwae", candidates=2)
    step = objective.backward(y, x0=torch.zeros(4, 2, dtype=y.dtype), generator=rng(2))
    mean, log_scale = (t.detach() for t in model.encoder(y))
    generator = rng(2)  # a draw for each that had no state comes first
    _, noise = (torch.randn(4, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    draws = mean + log_scale.exp() * noise
    weights = model.log_weight(draws, y, mean, log_scale)
    assert step.bound == pytest.approx(float(weights.mean().detach()))


def test_options_have_names() -> None:
    assert Objective(linear(), "iwae", candidates=7).candidates == 7
    for count in range(1, 12):
        with pytest.raises(TypeError, match="positional"):
            Objective(linear(), "mlmc", *[5] * count)
