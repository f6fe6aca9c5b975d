"""The gradients that `plan` compares are those that training uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.estimators import MLMC, Average
from mlmcgrad.experiments.plan.contenders import (
    FromProposal,
    contenders,
    gradient,
    images,
    kernels,
    starts,
)
from mlmcgrad.kernels import ISIR, Importance
from mlmcgrad.training.trainer import Trainer
from tests.chains import rng
from tests.statistics import same_mean
from tests.training import tiny


def trainer(**changes: Any) -> Trainer:
    found = Trainer(tiny.config(Path("run"), **changes).settings(), tiny.source())
    found.iteration = 100
    return found


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"method": "iwae"}, ["IWAE", "BR-IWAE"]),
        ({"method": "br"}, ["IWAE", "BR-IWAE"]),
        ({"method": "mlmc"}, ["IWAE", "BR-IWAE", "this run"]),
        ({"method": "br", "rao_blackwell": True}, ["IWAE", "BR-IWAE", "this run"]),
        ({"method": "br", "kernel": "mala"}, ["IWAE", "BR-IWAE", "this run"]),
        ({"method": "br", "persistent": True}, ["IWAE", "BR-IWAE", "this run"]),
    ],
)
def test_the_run_is_a_contender_if_it_is_none_yet(
    changes: dict[str, Any], names: list[str]
) -> None:
    assert list(contenders(trainer(**changes))) == names


def test_estimators_are_those_of_the_last_iteration() -> None:
    found = contenders(trainer())
    assert found["IWAE"].estimator == Average(1)
    assert isinstance(found["IWAE"].kernel, Importance)
    assert found["BR-IWAE"].estimator == Average(30)  # T_n = 3 √100
    assert isinstance(found["BR-IWAE"].kernel, ISIR)
    own = found["this run"].estimator
    assert isinstance(own, MLMC)
    assert own.longest(100) == 16


@pytest.mark.parametrize("kernel", ["isir", "mala"])
def test_the_gradient_of_the_run_is_that_of_its_training(kernel: str) -> None:
    """Null hypothesis: both have the same mean; with the sign of a bound it is another one."""
    run = trainer(kernel=kernel, method="mlmc", step_size=0.1)
    y, mean, log_scale = images(run, 8, seed=0).context
    own, generator = contenders(run)["this run"], rng()
    mine, training = [], []
    for _ in range(150):
        tensors, _ = own.gradient(None, y, mean, log_scale, n=100, generator=generator)
        mine.append(torch.cat([t.flatten() for t in tensors]))
        run.optimizer.zero_grad()
        run.objective.backward(y, n=100, generator=generator)
        grads = [p.grad for p in run.model.decoder.parameters() if p.grad is not None]
        training.append(torch.cat([g.flatten() for g in grads]))
    assert same_mean(torch.stack(mine), torch.stack(training))
    assert not same_mean(-torch.stack(mine), torch.stack(training))


def test_chains_start_from_draws_of_the_encoder() -> None:
    run = trainer(kernel="rwmh", method="br")
    shown = images(run, 4, seed=0)
    kernel = contenders(run)["this run"].kernel
    assert isinstance(kernel, FromProposal)
    assert kernel.chains(None, shown.context) == 4
    assert kernel.chains(torch.zeros(3, 2), shown.context) == 3


def test_one_candidate_is_an_elbo_and_no_chain() -> None:
    run = trainer(method="iwae", candidates=1)
    found = kernels(run)
    assert isinstance(found["isir"], ISIR)
    assert found["isir"].candidates == 2
    assert isinstance(found["importance"], Importance)
    assert found["importance"].candidates == 1


def test_persistent_chains_go_on() -> None:
    run = trainer(method="br", persistent=True)
    shown = images(run, 3, seed=0)
    assert run.store is not None
    run.store[shown.rows[:1]] = torch.full((1, 2), 7.0)
    x0 = starts(run, shown, rng())
    assert x0 is not None
    assert (x0[0] == 7.0).all()
    drawn = run.model.propose(3, *shown.context, generator=rng())
    assert torch.equal(x0[1:], drawn[1:])  # of images that were never visited
    assert starts(trainer(), shown, rng()) is None


def test_images_are_random_but_always_the_same() -> None:
    run = trainer()
    first, again, other = (images(run, 10, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.rows, again.rows)
    assert not torch.equal(first.rows, other.rows)
    assert len(set(first.rows.tolist())) == 10
    with pytest.raises(ValueError, match="rows must be ≤ 44, the number of images, got 45"):
        images(run, 45, seed=0)


def test_parameters_are_those_of_the_decoder() -> None:
    run = trainer()
    found = gradient(run, kernels(run)["isir"], Average(1)).parameters
    assert found is not None
    assert [*map(id, found)] == [*map(id, run.model.decoder.parameters())]
