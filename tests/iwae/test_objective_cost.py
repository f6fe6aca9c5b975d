"""What the gradients cost: decoder evaluations, and thinning that adds little variance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mlmcgrad.iwae import Objective
from mlmcgrad.iwae.networks import DIGITS, BernoulliLikelihood, LatentModel
from tests.chains import rng
from tests.iwae.models import linear, phi_gradient, theta_gradient
from tests.statistics import mean_is

Y = torch.tensor([[1.3, -0.4, 0.8]], dtype=torch.float64)


@pytest.mark.parametrize("method", ["iwae", "br", "mlmc"])
def test_decoder_evaluations(method: Any) -> None:
    """k + (t−1)(k−1) a datum, in batches; only weighted states are decoded again."""
    model, k, data = LatentModel(DIGITS, BernoulliLikelihood(), rng()), 5, 30
    sizes: list[int] = []
    model.decoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    objective = Objective(model, method=method, candidates=k, truncation=16)
    y = torch.rand(data, 1, 8, 8, generator=rng(1))
    estimate = objective.backward(y, n=1, generator=rng(2)).estimate
    expected = int((k + (estimate.lengths - 1) * (k - 1)).sum())
    assert estimate.evaluations == expected
    assert sum(sizes) == expected + estimate.loss_evaluations
    assert max(sizes) <= 256
    assert len(sizes) <= 4 + sum(sizes) // 256
    assert estimate.loss_evaluations < expected
    assert all(p.grad is not None for p in model.parameters())


def _gradients(model: Any, y: Tensor, seed: int, **options: Any) -> tuple[Tensor, int]:
    """Both gradients in one row, and the number of states that were differentiated."""
    model.zero_grad()
    step = Objective(model, **options).backward(y, n=1, generator=rng(seed))
    return torch.cat([theta_gradient(model), phi_gradient(model)]), step.estimate.loss_evaluations


@pytest.mark.parametrize(
    ("method", "encoder", "kernel"),
    [
        ("iwae", "iwae", "isir"),
        ("br", "dreg", "isir"),
        ("mlmc", "iwae", "isir"),
        ("mlmc", "dreg", "isir"),
        ("mlmc", "mixed", "importance"),
    ],
)
def test_thinning_keeps_the_mean_of_both_gradients(method: Any, encoder: Any, kernel: Any) -> None:
    """Null: for the same chains thinning changes nothing on average; false alarm 1e-5."""
    model, y = linear(latent=2), Y.expand(25, -1)
    options: Any = {"method": method, "encoder": encoder, "kernel": kernel, "truncation": 8}
    changes, saved = [], 0
    for seed in range(160):
        whole, all_states = _gradients(model, y, seed, thinning=0.0, **options)
        thinned, states = _gradients(model, y, seed, thinning=0.8, **options)
        changes.append(torch.stack([thinned - whole, whole]))
        saved += all_states - states
    change, whole = torch.stack(changes).unbind(1)
    assert saved > 160 * 25
    assert float(change.square().sum()) > 0.0
    assert mean_is(change, torch.zeros_like(change[0]))
    assert not mean_is(change + 0.1 * whole, torch.zeros_like(change[0]))  # a bias of a tenth


@pytest.mark.parametrize(
    "options",
    [
        {"method": "iwae"},
        {"method": "br"},
        {"method": "br", "rao_blackwell": True},
        {"method": "mlmc"},
        {"method": "mlmc", "rao_blackwell": True},
        {"method": "mlmc", "kernel": "importance", "multilevel": "sum"},
    ],
)
def test_the_default_thinning_adds_little_variance(options: dict[str, Any]) -> None:
    """Below 5 % for θ and for φ, given the images: E‖thinned − whole‖² over the variance of whole.

    Thinning is unbiased given the chains, so its variance is just added.
    """
    model, calls = LatentModel(DIGITS, BernoulliLikelihood(), rng()), 40
    y = torch.rand(8, 1, 8, 8, generator=rng(1))
    whole, thinned, few = (
        [_gradients(model, y, seed, **options, **more) for seed in range(calls)]
        for more in ({"thinning": 0.0}, {}, {"thinning": 3.0})
    )
    split = len(theta_gradient(model))
    for part in (slice(0, split), slice(split, None)):
        full = torch.stack([g[part] for g, _ in whole])
        spread = full.var(0).sum()

        def added(sample: Any, part: slice = part, full: Tensor = full) -> Tensor:
            other = torch.stack([g[part] for g, _ in sample])
            return (other - full).square().sum(1).mean()

        assert added(thinned) < 0.05 * spread
        assert added(few) > 0.05 * spread  # with so much thinning it shows
    assert sum(n for _, n in thinned) < 0.7 * sum(n for _, n in whole)


@pytest.mark.parametrize(("kernel", "candidates"), [("isir", 1), ("isir", 3), ("mala", 3)])
def test_evaluations_are_all_passes_of_the_decoder_without_a_graph(
    kernel: Any, candidates: int
) -> None:
    """i-SIR shares the first k draws with the encoder; for MALA they come on top."""
    model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
    y = torch.rand(6, 1, 8, 8, generator=rng(1))
    passes: list[int] = []
    model.decoder.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
    method: Any = "iwae" if candidates == 1 else "mlmc"
    objective = Objective(model, method, candidates=candidates, truncation=4, kernel=kernel)
    step = objective.backward(y, generator=rng(2))
    assert step.evaluations == sum(passes) - step.estimate.loss_evaluations


def test_selections_are_averaged_out_on_request() -> None:
    """Of chains of 16 steps with two candidates, over 60 gradients of 20: clearly less variance."""
    variance = {}
    for averaged in (False, True):
        model = linear()
        objective = Objective(model, "br", candidates=2, truncation=16, rao_blackwell=averaged)
        rows = []
        for seed in range(60):
            model.zero_grad()
            objective.backward(Y.expand(20, -1), generator=rng(seed))
            rows.append(theta_gradient(model).clone())
        variance[averaged] = float(torch.stack(rows).var(0).sum())
    assert variance[True] < 0.8 * variance[False], variance


@pytest.mark.parametrize("kernel", ["isir", "importance"])
def test_states_in_one_pass_of_the_decoder_are_bounded(kernel: Any) -> None:
    model, sizes = linear(), list[int]()
    model.decoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    y = torch.rand(6, 3, dtype=torch.float64, generator=rng(1))
    objective = Objective(model, "mlmc", kernel=kernel, candidates=4, truncation=16, chunk=5)
    objective.backward(y, generator=rng(2))
    assert 1 < max(sizes) <= 5
