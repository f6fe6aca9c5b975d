"""The objectives against quadrature, against autograd, and against Algorithm 3 step by step."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.iwae import Objective
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
    """On the first k draws of each chain, by autograd; chains are drawn in order of length."""
    model, y = linear(), Y.expand(6, -1)
    objective = Objective(model, method=method, candidates=3, truncation=8, thinning=0.0)
    lengths = objective.backward(y, n=1, generator=rng(2)).estimate.lengths.sort().values
    found = phi_gradient(model)
    model.zero_grad()
    generator = rng(2)
    objective.draw_lengths(6, 1, generator)
    noise = torch.randn(6 + 2 * int(lengths.sum()), 1, dtype=torch.float64, generator=generator)
    first = (1 + 2 * lengths).cumsum(0) - (1 + 2 * lengths)
    mean, log_scale = model.encoder(Y)
    z = mean + log_scale.exp() * noise[(first[:, None] + torch.arange(3)).flatten()]
    rows = (t.expand(18, -1) for t in (Y, mean, log_scale))
    (-model.log_weight(z, *rows).reshape(6, 3).logsumexp(1).mean()).backward()
    assert torch.allclose(found, phi_gradient(model), atol=1e-12)


def test_doubly_reparameterised_gradient() -> None:
    """Null: the same mean as the IWAE gradient of φ, false alarm 1e-5; and less variance."""
    model, y = linear(), Y.expand(200, -1)
    samples = {}
    for encoder in ("iwae", "dreg"):
        generator, rows = rng(3), []
        objective = Objective(model, method="iwae", candidates=4, encoder=encoder)
        for _ in range(150):
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
    level = int(mg.levels.Geometric().sample(1, generator)[0])
    t = 2**level if 2**level <= truncation else 1
    drawn = mean + log_scale.exp() * torch.randn(1 + t * (k - 1), 2, **options)
    choice, leave = torch.rand(1, t, **options)[0], torch.rand(1, t, **options)[0]

    def weight(z: Tensor) -> float:
        return math.exp(model.log_weight(z[None], Y, mean, log_scale)[0].item())

    def slope(z: Tensor) -> Tensor:
        value = -model.log_joint(z[None], Y)[0]
        parts = torch.autograd.grad(value, tuple(model.decoder.parameters()))
        return torch.cat([p.flatten() for p in parts])

    kept, averages, total = drawn[0], {}, torch.zeros(len(found), dtype=torch.float64)
    for p in range(1, t + 1):
        fresh = list(drawn[1 + (p - 1) * (k - 1) : 1 + p * (k - 1)])
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
    options: Any = {"truncation": 400, "kernel": kernel, "step_size": 0.4, "chunk": 4096}
    objective = Objective(model, method="br", **options)
    generator, rows, calls = rng(1), [], 12
    for _ in range(calls):
        model.zero_grad()
        step = objective.backward(Y.expand(400, -1), n=1, generator=generator)
        rows.append(theta_gradient(model))
    assert 0.2 < step.estimate.acceptance < 0.99
    sample, exact = torch.stack(rows), model.exact_gradient(Y)
    bias = 0.02  # of a chain of 400 steps from q; of 200 it is 0.030
    # 8 standard errors: 1e-5 of Student's t with 11 degrees of freedom.
    assert ((sample.mean(0) - exact).abs() < 8.0 * sample.std(0) / calls**0.5 + bias).all()
    assert (_quadrature(model, 1) - exact).norm() > 2.0 * bias
