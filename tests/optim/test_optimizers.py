"""What every optimizer of the package does, as one table: a new one adds a row to CASES."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

from mlmcgrad.optim import AdaptiveOptimizer
from tests.optim.optim_cases import (
    CASES,
    GAMMA,
    Factory,
    fill_gradients,
    parameters,
    run,
    saved_and_loaded,
    snapshot,
    values,
)

DENSE = ("FullAdagrad", "StochasticNewton")
every_optimizer = pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())


def with_gradients(make: Factory, steps: int = 3) -> tuple[AdaptiveOptimizer, list[Tensor]]:
    """An optimizer after some steps, with gradients for the next one."""
    params = parameters()
    optimizer = make(params)
    run(optimizer, params, 1, steps)
    fill_gradients(params, steps + 1)
    return optimizer, params


@pytest.mark.parametrize("name", [name for name in CASES if name not in DENSE])
def test_foreach_and_loop_give_the_same_bits(name: str) -> None:
    results = []
    for foreach in (True, False, None):
        params = parameters(((2,), (3, 1), (), (0,)))
        run(CASES[name](params, foreach=foreach), params, 1, 50)
        results.append(values(params))
    assert results[0] == results[1] == results[2]


HALF = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALF])
@pytest.mark.parametrize("name", CASES)
def test_round_trip_continues_bit_identically(name: str, dtype: torch.dtype) -> None:
    if name in DENSE and dtype in HALF:
        return  # refused, as test_full_adagrad holds
    make, params = CASES[name], parameters(dtype=dtype)
    optimizer = make(params)
    run(optimizer, params, 1, 20)
    theta = [p.detach().clone().requires_grad_() for p in params]
    resumed = make(theta)
    resumed.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    assert resumed.iteration == 20
    run(optimizer, params, 21, 40)
    run(resumed, theta, 21, 40)
    assert values(theta) == values(params)
    assert snapshot(resumed) == snapshot(optimizer)


@every_optimizer
def test_copies_continue_bit_identically(make: Factory) -> None:
    params = parameters()
    optimizer = make(params)
    run(optimizer, params, 1, 5)
    copies = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    run(optimizer, params, 6, 12)
    for other in copies:
        theta = other.param_groups[0]["params"]
        assert theta[0] is not params[0]
        run(other, theta, 6, 12)
        assert values(theta) == values(params)


@every_optimizer
def test_maximize_is_to_minimize_the_negative(make: Factory) -> None:
    up, down = parameters(), parameters()
    ascent, descent = make(up, maximize=True), make(down)
    for n in range(1, 31):
        fill_gradients(up, n)
        for p, q in zip(down, up, strict=True):
            p.grad = -q.grad if q.grad is not None else None
        ascent.step()
        descent.step()
    assert values(up) == values(down)


@every_optimizer
def test_parameters_without_gradient_are_left_alone(make: Factory) -> None:
    params = parameters(((2,), (2,), (0,)))
    optimizer = make(params)
    frozen = values([params[1]])
    for n in range(1, 4):
        fill_gradients(params, n)
        params[1].grad = None
        optimizer.step()
    assert values([params[1]]) == frozen
    assert not optimizer.state[params[2]]
    assert optimizer.iteration == 3
    optimizer.zero_grad()
    optimizer.step()  # no gradient at all is fine too
    assert optimizer.iteration == 4


@every_optimizer
def test_groups_are_independent_and_keep_their_hyperparameters(make: Factory) -> None:
    a, b = parameters(((2,),), seed=1), parameters(((3,),), seed=2)
    together = make([{"params": a, "lr": 0.3}, {"params": b}])
    c, d = parameters(((2,),), seed=1), parameters(((3,),), seed=2)
    first, second = make(c, lr=0.3), make(d)
    for n in range(1, 21):
        for params in (a, b, c, d):
            fill_gradients(params, n)
        for optimizer in (together, first, second):
            optimizer.step()
    assert values(a) == values(c)
    assert values(b) == values(d)
    assert together.param_groups[0]["lr"] == 0.3
    assert together.param_groups[1]["lr"] == GAMMA(20)


@every_optimizer
def test_a_group_added_later_joins_at_the_current_iteration(make: Factory) -> None:
    optimizer, params = with_gradients(make)
    added = parameters(((2,),), seed=9)
    optimizer.add_param_group({"params": added, "lr": lambda n: 0.1 * n})
    assert optimizer.param_groups[1]["lr"] == 0.4  # what step 4 will use
    fill_gradients(added, 4)
    optimizer.step()
    assert [group["step"] for group in optimizer.param_groups] == [4, 4]
    assert optimizer.param_groups[1]["lr"] == 0.4
    assert values(added) != values(parameters(((2,),), seed=9))
    assert params[0].grad is not None


@every_optimizer
def test_closure_is_evaluated_with_gradients(make: Factory) -> None:
    theta = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = make([theta])

    def closure() -> float:
        optimizer.zero_grad()
        loss = theta.square().sum()
        torch.autograd.backward(loss)
        return loss.item()

    assert optimizer.step(closure) == 1.0
    assert theta.item() < 1.0


@every_optimizer
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(make: Factory, value: float) -> None:
    named = list(zip(("alpha", "beta", "gamma"), parameters(), strict=True))
    params = [p for _, p in named]
    optimizer = make(named)
    run(optimizer, params, 1, 3)
    fill_gradients(params, 4)
    assert params[1].grad is not None
    params[1].grad[0, 1] = value
    before = snapshot(optimizer)
    expected = (
        r"parameter 1 of param group 0 \('beta'\) has 1 entries that are NaN or infinite, out"
    )
    with pytest.raises(FloatingPointError, match=expected):
        optimizer.step()
    assert snapshot(optimizer) == before
    fill_gradients(params, 4)
    optimizer.step()  # and it can go on
    assert optimizer.iteration == 4


@pytest.mark.parametrize("name", [name for name in CASES if name not in DENSE])
def test_gradients_are_not_checked_where_that_is_asked(name: str) -> None:
    """Groups with check_finite=False take any gradient; the others refuse NaN as ever."""
    a, b = parameters(((2,),)), parameters(((2,),), seed=1)
    optimizer = CASES[name]([{"params": a, "check_finite": False}, {"params": b}])
    fill_gradients([*a, *b], 1)
    a[0].grad = torch.full_like(a[0], math.nan)
    optimizer.step()
    assert a[0].isnan().all()
    assert b[0].isfinite().all()
    b[0].grad = torch.full_like(b[0], math.nan)
    with pytest.raises(FloatingPointError, match="NaN"):
        optimizer.step()


@every_optimizer
def test_nothing_changes_when_the_last_group_is_bad(make: Factory) -> None:
    a, b = parameters(((2,),)), parameters(((2,),), seed=1)
    optimizer = make([{"params": a}, {"params": b}])
    fill_gradients([*a, *b], 1)
    b[0].grad = torch.full_like(b[0], math.nan)
    before = snapshot(optimizer)
    with pytest.raises(FloatingPointError, match="parameter 0 of param group 1 has 2 entries"):
        optimizer.step()
    assert snapshot(optimizer) == before


@every_optimizer
def test_sparse_gradients_are_refused(make: Factory) -> None:
    theta = torch.ones(3, dtype=torch.float64)
    optimizer = make([theta])
    theta.grad = torch.ones(3, dtype=torch.float64).to_sparse()
    before = snapshot(optimizer)
    with pytest.raises(TypeError, match="gradient of parameter 0 of param group 0 is sparse"):
        optimizer.step()
    assert snapshot(optimizer) == before


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "AMSGrad", "RMSProp"])
def test_complex_gradients_are_refused(name: str) -> None:
    theta = torch.ones(3, dtype=torch.complex128)
    optimizer = CASES[name]([theta])
    theta.grad = torch.ones_like(theta)
    before = snapshot(optimizer)
    with pytest.raises(TypeError, match="gradient of parameter 0 of param group 0 is complex"):
        optimizer.step()
    assert snapshot(optimizer) == before


@pytest.mark.parametrize("name", DENSE)
def test_complex_parameters_are_refused_at_once(name: str) -> None:
    with pytest.raises(TypeError, match="complex128"):
        CASES[name]([torch.ones(3, dtype=torch.complex128)])


@every_optimizer
def test_a_refused_group_is_not_added(make: Factory) -> None:
    optimizer, params = with_gradients(make)
    with pytest.raises(ValueError, match=r"lr must be .* in param group 1"):
        optimizer.add_param_group({"params": parameters(), "lr": -1.0})
    assert len(optimizer.param_groups) == 1
    run(optimizer, params, 4, 5)


@every_optimizer
def test_state_dict_holds_numbers_and_tensors_only(make: Factory) -> None:
    optimizer, _ = with_gradients(make)
    state = optimizer.state_dict()
    assert not [v for group in state["param_groups"] for v in group.values() if callable(v)]
    saved_and_loaded(state)
