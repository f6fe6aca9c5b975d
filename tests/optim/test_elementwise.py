from __future__ import annotations

import torch

from mlmcgrad.optim import Adagrad
from mlmcgrad.optim._elementwise import CACHE_ELEMENTS
from tests.optim.optim_cases import parameters


def sizes(params: list[torch.Tensor], foreach: bool | None) -> list[list[int]]:
    """Numbers of elements in the lists that an update sees."""
    optimizer = Adagrad(params, 0.1)
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    batches = optimizer._batches(params, foreach)
    return [[p.numel() for p in batch.params] for batch in batches]


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
    found = [(b.count, [p.numel() for p in b.params]) for b in optimizer._batches(params, True)]
    assert found == [(2, [1, 3]), (1, [2])]


def test_tensor_subclasses_go_one_by_one() -> None:
    class Mine(torch.Tensor):
        pass

    params = [torch.zeros(1), torch.zeros(2).as_subclass(Mine)]
    assert sizes(params, None) == [[1], [2]]
