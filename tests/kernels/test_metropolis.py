"""RWMH and MALA: what they do with proposals that cannot be used, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import MALA, RWMH
from mlmcgrad.kernels.metropolis import value_and_gradient
from tests.chains import rng, run

BOTH = pytest.mark.parametrize("kernel", [RWMH, MALA])
PLAN = mg.Average(200).draw(8, 1, torch.Generator())


def _half_normal(outside: float) -> Any:
    """Standard normal for x > −1; `outside` elsewhere."""

    def log_density(x: Tensor) -> Tensor:
        inside = (x > -1.0).all(1)
        return torch.where(inside, -0.5 * x.square().sum(1), outside)

    return log_density


@BOTH
@pytest.mark.parametrize("outside", [math.nan, math.inf])
def test_an_invalid_proposal_is_refused_and_counted(kernel: Any, outside: float) -> None:
    measure, outcome = run(kernel(_half_normal(outside), 0.5), torch.zeros(8, 2), PLAN)
    assert outcome.invalid > 0
    assert (measure.points > -1.0).all()
    assert 0.0 < outcome.accepted < 8 * 200


@BOTH
def test_outside_the_support_is_an_ordinary_rejection(kernel: Any) -> None:
    measure, outcome = run(kernel(_half_normal(-math.inf), 0.5), torch.zeros(8, 2), PLAN)
    assert outcome.invalid == 0
    assert (measure.points > -1.0).all()
    assert outcome.accepted < 8 * 200


def test_a_gradient_that_is_not_finite_is_refused_and_counted() -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return -0.5 * x.square().sum(1)

        @staticmethod
        def backward(ctx: Any, *grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            slope = torch.where(x < -1.0, math.inf, -x)
            return grad[0][:, None] * slope

    measure, outcome = run(MALA(Bad.apply, 0.3), torch.zeros(8, 1), PLAN)
    assert outcome.invalid > 0
    assert (measure.points >= -1.0).all()


@BOTH
def test_zero_acceptance_is_reported_not_hidden(kernel: Any) -> None:
    """A point mass: every proposal is rejected, and one state carries all the weight."""

    def spike(x: Tensor) -> Tensor:
        return torch.where((x == 0.0).all(1), 0.0 * x.sum(1), -math.inf)

    measure, outcome = run(kernel(spike, 0.5), torch.zeros(8, 2), PLAN)
    assert outcome.accepted == 0
    assert len(measure) == 8
    assert torch.allclose(measure.coefficient, torch.ones(8, dtype=torch.float64))


@BOTH
def test_refuses_a_start_without_density(kernel: Any) -> None:
    for outside in (math.nan, math.inf, -math.inf):
        x0 = torch.zeros(8, 2)
        x0[3] = -2.0
        with pytest.raises(FloatingPointError, match=r"log_density must be finite.*1 of 8 chains"):
            run(kernel(_half_normal(outside), 0.5), x0, PLAN)


def test_the_refused_start_is_shown() -> None:
    for size, shown in ((4, "0, 1, 2, 3"), (5, "0, 1, 2, 3, …")):
        x0 = torch.arange(float(size)).expand(8, -1)
        with pytest.raises(FloatingPointError, match=rf"starts at \[{shown}\]\)"):
            run(RWMH(lambda x: x.sum(1).log() - math.inf, 0.5), x0, PLAN)


def test_mala_refuses_a_start_without_a_gradient() -> None:
    """−√x is finite at 0 and has no slope there."""
    x0 = torch.ones(8, 2)
    x0[5, 1] = 0.0
    with pytest.raises(FloatingPointError, match=r"finite gradient.* got -1.0 for 1 of 8 chains"):
        run(MALA(lambda x: -x.sqrt().sum(1), 0.5), x0, PLAN)
    run(RWMH(lambda x: -x.abs().sqrt().sum(1), 0.5), x0, PLAN)  # needs none


@BOTH
def test_refuses_a_log_density_of_the_wrong_shape(kernel: Any) -> None:
    for density, got in (
        (lambda x: -x.square(), r"shape \(8, 2\);"),
        (lambda x: -x.square().sum(), r"shape \(\);"),
        (lambda x: -x.square().sum(1, keepdim=True), r"shape \(8, 1\);"),
        (lambda x: 0.0, "got 0.0"),
    ):
        with pytest.raises(ValueError, match=r"log_density must return one number.*" + got):
            run(kernel(density, 0.5), torch.zeros(8, 2), PLAN)


@BOTH
@pytest.mark.parametrize("size", [0.0, -1.0, math.nan, math.inf, torch.tensor([1.0, 0.0])])
def test_refuses_a_bad_step_size(kernel: Any, size: Any) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        kernel(lambda x: -x.sum(1), size)


@BOTH
def test_refuses_integer_states(kernel: Any) -> None:
    with pytest.raises(ValueError, match="x0 must have a floating-point dtype"):
        run(kernel(lambda x: -x.double().sum(1), 1.0), torch.zeros(8, 2, dtype=torch.int64), PLAN)


def test_mala_needs_a_differentiable_density() -> None:
    with pytest.raises(ValueError, match="log_density must be differentiable in x"):
        run(MALA(lambda x: -x.detach().square().sum(1), 0.5), torch.zeros(8, 2), PLAN)


@BOTH
@given(st.sampled_from([(), (3,), (2, 2)]), st.sampled_from([torch.float32, torch.float64]))
def test_any_shape_and_dtype(kernel: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def log_density(x: Tensor) -> Tensor:
        return -0.5 * x.reshape(len(x), -1).square().sum(1)

    x0 = torch.zeros(8, *shape, dtype=dtype)
    measure, outcome = run(kernel(log_density, torch.tensor(0.5, dtype=dtype)), x0, PLAN)
    assert measure.points.dtype == outcome.last.dtype == dtype
    assert measure.points.shape[1:] == shape
    assert outcome.last.shape == x0.shape


def test_a_model_s_parameters_get_no_gradient_from_the_chain() -> None:
    scale = torch.ones(2, requires_grad=True)
    kernel = MALA(lambda x: -(scale * x.square()).sum(1), 0.3)
    measure, outcome = run(kernel, torch.zeros(8, 2), PLAN)
    assert scale.grad is None
    assert not measure.points.requires_grad
    assert not outcome.last.requires_grad


def test_deviation_of_the_jumps() -> None:
    """RWMH jumps by h Z, MALA by √(2h) Z."""
    x = torch.zeros(4, 2, dtype=torch.float64)
    z = torch.randn(3, 4, 2, dtype=torch.float64, generator=rng())
    for h in (0.08, torch.tensor([0.08, 0.02], dtype=torch.float64)):
        assert torch.allclose(RWMH(_half_normal(0.0), h).noise(3, x, rng()).jump, h * z)
        root = torch.tensor([0.4, 0.4 if isinstance(h, float) else 0.2], dtype=torch.float64)
        assert torch.allclose(MALA(_half_normal(0.0), h).noise(3, x, rng()).jump, root * z)


def test_step_sizes_may_differ_between_coordinates() -> None:
    """Anisotropic steps with the proposal ratio of the same steps: the exact ratio of densities."""
    h = torch.tensor([0.2, 0.8], dtype=torch.float64)

    def log_density(x: Tensor) -> Tensor:
        return (2.0 * x - x.exp()).sum(1)

    kernel = MALA(log_density, h)
    x0 = torch.randn(5, 2, dtype=torch.float64, generator=rng())
    state, _ = kernel.start(x0, ())
    (noise,) = kernel.noise(1, x0, rng(1)).unbind()
    slope = 2.0 - x0.exp()
    y = x0 + h * slope + noise.jump

    def log_q(a: Tensor, b: Tensor) -> Tensor:
        mean, deviation = a + h * (2.0 - a.exp()), (2.0 * h).sqrt()
        return torch.distributions.Normal(mean, deviation).log_prob(b).sum(1)

    ratio = log_density(y) - log_density(x0) + log_q(y, x0) - log_q(x0, y)
    _, moved, _ = kernel.advance(state, noise, ())
    assert torch.equal(moved, noise.log_uniform < ratio)


def test_a_compiled_graph_gets_the_same_value_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed in another way while torch traces."""
    import torch._dynamo  # it looks for the function that is replaced here when it is loaded

    x = torch.randn(5, 2, dtype=torch.float64, generator=rng())
    centre = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)[:, None]

    def log_density(x: Tensor, centre: Tensor) -> Tensor:
        return -(x - centre).pow(4).sum(1)

    for tracing in (False, True):
        monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda tracing=tracing: tracing)
        value, gradient = value_and_gradient(log_density, x, (centre,))
        assert torch.allclose(value, log_density(x, centre))
        assert torch.allclose(gradient, -4.0 * (x - centre).pow(3))


@BOTH
@pytest.mark.parametrize("chains", [1, 3])
def test_blocks_are_cut_for_a_compiler_and_joined_again(
    monkeypatch: pytest.MonkeyPatch, kernel: Any, chains: int
) -> None:
    """With a compiler that changes nothing `compile=True` gives the same chains."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    plan = mg.Average(21).draw(chains, 1, rng())
    x0 = torch.zeros(chains, 2, dtype=torch.float64)
    (whole, first), (parts, second) = (
        run(kernel(_half_normal(math.nan), 0.5, compile=cut), x0, plan) for cut in (False, True)
    )
    assert torch.allclose(parts.points, whole.points)
    assert torch.equal(parts.coefficient, whole.coefficient)
    assert torch.allclose(second.last, first.last)
    assert (second.accepted, second.invalid) == (first.accepted, first.invalid)
    assert second.invalid > 0


@BOTH
def test_compile_has_its_name(kernel: Any) -> None:
    assert kernel(_half_normal(0.0), 0.5, compile=True).compile
    with pytest.raises(TypeError, match="positional argument"):
        kernel(_half_normal(0.0), 0.5, True)
