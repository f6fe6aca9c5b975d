"""How often a step waits for the device, and how many operations it launches there.

The bounds are in `steps`; whoever makes a number smaller makes its bound smaller.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mlmcgrad as mg
from tests.device.place import DEVICE, STAND_IN, Record, recorded
from tests.device.scenarios import scenario
from tests.device.steps import CALLS, ROWS, Row, estimate

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_waits_and_launches(row: Row) -> None:
    record = row.count(width=8)
    assert record.waits <= row.waits * CALLS, record.where()
    assert record.launches <= row.launches * CALLS, record.where("launch")
    if STAND_IN:  # what the page says
        lines = PAGE.read_text(encoding="utf-8").splitlines()
        (line,) = (line for line in lines if line.startswith(f"| {row.name} |"))
        waits, launches = (float(cell) for cell in line.split(" | ")[1:3])
        assert waits == record.waits / CALLS
        assert launches == pytest.approx(record.launches / CALLS, rel=0.05)


def waits_of(kernel: str, length: int) -> Record:
    made = scenario(kernel, DEVICE, 8)
    markov = mg.MarkovGradient(made.kernel, made.loss, mg.Average(length))
    with recorded() as record:
        markov.backward(made.x0, *made.context, generator=torch.Generator(DEVICE).manual_seed(0))
    return record


@pytest.mark.parametrize("kernel", ["RWMH", "Gibbs", "ISIR", "Importance"])
def test_waits_do_not_depend_on_the_length(kernel: str) -> None:
    short, long = waits_of(kernel, 2), waits_of(kernel, 40)
    assert long.waits == short.waits <= 3, long.where()


def test_the_estimate_is_that_of_the_host_or_of_the_device() -> None:
    assert estimate(0, 1000, 0.0, 0.0) == pytest.approx(6e-3)
    assert estimate(10, 1, 15e12, 0.0) == pytest.approx(1.0002)
