from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.kernels import Gibbs
from tests.chains import rng, run
from tests.statistics import mean_is


def _machine(dtype: torch.dtype = torch.float64) -> Gibbs:
    return Gibbs.of_size(4, 3, scale=1.0, generator=rng(3), dtype=dtype)


def test_one_step_has_the_enumerated_law() -> None:
    """Null: from v a step leads to v' with the enumerated probability; false alarm 1e-5 a state.

    The planted bug: the layers' biases are swapped in size 4, 4.
    """
    model = problems.boltzmann(4, 4, seed=1)
    matrix, states, chains = model.transition(), model.states(), 40_000
    weights = 2.0 ** torch.arange(4, dtype=torch.float64)
    swapped = Gibbs(model.weight, model.hidden, model.visible)
    for row in (0, 5, 11):
        start, plan = states[row].expand(chains, -1), mg.Average(1).draw(chains, 1, rng())
        for kernel, right in ((model.kernel(), True), (swapped, False)):
            _, outcome = run(kernel, start, plan, seed=row)
            seen = torch.eye(16, dtype=torch.float64)[(outcome.last @ weights).long()]
            assert mean_is(seen, matrix[row]) == right


def test_the_loss_is_minus_the_free_energy_and_its_gradient_the_conditional_means() -> None:
    machine = _machine()
    v = machine.random_states(7, rng())
    inside = (v @ machine.weight + machine.hidden).detach()
    expected = v @ machine.visible + (1.0 + inside.exp()).log().sum(1)
    assert torch.allclose(machine.loss(v), expected)
    assert torch.allclose(machine.free_energy(v), -expected)
    machine.loss(v).sum().backward()
    means = inside.sigmoid()
    for parameter, gradient in zip(
        machine.parameters, (v.T @ means, v.sum(0), means.sum(0)), strict=True
    ):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, gradient)


def test_two_phases_make_the_exact_gradient() -> None:
    """Data's part plus the chain's from exact draws; false alarm 1e-5, and 0.9 times it fails."""
    model = problems.boltzmann()
    machine, exact = model.kernel(), torch.cat([g.flatten() for g in model.exact_gradient()])
    data = torch.autograd.grad(machine.free_energy(model.data).mean(), machine.parameters)
    gradient = mg.MarkovGradient(
        machine, machine.loss, mg.MLMC(4), parameters=machine.parameters, reduction="mean"
    )
    generator, rows = rng(), []
    for _ in range(400):
        chains, _ = gradient.gradient(model.sample(100, generator), generator=generator)
        both = [d + c for d, c in zip(data, chains, strict=True)]
        rows.append(torch.cat([g.flatten() for g in both]))
    assert mean_is(torch.stack(rows), exact)
    assert not mean_is(torch.stack(rows), 0.9 * exact)


def test_states_are_zeros_and_ones_in_the_dtype_of_the_machine() -> None:
    for dtype in (torch.float32, torch.float64):
        machine = _machine(dtype)
        x0 = machine.random_states(50, rng())
        measure, outcome = run(machine, x0, mg.MLMC(16).draw(50, 1, rng()))
        for states in (x0, measure.points, outcome.last):
            assert states.dtype == dtype
            assert set(states.unique().tolist()) == {0.0, 1.0}
        assert outcome.evaluations == outcome.accepted


def test_default_dtype_is_float32_and_parameters_are_leaves() -> None:
    machine = Gibbs.of_size(5, 2, generator=rng())
    assert [p.shape for p in machine.parameters] == [(5, 2), (5,), (2,)]
    assert all(p.dtype == torch.float32 and p.is_leaf for p in machine.parameters)
    assert all(p.requires_grad for p in machine.parameters)
    scaled = Gibbs.of_size(5, 2, generator=rng(), scale=2.0)
    assert torch.allclose(scaled.weight, 200.0 * machine.weight)
    many = Gibbs.of_size(200, 200, generator=rng(), scale=0.5).weight
    assert float(many.detach().std()) == pytest.approx(0.5, rel=0.02)
    drawn = [machine.random_states(30, rng(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_chains_do_not_depend_on_each_other_beyond_the_generator() -> None:
    """A step with the same noise moves a row the same way whatever its neighbours are."""
    machine = _machine()
    x = machine.random_states(6, rng(1))
    hidden, visible = machine.noise(3, x, rng(2))
    some = hidden[:, 2:4].clone(), visible[:, 2:4].clone()  # a walk writes over its noise
    part = machine.walk(machine.start(x[2:4], ())[0], some, ())
    whole = machine.walk(machine.start(x, ())[0], (hidden, visible), ())
    assert torch.equal(whole.path[:, 2:4], part.path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_for_parameters_and_states_only(dtype: torch.dtype) -> None:
    """The same chains as in float32, for parameters that both can hold."""
    machine = _machine(dtype)
    twin = Gibbs(*(p.detach().float() for p in machine.parameters))
    x0, plan = machine.random_states(200, rng(1)), mg.Average(5).draw(200, 1, rng())
    measure, outcome = run(machine, x0, plan, seed=4)
    expected, of_twin = run(twin, x0.float(), plan, seed=4)
    assert (measure.points.dtype, outcome.last.dtype) == (dtype, dtype)
    assert torch.equal(measure.points.float(), expected.points)
    assert torch.equal(outcome.last.float(), of_twin.last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_small_probability_in_half_precision(dtype: torch.dtype) -> None:
    """Null: a unit is on with its probability of 5.5e-4; false alarm 1e-5.

    Planted: uniforms with the digits of the state, as multiples of 2^-11 or 2^-8.
    """
    units, chains = 100, 20_000
    zero = torch.zeros(units, 1, dtype=dtype)
    bias = torch.full((units,), -7.5, dtype=dtype)
    machine = Gibbs(zero, bias, zero[0])
    _, outcome = run(machine, zero.T.expand(chains, -1), mg.Average(1).draw(chains, 1, rng()))
    expected = torch.sigmoid(torch.tensor(-7.5, dtype=torch.float64))
    assert mean_is(outcome.last.double().mean(1), expected)
    digits = 11 if dtype == torch.float16 else 8
    u = torch.rand(chains, units, generator=rng(1)).mul_(2**digits).floor_().div_(2**digits)
    assert not mean_is((u < expected).double().mean(1), expected)


def test_persistent_states_go_on_where_they_stopped() -> None:
    machine = _machine(torch.float32)
    store = mg.Store(10, 4)
    gradient = mg.MarkovGradient(machine, machine.loss, mg.Average(1))
    rows = torch.arange(4, 8)
    with pytest.raises(LookupError, match="no state yet for 4 of 4"):
        gradient.backward(store[rows], generator=rng())
    store[rows] = machine.random_states(4, rng())
    store[rows] = gradient.backward(store[rows], generator=rng()).last
    assert int(store.known.sum()) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(4)}, "weight must be a floating-point tensor of shape"),
        ({"weight": torch.zeros(4, 3, dtype=torch.int64)}, "got torch.int64 of shape"),
        ({"weight": [[0.0]]}, "got \\[\\[0.0\\]\\]"),
        ({"visible": torch.zeros(3)}, "visible must be torch.float32 of shape \\(4,\\)"),
        ({"hidden": torch.zeros(4)}, "hidden must be torch.float32 of shape \\(3,\\)"),
        ({"hidden": torch.zeros(3).double()}, "got torch.float64"),
        ({"hidden": 0.0}, "got 0.0"),
    ],
)
def test_wrong_parameters(change: dict[str, Any], message: str) -> None:
    right = {"weight": torch.zeros(4, 3), "visible": torch.zeros(4), "hidden": torch.zeros(3)}
    Gibbs(**right)
    with pytest.raises(ValueError, match=message):
        Gibbs(**(right | change))


def test_wrong_starts() -> None:
    machine = _machine(torch.float32)
    gradient = mg.MarkovGradient(machine, machine.loss, mg.Average(1))
    for x0, message in (
        (torch.zeros(2, 3), "of shape \\(chains, 4\\)"),
        (torch.zeros(2, 4).double(), "x0 must be torch.float32"),
        (torch.full((2, 4), 0.5), "nothing but 0 and 1"),
        (torch.tensor([[0.0, 1.0, 0.5, 1.0]]), "nothing but 0 and 1"),
        (torch.full((2, 4), math.nan), "nothing but 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            gradient.backward(x0, generator=rng())
    with pytest.raises(ValueError, match="visible"):
        Gibbs.of_size(0, 3, generator=rng())
    with pytest.raises(ValueError, match="hidden"):
        Gibbs.of_size(3, 0, generator=rng())
    with pytest.raises(ValueError, match="scale"):
        Gibbs.of_size(3, 3, scale=-1.0, generator=rng())
    with pytest.raises(ValueError, match="chains"):
        machine.random_states(0, rng())


def test_a_machine_that_diverged_is_named() -> None:
    machine = _machine(torch.float32)
    gradient = mg.MarkovGradient(machine, machine.loss, mg.Average(1))
    with torch.no_grad():
        machine.weight[0, 0] = math.inf
    with pytest.raises(FloatingPointError, match="has diverged"):
        gradient.backward(machine.random_states(2, rng()), generator=rng())
