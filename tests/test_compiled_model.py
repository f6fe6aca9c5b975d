"""A model that `torch.compile` has compiled, in a loss that is differentiated in several chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mlmcgrad as mg
from mlmcgrad import backward
from mlmcgrad.kernels import RWMH
from tests.chains import rng


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch.compiler.reset()


def gradients(model: Any, parameters: list[nn.Parameter], chunk: int) -> tuple[Tensor, ...]:
    """Gradients by the states of 24 chains of 8 steps, `chunk` at a time."""
    kernel = RWMH(lambda x: -0.5 * x.square().sum(1), 0.5)
    gradient = mg.MarkovGradient(
        kernel, lambda x: model(x)[:, 0], mg.Average(8), parameters=parameters, chunk=chunk
    )
    tensors, estimate = gradient.gradient(torch.zeros(24, 2), generator=rng(1))
    assert estimate.loss_evaluations > 2 * chunk
    return tensors


def test_three_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    compiled = torch.compile(model, backend="aot_eager", dynamic=True)
    parameters = list(model.parameters())
    expected = gradients(model, parameters, chunk=60)
    for found, tensor in zip(gradients(compiled, parameters, chunk=60), expected, strict=True):
        assert torch.allclose(found, tensor, rtol=1e-5, atol=1e-7)
    # Planted bug: the graph of a chunk is kept, as it must be if it is shared. That of a compiled
    # model cannot be.
    monkeypatch.setattr(backward, "_is_older", lambda *_: True)
    with pytest.raises(RuntimeError, match="donated buffers"):
        gradients(compiled, parameters, chunk=60)
