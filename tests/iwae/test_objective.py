"""The objectives against quadrature, against autograd, and against Algorithm 3 step by step."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mlmcgrad as mg
from mlmcgrad.iwae import Objective
from mlmcgrad.iwae.likelihoods import Bernoulli
from mlmcgrad.iwae.networks import DIGITS, LatentModel
from tests.chains import average_law, rng
from tests.iwae.models import linear, phi_gradient, theta_gradient
from tests.statistics import mean_is, same_mean

Y = torch.tensor([[1.3, -0.4, 0.8]], dtype=torch.float64)


def _quadrature(model: Any, length: int) -> Tensor:
    """E[H^{(length)}] for k = 2 and one latent: i-SIR as a matrix on Gauss–Hermite nodes of q."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    probability = torch.tensor(weights / weights.sum())
    with torch.no_grad():
        mean, log_scale = model.encoder(Y)
    z = mean + log_scale.exp() * torch.tensor(nodes)[:, None]  # (nodes, 1)
    rows = [t.expand(len(z), -1) for t in (Y, mean, log_scale)]
    log_w = model.log_weight(z, *rows).detach()
    leave = torch.sigmoid(log_w[None] - log_w[:, None])  # from row to column
    matrix = probability * leave
    matrix = matrix + torch.diag(1.0 - matrix.sum(1))
    law = average_law(matrix, probability, length)
    value = -(law * model.log_joint(z, rows[0])).sum()
    parts = torch.autograd.grad(value, tuple(model.decoder.parameters()))
    return torch.cat([p.flatten() for p in parts])


def _sample(model: Any, calls: int, chains: int, seed: int, **options: Any) -> Tensor:
    """Gradients of independent calls, (calls, parameters of the decoder)."""
    objective = Objective(model, candidates=2, **options)
    generator, y, rows = rng(seed), Y.expand(chains, -1), []
    for _ in range(calls):
        model.zero_grad()
        objective.backward(y, n=1, generator=generator)
        rows.append(theta_gradient(model))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"method": "iwae"}, 1),
        ({"method": "br", "truncation": 3}, 3),
        ({"method": "br", "truncation": 8}, 8),
        ({"method": "br", "truncation": 8, "rao_blackwell": True}, 8),
        ({"method": "mlmc", "truncation": 8}, 8),
        ({"method": "mlmc", "truncation": 11, "assignment": "balanced"}, 8),
        ({"method": "mlmc", "truncation": 8, "base": 2, "rao_blackwell": True}, 8),
    ],
)
def test_expectation_is_that_of_the_chain(options: dict[str, Any], length: int) -> None:
    """Null: the θ-gradient has the mean that quadrature gives; false alarm 1e-5 a case."""
    model = linear()
    sample = _sample(model, 200, 200, seed=length, **options)
    assert mean_is(sample, _quadrature(model, length))
    if length > 1:  # planted bug: the gradient of plain IWAE instead
        assert not mean_is(sample, _quadrature(model, 1))


def test_the_chain_s_gradient_tends_to_the_exact_one() -> None:
    model = linear()
    exact = model.exact_gradient(Y)
    gaps = [float((_quadrature(model, t) - exact).norm()) for t in (1, 16, 256, 4096)]
    assert gaps[0] > 0.02
    assert all(b < a / 8.0 for a, b in pairwise(gaps))
    assert gaps[-1] < 1e-3


@pytest.mark.parametrize("k", [1, 2, 5])
def test_iwae_is_the_gradient_of_the_bound(k: int) -> None:
    """θ and φ of `iwae` against autograd of −log (1/k) Σ w on the same draws, exactly."""
    model, chains = linear(latent=2), 6
    y = torch.randn(chains, 3, dtype=torch.float64, generator=rng(1))
    objective = Objective(model, method="iwae", candidates=k, thinning=0.0)
    step = objective.backward(y, n=1, generator=rng(2))
    theta, phi = theta_gradient(model), phi_gradient(model)
    model.zero_grad()
    mean, log_scale = model.encoder(y)
    noise = torch.randn(chains, k, 2, dtype=torch.float64, generator=rng(2))
    z = (mean[:, None] + log_scale.exp()[:, None] * noise).flatten(0, 1)
    rows = [t.repeat_interleave(k, 0) for t in (y, mean, log_scale)]
    log_w = model.log_weight(z, *rows).reshape(chains, k)
    bound = (log_w.logsumexp(1) - math.log(k)).mean()
    (-bound).backward()
    assert torch.allclose(theta, theta_gradient(model), atol=1e-10)
    assert torch.allclose(phi, phi_gradient(model), atol=1e-10)
    assert step.bound == pytest.approx(bound.item())
    assert step.estimate.evaluations == (chains * k if k > 1 else chains)
    share = log_w.detach().softmax(1).tolist()
    effective = [1.0 / sum(w * w for w in row) for row in share]
    assert step.effective == pytest.approx(sum(effective) / chains)
    assert step.largest == pytest.approx(sum(max(row) for row in share) / chains)


@pytest.mark.parametrize("method", ["br", "mlmc"])
def test_the_encoder_always_takes_the_iwae_gradient(method: Any) -> None:
    model, y = linear(), Y.expand(6, -1)
    found = {}
    for name in ("iwae", method):
        model.zero_grad()
        objective = Objective(model, method=name, candidates=3, truncation=8, thinning=0.0)
        objective.backward(y, n=1, generator=rng(2))
        found[name] = phi_gradient(model)
    assert torch.allclose(found["iwae"], found[method], atol=1e-12)


def test_doubly_reparameterised_gradient() -> None:
    """Null: the same mean as the IWAE gradient of φ, false alarm 1e-5; and less variance."""
    model, y = linear(), Y.expand(50, -1)
    samples = {}
    for encoder in ("iwae", "dreg"):
        generator, rows = rng(3), []
        objective = Objective(model, method="iwae", candidates=4, encoder=encoder)
        for _ in range(600):
            model.zero_grad()
            objective.backward(y, n=1, generator=generator)
            rows.append(phi_gradient(model))
        samples[encoder] = torch.stack(rows)
    assert same_mean(samples["iwae"], samples["dreg"])
    assert float(samples["dreg"].var(0).sum()) < float(samples["iwae"].var(0).sum())
    assert not same_mean(samples["iwae"], 2.0 * samples["dreg"])  # ω instead of ω² would not do


@pytest.mark.parametrize("seed", range(12))
def test_mlmc_follows_algorithm_3_step_by_step(seed: int) -> None:
    """One datum, sequentially, from the same draws: H(X_p) by autograd, then eq. mlmc-estim."""
    model, k, truncation = linear(latent=2), 3, 8
    objective = Objective(model, method="mlmc", candidates=k, truncation=truncation, thinning=0.0)
    step = objective.backward(Y, n=1, generator=rng(seed))
    found = theta_gradient(model)
    # The same draws, in the same order.
    generator = rng(seed)
    options: Any = {"dtype": torch.float64, "generator": generator}
    mean, log_scale = (t.detach() for t in model.encoder(Y))
    first = mean + log_scale.exp() * torch.randn(1, k, 2, **options)[0]
    level = int(mg.levels.Geometric().sample(1, generator)[0])
    t = 2**level if 2**level <= truncation else 1
    later = mean + log_scale.exp() * torch.randn((t - 1) * (k - 1), 2, **options) if t > 1 else None
    choice, leave = torch.rand(1, t, **options)[0], torch.rand(1, t, **options)[0]

    def weight(z: Tensor) -> float:
        return math.exp(model.log_weight(z[None], Y, mean, log_scale)[0].item())

    def slope(z: Tensor) -> Tensor:
        value = -model.log_joint(z[None], Y)[0]
        parts = torch.autograd.grad(value, tuple(model.decoder.parameters()))
        return torch.cat([p.flatten() for p in parts])

    kept, averages, total = first[0], {}, torch.zeros(len(found), dtype=torch.float64)
    for p in range(1, t + 1):
        if p == 1:
            fresh = list(first[1:])
        else:
            assert later is not None
            fresh = list(later[(p - 2) * (k - 1) : (p - 1) * (k - 1)])
        candidates = [kept, *fresh]
        w = [weight(z) for z in candidates]
        omega = [v / sum(w) for v in w]
        total = total + sum(
            (o * slope(z) for o, z in zip(omega, candidates, strict=True)), torch.zeros_like(total)
        )
        averages[p] = total / p
        if float(leave[p - 1]) >= omega[0]:  # not the state kept so far: one of the fresh ones
            mass, reached = float(choice[p - 1]) * sum(w[1:]), 0.0
            for z, v in zip(fresh, w[1:], strict=True):
                reached += v
                if reached > mass:
                    kept = z
                    break
    expected = averages[1]
    if t > 1:
        expected = expected + t * (averages[t] - averages[t // 2])
    assert torch.allclose(found, expected, atol=1e-9)
    assert int(step.estimate.lengths[0]) == t


@pytest.mark.parametrize("kernel", ["mala", "rwmh"])
def test_other_kernels_take_the_same_encoder_gradient(kernel: Any) -> None:
    model, y = linear(latent=2), Y.expand(6, -1)
    options: Any = {"candidates": 3, "truncation": 8, "thinning": 0.0}
    Objective(model, method="iwae", **options).backward(y, generator=rng(2))
    expected = phi_gradient(model)
    model.zero_grad()
    Objective(model, method="br", kernel=kernel, **options).backward(y, generator=rng(2))
    assert torch.allclose(expected, phi_gradient(model), atol=1e-12)


@pytest.mark.parametrize("kernel", ["mala", "rwmh"])
def test_other_kernels_sample_the_posterior(kernel: Any) -> None:
    """Null: a long chain has the exact gradient for its mean; false alarm 1e-5."""
    model = linear()
    objective = Objective(model, method="br", truncation=200, kernel=kernel, step_size=0.4)
    generator, rows = rng(1), []
    for _ in range(30):
        model.zero_grad()
        step = objective.backward(Y.expand(60, -1), n=1, generator=generator)
        rows.append(theta_gradient(model))
    assert 0.2 < step.estimate.acceptance < 0.99
    sample, exact = torch.stack(rows), model.exact_gradient(Y)
    bias = 0.02  # of a chain of 200 steps from q
    assert ((sample.mean(0) - exact).abs() < 5.0 * sample.std(0) / 30**0.5 + bias).all()
    assert (_quadrature(model, 1) - exact).norm() > 2.0 * bias


def test_the_same_generator_gives_the_same_gradient() -> None:
    model = LatentModel(DIGITS, Bernoulli(), rng())
    y = torch.rand(10, 1, 8, 8, generator=rng(1))
    found = []
    for _ in range(2):
        model.zero_grad()
        Objective(model, truncation=16).backward(y, n=9, generator=rng(3))
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_chains_are_as_long_as_the_options_say() -> None:
    """base 3 and T = 13: chains of 3, 6 or 12 steps, one level for all of them if it is shared."""
    model, y = linear(), Y.expand(40, -1)
    options: Any = {"candidates": 2, "truncation": 13, "base": 3}
    step = Objective(model, **options).backward(y, generator=rng(1))
    assert set(step.estimate.lengths.tolist()) == {3, 6, 12}
    shared = Objective(model, assignment="shared", **options).backward(y, generator=rng(1))
    assert len(set(shared.estimate.levels.tolist())) == 1


def test_a_schedule_is_read_at_the_iteration() -> None:
    """T_n = n of `br`: chains of n steps, and without n a message instead of a guess."""
    objective = Objective(linear(), "br", candidates=2, truncation=mg.schedules.power(1.0, 1.0))
    for n in (3, 7):
        step = objective.backward(Y, n=n, generator=rng())
        assert step.estimate.lengths.tolist() == [n]
    with pytest.raises(TypeError, match="n must be given"):
        objective.backward(Y, generator=rng())


def test_chains_that_would_never_end_are_refused_before_they_are_planned() -> None:
    with pytest.raises(ValueError, match=r"may ask for a chain of 1,099,511,627,776 transitions"):
        Objective(linear(), "br", truncation=2**40).planned(1, None, rng())
    many = Objective(linear(), "br", truncation=2**20)
    assert many.planned(2, None, rng()).longest.tolist() == [2**20] * 2
    with pytest.raises(ValueError, match="in all, beyond max_transitions"):
        many.planned(2**20, None, rng())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "vae"}, "method must be one of"),
        ({"encoder": "vimco"}, "encoder must be one of"),
        ({"kernel": "hmc"}, "kernel must be one of"),
        ({"thinning": -0.1}, "thinning must be ≥ 0, got -0.1"),
        ({"thinning": math.nan}, "thinning must be a finite number, got nan"),
        ({"method": "br", "candidates": 1}, "candidates must be an integer ≥ 2"),
        ({"method": "iwae", "candidates": 0}, "candidates must be an integer ≥ 1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Objective(linear(), **options)


def test_weights_that_are_not_finite_are_refused() -> None:
    model, y = linear(), torch.full((2, 3), torch.nan, dtype=torch.float64)
    with pytest.raises(FloatingPointError, match="the bound is nan"):
        Objective(model, "iwae").backward(y, generator=rng())


def test_a_gradient_leaves_grad_alone_and_takes_a_plan() -> None:
    model, y = linear(latent=2), torch.randn(11, 3, dtype=torch.float64, generator=rng(1))
    objective = Objective(model, candidates=3, truncation=8)
    gradients, step = objective.gradient(y, generator=rng(3))
    assert all(parameter.grad is None for parameter in objective.parameters)
    assert step.bound == objective.backward(y, generator=rng(3)).bound
    for parameter, gradient in zip(objective.parameters, gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
    plan = objective.planned(11, None, rng(4))
    _, planned = objective.gradient(y, generator=rng(3), plan=plan)
    assert torch.equal(planned.estimate.levels, plan.levels)
    with pytest.raises(ValueError, match=r"plan must have a row for each of the 4 chains, got 11"):
        objective.gradient(y[:4], generator=rng(3), plan=plan)


def test_the_estimate_is_of_the_decoder() -> None:
    model = linear()
    step = Objective(model, candidates=2).backward(Y, generator=rng())
    assert list(map(id, step.estimate.parameters)) == list(map(id, model.decoder.parameters()))


class _Steep(nn.Module):
    """A finite mean whose derivative in one parameter is infinite."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.root = inner, nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = self.inner(y)
        return mean + self.root.sqrt(), log_scale


def test_a_gradient_of_the_encoder_that_is_not_finite_is_refused() -> None:
    model = linear()
    model.encoder = _Steep(model.encoder)
    with pytest.raises(FloatingPointError, match=r"1 entries that are NaN or infinite, out of 1,"):
        Objective(model, candidates=2).backward(Y, generator=rng())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kernel", ["mala", "rwmh"])
def test_a_chain_starts_with_the_first_draw_or_goes_on(kernel: Any) -> None:
    """Steps of 1e-30: where a chain ends is where it began."""
    model, y = linear(latent=2), torch.randn(4, 3, dtype=torch.float64, generator=rng(1))
    objective = Objective(model, "br", candidates=3, truncation=2, kernel=kernel, step_size=1e-30)
    mean, log_scale = (t.detach() for t in model.encoder(y))
    noise = torch.randn(4, 3, 2, dtype=torch.float64, generator=rng(2))
    step = objective.backward(y, generator=rng(2))
    torch.testing.assert_close(step.estimate.last, mean + log_scale.exp() * noise[:, 0])
    kept = 5.0 + torch.arange(8.0, dtype=torch.float64).reshape(4, 2)
    step = objective.backward(y, x0=kept, generator=rng(2))
    torch.testing.assert_close(step.estimate.last, kept)


def test_two_candidates_are_enough_to_go_on() -> None:
    """The state that was kept, and one draw: the bound is the mean log weight of the draws."""
    model, y = linear(latent=2), torch.randn(4, 3, dtype=torch.float64, generator=rng(1))
    objective = Objective(model, "iwae", candidates=2)
    step = objective.backward(y, x0=torch.zeros(4, 2, dtype=y.dtype), generator=rng(2))
    mean, log_scale = (t.detach() for t in model.encoder(y))
    noise = torch.randn(4, 2, 2, dtype=torch.float64, generator=rng(2))
    draws = mean + log_scale.exp() * noise[:, 1]
    weights = model.log_weight(draws, y, mean, log_scale)
    assert step.bound == pytest.approx(float(weights.mean().detach()))


def test_options_have_names() -> None:
    assert Objective(linear(), "iwae", candidates=7).candidates == 7
    for count in range(1, 12):
        with pytest.raises(TypeError, match="positional"):
            Objective(linear(), "mlmc", *[5] * count)
