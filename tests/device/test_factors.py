"""Factor models on the stand-in: the bits of the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from mlmcgrad import iwae
from mlmcgrad.factors import FactorModel
from tests.device.place import CPU, DEVICE, recorded, same


@pytest.mark.parametrize(("items", "categories"), [("gaussian", 9), ("graded", 2), ("graded", 3)])
def test_factor_models(items: Any, categories: int) -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, categories, (20, 4), generator=rng).float()
    y[0, 1] = torch.nan
    pattern = torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.0, 1.0], [0.0, 0.5]])
    made = FactorModel(y, pattern, items, hidden=3, generator=rng)
    found = []
    for device in (CPU, DEVICE):
        model = copy.deepcopy(made).to(device)
        objective = iwae.Objective(model, truncation=16.0, chunk=1000)
        generator = torch.Generator(device).manual_seed(2)
        with recorded() as record:
            objective.backward(y.to(device), generator=generator)
        assert record.waits <= 5, record.where()  # four, and the data
        gradients = [p.grad for p in model.parameters()]
        assert {g.device for g in gradients if g is not None} == {device}
        found.append([g.tolist() for g in gradients if g is not None])
    assert same(found[0], found[1])
