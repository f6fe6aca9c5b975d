from __future__ import annotations

import pytest
import torch

from mlmcgrad.optim import SGD
from mlmcgrad.schedules import power
from tests.optim.optim_cases import CASES, WIDE, fill_gradients, parameters, values


@pytest.mark.parametrize("foreach", [True, False])
def test_has_the_bits_of_torch(foreach: bool) -> None:
    ours, reference = parameters(WIDE), parameters(WIDE)
    schedule = power(0.1, -0.5)
    first = SGD(ours, schedule, weight_decay=0.01, foreach=foreach)
    second = torch.optim.SGD(reference, 0.1, weight_decay=0.01, foreach=foreach)
    for n in range(1, 201):
        fill_gradients(ours, n)
        fill_gradients(reference, n)
        first.step()
        second.param_groups[0]["lr"] = schedule(n)
        second.step()
    assert values(ours) == values(reference)


def test_the_matrix_is_the_identity() -> None:
    optimizer = CASES["SGD"](parameters())
    assert [optimizer.preconditioner_bounds(n) for n in (1, 2, 1000)] == [(1.0, 1.0)] * 3


def test_keeps_no_tensors() -> None:
    params = parameters()
    optimizer = CASES["SGD"](params)
    fill_gradients(params, 1)
    optimizer.step()
    assert [list(optimizer.state[p]) for p in params] == [["count"]] * len(params)
