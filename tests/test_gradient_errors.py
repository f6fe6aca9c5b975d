"""`MarkovGradient` refuses what cannot work, and leaves `.grad` as it was."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
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


def test_options_have_names() -> None:
    make: Any = mg.MarkovGradient
    parts = coin(weights())
    with pytest.raises(TypeError, match="positional argument"):
        make(parts.kernel, parts.loss, parts.estimator, 10)


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
        r"loss must return one number for each row.*shape \(\);",
        made(lambda x: theta[x].sum()),
        theta,
        zeros(3),
    )
    _refused(ValueError, "got 1.0", made(lambda x: 1.0), theta, zeros(3))
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
        ({"max_transitions": 0.5}, "max_transitions must be an integer ≥ 1, got 0.5"),
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


FINITE = mg.kernels.Finite(torch.eye(2))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"kernel": None}, r"kernel must be a Kernel, for example kernels.MALA.*None.*no chains"),
        ({"kernel": mg.kernels.MALA}, "kernel must be .*MALA.*, which is a class"),
        ({"estimator": 16}, r"estimator must be an Estimator, .*MLMCSum\(64\), got 16"),
        ({"estimator": mg.MLMC}, "estimator must be .*which is a class"),
        ({"loss": 0.5}, r"loss must be a function.*got 0.5"),
        ({"tolerance": None}, "tolerance must be a number, got None"),
        ({"thinning": "0.1"}, "thinning must be a number, got '0.1'"),
    ],
)
def test_refuses_parts_that_are_none(parts: dict[str, Any], message: str) -> None:
    given = {"kernel": FINITE, "loss": abs, "estimator": mg.MLMC(8), **parts}
    with pytest.raises(TypeError, match=message):
        mg.MarkovGradient(**given)


def test_refuses_inference_mode() -> None:
    theta = weights()
    gradient = coin(theta)
    with torch.inference_mode():
        _refused(RuntimeError, "under torch.inference_mode", gradient, theta, zeros(3))
    with torch.inference_mode():
        start = zeros(3)
    theta.grad = None
    gradient.backward(start, generator=rng())  # a tensor that was made there is fine
    assert theta.grad is not None


@pytest.mark.parametrize(
    ("context", "place"),
    [
        ([1.0, 2.0, 3.0], r"context\[1\]"),
        (np.zeros(3), r"context\[1\]"),
        ((torch.zeros(3), {"y": [np.ones((3, 2))]}), r"context\[1\]\[1\]\['y'\]\[0\]"),
    ],
)
def test_refuses_rows_that_are_no_tensor(context: Any, place: str) -> None:
    """They would not be matched with the chains: a loss would broadcast them, or fail."""
    theta = weights()
    gradient = mg.MarkovGradient(FINITE, lambda x, *_: theta[x], mg.MLMC(8))
    _refused(
        TypeError,
        f"{place} must be a tensor to have one row",
        gradient,
        theta,
        zeros(3),
        0.5,
        context,
    )
    plain = ({"name": "any", "scale": 2.0}, (1, 2), None, np.float64(3.0))
    gradient.backward(zeros(3), *plain, generator=rng())  # these are passed through


def test_a_budget_is_kept_before_anything_is_simulated() -> None:
    theta = weights()

    def made(estimator: mg.estimators.Estimator, **options: Any) -> mg.MarkovGradient:
        kernel = mg.kernels.FromStep(lambda x, generator: pytest.fail("it was simulated"))
        return mg.MarkovGradient(kernel, lambda x: theta[x], estimator, **options)

    refused = partial(_refused, ValueError)
    refused(
        r"1,099,511,627,776 transitions.*max_transitions", made(mg.Average(2**40)), theta, zeros(1)
    )
    refused("may ask for a chain of 1,073,741,824", made(mg.MLMC(2.0**30)), theta, zeros(1))
    refused("mean of 1,000,000,000,000 in all", made(mg.Average(10**6)), theta, zeros(10**6))
    growing = made(mg.Average(lambda n: 10.0 ** (3 * n)))
    refused("transitions at n = 4, with a mean of", growing, theta, zeros(1), n=4)
    small = made(mg.MLMC(64), max_transitions=63)
    refused(r"a chain of 64 transitions.*max_transitions = 63", small, theta, zeros(1))
    # One of three chains may be as long as that.
    mg.estimators.check_budget(mg.MLMC(64), 3, None, 64)
    coin(weights(), max_transitions=6 * 3).backward(zeros(3), generator=rng())


def test_lengths_of_another_number_of_chains_are_refused() -> None:
    theta = weights()
    lengths = mg.Average(4).draw(3, None, rng())
    coin(theta).gradient(zeros(3), generator=rng(), lengths=lengths)
    for chains in (2, 4):
        with pytest.raises(ValueError, match=f"a row for each of the {chains} chains, got 3; take"):
            coin(theta).gradient(zeros(chains), generator=rng(), lengths=lengths)
