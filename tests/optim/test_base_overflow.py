"""No step poisons parameters or state, and no optimizer takes the state of another."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mlmcgrad.optim import (
    SGD,
    Adagrad,
    AMSGrad,
    FullAdagrad,
    RandomIterate,
    RMSProp,
    StochasticNewton,
    _base,
)
from mlmcgrad.optim._base import risky
from mlmcgrad.schedules import power
from tests.optim.optim_cases import CASES, Factory, parameters, run

SQUARES = [name for name in CASES if not name.startswith(("SGD", "StochasticNewton"))]


def _contents(optimizer: Any, params: list[Tensor]) -> Any:
    """Everything that a step may change, as plain numbers."""
    state = optimizer.state_dict()
    tensors = {
        (i, k): v.tolist() if isinstance(v, Tensor) else v
        for i, entries in state["state"].items()
        for k, v in entries.items()
    }
    return copy.deepcopy((tensors, state["param_groups"], [p.tolist() for p in params]))


@pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("size", [1e17, 1e18, 1e20, 1e30, 3e38])
def test_a_large_gradient_moves_or_is_refused(make: Factory, size: float) -> None:
    """Whatever happens, everything stays finite, and coordinates can move afterwards."""
    params = parameters(dtype=torch.float32)
    optimizer = make(params)
    run(optimizer, params, 1, 3)
    for p in params:
        p.grad = torch.full_like(p, size)
    before = _contents(optimizer, params)
    for _ in range(500 if size == 1e18 else 1):  # their squares overflow in the sum only
        try:
            optimizer.step()
        except FloatingPointError as error:
            assert "would overflow" in str(error)  # noqa: PT017
            if size != 1e18:
                assert _contents(optimizer, params) == before
    states = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
    assert all(t.isfinite().all() for t in [*params, *states])
    position = [p.clone() for p in params]
    for p, was in zip(params, position, strict=True):
        p.grad = torch.where(was < 0, -1.0, 1.0) * was.abs().clamp(min=1.0)
    optimizer.step()


@pytest.mark.parametrize("name", SQUARES)
def test_infinite_squares_are_refused_unless_they_are_clipped(name: str) -> None:
    params = parameters(dtype=torch.float32)
    optimizer = CASES[name](params, clip=math.inf)
    for p in params:
        p.grad = torch.full_like(p, 1e20)
    before = _contents(optimizer, params)
    with pytest.raises(FloatingPointError, match=r"step 1 would overflow.*nothing was changed"):
        optimizer.step()
    assert _contents(optimizer, params) == before
    assert optimizer.iteration == 0
    run(optimizer, params, 1, 1)  # a usual gradient, then
    assert optimizer.iteration == 1


def test_a_step_is_risky_if_a_square_or_a_move_may_overflow() -> None:
    """In float32 squares below 1e35 are fine, and so are moves of norm · reach below 1e35."""
    assert risky([torch.float32], norm=1e6, n=1000, reach=1e4) is False
    assert risky([torch.float32], norm=1e20, n=1, reach=0.0)
    assert risky([torch.float32], norm=1e6, n=1, reach=1e30)
    assert risky([torch.float32], norm=1e15, n=10**9, reach=0.0)
    assert risky([torch.float64, torch.float32], norm=1e20, n=1, reach=0.0)
    assert risky([torch.float64], norm=math.nan, n=1, reach=0.0)


def test_in_half_precision_squares_have_the_range_of_float32() -> None:
    assert risky([torch.float16], norm=1e6, n=1000, reach=1e-5) is False
    assert risky([torch.float16], norm=1e18, n=1, reach=0.0)
    assert risky([torch.float16], norm=1e3, n=1, reach=0.1)  # a move of 100 of at most 65504
    assert risky([torch.bfloat16], norm=1e3, n=1, reach=0.1) is False


@pytest.mark.parametrize("make", [SGD, Adagrad, AMSGrad, FullAdagrad, StochasticNewton])
def test_the_reach_of_a_step_is_lr_times_the_largest_eigenvalue(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def spy(dtypes: Any, norm: float, n: int, reach: float) -> bool:
        seen.append(reach)
        return False

    monkeypatch.setattr(_base, "risky", spy)
    groups: list[dict[str, Any]] = [{"params": [torch.ones(1)], "lr": lr} for lr in (0.25, 0.5)]
    optimizer = make(groups, lr=1.0)
    for group in groups:
        group["params"][0].grad = torch.ones(1)
    optimizer.step()
    assert seen == [pytest.approx(0.5 * optimizer.preconditioner_bounds(1)[1])]


@pytest.mark.parametrize("rates", [(1e-3, 1e25), (1e25, 1e-3)])
def test_the_largest_step_size_of_all_groups_counts(rates: tuple[float, float]) -> None:
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in rates]
    optimizer = SGD(groups, lr=1.0)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p in params:
        p.grad = torch.full_like(p, 1e17)
    with pytest.raises(FloatingPointError, match="step 1 would overflow"):
        optimizer.step()
    assert [p.item() for p in params] == [0.0, 0.0]


def test_a_clipped_gradient_of_any_size_is_fine() -> None:
    theta, idle = torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = Adagrad([theta, idle], lr=1e-10, clip=1.0, eps=1.0)
    theta.grad = torch.tensor([1e20, 1.0])
    optimizer.step()
    assert theta.tolist() == pytest.approx([-1e10 / 2**0.5, -1e-10 / 2**0.5])
    assert list(optimizer.state) == [theta]  # what has no gradient has no state


def test_one_infinite_square_is_enough() -> None:
    theta = torch.zeros(2, requires_grad=True)
    optimizer = Adagrad([theta], lr=1e-10)
    theta.grad = torch.tensor([1e20, 1.0])
    with pytest.raises(FloatingPointError, match="step 1 would overflow"):
        optimizer.step()
    assert theta.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make", [Adagrad, RMSProp, AMSGrad])
def test_a_regularization_that_underflows_is_refused(make: Any, dtype: torch.dtype) -> None:
    """The root is taken in float32, in half precision too: 1e-40 is next to 0 there."""
    with pytest.raises(ValueError, match=r"eps=1e-20 adds 1e-40 .*next to 0 in torch.float32"):
        make([torch.ones(2, dtype=dtype)], lr=0.1, eps=1e-20)
    make([torch.ones(2, dtype=torch.float64)], lr=0.1, eps=1e-20)


@pytest.mark.parametrize("make", [Adagrad, RMSProp, AMSGrad])
def test_half_precision_stays_finite_with_the_usual_eps(make: Any) -> None:
    half = torch.ones(2, dtype=torch.float16, requires_grad=True)
    optimizer = make([half], lr=0.1)
    for gradient in (1e-4, 0.0, 60000.0, -60000.0, 1.0):
        half.grad = torch.full_like(half, gradient)
        optimizer.step()
    assert half.isfinite().all()
    half.grad = torch.full_like(half, 60000.0)
    optimizer.param_groups[0]["lr"] = 1e6
    before = half.tolist()
    with pytest.raises(FloatingPointError, match="step 6 would overflow"):
        optimizer.step()
    assert half.tolist() == before


def test_the_smallest_normal_number_is_enough_under_the_root() -> None:
    least = torch.finfo(torch.float32).tiny ** 0.5  # a power of 2, and so is its square
    RMSProp([torch.ones(2)], lr=0.1, eps=least)
    with pytest.raises(ValueError, match=r"next to 0 in torch\.float32"):
        RMSProp([torch.ones(2)], lr=0.1, eps=math.nextafter(least, 0.0))


def test_a_scheduled_regularization_is_watched() -> None:
    theta = torch.ones(1, requires_grad=True)
    optimizer = Adagrad([theta], lr=0.1, eps=power(1e-12, -20.0))
    theta.grad = torch.ones_like(theta)
    for _ in range(2):  # eps² = 1e-24 n^-40 is below 1e-38 from n = 3 on
        optimizer.step()
    with pytest.raises(ValueError, match=r"at step n=3 in param group 0"):
        optimizer.step()
    assert optimizer.iteration == 2


@pytest.mark.parametrize("target", CASES)
@pytest.mark.parametrize("source", CASES)
def test_only_states_of_the_same_class_are_loaded(source: str, target: str) -> None:
    theirs, ours = parameters(), parameters()
    other, optimizer = CASES[source](theirs), CASES[target](ours)
    run(other, theirs, 1, 2)
    before = _contents(optimizer, ours)
    if type(other) is type(optimizer):
        optimizer.load_state_dict(other.state_dict())
        run(optimizer, ours, 3, 1)
    else:
        with pytest.raises(
            ValueError, match=f"state_dict is not one of this {type(optimizer).__name__}"
        ):
            optimizer.load_state_dict(other.state_dict())
        assert _contents(optimizer, ours) == before


def test_states_of_torch_and_of_other_shapes_are_refused() -> None:
    theta = torch.ones(3, requires_grad=True)
    theirs = torch.optim.Adam([theta], amsgrad=True)
    theta.grad = torch.ones(3)
    theirs.step()
    optimizer = AMSGrad([theta], lr=0.1)
    with pytest.raises(ValueError, match="its param group 0 has no 'step'"):
        optimizer.load_state_dict(theirs.state_dict())
    with pytest.raises(ValueError, match="state_dict must be what"):
        optimizer.load_state_dict({"momentum": theta})
    wider = torch.ones(4, requires_grad=True)
    other = AMSGrad([("weight", wider)], lr=0.1)
    wider.grad = torch.ones(4)
    other.step()
    with pytest.raises(
        ValueError, match=r"state of parameter 0.*'momentum': \(4,\).*, not .*\(3,\)"
    ):
        optimizer.load_state_dict(other.state_dict())
    optimizer.step()


@pytest.mark.parametrize("cls", [FullAdagrad, StochasticNewton])
def test_matrices_of_other_dimensions_are_refused(cls: Any) -> None:
    states = []
    for d in (2, 3):
        theta = torch.ones(d, requires_grad=True)
        optimizer = cls([theta], lr=0.1)
        theta.grad = torch.ones(d)
        optimizer.step()
        states.append(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"\(2, 2\).*, not .*\(3, 3\)"):
        optimizer.load_state_dict(states[0])


def test_a_random_iterate_takes_its_own_states_only() -> None:
    theta = torch.ones(3, requires_grad=True)
    optimizer = SGD([theta], lr=0.1)
    iterate = RandomIterate(optimizer, torch.Generator())
    for state in (optimizer.state_dict(), {}, [theta]):
        with pytest.raises(ValueError, match="state_dict must be what state_dict"):
            iterate.load_state_dict(state)  # type: ignore[arg-type]
    iterate.load_state_dict(iterate.state_dict())
