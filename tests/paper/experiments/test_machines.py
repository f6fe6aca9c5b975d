"""Machines of `boltzmann`: data, exact answers by enumeration, where chains start, UCD."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.kernels import Gibbs
from mlmcgrad.paper.experiments.boltzmann import (
    Coupled,
    Hidden,
    PartitionGradient,
    bars_and_stripes,
    ceiling,
    log_likelihood,
    maximally_coupled,
    pictures,
)
from tests.chains import rng
from tests.statistics import mean_is


def test_pictures() -> None:
    bars = bars_and_stripes(4)
    assert bars.shape == (32, 16)
    assert len(bars.unique(dim=0)) == 30  # all white and all black are there twice
    squares = bars.view(32, 4, 4)
    rows = (squares == squares[:, :, :1]).all(2).all(1)
    columns = (squares == squares[:, :1]).all(1).all(1)
    assert bool((rows | columns).all())
    assert 32 * ceiling(bars) == pytest.approx(28 * math.log(1 / 32) + 4 * math.log(2 / 32))
    digits = pictures("digits")
    assert digits.shape == (1500, 64)
    assert digits.unique().tolist() == [0.0, 1.0]
    assert torch.equal(pictures("bars"), bars)


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


def test_persistent_chains_continue() -> None:
    machine = Gibbs.of_size(16, 4, scale=0.1, generator=rng())
    data, generator = bars_and_stripes(4), rng(1)
    persistent = PartitionGradient("pcd-1", machine, data, 20, generator)
    assert persistent.backward() == 20
    before, seed = persistent.states, generator.get_state()
    assert persistent.backward() == 20
    assert persistent.gradient is not None
    assert persistent.states is not None
    generator.set_state(seed)
    _, estimate = persistent.gradient.gradient(before, generator=generator)
    assert torch.equal(persistent.states, estimate.last)
    restarted = PartitionGradient("cd-1", machine, data, 20, rng(1))
    restarted.backward()
    assert restarted.states is None


def _gradients(longest: int, calls: int = 400, chains: int = 200) -> torch.Tensor:
    """Estimates of ∇V of an enumerated machine, a row for each call."""
    model = problems.boltzmann(4, 3, seed=2)
    gradient = mg.MarkovGradient(
        Coupled(model.kernel(), longest, tries=1000),
        model.loss,
        mg.Average(1),
        parameters=model.parameters,
    )
    generator, rows = rng(1), []
    for _ in range(calls):
        tensors, _ = gradient.gradient(model.start(chains), generator=generator)
        rows.append(torch.cat([tensor.flatten() for tensor in tensors]))
    return torch.stack(rows)


def test_coupled_chains_are_unbiased() -> None:
    """Null: the mean is the exact gradient; false alarm 1e-5. A pair cut after one step is not."""
    exact = torch.cat([g.flatten() for g in problems.boltzmann(4, 3, seed=2).exact_gradient()])
    assert mean_is(_gradients(longest=10_000), exact)
    assert not mean_is(_gradients(longest=1), exact)


def test_draws_have_their_laws_and_meet_as_often_as_possible() -> None:
    """Null: both draws have their Bernoulli means, products, and P(x = y) = Σ min(P, Q); 1e-5."""
    rows, units = 100_000, 3
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(2, units))
    x, y = maximally_coupled(np.tile(first, (rows, 1)), np.tile(second, (rows, 1)), 1000, generator)
    states = np.array([[i >> j & 1 for j in range(units)] for i in range(2**units)], dtype=float)

    def law(logits: np.ndarray) -> np.ndarray:
        p = 1.0 / (1.0 + np.exp(-logits))
        return np.prod(np.where(states == 1.0, p, 1.0 - p), axis=1)

    index = 2.0 ** np.arange(units)
    one_hot = np.eye(2**units)
    for drawn, logits, other in ((x, first, second), (y, second, first)):
        seen = torch.from_numpy(one_hot[(drawn @ index).astype(int)])
        assert mean_is(seen, torch.from_numpy(law(logits)))
        assert not mean_is(seen, torch.from_numpy(law(other)))
    equal = torch.from_numpy((x == y).all(1).astype(float))[:, None]
    share = np.minimum(law(first), law(second)).sum()
    assert mean_is(equal, torch.tensor([share]))
    independent = float((law(first) * law(second)).sum())
    assert not mean_is(equal, torch.tensor([independent]))


def test_equal_logits_meet_at_once() -> None:
    logits = np.zeros((50, 4))
    x, y = maximally_coupled(logits, logits, 10, np.random.default_rng(0))
    assert np.array_equal(x, y)


def test_steps_count_both_chains_and_the_same_seed_repeats() -> None:
    model = problems.boltzmann()
    kernel = Coupled(model.kernel())
    gradient = mg.MarkovGradient(kernel, model.loss, mg.Average(1), parameters=model.parameters)
    first, spent = gradient.gradient(model.start(30), generator=rng(4))
    second, _ = gradient.gradient(model.start(30), generator=rng(4))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert spent.evaluations > 30
    assert (spent.evaluations - 30) % 2 == 0
    assert set(spent.last.unique().tolist()) <= {0.0, 1.0}


def test_only_the_short_average_makes_sense() -> None:
    model = problems.boltzmann()
    gradient = mg.MarkovGradient(Coupled(model.kernel()), model.loss, mg.MLMC(4))
    with pytest.raises(ValueError, match="must be Average\\(1\\)"):
        gradient.backward(model.start(8), generator=rng())
