"""How often a gradient waits for the device, and how many operations it launches there.

The bounds are those of today: whoever makes a number smaller makes its bound smaller. The aim is at
most 3 waits for a chain of steps, whatever its length, and 6 for importance sampling.
"""

from __future__ import annotations

import pytest
import torch

import mlmcgrad as mg
from tests.device.scenarios import scenario
from tests.device.standin import DEVICE, recorded

CALLS = 4
# kernel: (chains, truncation, waits per call, launches per call)
BOUNDS: dict[str, tuple[int, float, float, float]] = {
    "RWMH": (128, 64, 97, 1240),
    "MALA": (128, 64, 97, 2080),
    "Gibbs": (128, 128, 103, 1210),
    "Finite": (128, 64, 112, 690),
    "ISIR": (128, 64, 19, 80),
    "ISIR, Rao-Blackwell": (128, 64, 20, 80),
    "Importance": (128, 64, 16, 100),
}


@pytest.mark.parametrize("kernel", BOUNDS)
def test_waits_and_launches(kernel: str) -> None:
    chains, truncation, waits, launches = BOUNDS[kernel]
    made = scenario(kernel, DEVICE, chains)
    markov = mg.MarkovGradient(made.kernel, made.loss, mg.MLMC(truncation))
    rng = torch.Generator(DEVICE).manual_seed(0)
    with recorded() as record:
        for _ in range(CALLS):
            markov.backward(made.x0, *made.context, generator=rng)
    assert record.waits / CALLS <= waits, record.where()
    assert record.launches / CALLS <= launches, record.where("launch")
