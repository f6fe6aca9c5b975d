"""What moves numbers between host and device."""

from __future__ import annotations

import torch

from mlmcgrad.kernels.base import take
from mlmcgrad.measure import Measure, fetch, merge, pick, read, ship
from tests.device.place import CPU, DEVICE, STAND_IN, recorded


def test_nobody_waits_for_what_the_host_sends() -> None:
    x = torch.arange(3.0)
    with recorded() as record:
        there = ship(x, DEVICE)
    assert there.device == DEVICE
    assert record.waits == 0
    assert ship(there, DEVICE) is there
    back = ship(there, CPU)
    assert (back.device, back.tolist()) == (CPU, x.tolist())


def test_numbers_are_read_by_one_wait() -> None:
    numbers = [torch.tensor(1.0), torch.tensor(2, device=DEVICE), torch.tensor(True, device=DEVICE)]
    with recorded() as record:
        assert read(*numbers) == [1.0, 2.0, 1.0]
    assert record.waits <= 1 + 1  # the one that comes from the host is sent first
    assert read(torch.tensor(3.0)) == [3.0]


def test_tensors_are_fetched_by_one_wait() -> None:
    tensors = torch.ones(2, 3, device=DEVICE), torch.tensor([5, 2**40], device=DEVICE)
    with recorded() as record:
        found = fetch(*tensors)
    assert record.waits <= 1
    for tensor, there in zip(found, tensors, strict=True):
        assert (tensor.device, tensor.dtype, tensor.shape) == (CPU, there.dtype, there.shape)
        assert tensor.tolist() == there.tolist()


def test_rows_are_sent_once() -> None:
    context = tuple(torch.arange(4.0, device=DEVICE) + i for i in range(5))
    rows = torch.tensor([3, 1])
    with recorded() as record:
        (found, *_) = take(context, rows)
    assert found.tolist() == [3.0, 1.0]
    assert record.waits == 0
    if STAND_IN:
        assert sum(count for (kind, _, _), count in record.items() if kind == "copy") == 1
    assert pick(context[0], rows).tolist() == [3.0, 1.0]


def test_equal_states_are_merged_on_the_device() -> None:
    points, owner = torch.tensor([2, 1, 2, 2]), torch.tensor([0, 0, 0, 1])
    c = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    merged = merge(Measure(*(t.to(DEVICE) for t in (points, owner, c))))
    assert {t.device for t in merged.parts} == {DEVICE}
    assert [t.tolist() for t in merged.parts] == [[1, 2, 2], [0, 0, 1], [2.0, 5.0, 8.0]]
