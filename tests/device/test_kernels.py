"""Every kernel × estimator × reduction on the stand-in: the bits of the CPU, on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mlmcgrad as mg
from mlmcgrad.estimators import Estimator, Stages
from mlmcgrad.kernels import Gibbs, importance
from mlmcgrad.store import Store
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


@pytest.mark.parametrize("rao_blackwell", [False, True])
def test_starts_from_a_store(rao_blackwell: bool) -> None:
    """Some of its rows have a state, and the others start with a draw."""
    found = []
    for device in (CPU, DEVICE):
        made = scenario("ISIR, Rao-Blackwell" if rao_blackwell else "ISIR", device)
        store, rows = Store(CHAINS, 1, device=device), torch.arange(CHAINS)
        store[rows[::3]] = torch.ones(4, 1, device=device)
        estimate = problem(made).backward(
            store.start(rows), *made.context, generator=generator(device)
        )
        assert estimate.last.device == device
        gradients = [p.grad.tolist() for p in made.parameters if p.grad is not None]
        found.append((numbers(estimate), gradients))
    assert same(found[0], found[1])


def test_simulations_whose_draws_are_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their weights first, and their states again from a copy of the generator."""
    monkeypatch.setattr(importance, "_PART_DRAWS", 16)
    found = []
    for device in (CPU, DEVICE):
        made = scenario("Importance", device)
        estimate = problem(made, chunk=100).backward(
            made.x0, *made.context, generator=generator(device)
        )
        gradients = [p.grad.tolist() for p in made.parameters if p.grad is not None]
        found.append((numbers(estimate), gradients))
    assert same(found[0], found[1])


def test_machines_are_made_on_the_device_of_their_generator() -> None:
    found = []
    for device in (CPU, DEVICE):
        machine = Gibbs.of_size(6, 4, generator=generator(device))
        states = machine.random_states(3, generator(device))
        assert {t.device for t in (*machine.parameters, states)} == {device}
        found.append([p.tolist() for p in (*machine.parameters, states)])
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
