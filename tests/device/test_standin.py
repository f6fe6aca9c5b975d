"""The stand-in accelerator itself: its rules, its counters, the bits of the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.device.standin import CPU, DEVICE, on_device, on_host, recorded


def generator(device: torch.device = DEVICE) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def test_tensors_share_memory_with_the_host() -> None:
    x = torch.zeros(3)
    there = on_device(x)
    assert there.device == DEVICE
    there += 1.0
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert on_host(there).data_ptr() == x.data_ptr()


def test_draws_have_the_bits_of_the_host() -> None:
    there = torch.randn(5, device=DEVICE, generator=generator())
    assert there.device == DEVICE
    assert torch.equal(there.cpu(), torch.randn(5, generator=generator(CPU)))
    assert generator().device == DEVICE
    assert generator(CPU).device == CPU


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.ones(3) + x,
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: x.index_select(0, torch.tensor([0])),
        lambda x: torch.ones(3)[x.long()],
        lambda x: torch._foreach_add([x], [torch.ones(3)]),
        lambda x: torch.randn(3, device=DEVICE, generator=generator(CPU)),
        lambda x: torch.randn(3, generator=generator()),
        lambda x: torch.multinomial(torch.ones(3), 1, generator=generator()),
    ],
)
def test_devices_are_not_mixed(mistake: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="device"):
        mistake(torch.ones(3, device=DEVICE))


def test_no_silent_way_to_numpy() -> None:
    with pytest.raises(TypeError):
        torch.ones(3, device=DEVICE).numpy()


@pytest.mark.parametrize(
    ("action", "waits"),
    [
        (lambda x: x + 1.0, 0),
        (lambda x: x[1:3], 0),
        (lambda x: x[on_device(torch.tensor([0, 1]))], 0),
        (lambda x: x.cumsum(0).sqrt_(), 0),
        (lambda x: x + torch.tensor(2.0), 0),  # a number of the host
        (lambda x: torch.zeros(3).to(DEVICE, non_blocking=True), 0),
        (lambda x: torch.zeros(3).to(DEVICE), 1),
        (lambda x: x.sum().item(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: bool(x.isfinite().all()), 1),
        (lambda x: x[x > 0.0], 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x.unique(), 1),
        (lambda x: torch.equal(x, x), 1),
        (lambda x: x.repeat_interleave(on_device(torch.tensor([2, 0, 1, 1]))), 1),
        (lambda x: torch.linalg.eigh(torch.outer(x, x)), 1),
    ],
)
def test_waits_are_counted(action: Callable[[Tensor], object], waits: int) -> None:
    x = torch.arange(4.0, device=DEVICE)
    with recorded() as record:
        action(x)
    assert record.waits == waits, record.where()


def test_launches_are_counted_once_for_a_list() -> None:
    xs = [torch.ones(3, device=DEVICE) for _ in range(5)]
    with recorded() as record:
        torch._foreach_add_(xs, 1.0)
    assert (record.launches, record.waits) == (1, 0)
    assert "_foreach_add_" in record.where("launch")


def test_networks_train_with_the_bits_of_the_host() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 2, 3), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2), nn.Flatten())
    net = nn.Sequential(*layers, nn.Linear(49, 2))
    there = copy.deepcopy(net).to(DEVICE)
    x = torch.randn(4, 1, 8, 8)
    net(x).square().sum().backward()
    there(x.to(DEVICE)).square().sum().backward()
    for p, q in zip(net.parameters(), there.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert q.grad.device == DEVICE
        assert torch.equal(p.grad, q.grad.cpu())
    assert copy.deepcopy(there)[0].weight.device == DEVICE
