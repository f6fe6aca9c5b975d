"""`MarkovGradient` refuses what cannot work, and leaves `.grad` as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from tests.chains import Counter, random_matrix, rng
from tests.test_gradient import coin, weights, zeros


def _refused(
    error: type[Exception],
    message: str,
    gradient: mg.MarkovGradient,
    leaf: Tensor,
    *arguments: Any,
    **options: Any,
) -> None:
    leaf.grad = torch.full_like(leaf, 7.0)
    options = {"n": 1, "generator": rng(), **options}
    for method in (gradient.backward, gradient.gradient, gradient.surrogate):
        with pytest.raises(error, match=message):
            method(*arguments, **options)
        assert leaf.grad is not None
        assert (leaf.grad == 7.0).all()


def test_refuses_bad_calls() -> None:
    theta = weights()
    gradient = coin(theta)
    _refused(ValueError, "n must be an integer", gradient, theta, zeros(3), n=0)
    _refused(
        TypeError, "generator must be a torch.Generator", gradient, theta, zeros(3), generator=None
    )
    _refused(ValueError, "x0 must be a tensor", gradient, theta, [0, 0])
    _refused(ValueError, "x0 must have at least one row", gradient, theta, zeros(0))
    _refused(ValueError, "x0 must be a tensor .* of Finite", gradient, theta, None)
    _refused(
        ValueError,
        r"context tensor 2 must have one row for each of the 3 chains.*\(4, 2\)",
        gradient,
        theta,
        zeros(3),
        torch.zeros(3),
        torch.zeros(4, 2),
    )


def test_refuses_bad_losses() -> None:
    theta = weights()
    matrix = torch.eye(2, dtype=torch.float64)

    def made(loss: Any) -> mg.MarkovGradient:
        return mg.MarkovGradient(mg.kernels.Finite(matrix), loss, mg.MLMC(8))

    _refused(
        ValueError,
        "loss does not depend on any tensor that requires a gradient",
        made(lambda x: x.double()),
        theta,
        zeros(3),
    )
    _refused(
        ValueError,
        r"loss must return one number for each row.*got \(\)",
        made(lambda x: theta[x].sum()),
        theta,
        zeros(3),
    )
    _refused(ValueError, "got float", made(lambda x: 1.0), theta, zeros(3))
    _refused(
        FloatingPointError,
        "the weighted loss is nan",
        made(lambda x: theta[x] * math.nan),
        theta,
        zeros(3),
    )


def test_an_error_in_the_middle_leaves_grad_alone() -> None:
    theta, calls = weights(), Counter(lambda x: theta[x])

    def loss(x: Tensor) -> Tensor:
        if len(calls.calls) == 3:
            raise RuntimeError("the user's own failure")
        return calls(x)

    matrix = random_matrix(2, 0)
    gradient = mg.MarkovGradient(mg.kernels.Finite(matrix), loss, mg.Average(50), chunk=4)
    theta.grad = torch.full_like(theta, 7.0)
    with pytest.raises(RuntimeError, match="the user's own failure"):
        gradient.backward(zeros(20), n=1, generator=rng())
    assert (theta.grad == 7.0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk must be an integer ≥ 1, got 0"),
        ({"tolerance": -1.0}, "tolerance must be ≥ 0, got -1.0"),
        ({"thinning": math.nan}, "thinning must be a finite number, got nan"),
        ({"reduction": "max"}, "reduction must be 'mean' or 'sum', got 'max'"),
        ({"parameters": []}, "got none among 0"),
        ({"parameters": [torch.zeros(2)]}, "got none among 1"),
    ],
)
def test_refuses_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        coin(weights(), **options)
