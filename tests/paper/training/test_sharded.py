"""The objective in shards: what one process computes of a batch, put together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mlmcgrad.distributed.shards import Shards, lengths_generator, shard_generator
from mlmcgrad.iwae.networks import BernoulliLikelihood, LatentModel
from mlmcgrad.iwae.objective import Objective
from mlmcgrad.paper.training.trainer import backward_in_shards
from mlmcgrad.store import Remembered
from tests.chains import rng
from tests.paper.training import tiny

IMAGES, SEED, N = 11, 5, 4
CPU = torch.device("cpu")
OBJECTIVES: list[dict[str, Any]] = [
    {"method": "mlmc"},
    {"method": "mlmc", "assignment": "balanced", "multilevel": "sum", "encoder": "mixed"},
    {"method": "mlmc", "kernel": "importance"},
    {"method": "mlmc", "kernel": "mala"},
    {"method": "br", "rao_blackwell": True},
    {"method": "iwae", "candidates": 1},
]


def made(**options: Any) -> tuple[Objective, torch.Tensor]:
    model = LatentModel(tiny.SIZES, BernoulliLikelihood(), rng()).double()
    y = torch.rand(IMAGES, *tiny.SIZES.shape, generator=rng(1), dtype=torch.float64)
    return Objective(model, **{"candidates": 3, "truncation": 8.0, **options}), y


@pytest.mark.parametrize("options", OBJECTIVES, ids=str)
def test_a_batch_is_the_mean_of_its_shards(options: dict[str, Any]) -> None:
    objective, y = made(**options)
    step = backward_in_shards(objective, y, 3, SEED, n=N, x0=None)
    shards = Shards.of(objective.draw_lengths(IMAGES, N, lengths_generator(SEED, N)), 3)
    gradients, steps = [], []
    for shard, rows in enumerate(shards.rows):
        generator, plan = shard_generator(SEED, N, shard, CPU), shards.lengths[shard]
        gradient, one = objective.gradient(y[rows], generator=generator, lengths=plan)
        gradients.append(gradient)
        steps.append(one)
    sizes = [len(rows) for rows in shards.rows]
    assert sum(sizes) == IMAGES
    for parameter, *parts in zip(objective.parameters, *gradients, strict=True):
        assert parameter.grad is not None
        weighted = sum(size * part for size, part in zip(sizes, parts, strict=True)) / IMAGES
        torch.testing.assert_close(parameter.grad, weighted, rtol=1e-12, atol=1e-14)
    for name in ("bound", "effective", "largest"):
        mean = sum(size * getattr(s, name) for size, s in zip(sizes, steps, strict=True)) / IMAGES
        assert getattr(step, name) == pytest.approx(mean, rel=1e-12)
    values = [one.estimate.value for one in steps]
    mean = sum(size * value for size, value in zip(sizes, values, strict=True)) / IMAGES
    assert step.estimate.value == pytest.approx(mean, rel=1e-12)
    assert step.evaluations == sum(one.evaluations for one in steps)
    for name in ("transitions", "evaluations", "loss_evaluations", "invalid"):
        assert getattr(step.estimate, name) == sum(getattr(s.estimate, name) for s in steps)
    assert step.estimate.levels.shape == (IMAGES,)
    assert len(step.estimate.last) == 0  # nobody asked for the states


def test_shards_of_different_sizes_must_be_weighted() -> None:
    """The plain mean of the shards is another number: the test above would see it."""
    objective, y = made(method="mlmc")
    step = backward_in_shards(objective, y, 3, SEED, n=N, x0=None)
    shards = Shards.of(objective.draw_lengths(IMAGES, N, lengths_generator(SEED, N)), 3)
    bounds = [
        objective.gradient(
            y[rows], generator=shard_generator(SEED, N, shard, CPU), lengths=shards.lengths[shard]
        )[1].bound
        for shard, rows in enumerate(shards.rows)
    ]
    assert abs(sum(bounds) / 3 - step.bound) > 1e-6


def test_chains_go_on_from_their_own_states() -> None:
    """A kernel that stays where it is returns the state of every image in its place."""
    objective, y = made(method="mlmc", kernel="rwmh", step_size=1e-30)
    points = 1.0 + torch.arange(2.0 * IMAGES, dtype=torch.float64).reshape(IMAGES, 2)
    step = backward_in_shards(objective, y, 3, SEED, n=N, x0=points)
    assert torch.equal(step.estimate.last, points)
    known = torch.arange(IMAGES) % 3 > 0
    start = Remembered(points, known)
    last = backward_in_shards(objective, y, 3, SEED, n=N, x0=start).estimate.last
    assert torch.equal(last[known], points[known])
    assert not torch.isclose(last[~known], points[~known]).all(1).any()
