"""Arguments on another device than the chains are named at the door, with both devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import iwae
from mlmcgrad.iwae.networks import LatentModel, Sizes
from mlmcgrad.kernels import MALA, Gibbs, Regenerative, adapt
from tests.device.place import CPU, DEVICE
from tests.device.scenarios import Scenario, scenario


def generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def with_kernel(name: str, kernel: Any) -> Scenario:
    return replace(scenario(name, DEVICE, 4), kernel=kernel)


def with_context(name: str) -> Scenario:
    made = scenario(name, DEVICE, 4)
    return replace(made, context=tuple(t.cpu() for t in made.context))


def log_density(x: Tensor, y: Tensor) -> Tensor:
    return -0.5 * (x - y).square().sum(1)


def machine() -> Gibbs:
    made = scenario("Gibbs", DEVICE, 4).kernel
    assert isinstance(made, Gibbs)
    return Gibbs(made.weight, made.visible.cpu(), made.hidden)


MISPLACED: dict[str, tuple[Callable[[], Scenario], torch.device]] = {
    "generator": (lambda: scenario("MALA", DEVICE, 4), CPU),
    "context tensor 1": (lambda: with_context("MALA"), DEVICE),
    "step_size": (lambda: with_kernel("MALA", MALA(log_density, torch.tensor(0.1))), DEVICE),
    "matrix": (
        lambda: with_kernel("Finite", mg.kernels.Finite(torch.full((3, 3), 1.0 / 3.0))),
        DEVICE,
    ),
    "law": (lambda: with_kernel("Regenerative", Regenerative(0.5, lambda law: law.cpu())), DEVICE),
    "visible": (lambda: with_kernel("Gibbs", machine()), DEVICE),
}


@pytest.mark.parametrize("argument", MISPLACED)
@pytest.mark.parametrize("method", ["backward", "gradient", "surrogate"])
def test_calls(argument: str, method: str) -> None:
    prepare, place = MISPLACED[argument]
    made = prepare()
    call = getattr(mg.MarkovGradient(made.kernel, made.loss, mg.MLMC(8)), method)
    message = f"{argument} must be on the device of the chains, {DEVICE}, got cpu; for example "
    with pytest.raises(ValueError, match=message):
        call(made.x0, *made.context, generator=generator(place))


def test_a_generator_of_the_device_for_chains_on_the_host() -> None:
    made = scenario("ISIR", CPU, 4)
    markov = mg.MarkovGradient(made.kernel, made.loss, mg.MLMC(8))
    with pytest.raises(ValueError, match="generator must be on the device of the chains, cpu, got"):
        markov.backward(made.x0, *made.context, generator=generator(DEVICE))


def test_adapt() -> None:
    made = scenario("MALA", DEVICE, 4)
    with pytest.raises(ValueError, match="generator must be on the device of the chains"):
        adapt(MALA(log_density, 0.1), made.x0, *made.context, generator=generator(CPU))


@pytest.mark.parametrize(("of_y", "of_generator"), [(CPU, DEVICE), (DEVICE, CPU)])
def test_objectives(of_y: torch.device, of_generator: torch.device) -> None:
    sizes = Sizes((1, 4, 4), latent=2, hidden=(3,))
    model = LatentModel(sizes, iwae.BernoulliLikelihood(), generator(DEVICE))
    name = "y" if of_y == CPU else "generator"
    with pytest.raises(ValueError, match=f"{name} must be on the device of the chains, {DEVICE}"):
        iwae.Objective(model).backward(
            torch.rand(2, 1, 4, 4).to(of_y), n=1, generator=generator(of_generator)
        )


@pytest.mark.parametrize("thinning", [0.0, 1e12])
def test_a_surrogate_is_on_the_device_with_states_and_without(thinning: float) -> None:
    made = scenario("MALA", DEVICE, 4)
    markov = mg.MarkovGradient(made.kernel, made.loss, mg.MLMC(8), thinning=thinning)
    scalar, estimate = markov.surrogate(made.x0, *made.context, generator=generator(DEVICE))
    assert (estimate.loss_evaluations == 0) == (thinning > 0.0)
    assert scalar.device == DEVICE
    scalar.backward()
