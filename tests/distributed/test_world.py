"""`reduce`: the mean over processes, in one message; wrapped modules are refused."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import mlmcgrad as mg
from mlmcgrad import distributed
from mlmcgrad.distributed.world import all_reduce, broadcast, gather
from tests.distributed.processes import message, together

CHAINS = (3, 5)  # of each process


def parameters() -> list[torch.Tensor]:
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.float32]
    return [torch.zeros(2, 3, dtype=kind, requires_grad=True) for kind in kinds]


def reduced() -> list[Any]:
    """The gradients, and whether the last one is there."""
    rank, tensors = distributed.current().rank, parameters()
    for number, tensor in enumerate(tensors[:3]):
        tensor.grad = torch.full_like(tensor, 1.0 + number + 8.0 * rank)
    if rank:
        tensors[3].grad = torch.ones_like(tensors[3])
    distributed.reduce(iter(tensors), chains=CHAINS[rank])
    return [None if t.grad is None else t.grad.detach() for t in tensors]


def test_the_mean_is_weighted_by_chains() -> None:
    for found in together(2, reduced):
        for number, gradient in enumerate(found[:3]):
            expected = (3 * (1.0 + number) + 5 * (9.0 + number)) / 8
            torch.testing.assert_close(gradient, torch.full_like(gradient, expected))
        assert found[3].tolist() == [[5 / 8] * 3] * 2  # 0 where a process has none
        assert found[4] is None


def test_alone_nothing_changes() -> None:
    (tensor,) = parameters()[:1]
    tensor.grad = torch.arange(6.0).reshape(2, 3)
    distributed.reduce([tensor], chains=7)
    assert tensor.grad.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    distributed.reduce([])


HALF = (torch.float16, torch.bfloat16)


def halves() -> list[torch.Tensor]:
    """Means in half precision over 100 000 chains here and 300 000 there."""
    rank, means = distributed.current().rank, []
    for dtype in HALF:
        tensor = torch.zeros(2, dtype=dtype, requires_grad=True)
        tensor.grad = torch.tensor([[1.0, 2.0**-14], [3.0, 2.0**-12]][rank], dtype=dtype)
        distributed.reduce([tensor], chains=(100_000, 300_000)[rank])
        means.append(tensor.grad.detach())
    return means


def test_many_chains_do_not_overflow_half_precision() -> None:
    """Sums over the chains would: 1 · 100 000 is infinite in float16."""
    for dtype, mean in zip(HALF, halves(), strict=True):
        assert (mean.dtype, mean.tolist()) == (dtype, [1.0, 2.0**-14])
    assert (torch.tensor(1.0, dtype=torch.float16) * 100_000).isinf()  # the planted bug
    for means in together(2, halves):
        for dtype, mean in zip(HALF, means, strict=True):
            assert mean.dtype == dtype
            assert mean.tolist() == [0.75 * 3.0 + 0.25, 0.75 * 2.0**-12 + 0.25 * 2.0**-14]


def exchanged() -> tuple[Any, ...]:
    rank = distributed.current().rank
    one, two = torch.full((2, 3), 1.0 + rank), torch.tensor([rank, 2**40])
    all_reduce(one)
    all_reduce(two)
    return one, two, gather(2**55 - rank), broadcast({"rank": rank})


def test_sums_numbers_of_all_and_what_the_first_has() -> None:
    for one, two, numbers, first in together(2, exchanged):
        assert one.tolist() == [[3.0] * 3] * 2
        assert two.tolist() == [1, 2**41]
        assert (numbers, first) == ([2**55, 2**55 - 1], {"rank": 0})
    assert gather(7) == [7]  # a single process


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * x).sum(1)


def _gradient(loss: Any, density: Any) -> mg.MarkovGradient:
    kernel = mg.kernels.RWMH(lambda x: -density(x.abs()), 0.5)
    return mg.MarkovGradient(kernel, loss, mg.Average(2))


def wrapped() -> list[str]:
    """What is said of wrapped modules in loss, kernel and parameters."""
    rank, bare = distributed.current().rank, Energy()
    ddp = DistributedDataParallel(Energy())
    sharded: Any = fully_shard(Energy(), mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    start, rng = torch.full((4, 1), 1.0 + rank), torch.Generator().manual_seed(rank)

    def said(loss: Any, density: Any) -> str:
        return message(lambda: _gradient(loss, density).backward(start, generator=rng))

    scalar, _ = _gradient(ddp, bare).surrogate(start, generator=rng)
    scalar.backward()
    assert isinstance(next(sharded.parameters()), DTensor)
    assert ddp.module.scale.grad is not None
    return [
        said(bare, bare),
        said(ddp, bare),
        said(bare, ddp),
        said(sharded, bare),
        message(lambda: distributed.reduce(sharded.parameters())),
        f"{ddp.module.scale.grad.item():.9g}",
    ]


def test_wrapped_modules_are_refused_with_the_remedy() -> None:
    first, second = together(2, wrapped)
    bare, loss, kernel, fsdp, parts, average = first
    assert bare == ""
    assert "calls a module in DistributedDataParallel, whose gradients would not be" in loss
    assert "mg.distributed.reduce(parameters)" in loss
    assert kernel == loss
    assert "calls a module in FSDPModule" in fsdp
    assert "parameters must be whole in every process, number 0 is a part of one" in parts
    assert average == second[-1]  # `surrogate` calls the hooks of DDP


def test_a_module_outside_of_processes_is_not_looked_at() -> None:
    energy = Energy()
    _gradient(energy, energy).backward(torch.ones(3, 1), generator=torch.Generator())
    assert energy.scale.grad is not None


def test_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with distributed.group() as world:
        assert (world.rank, world.size, world.device) == (0, 1, torch.device("cpu"))
        assert not dist.is_initialized()
    with socket.socket() as server:  # nobody answers there: a port that is taken, not listened to
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
        for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MASTER_PORT", port)
        said = message(lambda: distributed.group(timeout=timedelta(seconds=0.2)).__enter__())
    assert said.startswith("LostError: cannot join the other processes (")
    assert said.endswith(f"RANK=1, WORLD_SIZE=2, MASTER_ADDR=127.0.0.1, MASTER_PORT={port}")


def test_a_gpu_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of torch, where there is no GPU to ask."""
    asked: list[Any] = []
    where = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in {**where, "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    joined = {"is_initialized": True, "get_rank": 3, "get_world_size": 4, "get_backend": "nccl"}

    def join(backend: str, timeout: timedelta) -> None:
        asked.append(backend)
        for name, value in joined.items():
            monkeypatch.setattr(dist, name, lambda value=value: value)

    monkeypatch.setattr("mlmcgrad.distributed.world._join", join)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: asked.append("left"))
    with distributed.group("cuda") as world:
        assert (world.rank, world.size, world.device) == (3, 4, torch.device("cuda", 1))
    assert asked == [1, "nccl", "left"]
