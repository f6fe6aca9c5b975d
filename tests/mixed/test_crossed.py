"""Several grouping factors: against the normal law in closed form, and brute-force quadrature."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from mlmcgrad.estimators import Average
from mlmcgrad.mixed import crossed as module
from mlmcgrad.mixed.crossed import (
    LARGEST,
    Crossed,
    Joint,
    Motion,
    annealed,
    laplace,
    mean_score,
    run,
    step_size,
    variational,
    weighted_scores,
)
from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.search import certify, search
from tests.chains import rng
from tests.mixed.crossing import Binary, Normal, binary, normal, tensor
from tests.statistics import mean_is

AT = tensor(0.2, 0.4, 1.1, 0.3, 0.6, 0.8, -0.1)
BINARY_AT = tensor(0.3, 0.5, 2.0, 1.2)


@pytest.fixture(scope="module")
def model() -> Normal:
    return normal()


@pytest.fixture(scope="module")
def hard() -> Binary:
    return binary(BINARY_AT)


def crossed(model: Normal | Binary) -> Crossed:
    which = family("gaussian" if isinstance(model, Normal) else "bernoulli")
    return Crossed(model.design, which, rng())


def gradient(model: Normal | Binary, theta: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(model.log_likelihood, theta)


def test_a_gaussian_score_is_exact(model: Normal) -> None:
    likelihood = crossed(model)
    exact = gradient(model, AT)
    torch.testing.assert_close(likelihood.scores(AT, 1)[0], exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(likelihood.adaptive(AT)[0], exact, rtol=1e-6, atol=1e-6)
    # Planted bug: the second factor is left out.
    without = AT.clone()
    without[5] = 0.0
    assert not torch.allclose(likelihood.scores(without, 1)[0, :5], exact[:5], rtol=0.1)


def test_gaussian_information_and_log_likelihood_are_exact(model: Normal) -> None:
    likelihood = crossed(model)
    exact = -torch.autograd.functional.hessian(model.log_likelihood, AT)
    every = likelihood.information(AT)
    torch.testing.assert_close(every, exact.expand_as(every), rtol=1e-4, atol=1e-3)
    found = likelihood.log_likelihood(AT, rng())
    assert abs(found.total - float(model.log_likelihood(AT))) < 1e-9
    assert found.error < 1e-9


def test_gaussian_effects_are_the_best_predictions(model: Normal) -> None:
    covariance, with_b = model.covariance(AT)
    residual = model.design.y - model.design.fixed @ AT[:2]
    prior = [torch.tensor([[1.21, 0.33], [0.33, 0.45]]).double(), torch.tensor([[0.64]]).double()]
    for (mean, spread), cross, own in zip(crossed(model).effects(AT), with_b, prior, strict=True):
        solved = torch.linalg.solve(covariance, cross)
        torch.testing.assert_close(mean.reshape(-1), solved.T @ residual)
        explained = (cross.T @ solved).reshape(len(mean), len(own), len(mean), len(own))
        blocks = explained.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        torch.testing.assert_close(spread, own - blocks)


def test_the_search_finds_the_maximum(model: Normal) -> None:
    likelihood = crossed(model)
    start = tensor(0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0)
    *_, state = search(likelihood, start, tolerance=0.05, iterations=200)
    layout = likelihood.layout
    exact = layout.with_positive_diagonal(model.maximum(state.theta))
    assert state.information is not None
    errors = state.information.standard_errors
    apart = (layout.with_positive_diagonal(state.theta) - exact) / errors
    assert state.largest_noise <= 0.05
    assert float(apart.abs().max()) < 0.1
    assert certify(likelihood, state, 0.05)[0].holds


def test_binary_scores_are_unbiased(hard: Binary) -> None:
    """Null: their mean is that of quadrature; false alarm 1e-5."""
    exact, likelihood = gradient(hard, BINARY_AT), crossed(hard)
    assert mean_is(likelihood.scores(BINARY_AT, 400), exact)
    assert likelihood.method == "by levels of importance sampling over all random effects"


def test_levels_remove_the_bias_of_tiny_blocks(
    hard: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Null: the mean score is that of quadrature, false alarm 1e-5, with two draws in a block."""
    exact = gradient(hard, BINARY_AT)
    here = variational(Joint(hard.design, family("bernoulli")), BINARY_AT)
    motion, generator = Motion.at(here), rng()
    here = replace(here, root=1.5 * here.root)  # a worse proposal
    assert mean_is(weighted_scores(here, motion, 2, 1000, generator), exact)
    # Planted bug: no levels, so that the mean is that of a single block.
    monkeypatch.setattr(module, "ENDLESS", Average(1))
    assert not mean_is(weighted_scores(here, motion, 2, 1000, generator), exact)


def test_chains_are_unbiased_where_weights_are_not_mild(
    hard: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Null: the mean score is that of quadrature; false alarm 1e-5."""
    exact, likelihood = gradient(hard, BINARY_AT), crossed(hard)
    monkeypatch.setattr(module, "_MILD", 0.0)
    assert mean_is(likelihood.scores(BINARY_AT, 40), exact)
    assert likelihood.method == "by Langevin chains over all random effects"
    # Planted bug: chains that have made no step, which are draws of the approximation.
    here = variational(Joint(hard.design, family("bernoulli")), BINARY_AT)
    x = torch.randn(20_000, len(here.mean), dtype=torch.float64, generator=rng())
    motion, weight = Motion.at(here), torch.full((1000,), 1e-3, dtype=torch.float64)
    start = torch.stack([mean_score(here, motion, part, weight) for part in x.split(1000)])
    assert not mean_is(start, exact)


def test_binary_information_and_log_likelihood(hard: Binary) -> None:
    """Null: their means are those of quadrature; false alarm 1e-5 each."""
    likelihood = crossed(hard)
    exact = -torch.autograd.functional.hessian(hard.log_likelihood, BINARY_AT)
    found = likelihood.information(BINARY_AT, effort=6)
    assert torch.equal(found, found.mT)
    lower = torch.ones(4, 4).tril().bool()
    assert mean_is(found[:, lower], exact[lower])
    generator = rng()
    estimates = [likelihood.log_likelihood(BINARY_AT, generator) for _ in range(20)]
    values = torch.tensor([[estimate.total] for estimate in estimates]).double()
    assert mean_is(values, hard.log_likelihood(BINARY_AT)[None])
    # The error that is stated is the one there is, to a factor of three (χ², false alarm 1e-7).
    stated = torch.tensor([estimate.error for estimate in estimates]).double().mean()
    assert 1.0 / 3.0 < float(values.std() / stated) < 3.0


def test_binary_effects(hard: Binary) -> None:
    """Null: means and variances of b are those of quadrature; false alarm 1e-5."""
    u, log_weight = hard.points
    share = (hard.log_joint(BINARY_AT, u) + log_weight).softmax(0)
    scale = BINARY_AT[2:].repeat_interleave(torch.tensor([3, 2]))
    mean = share @ u
    exact = torch.cat([scale * mean, scale.square() * (share @ (u - mean).square())])
    likelihood, found = crossed(hard), []
    for _ in range(20):
        means, covariances = zip(*likelihood.effects(BINARY_AT), strict=True)
        found.append(torch.cat([part.reshape(-1) for part in (*means, *covariances)]))
    assert mean_is(torch.stack(found), exact)


def test_the_same_seed_gives_the_same_log_likelihood(hard: Binary) -> None:
    likelihood = crossed(hard)
    first, second = (likelihood.log_likelihood(BINARY_AT, rng()) for _ in range(2))
    assert first.minus(second) == (0.0, 0.0)


def test_a_nested_factor() -> None:
    """(1 | a/b) as (1 | a) + (1 | a:b): the score of a standard deviation of 0 is 0."""
    data = {
        "y": [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
        "a": ["1", "1", "1", "1", "2", "2", "2", "2"],
        "b": ["1", "1", "2", "2", "1", "1", "2", "2"],
    }
    design = build("y ~ 1 + (1 | a) + (1 | a:b)", data)
    likelihood = Crossed(design, family("bernoulli"), rng())
    assert [tuple(mean.shape) for mean, _ in likelihood.effects(tensor(0.1, 1.0, 0.5))] == [
        (2, 1),
        (4, 1),
    ]
    scores = likelihood.scores(tensor(0.1, 1.0, 0.0), 30)
    assert mean_is(scores[:, 2:], tensor(0.0))


def test_length() -> None:
    model = normal()
    step = tensor(0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 5.0)
    assert crossed(model).length(step) == pytest.approx(0.6)


def test_step_size() -> None:
    assert math.isclose(step_size(8), 0.5 * 1.65**2 / 2.0)


def test_chains_have_the_mean_of_the_posterior(hard: Binary) -> None:
    """Null: the mean of u is that of quadrature; false alarm 1e-5. The mode is not the mean."""
    approximation = laplace(Joint(hard.design, family("bernoulli")), BINARY_AT)
    u, log_weight = hard.points
    exact = (hard.log_joint(BINARY_AT, u) + log_weight).softmax(0) @ u
    generator = rng()
    x = torch.randn(20_000, len(exact), dtype=torch.float64, generator=generator)
    states, outcome = run(approximation, Average(1), x, 0.8, generator)
    assert mean_is(approximation.at(states.points).T, exact)
    assert 0.4 < outcome.accepted / 20_000 < 0.9
    # Planted bug: draws of Laplace's approximation.
    assert not mean_is(approximation.at(x).T, exact)


def test_annealing_is_right_for_any_number_of_temperatures(hard: Binary) -> None:
    """Null: the mean likelihood is that of quadrature; false alarm 1e-5."""
    approximation = laplace(Joint(hard.design, family("bernoulli")), BINARY_AT)
    exact, errors, generator = float(hard.log_likelihood(BINARY_AT)), [], rng()
    x = torch.randn(10_000, len(approximation.mean), dtype=torch.float64, generator=generator)
    for temperatures in (2, 16):
        found = annealed(approximation, x, temperatures, 0.8, generator)
        mean = found.total - 0.5 * found.error**2  # the logarithm of the mean weight
        ratio = (found.deviation[0] + 1.0) * math.exp(mean - exact)
        assert mean_is(ratio[:, None], tensor(1.0))
        errors.append(found.error)
    assert errors[1] < errors[0]


def test_large_random_effects_take_more_temperatures() -> None:
    """With as few as at first, chains differed so much that errors were 1.6 times those stated."""
    random, cells, sd = np.random.default_rng(0), np.repeat(np.arange(80), 2), 6.0
    a, b = cells // 8, cells % 8
    eta = sd * (random.standard_normal(10)[a] + random.standard_normal(8)[b])
    y = (random.random(160) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    design = build("y ~ 1 + (1 | a) + (1 | b)", {"y": y, "a": a.astype(str), "b": b.astype(str)})
    theta, law = tensor(0.0, sd, sd), family("bernoulli")
    found = Crossed(design, law, rng()).log_likelihood(theta, rng())
    assert float((found.deviation + 1.0).log().std()) < 0.65
    approximation = laplace(Joint(design, law), theta)
    x = torch.randn(256, 18, dtype=torch.float64, generator=rng())
    few = annealed(approximation, x, 32, step_size(18), rng())
    assert float((few.deviation + 1.0).log().std()) > 0.75
    assert few.error > 1.3 * found.error


def test_too_many_effects_are_refused(model: Normal) -> None:
    effects = model.design.effects
    names = tuple(map(str, range(LARGEST)))
    large = replace(model.design, effects=(replace(effects[0], groups=names), effects[1]))
    with pytest.raises(ValueError, match=r"at most 3000 random effects .* got 6004 \(3000 × 2 of"):
        Crossed(large, family("gaussian"), rng())
