"""Draws of q for a batch and their weights, against the model's own."""

from __future__ import annotations

import torch
from torch import Tensor

from mlmcgrad.iwae import drawing
from mlmcgrad.iwae.likelihoods import Bernoulli
from mlmcgrad.iwae.networks import DIGITS, LatentModel
from mlmcgrad.kernels.base import take
from tests.chains import rng


def test_weights_are_those_of_the_model_whatever_the_chunk() -> None:
    model = LatentModel(DIGITS, Bernoulli(), rng())
    y = torch.rand(6, 1, 8, 8, generator=rng(1))
    sizes: list[int] = []

    def log_joint(z: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(z))
        return model.log_joint(z, y)

    with torch.no_grad():
        q = model.encoder(y)
        number = torch.tensor([5, 0, 0, 3, 2, 2, 2, 4, 1, 5])
        context = take(drawing.context(drawing.Batch(y, log_joint, 4), *q), number)
        z = drawing.propose(10, *context, generator=rng(2))
        mine, mean, log_scale = (t[number] for t in (y, *q))
        assert torch.allclose(z, model.propose(10, mine, mean, log_scale, rng(2)))
        found = drawing.log_weight(z, *context)
        assert torch.allclose(found, model.log_weight(z, mine, mean, log_scale), atol=1e-4)
        assert not torch.allclose(found, model.log_joint(z, mine), atol=1e-1)
    assert sizes == [4, 4, 2]
