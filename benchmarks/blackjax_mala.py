"""MALA transitions against BlackJAX on JAX (compiled, chains vectorised by vmap).

Bayesian logistic regression, 200 observations, 20 coefficients, float32, the same step size and
number of chains; 200 steps. Only the chain is timed, with a loss that costs next to nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import mlmcgrad as mg
from benchmarks.timing import Result, compare

OBSERVATIONS, DIMENSION, STEPS, H = 200, 20, 200, 0.005


def run() -> list[Result]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(OBSERVATIONS, DIMENSION)).astype(np.float32)
    labels = (rng.random(OBSERVATIONS) < 0.5).astype(np.float32)
    return [_compare(chains, features, labels) for chains in (128, 1024)]


def _compare(chains: int, features: Any, labels: Any) -> Result:
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    theta = torch.zeros((), requires_grad=True)

    def log_density(w: Tensor) -> Tensor:
        logits = w @ x.T
        return logits @ y - torch.nn.functional.softplus(logits).sum(1) - 0.5 * w.square().sum(1)

    # Only the last state has weight: the loss is evaluated once a chain.
    gradient = mg.MarkovGradient(
        mg.kernels.MALA(log_density, H), lambda w: theta * w[:, 0], mg.Average(1, burn_in=STEPS - 1)
    )
    generator, x0 = torch.Generator().manual_seed(0), torch.zeros(chains, DIMENSION)
    theirs = _blackjax(chains, features, labels)
    return compare(
        f"MALA chain, {chains} chains / BlackJAX",
        lambda: gradient.backward(x0, n=1, generator=generator),
        theirs,
        target=0.6,
    )


def _blackjax(chains: int, features: Any, labels: Any) -> Any:
    import blackjax
    import jax
    import jax.numpy as jnp

    x, y = jnp.asarray(features), jnp.asarray(labels)

    def log_density(w: Any) -> Any:
        logits = x @ w
        return logits @ y - jax.nn.softplus(logits).sum() - 0.5 * (w**2).sum()

    # BlackJAX proposes x + ε ∇ log π + √(2ε) Z: the same h.
    sampler = blackjax.mala(log_density, H)
    states = jax.vmap(sampler.init)(jnp.zeros((chains, DIMENSION)))

    def chain(key: Any, states: Any) -> Any:
        def one(states: Any, key: Any) -> tuple[Any, Any]:
            states, info = jax.vmap(sampler.step)(jax.random.split(key, chains), states)
            return states, info.is_accepted.mean()

        return jax.lax.scan(one, states, jax.random.split(key, STEPS))

    compiled, key = jax.jit(chain), jax.random.key(0)
    accepted = float(compiled(key, states)[1].mean())
    assert 0.2 < accepted < 1.0, accepted
    return lambda: jax.block_until_ready(compiled(key, states))
