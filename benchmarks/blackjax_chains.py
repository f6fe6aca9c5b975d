"""MALA and RWMH transitions against BlackJAX on JAX, with and without `compile=True`.

Bayesian logistic regression, 200 observations, 20 coefficients, float32; the same step size,
chains and steps on both sides. Both have all cores of the process; `taskset -c 0` gives both one,
which suits BlackJAX better at these sizes. BlackJAX runs jitted: chains vectorised by vmap (none
for a single one), steps in a scan. Only the chain is timed, with a loss that costs next to
nothing. A single chain without compilation has no target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mlmcgrad as mg
from benchmarks.timing import Result, compare

OBSERVATIONS, DIMENSION = 200, 20
SIZES = {"MALA": 0.005, "RWMH": 0.1}
STEPS = {1: 4096, 128: 1024, 1024: 128}
TARGETS = {(1, True): 0.5, (128, False): 0.6, (128, True): 1.3,
           (1024, False): 0.6, (1024, True): 1.3}  # fmt: skip


def run() -> list[Result]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(OBSERVATIONS, DIMENSION)).astype(np.float32)
    labels = (rng.random(OBSERVATIONS) < 0.5).astype(np.float32)
    results = []
    for kernel in SIZES:
        made = {c: _kernel(kernel, c, features, labels) for c in (False, True)}
        for chains, steps in STEPS.items():
            theirs, accepted = _blackjax(kernel, chains, steps, features, labels)
            for compiled, ours in made.items():
                if (chains, compiled) not in TARGETS:  # one chain in Python: nobody claims that
                    continue
                step = _gradient(ours, chains, steps)
                tolerance = 0.01 + 1.5 / (chains * steps) ** 0.5
                assert abs(step().acceptance - accepted) < tolerance, kernel
                results.append(
                    compare(
                        f"{kernel}{', compiled' if compiled else ''}, "
                        f"{chains} chain{'s' if chains > 1 else ''} / BlackJAX",
                        step,
                        theirs,
                        target=TARGETS[chains, compiled],
                    )
                )
    return results


def _kernel(name: str, compiled: bool, features: Any, labels: Any) -> mg.kernels.Kernel:
    x, y = torch.from_numpy(features), torch.from_numpy(labels)

    def log_density(w: Tensor) -> Tensor:
        logits = w @ x.T
        return logits @ y - torch.nn.functional.softplus(logits).sum(1) - 0.5 * w.square().sum(1)

    kind = mg.kernels.MALA if name == "MALA" else mg.kernels.RWMH
    return kind(log_density, SIZES[name], compile=compiled)


def _gradient(kernel: mg.kernels.Kernel, chains: int, steps: int) -> Callable[[], mg.Estimate]:
    # Only the last state has weight: the loss is evaluated once a chain.
    theta = torch.zeros((), requires_grad=True)
    estimator = mg.Average(1, burn_in=steps - 1)
    gradient = mg.MarkovGradient(kernel, lambda w: theta * w[:, 0], estimator)
    generator, x0 = torch.Generator().manual_seed(0), torch.zeros(chains, DIMENSION)
    return lambda: gradient.backward(x0, n=1, generator=generator)


def _blackjax(
    name: str, chains: int, steps: int, features: Any, labels: Any
) -> tuple[Callable[[], Any], float]:
    import blackjax
    import jax
    import jax.numpy as jnp

    x, y = jnp.asarray(features), jnp.asarray(labels)

    def log_density(w: Any) -> Any:
        logits = x @ w
        return logits @ y - jax.nn.softplus(logits).sum() - 0.5 * (w**2).sum()

    if name == "MALA":  # it proposes x + ε ∇ log π + √(2ε) Z: the same h
        sampler = blackjax.mala(log_density, SIZES[name])
    else:
        scale = jnp.full(DIMENSION, SIZES[name])
        move = blackjax.mcmc.random_walk.normal(scale)
        sampler = blackjax.additive_step_random_walk(log_density, move)

    def one(states: Any, key: Any) -> tuple[Any, Any]:
        if chains == 1:
            states, info = sampler.step(key, states)
        else:
            states, info = jax.vmap(sampler.step)(jax.random.split(key, chains), states)
        return states, info.is_accepted.mean()

    zero = jnp.zeros(DIMENSION)
    start = sampler.init(zero)
    if chains > 1:
        start = jax.vmap(sampler.init)(jnp.tile(zero, (chains, 1)))
    compiled = jax.jit(lambda key, s: jax.lax.scan(one, s, jax.random.split(key, steps)))
    key = jax.random.key(0)
    accepted = float(compiled(key, start)[1].mean())
    return lambda: jax.block_until_ready(compiled(key, start)), accepted
