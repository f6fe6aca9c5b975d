"""Unbiased contrastive divergence is unbiased where it may run to the end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.experiments.boltzmann.coupled import Coupled, maximally_coupled
from tests.chains import rng
from tests.statistics import mean_is


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
