"""Autocast lowers the precision of the user's density and loss, not that of the library."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mlmcgrad as mg
from mlmcgrad.iwae import DIGITS, BernoulliLikelihood, LatentModel, Objective
from mlmcgrad.kernels import ISIR, MALA, RWMH, Gibbs, gibbs, metropolis
from tests.chains import rng


def lowered(on: bool = True) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=on)


def mala(chains: int = 64, dimension: int = 3072) -> tuple[Any, ...]:
    """Functions without products of matrices, which autocast leaves as they are."""
    theta = torch.zeros(dimension, requires_grad=True)

    def log_density(x: Tensor) -> Tensor:
        return -0.5 * x.square().sum(1)

    def loss(x: Tensor) -> Tensor:
        return (theta * x).sum(1)

    x0 = torch.randn(chains, dimension, generator=rng())
    return MALA(log_density, 0.01), loss, x0, [theta]


def machine(chains: int = 6) -> tuple[Any, ...]:
    kernel = Gibbs.of_size(300, 50, scale=0.1, generator=rng())
    theta = torch.zeros(300, requires_grad=True)
    return kernel, lambda v: (theta * v).sum(1), kernel.random_states(chains, rng()), [theta]


def estimate(made: tuple[Any, ...], on: bool) -> tuple[list[float], list[float]]:
    """Return gradient and last states of a call."""
    kernel, loss, x0, parameters = made
    gradient = mg.MarkovGradient(kernel, loss, mg.Average(8), parameters=parameters)
    with lowered(on):
        (found,), about = gradient.gradient(x0, generator=rng(1))
    return found.tolist(), about.last.tolist()


@pytest.mark.parametrize(("prepare", "module"), [(mala, metropolis), (machine, gibbs)])
def test_kernels_decide_as_without_autocast(
    prepare: Any, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepare()
    exact = estimate(made, on=False)
    assert estimate(made, on=True) == exact
    # Planted bug: the kernel's own arithmetic is not exempt.
    monkeypatch.setattr(module, "precise", lambda _: nullcontext())
    assert estimate(made, on=True) != exact


def test_the_acceptance_has_the_log_ratio_of_float32() -> None:
    kernel, _, x0, _ = mala()
    state, _ = kernel.start(x0, ())
    (noise,) = kernel.noise(1, x0, rng(2)).unbind()
    ratios = []
    for on in (False, True):
        with lowered(on):
            ratios.append(kernel.advance(state, noise, ())[2][0])
    assert ratios[1].dtype == torch.float32
    assert torch.equal(*ratios)


@pytest.mark.parametrize("name", ["RWMH", "MALA", "ISIR"])
def test_densities_and_losses_keep_the_autocast_of_the_caller(name: str) -> None:
    layer, dtypes = nn.Linear(3, 2), {}

    def function(role: str) -> Any:
        def called(x: Tensor, *_: Tensor) -> Tensor:
            values = layer(x)
            dtypes[role] = values.dtype
            return values.float().sin().sum(1)

        return called

    kernels: dict[str, Any] = {
        "RWMH": RWMH(function("density"), 0.5),
        "MALA": MALA(function("density"), 0.5),
        "ISIR": ISIR(
            function("density"), lambda n, y, generator: torch.randn(n, 3, generator=generator), 3
        ),
    }
    gradient = mg.MarkovGradient(kernels[name], function("loss"), mg.MLMC(8))
    x0 = None if name == "ISIR" else torch.zeros(4, 3)
    with lowered():
        gradient.backward(x0, *[torch.zeros(4)] * (name == "ISIR"), generator=rng())
    assert dtypes == {"density": torch.bfloat16, "loss": torch.bfloat16}
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


def test_a_loss_in_full_precision_has_a_backward_pass_in_full_precision() -> None:
    """A loss may leave autocast for a while; its backward pass leaves it too."""
    weight = torch.randn(3, 2, generator=rng()).requires_grad_()
    x0 = torch.randn(4, 3, generator=rng(1))
    kernel = RWMH(lambda x: -0.5 * x.square().sum(1), 0.5)
    gradients = []

    def loss(x: Tensor) -> Tensor:
        with lowered(on=False):
            return (x @ weight).square().sum(1)

    for on in (False, True):
        gradient = mg.MarkovGradient(kernel, loss, mg.MLMC(8), parameters=[weight])
        with lowered(on):
            gradients.append(gradient.gradient(x0, generator=rng(2))[0][0])
    assert torch.equal(*gradients)


@pytest.mark.parametrize("kernel", ["isir", "importance", "mala"])
def test_draws_and_weights_of_autoencoders_stay_in_float32(kernel: Any) -> None:
    """The networks run in bfloat16: the bound is off by what its rounding does to their outputs."""
    model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
    y = torch.rand(20, 1, 8, 8, generator=rng(1))
    inputs: list[torch.dtype] = []
    outputs: list[torch.dtype] = []

    def note(_: Any, arguments: tuple[Tensor], out: Tensor) -> None:
        inputs.append(arguments[0].dtype)
        outputs.append(out.dtype)

    model.decoder.register_forward_hook(note)
    bounds, draws = [], []
    for block in (nullcontext(), lowered()):
        bounds.append(_bound(model, y, kernel, block))
        draws.append((set(inputs), set(outputs)))
        inputs.clear()
        outputs.clear()
    assert draws[0] == ({torch.float32}, {torch.float32})
    assert draws[1] == ({torch.float32}, {torch.bfloat16})
    assert abs(bounds[0] - bounds[1]) < 0.02
    gradients = [p.grad for p in model.parameters()]
    assert all(g is not None and g.dtype == torch.float32 for g in gradients)


def _bound(model: Any, y: Tensor, kernel: Any, block: AbstractContextManager[Any]) -> float:
    with block:
        objective = Objective(model, "mlmc", truncation=8.0, kernel=kernel)
        return objective.backward(y, generator=rng(2)).bound
