"""Every optimizer on the stand-in: the bits of the CPU, a state on the device, few waits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from mlmcgrad.optim import RandomIterate, StochasticNewton
from tests.device.place import CPU, DEVICE, recorded, same
from tests.optim.optim_cases import CASES, parameters

# Waits of a step with an lr that is a number: one for the check of all gradients. FullAdagrad asks
# for the norm again, to clip, and an eigendecomposition says whether it converged; Newton
# decomposes after each pair, and checks the lengths of the pair.
WAITS = {"FullAdagrad": 3, "StochasticNewton": 4}
LAUNCHES = {"SGD": 4, "Adagrad": 9, "AMSGrad": 11, "RMSProp": 10}


def on(device: torch.device, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [p.detach().to(device).requires_grad_() for p in parameters(dtype=dtype)]


def step(optimizer: Any, params: list[Tensor], n: int) -> None:
    """Take step n with gradients, and a curvature pair, that are the same on both devices."""
    host = [p.detach().cpu().requires_grad_() for p in params]
    rng = torch.Generator().manual_seed(n)
    for p, q in zip(params, host, strict=True):
        p.grad = (0.3 * q.detach() + torch.randn(q.shape, generator=rng, dtype=q.dtype)).to(
            p.device
        )
    if isinstance(optimizer, StochasticNewton):
        z = [torch.randn(q.shape, generator=rng, dtype=q.dtype) for q in host]
        y = [(1.0 + i) * t for i, t in enumerate(z)]
        device = params[0].device
        optimizer.observe([t.to(device) for t in z], [t.to(device) for t in y])
    optimizer.step()


def state_of(optimizer: Any, params: list[Tensor]) -> list[Any]:
    entries = [v for p in params for v in optimizer.state[p].values()]
    return [v.tolist() if isinstance(v, Tensor) else v for v in entries]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_bits_and_places(name: str, dtype: torch.dtype) -> None:
    if name in WAITS and dtype == torch.bfloat16:
        return  # refused
    found = []
    for device in (CPU, DEVICE):
        params = on(device, dtype)
        optimizer = CASES[name](params)
        for n in range(1, 11):
            step(optimizer, params, n)
        tensors = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        assert {t.device for t in (*params, *tensors)} == {device}
        found.append(([p.tolist() for p in params], state_of(optimizer, params)))
    assert same(found[0], found[1])


@pytest.mark.parametrize("name", CASES)
def test_a_state_goes_to_the_device_of_its_parameters(name: str) -> None:
    here, there = on(CPU), on(DEVICE)
    first, second = CASES[name](here), CASES[name](there)
    for n in range(1, 6):
        step(first, here, n)
    with torch.no_grad():
        for p, q in zip(there, here, strict=True):
            p.copy_(q)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for n in range(6, 11):
        step(first, here, n)
        step(second, there, n)
    assert [p.tolist() for p in there] == [p.tolist() for p in here]
    assert state_of(second, there) == state_of(first, here)


@pytest.mark.parametrize("name", CASES)
def test_waits_of_a_step(name: str) -> None:
    params = on(DEVICE)
    optimizer = CASES[name](params, lr=0.1)
    step(optimizer, params, 1)
    pair = [torch.ones_like(p) for p in params]
    with recorded() as record:
        if isinstance(optimizer, StochasticNewton):
            optimizer.observe(pair, pair)
        optimizer.step()
    assert record.waits <= WAITS.get(name, 1), record.where()
    assert record.launches <= LAUNCHES.get(name, 30), record.where("launch")


@pytest.mark.parametrize("name", [name for name in CASES if name not in WAITS])
def test_a_step_without_checks_never_waits(name: str) -> None:
    checked, unchecked = on(DEVICE), on(DEVICE)
    first, second = CASES[name](checked), CASES[name](unchecked, check_finite=False)
    for n in range(1, 6):
        step(first, checked, n)
        step(second, unchecked, n)
    with recorded() as record:
        second.step()
    first.step()
    assert record.waits == 0, record.where()
    assert [p.tolist() for p in unchecked] == [p.tolist() for p in checked]


def test_torchs_own_optimizers_do_not_wait_either() -> None:
    """A check of the counter: Adam waits never."""
    params = on(DEVICE)
    optimizer = torch.optim.Adam(params, amsgrad=True, foreach=True)
    for n in (1, 2):
        step(optimizer, params, n)
    with recorded() as record:
        optimizer.step()
    assert record.waits == 0, record.where()


@pytest.mark.parametrize("where", [CPU, DEVICE], ids=str)
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "AMSGrad"])
def test_random_iterates(name: str, where: torch.device) -> None:
    """The generator may be of the host or of the device; its draws are the same here."""
    found = []
    for device, source in ((CPU, CPU), (DEVICE, where)):
        params = on(device)
        optimizer = CASES[name](params)
        iterate = RandomIterate(optimizer, torch.Generator(source).manual_seed(3))
        for n in range(1, 11):
            step(optimizer, params, n)
        with iterate.applied() as index:
            found.append((index, [p.tolist() for p in params]))
        assert {p.device for p in iterate.iterate()} == {device}
    assert same(found[0], found[1])


def test_newton_draws_directions_on_the_device_of_its_generator() -> None:
    found = []
    for device, source in ((CPU, CPU), (DEVICE, CPU), (DEVICE, DEVICE)):
        theta = torch.tensor([1.0, 1.0], device=device, requires_grad=True)
        optimizer = StochasticNewton([theta], lr=1.0)
        rng = torch.Generator(source).manual_seed(0)
        for _ in range(5):
            loss = (theta.square() * torch.tensor([0.5, 20.0], device=device)).sum()
            optimizer.zero_grad()
            optimizer.observe_loss(loss, rng)
            loss.backward()
            optimizer.step()
        found.append(theta.tolist())
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_an_overflow_is_undone_on_the_device() -> None:
    params = on(DEVICE, torch.float32)
    optimizer = CASES["AMSGrad, weight decay"](params, clip=float("inf"))
    run_before = [p.tolist() for p in params]
    for p in params:
        p.grad = torch.full_like(p, 1e20)
    with pytest.raises(FloatingPointError, match="step 1 would overflow"):
        optimizer.step()
    assert [p.tolist() for p in params] == run_before
    assert not optimizer.state
