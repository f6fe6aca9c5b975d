"""`reduce`: the mean over processes, in flat buffers; wrapped modules are refused."""

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
from mlmcgrad.distributed.collectives import add_up, buckets, from_first, most
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


def test_buckets_hold_one_type_and_a_limited_size() -> None:
    kinds = [torch.float32, torch.float64, torch.float32, torch.float32, torch.float64]
    tensors = [
        torch.empty(4 if kind is torch.float32 else 3, dtype=kind, device="meta") for kind in kinds
    ]
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    found = [[numbers[id(tensor)] for tensor in bucket] for bucket in buckets(tensors, size=32)]
    assert found == [[0, 2], [1], [3], [4]]
    assert [len(bucket) for bucket in buckets(tensors[:1], size=1)] == [1]


def exchanged() -> tuple[Any, ...]:
    rank = distributed.current().rank
    one, two = torch.full((3, 2), 1.0 + rank).t(), torch.tensor([rank, 2**40])
    add_up([one, two])
    return one, two, most(5 - rank), from_first({"rank": rank})


def test_sums_the_largest_and_what_the_first_has() -> None:
    for one, two, largest, first in together(2, exchanged):
        assert one.tolist() == [[3.0] * 3] * 2
        assert two.tolist() == [1, 2**41]
        assert (largest, first) == (5, {"rank": 0})


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
        message(lambda: distributed.reduce(ddp)),  # type: ignore[arg-type]
        f"{ddp.module.scale.grad.item():.9g}",
    ]


def test_wrapped_modules_are_refused_with_the_remedy() -> None:
    first, second = together(2, wrapped)
    bare, loss, kernel, fsdp, parts, module, average = first
    assert bare == ""
    assert "calls a module in DistributedDataParallel, whose gradients would not be" in loss
    assert "mg.distributed.reduce(parameters)" in loss
    assert kernel == loss
    assert "calls a module in FSDPModule" in fsdp
    assert "parameters must be whole in every process, number 0 is a part of one" in parts
    assert "parameters must be tensors, got DistributedDataParallel; pass" in module
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
        said = message(lambda: distributed.group(timeout=timedelta(seconds=1)).__enter__())
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

    monkeypatch.setattr("mlmcgrad.distributed.worlds._join", join)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: asked.append("left"))
    with distributed.group("cuda") as world:
        assert (world.rank, world.size, world.device) == (3, 4, torch.device("cuda", 1))
    assert asked == [1, "nccl", "left"]
