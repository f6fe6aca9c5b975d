"""Sharded batches on the stand-in, in a single process: the bits of the CPU."""

from __future__ import annotations

import pytest

import mlmcgrad as mg
from mlmcgrad import distributed
from tests.device.place import CPU, DEVICE, same
from tests.device.scenarios import scenario


@pytest.mark.parametrize("kernel", ["MALA", "Gibbs", "ISIR", "Importance"])
def test_sharded(kernel: str) -> None:
    found = []
    for device in (CPU, DEVICE):
        made = scenario(kernel, device)
        gradient = mg.MarkovGradient(
            made.kernel, made.loss, mg.MLMC(16), parameters=made.parameters
        )
        sharded = distributed.Sharded(gradient, shards=3)
        estimate = sharded.backward(made.x0, *made.context, n=1)
        gradients = [p.grad for p in made.parameters if p.grad is not None]
        assert {t.device for t in (*gradients, estimate.last)} == {device}
        found.append([estimate.value, estimate.last.tolist(), [g.tolist() for g in gradients]])
    assert same(found[0], found[1])
