"""The weights γ λ of the random iterate, as totals."""

from __future__ import annotations

import math

import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

from mlmcgrad.optim import Adagrad, AMSGrad, RandomIterate
from mlmcgrad.schedules import power
from tests.optim.optim_cases import CASES, parameters, run
from tests.optim.test_random_iterate import generator, one_parameter


@pytest.mark.parametrize("name", sorted(CASES))
def test_total_weight_is_the_sum_of_products(name: str) -> None:
    params = parameters()
    optimizer = CASES[name](params)
    random_iterate = RandomIterate(optimizer, generator())
    run(optimizer, params, 1, 30)
    _ = random_iterate.index
    expected = math.fsum(
        0.1 * n**-0.5 * optimizer.preconditioner_bounds(n)[0] for n in range(1, 32)
    )  # θ_0 … θ_30 have the weights of steps 1 … 31
    assert math.isclose(random_iterate.state_dict()["total"], expected, rel_tol=1e-12)


def test_follows_an_lr_scheduler() -> None:
    theta = one_parameter()
    optimizer = SGD([theta], lr=1.0)
    scheduler = LambdaLR(optimizer, lambda epoch: 1.0 / (epoch + 1))
    random_iterate = RandomIterate(optimizer, generator())
    for _ in range(4):
        theta.grad = torch.ones_like(theta)
        optimizer.step()
        scheduler.step()
    _ = random_iterate.index
    expected = 1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5
    assert math.isclose(random_iterate.state_dict()["total"], expected)


def test_several_groups_weigh_by_their_smallest_product() -> None:
    a, b = one_parameter(), one_parameter()
    groups = [{"params": [a], "lr": 1.0, "clip": 2.0}, {"params": [b], "lr": 0.1, "clip": 1.0}]
    optimizer = Adagrad(groups, lr=1.0, eps=1.0)
    random_iterate = RandomIterate(optimizer, generator())
    _ = random_iterate.index
    assert math.isclose(random_iterate.state_dict()["total"], 0.1)  # min(1 · 1, 0.1 · 1)
    a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
    optimizer.step()
    _ = random_iterate.index
    second = min(1.0 * 5.0**-0.5, 0.1 * 2.0**-0.5)
    assert math.isclose(random_iterate.state_dict()["total"], 0.1 + second)


def test_refuses_what_it_cannot_weigh() -> None:
    theta = one_parameter()
    with pytest.raises(ValueError, match=r"AMSGrad without clipping .* make its clip"):
        RandomIterate(AMSGrad([theta], 0.1), generator())
    with pytest.raises(TypeError, match=r"no preconditioner bound is known for Adam; pass weight="):
        RandomIterate(Adam([theta]), generator())
    with pytest.raises(ValueError, match=r"weight must be a finite number ≥ 0, got -1\.0"):
        RandomIterate(Adam([theta]), generator(), weight=-1.0)
    RandomIterate(Adam([theta]), generator(), weight=1.0)
    RandomIterate(AMSGrad([theta], 0.1), generator(), weight=power(1.0, -0.1))


def test_a_weight_is_read_at_the_step_that_begins() -> None:
    """θ_0, θ_1, θ_2 weigh γ times the weights of the steps 1, 2, 3."""
    theta = one_parameter()
    optimizer = Adam([theta], lr=0.5)
    random_iterate = RandomIterate(optimizer, generator(), weight=lambda n: 10.0**n)
    for _ in range(2):
        theta.grad = torch.ones_like(theta)
        optimizer.step()
    _ = random_iterate.index
    assert random_iterate.state_dict()["total"] == 0.5 * (10.0 + 100.0 + 1000.0)
