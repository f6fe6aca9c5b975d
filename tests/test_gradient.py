"""`MarkovGradient`: what lands in `.grad`, what it costs, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from tests.chains import rng


def coin(theta: Tensor, estimator: Any = None, **options: Any) -> mg.MarkovGradient:
    """A two-state chain with loss θ[x]: the gradient is the signed occupation measure."""
    matrix = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    return mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: theta[x], estimator or mg.MLMC(16), **options
    )


def weights(states: int = 2) -> Tensor:
    return torch.zeros(states, dtype=torch.float64, requires_grad=True)


def grad(leaf: Tensor) -> Tensor:
    """What landed in `.grad`."""
    assert leaf.grad is not None
    return leaf.grad


def zeros(chains: int) -> Tensor:
    return torch.zeros(chains, dtype=torch.int64)


# --- the three ways to get a gradient ---------------------------------------------------------


def test_backward_gradient_and_surrogate_agree() -> None:
    theta = weights()
    gradient = coin(theta)
    (direct,), estimate = gradient.gradient(zeros(50), n=1, generator=rng())
    assert theta.grad is None
    assert estimate.parameters == (theta,)
    gradient.backward(zeros(50), n=1, generator=rng())
    assert torch.equal(grad(theta), direct)
    gradient.backward(zeros(50), n=1, generator=rng())
    assert torch.equal(grad(theta), 2.0 * direct)  # it accumulates
    theta.grad = None
    scalar, spent = gradient.surrogate(zeros(50), n=1, generator=rng())
    (2.0 * scalar + theta.sum()).backward()
    assert torch.allclose(grad(theta), 2.0 * direct + 1.0, atol=1e-14)
    assert spent.loss_evaluations == estimate.loss_evaluations
    assert spent.transitions == estimate.transitions


def test_surrogate_in_chunks_recomputes_but_agrees() -> None:
    theta = weights()
    (direct,), _ = coin(theta).gradient(zeros(50), n=1, generator=rng())
    scalar, _ = coin(theta, chunk=7).surrogate(zeros(50), n=1, generator=rng())
    scalar.backward()
    assert theta.grad is not None
    assert torch.allclose(theta.grad, direct, atol=1e-14)


def test_value_is_the_weighted_loss() -> None:
    theta = torch.tensor([2.0, 5.0], dtype=torch.float64, requires_grad=True)
    (g,), estimate = coin(theta).gradient(zeros(50), n=1, generator=rng())
    assert estimate.value == pytest.approx(float(g @ theta.detach()), abs=1e-12)


def test_all_leaves_are_found_and_get_gradients_of_their_own() -> None:
    """Two leaves whose sum is taken get the same tensor from autograd: it must not be shared."""
    a, b, unused = weights(), weights(), weights()
    matrix = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    (single,), _ = coin(weights()).gradient(zeros(20), n=1, generator=rng())
    for chunk in (3, 1024):
        a.grad = b.grad = None
        gradient = mg.MarkovGradient(
            mg.kernels.Finite(matrix), lambda x: (a + b)[x], mg.MLMC(16), chunk=chunk
        )
        estimate = gradient.backward(zeros(20), n=1, generator=rng())
        assert {id(p) for p in estimate.parameters} == {id(a), id(b)}
        assert torch.allclose(grad(a), single, atol=1e-14)
        grad(a).zero_()  # as an optimizer would
        assert torch.allclose(grad(b), single, atol=1e-14)
    assert unused.grad is None


def test_a_hook_acts_once() -> None:
    theta = weights()
    (single,), _ = coin(theta).gradient(zeros(20), n=1, generator=rng())
    theta.register_hook(lambda g: 2.0 * g)
    coin(theta, chunk=3).backward(zeros(20), n=1, generator=rng())
    assert theta.grad is not None
    assert torch.allclose(theta.grad, 2.0 * single, atol=1e-14)


def test_parameters_can_be_chosen() -> None:
    a, b, unused = weights(), weights(), weights()
    matrix = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: (a * 2 + b)[x], mg.MLMC(16), parameters=[unused, b]
    )
    estimate = gradient.backward(zeros(20), n=1, generator=rng())
    assert a.grad is None
    assert b.grad is not None
    assert b.grad.sum().item() == pytest.approx(1.0)
    assert unused.grad is not None
    assert (unused.grad == 0.0).all()
    assert estimate.parameters == (unused, b)


def test_the_value_is_the_sum_over_all_chunks() -> None:
    """X_i = i and θ = 3: the average over four steps is 3 · (1 + 2 + 3 + 4)/4, however cut."""
    theta = torch.tensor(3.0, requires_grad=True)
    for chunk in (1, 3, 5, 1024):
        gradient = mg.MarkovGradient(
            mg.kernels.FromStep(lambda x, generator: x + 1.0),
            lambda x: theta * x,
            mg.Average(4),
            chunk=chunk,
        )
        estimate = gradient.backward(torch.zeros(6), generator=rng())
        assert estimate.value == pytest.approx(7.5)
        assert estimate.loss_evaluations == 24


def test_context_may_carry_a_gradient_through_chunks() -> None:
    """A context computed from a parameter shares its graph between the chunks."""
    scale = torch.tensor(3.0, requires_grad=True)
    rows = torch.arange(8.0)
    gradient = mg.MarkovGradient(
        mg.kernels.FromStep(lambda x, c, generator: x + 1.0), lambda x, c: c, mg.Average(4), chunk=5
    )
    gradient.backward(torch.zeros(8), scale * rows, n=1, generator=rng())
    assert scale.grad is not None
    assert scale.grad.item() == pytest.approx(rows.mean().item())


def test_module_and_any_torch_optimizer() -> None:
    """Fit the mean of a Gaussian by minimising ½‖x − θ‖²: a torch module, torch's SGD."""
    target, model = problems.gaussian(), torch.nn.Linear(1, 2, bias=False, dtype=torch.float64)
    one = torch.ones(64, 1, dtype=torch.float64)
    gradient = mg.MarkovGradient(
        mg.kernels.MALA(lambda x, _: target.log_density(x), 0.5),
        lambda x, context: 0.5 * (x - model(context)).square().sum(1),
        mg.MLMC(mg.schedules.power(1.0, 0.5), assignment="balanced"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator, x = rng(), target.start(64)
    tail = []
    for n in range(1, 401):
        optimizer.zero_grad()
        x = gradient.backward(x, one, n=n, generator=generator).last
        optimizer.step()
        if n > 200:
            tail.append(model.weight.detach()[:, 0].clone())
    assert (torch.stack(tail).mean(0) - target.mean).abs().max() < 0.1


def test_thinning_may_leave_nothing() -> None:
    theta = weights()
    gradient = coin(theta, mg.Average(8), thinning=1e12)
    estimate = gradient.backward(zeros(2), generator=rng())
    scalar, _ = gradient.surrogate(zeros(2), generator=rng())
    assert estimate.loss_evaluations == 0
    assert theta.grad is None
    scalar.backward()
    chosen = coin(theta, mg.Average(8), thinning=1e12, parameters=[theta])
    chosen.backward(zeros(2), n=1, generator=rng())
    assert (grad(theta) == 0.0).all()


# --- the ways to call it ----------------------------------------------------------------------


def test_n_is_needed_only_by_schedules() -> None:
    theta = weights()
    with_n, _ = coin(theta).gradient(zeros(9), n=5, generator=rng())
    without, _ = coin(theta).gradient(zeros(9), generator=rng())
    assert torch.equal(with_n[0], without[0])
    scheduled = coin(theta, mg.MLMC(mg.schedules.power(1.0, 0.5)))
    with pytest.raises(TypeError, match="n must be given, because truncation is a schedule"):
        scheduled.backward(zeros(9), generator=rng())
    (numpy,), _ = scheduled.gradient(zeros(9), n=np.int64(64), generator=rng())
    (plain,), _ = scheduled.gradient(zeros(9), n=64, generator=rng())
    assert torch.equal(numpy, plain)


def test_reduction() -> None:
    theta = weights()
    (mean,), one = coin(theta).gradient(zeros(8), generator=rng())
    (total,), all_chains = coin(theta, reduction="sum").gradient(zeros(8), generator=rng())
    assert torch.allclose(total, 8.0 * mean, rtol=1e-14)
    assert all_chains.value == pytest.approx(8.0 * one.value)
    scalar, _ = coin(theta, reduction="sum").surrogate(zeros(8), generator=rng())
    assert torch.allclose(torch.autograd.grad(scalar, theta)[0], total, rtol=1e-14)


def test_frozen_parameters_are_left_out() -> None:
    model = torch.nn.Linear(1, 2, dtype=torch.float64)
    model.bias.requires_grad_(False)
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(torch.eye(2, dtype=torch.float64)),
        lambda x: model(torch.ones(len(x), 1, dtype=torch.float64)).gather(1, x[:, None])[:, 0],
        mg.Average(2),
        parameters=model.parameters(),
    )
    assert gradient.parameters == (model.weight,)
    gradient.backward(zeros(3), generator=rng())
    assert grad(model.weight)[:, 0].tolist() == [1.0, 0.0]
    assert model.bias.grad is None


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@pytest.mark.parametrize("kernel", ["MALA", "FromStep", "ISIR"])
def test_nested_contexts_follow_their_chains(kernel: str) -> None:
    """A dict with a tuple, a list and a named tuple in it does what flat tensors do."""
    centre, scale = torch.randn(6, 2, generator=rng(1)), torch.rand(6, generator=rng(2)) + 0.5
    theta = torch.zeros(2, requires_grad=True)

    def log_density(x: Tensor, m: Tensor, s: Tensor) -> Tensor:
        return -0.5 * ((x - m) / s[:, None]).square().sum(1)

    def unpack(function: Any) -> Any:
        def nested(x: Any, tree: Any, pair: Any, name: str, **options: Any) -> Any:
            assert name == "as it is"
            assert torch.equal(tree["deep"][0], pair.a)
            return function(x, pair.a, tree["deep"][1][0], **options)

        return nested

    def propose(rows: int, m: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        return m + s[:, None] * torch.randn(rows, 2, generator=generator)

    def step(x: Tensor, m: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        return propose(len(x), m, s, generator)

    made: dict[str, Any] = {
        "MALA": lambda wrap: mg.kernels.MALA(wrap(log_density), 0.3),
        "FromStep": lambda wrap: mg.kernels.FromStep(wrap(step)),
        "ISIR": lambda wrap: mg.kernels.ISIR(wrap(log_density), wrap(propose), 3),
    }

    def loss(x: Tensor, m: Tensor, s: Tensor) -> Tensor:
        return ((x - m) * theta).sum(1) * s

    flat = mg.MarkovGradient(made[kernel](lambda f: f), loss, mg.MLMC(8), chunk=4)
    deep = mg.MarkovGradient(made[kernel](unpack), unpack(loss), mg.MLMC(8), chunk=4)
    context = ({"deep": (centre, [scale])}, Pair(centre, scale), "as it is")
    x0 = None if kernel == "ISIR" else centre
    (expected,), _ = flat.gradient(x0, centre, scale, generator=rng(3))
    (got,), _ = deep.gradient(x0, *context, generator=rng(3))
    assert torch.equal(expected, got)
    with pytest.raises(ValueError, match=r"context tensor 2 must have one row .* \(5,\)"):
        deep.gradient(centre, {"deep": (centre, [scale[:5]])}, generator=rng(3))


@pytest.mark.parametrize("shape", [(), (2,)])
def test_states_of_63_bits_have_the_gradient_of_the_plain_sum(shape: tuple[int, ...]) -> None:
    """Chains x → 6364136223846793005 x + 1 (mod 2^64): states that one number cannot hold."""
    theta, start = weights(7), torch.arange(40).reshape(-1, *(1 for _ in shape)).expand(40, *shape)

    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        return x * 6364136223846793005 + 1

    def loss(x: Tensor) -> Tensor:
        return theta[x.reshape(len(x), -1)[:, 0] % 7]

    gradient = mg.MarkovGradient(mg.kernels.FromStep(step), loss, mg.Average(8))
    gradient.backward(start, generator=rng())
    expected, x = torch.zeros(7).double(), start.reshape(40, -1)[:, 0]
    for _ in range(8):
        x = step(x, rng())
        expected += (x % 7).bincount(minlength=7) / (40 * 8)
    assert torch.allclose(grad(theta), expected, atol=1e-14)


@pytest.fixture
def modes() -> Iterator[None]:
    """NumPy raises for every rounding to 0, and new tensors have double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with np.errstate(all="raise"):
            yield
    finally:
        torch.set_default_dtype(before)


def _everything() -> list[Tensor]:
    """Gradients of a float32 network, thinned, in chunks and in shards, and states of a store."""
    slope = torch.linspace(-1.0, 1.0, 3, dtype=torch.float32).requires_grad_()
    start = torch.linspace(-1.0, 1.0, 39, dtype=torch.float32).reshape(13, 3)
    kernel = mg.kernels.MALA(lambda x: -(x - slope).square().sum(1), 0.1)
    found: list[Tensor] = []
    thinned: list[dict[str, Any]] = [{}, {"thinning": 0.1}, {"thinning": 1e-300}, {"chunk": 3}]
    for estimator in (mg.MLMC(64), mg.MLMCSum(64, assignment="balanced"), mg.Average(5, 2)):
        for options in thinned:
            gradient = mg.MarkovGradient(
                kernel, lambda x: (x * slope).sum(1), estimator, parameters=[slope], **options
            )
            slope.grad = None
            last = gradient.backward(start, generator=rng()).last
            scalar, _ = gradient.surrogate(start, generator=rng())
            scalar.backward()
            last = mg.distributed.Sharded(gradient, shards=3).backward(last, n=1).last
            mg.distributed.reduce([slope], chains=3)
            found += [grad(slope).clone(), last]
    store = mg.Store(13, 3, dtype=torch.float32)
    store[:] = start
    return [*found, store[[3, 1]]]


def test_modes_of_torch_and_numpy_change_no_digit(request: pytest.FixtureRequest) -> None:
    expected = _everything()
    request.getfixturevalue("modes")
    for one, other in zip(_everything(), expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
