"""The objective of an autoencoder on the stand-in: each method and each encoder's gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mlmcgrad import iwae
from mlmcgrad.iwae.networks import LatentModel, Sizes
from mlmcgrad.store import Store
from tests.device.place import CPU, DEVICE, recorded, same

SIZES = Sizes((1, 8, 8), latent=4, channels=(4, 8))
CASES = [(method, "iwae") for method in ("iwae", "br")] + [
    ("mlmc", encoder) for encoder in ("iwae", "dreg", "stl", "wake", "mixed")
]


def model_and_images(device: torch.device) -> tuple[LatentModel, Tensor]:
    model = LatentModel(SIZES, iwae.BernoulliLikelihood(), torch.Generator(device).manual_seed(0))
    return model, torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1)).to(device)


@pytest.mark.parametrize(("method", "encoder"), CASES)
def test_objectives(method: Any, encoder: Any) -> None:
    found = []
    for device in (CPU, DEVICE):
        model, y = model_and_images(device)
        made = iwae.Objective(model, method, candidates=4, truncation=8.0, encoder=encoder)
        made.backward(y, n=1, generator=torch.Generator(device).manual_seed(2))
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert {g.device for g in gradients} == {device}
        found.append([g.tolist() for g in gradients])
    assert same(found[0], found[1])


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        *(({"encoder": encoder}, 4) for encoder in ("iwae", "dreg", "stl", "wake", "mixed")),
        ({"rao_blackwell": True}, 4),
        ({"kernel": "importance"}, 4),
        ({"thinning": 0.0}, 4),
        ({"kernel": "mala"}, 6),
    ],
)
def test_waits_of_an_objective(options: dict[str, Any], waits: int) -> None:
    model, y = model_and_images(DEVICE)
    made = iwae.Objective(model, "mlmc", candidates=4, truncation=64.0, **options)
    rng = torch.Generator(DEVICE).manual_seed(2)
    with recorded() as record:
        for _ in range(4):
            made.backward(y, n=1, generator=rng)
    assert record.waits <= 4 * waits, record.where()


@pytest.mark.parametrize("kept", [CPU, DEVICE], ids=str)
def test_a_store_may_be_on_the_host(kept: torch.device) -> None:
    rows, found = torch.arange(6), []
    for device in (CPU, DEVICE):
        model, y = model_and_images(device)
        store = Store(10, 4, device=CPU if device == CPU else kept)
        store[rows[:3]] = torch.ones(3, 4)
        made = iwae.Objective(model, "mlmc", candidates=4, truncation=8.0)
        rng = torch.Generator(device).manual_seed(2)
        step = made.backward(y, n=1, x0=store.start(rows), generator=rng)
        store[rows] = step.estimate.last
        found.append([step.bound, store[rows].tolist()])
    assert same(found[0], found[1])


def test_waits_of_persistent_chains() -> None:
    """Two more: the rows, and which of them have a state; and four to keep the states."""
    model, y = model_and_images(DEVICE)
    made = iwae.Objective(model, "mlmc", candidates=4, truncation=8.0)
    store, rng = Store(10, 4, device=DEVICE), torch.Generator(DEVICE).manual_seed(2)
    rows = torch.arange(6)
    store[rows[:3]] = torch.ones(3, 4, device=DEVICE)
    with recorded() as record:
        step = made.backward(y, n=1, x0=store.start(rows), generator=rng)
    assert record.waits <= 6, record.where()
    with recorded() as record:
        store[rows] = step.estimate.last
    assert record.waits <= 4, record.where()
