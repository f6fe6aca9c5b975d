"""What the weighted backward pass does with odd losses and parameters."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mlmcgrad as mg
from mlmcgrad.backward import WeightedBackward, leaves
from mlmcgrad.measure import Measure
from tests.chains import random_matrix, rng

KERNEL = mg.kernels.Finite(random_matrix(3, 0))
START = torch.zeros(5, dtype=torch.int64)


def _made(loss: Callable[..., Tensor], **options: Any) -> mg.MarkovGradient:
    return mg.MarkovGradient(KERNEL, loss, mg.Average(20), **options)


def _leaf(seed: int = 0) -> Tensor:
    return torch.randn(3, dtype=torch.float64, generator=rng(seed)).requires_grad_()


@pytest.mark.parametrize("method", ["backward", "surrogate"])
def test_a_parameter_that_is_named_twice_has_one_gradient(method: str) -> None:
    p, other = _leaf(), _leaf(1)
    once = _made(lambda x: p[x] ** 2 + other[x], parameters=[p, other])
    (expected, _), _ = once.gradient(START, generator=rng())
    twice = _made(lambda x: p[x] ** 2 + other[x], parameters=[p, other, p])
    if method == "backward":
        estimate = twice.backward(START, generator=rng())
    else:
        scalar, estimate = twice.surrogate(START, generator=rng())
        scalar.backward()
    assert p.grad is not None
    assert torch.allclose(p.grad, expected, rtol=1e-12)
    assert [id(q) for q in estimate.parameters] == [id(p), id(other)]


def test_tied_layers_have_one_gradient() -> None:
    first = nn.Linear(3, 3, bias=False, dtype=torch.float64)
    second = nn.Linear(3, 3, bias=False, dtype=torch.float64)
    second.weight = first.weight
    eye = torch.eye(3, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return second(first(eye[x])).sum(1)

    (found,), _ = _made(loss).gradient(START, generator=rng())
    both = [*first.parameters(), *second.parameters()]
    _made(loss, parameters=both).backward(START, generator=rng())
    again = first.weight.grad
    assert again is not None
    assert torch.equal(again, found)


@pytest.mark.parametrize("chunk", [1, 2, 1024])
@pytest.mark.parametrize("named", [False, True])
def test_a_graph_that_was_made_outside_the_loss(chunk: int, named: bool) -> None:
    """`q = p.exp()` once for all chunks: the same gradient for any number of them."""
    p = _leaf()
    options = {"parameters": [p]} if named else {}
    (expected,), _ = _made(lambda x: p.exp()[x], **options).gradient(START, generator=rng())
    q = p.exp()
    gradient = _made(lambda x: q[x], chunk=chunk, **options)
    gradient.backward(START, generator=rng())
    assert p.grad is not None
    assert torch.allclose(p.grad, expected, rtol=1e-12)
    # Its graph is spent then, as after any backward pass: q is out of date once p moves.
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        gradient.backward(START, generator=rng())


def test_parameters_that_the_loss_does_not_touch() -> None:
    p, other = _leaf(), _leaf(1)
    gradient = _made(lambda x: p[x], parameters=[other])
    for method in (gradient.backward, gradient.gradient, gradient.surrogate):
        with pytest.raises(ValueError, match="the loss depends on none of the 1 tensors given"):
            method(START, generator=rng())
    assert other.grad is None
    (_, zero), _ = _made(lambda x: p[x], parameters=[p, other]).gradient(START, generator=rng())
    assert (zero == 0.0).all()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.arange(3.0))

    def loss(self, x: Tensor) -> Tensor:
        return self.table[x].square()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_a_copy_differentiates_its_own_parameters(copied: Callable[[Any], Any]) -> None:
    model = Model()
    original = _made(model.loss, parameters=model.parameters())
    duplicate = copied(original)
    estimate = duplicate.backward(START, generator=rng())
    assert model.table.grad is None
    (expected,), _ = original.gradient(START, generator=rng())
    assert estimate.parameters[0] is not model.table
    assert torch.equal(estimate.parameters[0].grad, expected)


def test_a_copy_whose_loss_was_not_copied_says_so() -> None:
    p = _leaf()
    duplicate = copy.deepcopy(_made(lambda x: p[x], parameters=[p]))
    with pytest.raises(ValueError, match="A copy of a MarkovGradient has copies of its parameters"):
        duplicate.backward(START, generator=rng())


def test_a_finite_loss_with_a_gradient_that_is_not() -> None:
    p = torch.zeros(3, requires_grad=True)
    p.grad = torch.full_like(p, 7.0)
    for chunk in (2, 1024):
        gradient = _made(lambda x: p.square().sum().sqrt() + p[x], chunk=chunk)
        with pytest.raises(FloatingPointError, match=r"gradient of parameter 0 has 3 entries.*NaN"):
            gradient.backward(START, generator=rng())
        assert (p.grad == 7.0).all()


def test_large_finite_gradients_are_fine() -> None:
    """Their sum overflows, they do not."""
    p = torch.zeros(3, requires_grad=True)
    gradient = _made(lambda x: 3e38 * p.sum() + 0.0 * p[x])
    gradient.backward(START, generator=rng())
    assert p.grad is not None
    assert p.grad.isfinite().all()


def _spoil(x: Tensor) -> Tensor:
    return x.mul_(0.5)


@pytest.mark.parametrize("name", ["log_density", "step", "log_weight", "loss"])
def test_a_function_that_changes_the_states_in_place(name: str) -> None:
    theta = torch.zeros(2, requires_grad=True)
    spoilt = {name: _spoil}

    def state(where: str, x: Tensor) -> Tensor:
        return spoilt.get(where, torch.clone)(x)

    normal = mg.kernels.RWMH(lambda x: -state("log_density", x).square().sum(1), 1.0)
    step = mg.kernels.FromStep(lambda x, generator: state("step", x) + 1.0)
    isir = mg.kernels.ISIR(
        lambda z: state("log_weight", z).sum(1),
        lambda rows, generator: torch.randn(rows, 2, generator=generator),
        3,
    )
    kernels: dict[str, mg.kernels.Kernel] = {"step": step, "log_weight": isir}
    kernel = kernels.get(name, normal)
    gradient = mg.MarkovGradient(
        kernel, lambda x: ((state("loss", x) - theta) ** 2).sum(1), mg.Average(5)
    )
    with pytest.raises(ValueError, match=f"{name} changed its first argument in place.*x.clone()"):
        gradient.backward(torch.ones(4, 2), generator=rng())
    spoilt.clear()
    gradient.backward(torch.ones(4, 2), generator=rng())


def test_slopes_are_those_of_the_weighted_loss() -> None:
    p = _leaf()
    points = torch.randn(4, 3, dtype=torch.float64, generator=rng(1))
    measure = Measure(points, torch.tensor([0, 0, 1, 1]), torch.tensor([0.5, -2.0, 3.0, 0.0]))
    scale = torch.tensor([2.0, 5.0], dtype=torch.float64)

    def loss(x: Tensor, scale: Tensor) -> Tensor:
        return scale * (p * x**2).sum(1)

    total = WeightedBackward(loss, (scale,), divisor=4, parameters=(p,))
    slopes = total.add_with_slopes(measure)
    weight = torch.tensor([0.5 * 2, -2.0 * 2, 3.0 * 5, 0.0], dtype=torch.float64)[:, None] / 4
    assert torch.allclose(slopes, weight * 2 * p.detach() * points, rtol=1e-12)
    (gradient,) = total.gradients()
    assert torch.allclose(gradient, (weight * points**2).sum(0), rtol=1e-12)
    assert (total.count, total.parameters) == (4, (p,))
    assert not points.requires_grad
    # A loss that does not depend on the states has slopes of 0.
    flat = WeightedBackward(lambda x: p.sum().expand(len(x)), (), divisor=1, parameters=(p,))
    assert torch.equal(flat.add_with_slopes(measure), torch.zeros_like(points))


def test_leaves_of_a_graph_with_many_paths_are_found_at_once() -> None:
    p = _leaf()
    x = p
    for _ in range(60):  # 2^60 paths
        x = x + x
    assert [id(leaf) for leaf in leaves(x.sum())] == [id(p)]
    assert [id(leaf) for leaf in leaves(p)] == [id(p)]  # itself
    assert leaves(p.detach()) == ()


def test_one_bad_gradient_among_good_ones_is_seen() -> None:
    p, q = _leaf(), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    made = _made(lambda x: p[x] + (q[x] * 0).sqrt(), parameters=[p, q])
    with pytest.raises(FloatingPointError, match=r"gradient of parameter 1 has \d entries"):
        made.backward(START, generator=rng())
    assert p.grad is None
