from __future__ import annotations

import torch

from mlmcgrad import problems
from mlmcgrad.experiments.boltzmann.exact import Hidden, log_likelihood
from mlmcgrad.kernels import Gibbs
from tests.chains import rng
from tests.statistics import mean_is


def test_enumeration_of_hidden_states_agrees_with_that_of_visible_ones() -> None:
    for visible, hidden in ((4, 3), (5, 6), (3, 1)):
        model = problems.boltzmann(visible, hidden, seed=visible)
        machine = model.kernel()
        assert abs(log_likelihood(machine, model.data) + model.objective()) < 1e-12
        data = torch.autograd.grad(machine.free_energy(model.data).mean(), machine.parameters)
        chains = Hidden(machine).gradient()
        for exact, of_data, of_z in zip(model.exact_gradient(), data, chains, strict=True):
            assert torch.allclose(exact, of_data + of_z, atol=1e-12)


def test_float32_is_close() -> None:
    machine = Gibbs.of_size(16, 16, scale=0.5, generator=rng())
    double = Gibbs(*(parameter.detach().double() for parameter in machine.parameters))
    pairs = zip(Hidden(machine, torch.float32).gradient(), Hidden(double).gradient(), strict=True)
    for single, exact in pairs:
        assert torch.allclose(single.double(), exact, atol=1e-5)


def test_draws_have_the_law_of_the_machine() -> None:
    """Null: states are drawn with their probabilities; false alarm 1e-5; uniform draws fail."""
    model = problems.boltzmann(4, 3, seed=5)
    drawn = Hidden(model.kernel()).sample(50_000, rng())
    weights = 2.0 ** torch.arange(4, dtype=torch.float64)
    seen = torch.eye(16, dtype=torch.float64)[(drawn @ weights).long()]
    assert mean_is(seen, model.law())
    assert not mean_is(seen, torch.full((16,), 1.0 / 16.0, dtype=torch.float64))


def test_a_gradient_leaves_the_tables_as_they_were() -> None:
    hidden = Hidden(problems.boltzmann(4, 3, seed=5).kernel())
    before = hidden.sample(50, rng())
    hidden.gradient()
    assert torch.equal(hidden.sample(50, rng()), before)
