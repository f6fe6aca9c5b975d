"""The objective of an autoencoder on the stand-in: each method and each encoder's gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mlmcgrad import iwae
from mlmcgrad.iwae.networks import LatentModel, Sizes
from tests.device.standin import CPU, DEVICE, recorded

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
    assert found[0] == found[1]


def test_waits_of_an_objective() -> None:
    """The bound is that of today; 10 are wanted."""
    model, y = model_and_images(DEVICE)
    made = iwae.Objective(model, "mlmc", candidates=4, truncation=64.0)
    rng = torch.Generator(DEVICE).manual_seed(2)
    with recorded() as record:
        for _ in range(4):
            made.backward(y, n=1, generator=rng)
    assert record.waits / 4 <= 49, record.where()
    assert record.launches / 4 <= 195, record.where("launch")
