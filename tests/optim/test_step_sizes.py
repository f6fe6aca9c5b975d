"""Step sizes of every optimizer: numbers, tensors, schedules, and torch's LR schedulers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
)

from tests.optim.optim_cases import (
    CASES,
    Factory,
    fill_gradients,
    parameters,
    run,
    saved_and_loaded,
    snapshot,
    values,
)

every_optimizer = pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())


@every_optimizer
@pytest.mark.parametrize("number", [np.float32(0.125), np.float64(0.125), torch.tensor(0.125)])
def test_numbers_of_numpy_and_torch_are_numbers(make: Factory, number: object) -> None:
    results = []
    for lr in (0.125, number):
        params = parameters()
        optimizer = make(params, lr=lr)
        run(optimizer, params, 1, 5)
        results.append(values(params))
        assert optimizer.lr_at(6) == 0.125
    assert results[0] == results[1]
    saved_and_loaded(optimizer.state_dict())


@every_optimizer
def test_a_schedule_may_return_numbers_of_numpy_and_torch(make: Factory) -> None:
    results = []
    for convert in (float, np.float64, torch.tensor):
        params = parameters()
        optimizer = make(params, lr=lambda n, convert=convert: convert(0.25 / n))
        run(optimizer, params, 1, 5)
        results.append(values(params))
        saved_and_loaded(optimizer.state_dict())
    assert results[0] == results[1]
    assert torch.allclose(torch.tensor(results[0]), torch.tensor(results[2]), rtol=1e-6)


@every_optimizer
def test_a_tensor_is_read_at_each_step(make: Factory) -> None:
    lr = torch.tensor(0.25)
    changed, scheduled = parameters(), parameters()
    first, second = make(changed, lr=lr), make(scheduled, lr=lambda n: 0.25 if n < 4 else 0.5)
    run(first, changed, 1, 3)
    lr.fill_(0.5)
    run(first, changed, 4, 6)
    run(second, scheduled, 1, 6)
    assert values(changed) == values(scheduled)
    assert first.param_groups[0]["lr"] is lr


@every_optimizer
def test_an_lr_scheduler_drives_a_tensor(make: Factory) -> None:
    results = []
    for lr in (0.5, torch.tensor(0.5)):
        params = parameters()
        optimizer = make(params, lr=lr)
        scheduler = ExponentialLR(optimizer, 0.5)
        for n in range(1, 6):
            run(optimizer, params, n, n)
            scheduler.step()
        results.append(values(params))
        assert optimizer.lr_at(6) == 0.5**6
    assert results[0] == results[1]


@every_optimizer
def test_a_tensor_that_leaves_the_range_changes_nothing(make: Factory) -> None:
    lr = torch.tensor(0.25)
    params = parameters()
    optimizer = make(params, lr=lr)
    run(optimizer, params, 1, 3)
    fill_gradients(params, 4)
    lr.fill_(math.nan)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=r"lr must be .*, got tensor\(nan\) in param group 0"):
        optimizer.step()
    assert snapshot(optimizer) == before
    with pytest.raises(TypeError, match=r"lr must be a number or a schedule .*, got tensor"):
        make(parameters(), lr=torch.tensor([0.1]))


@every_optimizer
def test_schedulers_that_cycle_momentum_need_betas(make: Factory) -> None:
    """They raise torch's own error for optimizers without, and drive betas[0] of AMSGrad."""
    params = parameters()
    optimizer = make(params, lr=0.1)
    if "betas" in optimizer.defaults:
        OneCycleLR(optimizer, max_lr=0.1, total_steps=10, base_momentum=0.8, max_momentum=0.95)
        assert optimizer.param_groups[0]["betas"] == (0.95, 0.9)
        run(optimizer, params, 1, 1)
        params = parameters()
        optimizer = make(params, lr=0.1)
    else:
        match = "optimizer must support momentum or beta1 with `cycle_mo"
        with pytest.raises(ValueError, match=match):
            OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    cycle = OneCycleLR(optimizer, max_lr=0.1, total_steps=10, cycle_momentum=False)
    for n in range(1, 9):
        run(optimizer, params, n, n)
        cycle.step()
    assert optimizer.iteration == 8


@every_optimizer
def test_an_lr_scheduler_and_a_schedule_agree(make: Factory) -> None:
    driven, scheduled = parameters(), parameters()
    first, second = make(driven, lr=0.1), make(scheduled, lr=lambda n: 0.1 * 0.5 ** (n - 1))
    scheduler = LambdaLR(first, lambda epoch: 0.5**epoch)
    for n in range(1, 11):
        run(first, driven, n, n)
        scheduler.step()
        run(second, scheduled, n, n)
    assert values(driven) == values(scheduled)


@every_optimizer
def test_other_lr_schedulers_drive_it(make: Factory) -> None:
    params = parameters()
    optimizer = make(params, lr=0.1)
    cosine, plateau = CosineAnnealingLR(optimizer, 4), ReduceLROnPlateau(optimizer, patience=0)
    for n in range(1, 4):
        run(optimizer, params, n, n)
        cosine.step()
        plateau.step(1.0)
    assert optimizer.param_groups[0]["lr"] < 0.01


@every_optimizer
def test_a_schedule_and_an_lr_scheduler_exclude_one_another(make: Factory) -> None:
    optimizer = make(parameters())
    LambdaLR(optimizer, lambda epoch: 1.0)
    with pytest.raises(ValueError, match="lr of param group 0 is a schedule, but a torch LR sched"):
        optimizer.step()


@every_optimizer
def test_bad_step_sizes_are_refused(make: Factory) -> None:
    with pytest.raises(ValueError, match=r"lr must be .*, got -0\.1 in param group 0"):
        make(parameters(), lr=-0.1)
    with pytest.raises(ValueError, match=r"lr must be .*, got -1\.0 in param group 1"):
        make([{"params": parameters()}, {"params": parameters(), "lr": lambda n: -1.0}])
    with pytest.raises(TypeError, match=r"lr must be a number or a schedule .*, got 'fast'"):
        make(parameters(), lr="fast")


@every_optimizer
@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf])
def test_a_schedule_that_leaves_its_range_changes_nothing(make: Factory, bad: float) -> None:
    params = parameters()
    optimizer = make(params, lr=lambda n: 0.1 if n < 4 else bad)
    run(optimizer, params, 1, 3)
    fill_gradients(params, 4)
    before = snapshot(optimizer)
    with pytest.raises(
        ValueError, match=r"lr must be .* from its schedule at step n=4 in param gr"
    ):
        optimizer.step()
    assert snapshot(optimizer) == before


@every_optimizer
def test_a_negative_lr_from_an_lr_scheduler_changes_nothing(make: Factory) -> None:
    params = parameters()
    optimizer = make(params, lr=0.1)
    LambdaLR(optimizer, lambda epoch: -1.0)
    fill_gradients(params, 1)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=r"lr must be a finite number ≥ 0, got -0\.1"):
        optimizer.step()
    assert snapshot(optimizer) == before
