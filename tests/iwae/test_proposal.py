"""Draws of q for a batch and their weights, against the model's own and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mlmcgrad.iwae import proposal
from mlmcgrad.iwae.networks import DIGITS, BernoulliLikelihood, LatentModel
from mlmcgrad.iwae.proposal import summarize_weights
from mlmcgrad.kernels.base import take
from mlmcgrad.kernels.importance import FirstWeights
from tests.chains import rng


def test_weights_are_those_of_the_model_whatever_the_chunk() -> None:
    model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
    y = torch.rand(6, 1, 8, 8, generator=rng(1))
    sizes: list[int] = []

    def log_joint(z: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(z))
        return model.log_joint(z, y)

    with torch.no_grad():
        q = proposal.Posterior(*model.encoder(y))
        number = torch.tensor([5, 0, 0, 3, 2, 2, 2, 4, 1, 5])
        context = take(proposal.context(log_joint, y, q, 4), number)
        z = proposal.propose(10, *context, generator=rng(2))
        mine, mean, log_scale = (t[number] for t in (y, *q))
        assert torch.allclose(z, model.propose(10, mine, mean, log_scale, rng(2)))
        found = proposal.log_weight(z, *context)
        assert torch.allclose(found, model.log_weight(z, mine, mean, log_scale), atol=1e-4)
        assert not torch.allclose(found, model.log_joint(z, mine), atol=1e-1)
    assert sizes == [4, 4, 2]


def test_summaries_are_means_over_the_batch() -> None:
    """Effective numbers 1/(½² + ½²) = 2, 1 and 1/(0.9² + 0.1²); the pieces may be empty."""
    share = np.array([[0.5, 0.5], [1.0, 0.0], [0.9, 0.1]])
    log_sum = np.array([1.0, -2.0, 4.0])
    pieces = [FirstWeights(log_sum[:2], share[:2]), FirstWeights(log_sum[2:], share[2:])]
    found = summarize_weights([*pieces, FirstWeights(log_sum[:0], share[:0])])
    assert found["bound"] == pytest.approx(1.0 - math.log(2.0))
    assert found["effective"] == pytest.approx((2.0 + 1.0 + 1.0 / 0.82) / 3.0)
    assert found["largest"] == pytest.approx((0.5 + 1.0 + 0.9) / 3.0)


def test_a_datum_none_of_whose_draws_has_any_weight_is_refused() -> None:
    """The state that was kept has some, so that the chain continues; the bound is −∞."""
    first = FirstWeights(np.array([0.0, -np.inf]), np.array([[1.0], [0.0]]))
    with pytest.raises(FloatingPointError, match="the bound is -inf"):
        summarize_weights([first])
