"""Evaluation against closed forms of the linear model."""

import math
from typing import Any

import pytest
import torch

from mlmcgrad.finish import off_diagonal_mean
from mlmcgrad.iwae import negative_log_likelihood, squared_gradient_norm
from tests.chains import rng
from tests.iwae.models import linear


def _data(rows: int) -> torch.Tensor:
    return torch.randn(rows, 3, dtype=torch.float64, generator=rng(7))


def test_nll_tends_to_the_exact_log_likelihood() -> None:
    model, y = linear(), _data(40)
    exact = -float(model.log_likelihood(y).mean().detach())
    gaps = [
        negative_log_likelihood(model, y, generator=rng(1), samples=k).value - exact
        for k in (1, 30, 3000)
    ]
    assert gaps[0] > 0.05  # a bound: too large by the slack of the encoder
    assert abs(gaps[2]) < 0.005
    assert gaps[0] > gaps[1] > gaps[2]


def test_chunks_only_bound_the_memory() -> None:
    model, y = linear(), _data(7)
    exact = -float(model.log_likelihood(y).mean().detach())
    for rows in (10, 400, 10**6):
        found = negative_log_likelihood(model, y, generator=rng(1), samples=2000, chunk=rows)
        assert found.value == pytest.approx(exact, abs=0.15)
    calls: list[int] = []
    model.decoder.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0])))
    negative_log_likelihood(model, y, generator=rng(1), samples=100, chunk=250)
    assert max(calls) <= 250
    assert sum(calls) == 700
    calls.clear()
    negative_log_likelihood(model, y, generator=rng(1), samples=100, chunk=30)
    assert calls == [30, 30, 30, 10] * 7


@pytest.mark.parametrize("name", ["samples", "chunk"])
def test_draws_and_rows_are_at_least_one(name: str) -> None:
    options: Any = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be an integer ≥ 1, got 0"):
        negative_log_likelihood(linear(), _data(3), generator=rng(1), **options)


def test_error_is_that_of_the_mean_over_images() -> None:
    model, y = linear(), _data(50)
    found = negative_log_likelihood(model, y, generator=rng(1), samples=500)
    each = model.log_likelihood(y).detach()
    assert found.se == pytest.approx(float(each.std()) / math.sqrt(50), rel=0.05)


def test_a_model_that_overflowed_is_refused() -> None:
    model = linear()
    with torch.no_grad():
        model.decoder.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="3 of 3 images is not finite"):
        negative_log_likelihood(model, _data(3), generator=rng(1), samples=10)


def test_squared_gradient_norm_is_free_of_noise() -> None:
    """Close to the exact ‖∇V‖², where the squared norm of one estimate is far too large."""
    model, y = linear(), _data(20)
    exact = float(model.exact_gradient(y).square().sum())
    found = squared_gradient_norm(model, y, generator=rng(1), candidates=4, length=32, repeats=12)
    assert abs(found.value - exact) < 5.0 * found.se + 0.02 * exact
    assert found.se < 0.2 * exact


def test_off_diagonal_mean_and_its_jackknife() -> None:
    """E S = ‖E g‖²; the jackknife error is the spread of S over repetitions."""
    generator, mean = rng(2), torch.tensor([0.3, -0.1], dtype=torch.float64)
    values, errors = [], []
    for _ in range(400):
        g = mean + torch.randn(10, 2, dtype=torch.float64, generator=generator)
        found = off_diagonal_mean(g @ g.T)
        by_hand = sum(float(g[i] @ g[j]) for i in range(10) for j in range(10) if i != j) / 90
        assert found.value == pytest.approx(by_hand)
        values.append(found.value)
        errors.append(found.se)
    sample = torch.tensor(values)
    assert abs(float(sample.mean()) - 0.1) < 5.0 * float(sample.std()) / 20.0
    assert sum(errors) / len(errors) == pytest.approx(float(sample.std()), rel=0.25)
    with pytest.raises(ValueError, match=r"repeats .* must be ≥ 3"):
        squared_gradient_norm(linear(), _data(3), generator=rng(), repeats=2)


def test_the_jackknife_by_hand() -> None:
    """Estimates 1, 2, 4: S = 14/3; without one of them 8, 4 and 2, whose mean is 14/3 too."""
    g = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    found = off_diagonal_mean(g @ g.T)
    assert found.value == pytest.approx(14.0 / 3.0)
    assert found.se == pytest.approx(math.sqrt(2.0 / 3.0 * (100.0 + 4.0 + 64.0) / 9.0))


def test_images_of_their_own_for_each_estimate_give_the_norm_over_all_images() -> None:
    """E S = ‖E ∇V_image‖²; one small probe for all estimates has the noise of its choice on top."""
    model, population = linear(), _data(400)
    exact = float(model.exact_gradient(population).square().sum())
    apart, together = [], []
    for seed in range(60):
        rows = torch.randperm(400, generator=rng(seed))
        parts = population[rows[:40]].split(10)
        apart.append(
            squared_gradient_norm(model, parts, generator=rng(seed), candidates=4, length=16).value
        )
        one = population[rows[:10]]
        together.append(
            squared_gradient_norm(
                model, one, generator=rng(seed), candidates=4, length=16, repeats=4
            ).value
        )
    own, shared = torch.tensor(apart), torch.tensor(together)
    error = float(own.std()) / math.sqrt(60)
    assert abs(float(own.mean()) - exact) < 5.0 * error + 0.02 * exact
    # The planted bug: the same images for all.
    assert float(shared.mean()) - exact > 5.0 * float(shared.std()) / math.sqrt(60)


def test_one_image_that_is_not_finite_is_counted() -> None:
    y = _data(3)
    y[1] = torch.nan
    with pytest.raises(FloatingPointError, match="likelihood of 1 of 3 images is not finite"):
        negative_log_likelihood(linear(), y, generator=rng(1), samples=10)


def test_a_single_image_has_no_error_and_two_have_one() -> None:
    assert negative_log_likelihood(linear(), _data(1), generator=rng(1), samples=10).se == 0.0
    assert negative_log_likelihood(linear(), _data(2), generator=rng(1), samples=10).se > 0.0


def test_three_estimates_are_enough_and_two_are_not() -> None:
    model, y = linear(), _data(4)
    found = squared_gradient_norm(model, y, generator=rng(1), repeats=3, length=4)
    assert math.isfinite(found.se)
    with pytest.raises(ValueError, match="must be ≥ 3 for a standard error, got 2"):
        squared_gradient_norm(model, y, generator=rng(1), repeats=2, length=4)
