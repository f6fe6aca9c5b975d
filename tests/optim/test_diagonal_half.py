"""Parameters in half precision: the state and the arithmetic of a step are float32."""

from __future__ import annotations

import pytest
import torch

from mlmcgrad.optim import Adagrad, AMSGrad, RMSProp
from mlmcgrad.optim._base import usable
from tests.optim.optim_cases import CASES, fill_gradients, parameters, saved_and_loaded

DIAGONAL = [name for name in CASES if name not in ("FullAdagrad", "StochasticNewton")]
half_precision = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@half_precision
def test_a_sum_of_squares_grows_for_ever(dtype: torch.dtype) -> None:
    """In bfloat16 256 + 1 = 256, in float16 2048 + 1 = 2048: A would grow with n, unnoticed."""
    theta = torch.zeros(1, dtype=dtype)
    optimizer = Adagrad([theta], lr=0.0)
    theta.grad = torch.ones_like(theta)
    for _ in range(3000):
        optimizer.step()
    assert optimizer.state[theta]["sum"].item() == 3000.0


@half_precision
@pytest.mark.parametrize("make", [AMSGrad, RMSProp])
def test_a_long_memory_takes_small_changes(make: type, dtype: torch.dtype) -> None:
    """W → 1 from 0 with a memory of 0.999: in bfloat16 it would stop at 0.25."""
    theta = torch.zeros(1, dtype=dtype)
    optimizer = make([theta], lr=0.0, **({"alpha": 0.999} if make is RMSProp else {}))
    theta.grad = torch.ones_like(theta)
    for _ in range(2000):
        optimizer.step()
    assert optimizer.state[theta]["average"].item() == pytest.approx(1 - 0.999**2000, rel=1e-4)


@half_precision
@pytest.mark.parametrize("name", DIAGONAL)
@pytest.mark.parametrize("foreach", [True, False])
def test_a_step_is_that_of_float32_rounded_once(
    name: str, dtype: torch.dtype, foreach: bool
) -> None:
    half, single = parameters(dtype=dtype), [p.detach().float() for p in parameters(dtype=dtype)]
    first, second = CASES[name](half, foreach=foreach), CASES[name](single, foreach=foreach)
    for n in range(1, 30):
        fill_gradients(half, n)
        for p, q in zip(half, single, strict=True):
            assert p.grad is not None
            q.copy_(p.detach())
            q.grad = p.grad.float()
        first.step()
        second.step()
        assert all(torch.equal(p, q.to(dtype)) for p, q in zip(half, single, strict=True))
    for p, q in zip(half, single, strict=True):
        ours, theirs = first.state[p], second.state[q]
        assert {k: v for k, v in ours.items() if k == "count"} == {"count": 29}
        assert all(torch.equal(ours[k], theirs[k]) for k in theirs if k != "count")


@half_precision
def test_states_that_were_saved_in_half_precision_are_widened(dtype: torch.dtype) -> None:
    params = parameters(dtype=dtype)
    optimizer = CASES["AMSGrad"](params)
    fill_gradients(params, 1)
    optimizer.step()
    saved = saved_and_loaded(optimizer.state_dict())
    for state in saved["state"].values():
        state.update({k: v.to(dtype) for k, v in state.items() if k != "count"})
    optimizer.load_state_dict(saved)
    assert {t.dtype for s in optimizer.state.values() for k, t in s.items() if k != "count"} == {
        torch.float32
    }
    optimizer.step()


@half_precision
def test_the_norm_of_many_gradients_does_not_overflow(dtype: torch.dtype) -> None:
    """Each of 200 gradients has a norm of 40000, their sum is beyond 65504 and so is a square."""
    params = [torch.zeros(4, dtype=dtype) for _ in range(200)]
    for p in params:
        p.grad = torch.full_like(p, 20000.0)
    _, norm = usable([{"params": params}])
    assert norm == pytest.approx(200 * 40000.0, rel=0.01)
