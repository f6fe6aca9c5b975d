from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim.optimizer import Optimizer

from mlmcgrad.optim import SGD, Adagrad, AdaptiveOptimizer, AMSGrad, RMSProp
from mlmcgrad.optim.diagonal import CACHE_ELEMENTS, ForeachBatch, clipped
from mlmcgrad.schedules import power
from tests.optim.optim_cases import WIDE, close, fill_gradients, parameters, values


def sizes(params: list[torch.Tensor], foreach: bool | None) -> list[list[int]]:
    """Numbers of elements in the lists that an update sees."""
    optimizer = Adagrad(params, 0.1)
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    return [[p.numel() for p in members] for members in optimizer._lists(params, foreach)]


def test_lists_fit_a_cache_and_keep_the_order() -> None:
    half = CACHE_ELEMENTS // 2
    params = [torch.zeros(n) for n in (half, half, 10, 3 * half, 5, 6)]
    assert sizes(params, True) == [[half, half], [10], [3 * half], [5, 6]]
    assert sizes(params, None) == sizes(params, True)


def test_without_foreach_lists_hold_one_tensor() -> None:
    assert sizes([torch.zeros(n) for n in (3, 1, 2)], False) == [[3], [1], [2]]


def test_dtypes_are_not_mixed() -> None:
    params = [torch.zeros(1), torch.zeros(2, dtype=torch.float64), torch.zeros(3)]
    assert sizes(params, True) == [[1, 3], [2]]


def test_parameters_with_different_counts_are_not_mixed() -> None:
    params = parameters(((1,), (2,), (3,)))
    optimizer = Adagrad(params, 0.1)
    for active in ((0, 1, 2), (0, 2)):
        for i, p in enumerate(params):
            p.grad = torch.ones_like(p) if i in active else None
        optimizer.step()
    assert [[p.numel() for p in members] for members in optimizer._lists(params, True)] == [
        [1, 3],
        [2],
    ]


def test_tensor_subclasses_go_one_by_one() -> None:
    class Subclass(torch.Tensor):
        pass

    params = [torch.zeros(1), torch.zeros(2).as_subclass(Subclass)]
    assert sizes(params, None) == [[1], [2]]


def test_clipped_entries() -> None:
    [bounded] = clipped([torch.tensor([-3.0, -0.5, 2.0, 5.0])], 2.0)
    assert bounded.tolist() == [-2.0, -0.5, 2.0, 2.0]
    grads = [torch.ones(2)]
    assert clipped(grads, math.inf) is grads


SETTINGS: list[tuple[type[Any], dict[str, Any]]] = [
    (SGD, {}),
    (Adagrad, {"eps": 0.5, "clip": 0.5}),
    (AMSGrad, {"eps": 1e-2, "clip": 0.5}),
    (RMSProp, {"alpha": 0.9, "eps": 1e-2, "clip": 0.5}),
]


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(("cls", "settings"), SETTINGS)
def test_weight_decay_is_an_l2_penalty(
    cls: type[Any], settings: dict[str, Any], foreach: bool, maximize: bool
) -> None:
    decayed, penalised = parameters(WIDE), parameters(WIDE)
    settings = {"lr": power(0.1, -0.5), "foreach": foreach, "maximize": maximize, **settings}
    first: AdaptiveOptimizer = cls(decayed, weight_decay=0.3, **settings)
    second: AdaptiveOptimizer = cls(penalised, **settings)
    for n in range(1, 51):
        fill_gradients(decayed, n)
        fill_gradients(penalised, n)
        before = [p.grad.clone() for p in decayed if p.grad is not None]
        penalty = sum(0.15 * p.square().sum() for p in penalised)
        assert isinstance(penalty, torch.Tensor)
        torch.autograd.backward(-penalty if maximize else penalty)  # adds to the gradients
        first.step()
        second.step()
        assert all(
            torch.equal(p.grad, g)
            for p, g in zip(decayed, before, strict=True)
            if p.grad is not None
        )
    assert close(values(decayed), values(penalised))


def gamma(n: int) -> float:
    """Undoes the bias correction of torch's Adam with betas (0.9, 0.99)."""
    return 0.01 * math.sqrt(1 - 0.99**n) / (1 - 0.9**n)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(
    ("ours", "settings", "torchs", "torch_settings"),
    [
        (SGD, {"lr": 0.1}, torch.optim.SGD, {"lr": 0.1}),
        (
            Adagrad,
            {"lr": power(0.1, -0.5), "eps": 1e-15},
            torch.optim.Adagrad,
            {"lr": 0.1, "eps": 0.0},
        ),
        (
            AMSGrad,
            {"lr": gamma, "betas": (0.9, 0.99), "eps": 1e-15},
            torch.optim.Adam,
            {"lr": 0.01, "betas": (0.9, 0.99), "eps": 0.0, "amsgrad": True},
        ),
        (
            RMSProp,
            {"lr": 0.01, "alpha": 0.9, "eps": 1e-15},
            torch.optim.RMSprop,
            {"lr": 0.01, "alpha": 0.9, "eps": 0.0},
        ),
    ],
)
def test_weight_decay_is_torchs(
    ours: type[Any],
    settings: dict[str, Any],
    torchs: type[Any],
    torch_settings: dict[str, Any],
    maximize: bool,
) -> None:
    params, reference = parameters(WIDE), parameters(WIDE)
    first: Optimizer = ours(params, weight_decay=0.2, maximize=maximize, **settings)
    second: Optimizer = torchs(reference, weight_decay=0.2, maximize=maximize, **torch_settings)
    for n in range(1, 101):
        fill_gradients(params, n)
        fill_gradients(reference, n)
        first.step()
        second.step()
    assert close(values(params), values(reference))


def test_weight_decay_costs_nothing_when_it_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ForeachBatch] = []
    monkeypatch.setattr(SGD, "_update", lambda self, group, batch, rate: seen.append(batch))
    params = parameters()
    fill_gradients(params, 1)
    SGD(params, 0.1).step()
    assert all(g is p.grad for g, p in zip(seen[0].grads, params, strict=True))
    SGD(params, 0.1, weight_decay=1e-3).step()
    assert not any(g is p.grad for g, p in zip(seen[1].grads, params, strict=True))


def test_weight_decay_becomes_a_float() -> None:
    """So that `state_dict` holds numbers and tensors of parameters only."""
    (group,) = SGD(parameters(), 0.1, weight_decay=torch.tensor(0.5)).param_groups  # type: ignore[arg-type]
    assert type(group["weight_decay"]) is float


@pytest.mark.parametrize(("cls", "settings"), SETTINGS)
def test_weight_decay_belongs_to_a_group(cls: type[Any], settings: dict[str, Any]) -> None:
    a, b = parameters(((2,),)), parameters(((2,),))
    groups = [{"params": a, "weight_decay": 0.5}, {"params": b}]
    optimizer: AdaptiveOptimizer = cls(groups, lr=0.1, **settings)
    for p in (*a, *b):
        p.grad = torch.zeros_like(p)
    before = values(b)
    optimizer.step()
    assert values(b) == before
    assert all(abs(x) < abs(y) for x, y in zip(values(a), before, strict=True))
    for bad in (-0.1, math.nan):
        with pytest.raises(ValueError, match=r"weight_decay must be a finite number ≥ 0, got"):
            optimizer.add_param_group({"params": parameters(), "weight_decay": bad})
    assert len(optimizer.param_groups) == 2
