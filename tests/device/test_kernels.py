"""Every kernel × estimator × reduction on the stand-in: the bits of the CPU, on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mlmcgrad as mg
from mlmcgrad.estimators import Estimator, Stages
from tests.device.place import CPU, DEVICE, same
from tests.device.scenarios import CHAINS, SCENARIOS, Scenario, scenario

ESTIMATORS: dict[str, Estimator] = {
    "average": mg.Average(5, burn_in=3),
    "mlmc": mg.MLMC(16),
    "mlmc, shared": mg.MLMC(16, assignment="shared"),
    "mlmc, balanced": mg.MLMC(16, assignment="balanced", base=2),
    "sum": mg.MLMCSum(16),
    "stages": Stages(((1, mg.Average(2)), (3, mg.MLMCSum(8)))),
}
every_kernel = pytest.mark.parametrize("kernel", SCENARIOS)


def problem(made: Scenario, estimator: str = "mlmc", **options: Any) -> mg.MarkovGradient:
    return mg.MarkovGradient(made.kernel, made.loss, ESTIMATORS[estimator], **options)


def generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(5)


def numbers(estimate: mg.Estimate) -> list[Any]:
    """All of an estimate as Python numbers."""
    e = estimate
    counts = (e.value, e.transitions, e.evaluations, e.loss_evaluations, e.acceptance, e.invalid)
    return [*counts, e.cut, e.lengths.tolist(), e.levels.tolist(), e.last.tolist()]


CASES = [(name, "mean") for name in ESTIMATORS] + [("mlmc", "sum")]


@every_kernel
@pytest.mark.parametrize(("estimator", "reduction"), CASES)
def test_backward(kernel: str, estimator: str, reduction: Any) -> None:
    found = []
    for device in (CPU, DEVICE):
        made = scenario(kernel, device)
        markov = problem(made, estimator, reduction=reduction)
        estimate = markov.backward(made.x0, *made.context, n=3, generator=generator(device))
        gradients = [p.grad for p in made.parameters if p.grad is not None]
        assert {t.device for t in (*gradients, estimate.last)} == {device}
        found.append((numbers(estimate), [g.tolist() for g in gradients]))
    assert same(found[0], found[1])


@every_kernel
@pytest.mark.parametrize("options", [{"tolerance": 0.1}, {"chunk": 7, "thinning": 0.2}])
def test_options(kernel: str, options: dict[str, Any]) -> None:
    found = []
    for device in (CPU, DEVICE):
        made = scenario(kernel, device)
        markov = problem(made, **options, parameters=made.parameters)
        markov.backward(made.x0, *made.context, generator=generator(device))
        found.append([p.grad.tolist() for p in made.parameters if p.grad is not None])
    assert same(found[0], found[1])


@every_kernel
@pytest.mark.parametrize("chunk", [7, 1024])
def test_surrogate_and_gradient(kernel: str, chunk: int) -> None:
    found = []
    for device in (CPU, DEVICE):
        made = scenario(kernel, device)
        markov = problem(made, chunk=chunk)
        rng = generator(device)
        value, _ = markov.surrogate(made.x0, *made.context, generator=rng)
        assert value.device == device
        value.backward()
        gradients, estimate = markov.gradient(made.x0, *made.context, generator=rng)
        assert {t.device for t in (*gradients, estimate.last)} == {device}
        of_surrogate = [p.grad.tolist() for p in made.parameters if p.grad is not None]
        found.append((of_surrogate, [g.tolist() for g in gradients]))
    assert same(found[0], found[1])


@every_kernel
def test_a_warm_start_stays_on_the_device(kernel: str) -> None:
    found = []
    for device in (CPU, DEVICE):
        made = scenario(kernel, device)
        if made.x0 is None and kernel == "Importance":
            return  # it has no state to continue from
        markov, rng, x0 = problem(made), generator(device), made.x0
        for _ in range(3):
            x0 = markov.backward(x0, *made.context, generator=rng).last
            assert x0.device == device
            assert len(x0) == CHAINS
        gradients = [p.grad.tolist() for p in made.parameters if p.grad is not None]
        found.append((x0.tolist(), gradients))
    assert same(found[0], found[1])
