"""MALA and RWMH transitions against BlackJAX on JAX, with and without `compile=True`.

Bayesian logistic regression, 200 observations, 20 coefficients, float32; the same step size,
chains and steps on both sides. Both have all cores and use them as they do by themselves; then both
have one core, which suits BlackJAX better at these sizes. BlackJAX runs jitted: chains vectorised
by vmap (none for a single one), steps in a scan. Only the chain is timed, with a loss that costs
next to nothing. A single chain without compilation has no target.

How much of a step without compilation is not ours is timed too: the density and its gradient as
bare calls, which every kernel in torch has to make.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mlmcgrad as mg
from benchmarks.timing import Result, compare, one_core

OBSERVATIONS, DIMENSION = 200, 20
SIZES = {"MALA": 0.005, "RWMH": 0.1}
STEPS = {1: 4096, 128: 1024, 1024: 128}
TARGETS = {
    (1, True): 0.5,
    (128, False): 0.6,
    (128, True): 1.3,
    (1024, False): 0.6,
    (1024, True): 1.3,
}


def run() -> list[Result]:
    several = _rows()
    # JAX counts the cores when it starts, so that one core needs a process of its own.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        single = pool.submit(_alone).result()
    return several + [replace(row, name=f"{row.name}, one core") for row in single]


def _alone() -> list[Result]:
    with one_core():
        return _rows()


def _rows() -> list[Result]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(OBSERVATIONS, DIMENSION)).astype(np.float32)
    labels = (rng.random(OBSERVATIONS) < 0.5).astype(np.float32)
    density = _log_density(features, labels)
    results = []
    for kernel in SIZES:
        kind = mg.kernels.MALA if kernel == "MALA" else mg.kernels.RWMH
        made = {c: kind(density, SIZES[kernel], compile=c) for c in (False, True)}
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
            if (kernel, chains) == ("MALA", 128):
                name = "only density and gradient, 128 chains / BlackJAX's MALA"
                bare = _bare(density, chains, steps)
                results.append(compare(name, bare, theirs, target=TARGETS[chains, False]))
    return results


def _log_density(features: Any, labels: Any) -> Callable[[Tensor], Tensor]:
    x, y = torch.from_numpy(features), torch.from_numpy(labels)

    def log_density(w: Tensor) -> Tensor:
        logits = w @ x.T
        return logits @ y - torch.nn.functional.softplus(logits).sum(1) - 0.5 * w.square().sum(1)

    return log_density


def _bare(density: Callable[[Tensor], Tensor], chains: int, steps: int) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(steps):
            w = torch.zeros(chains, DIMENSION, requires_grad=True)
            torch.autograd.grad(density(w).sum(), w)

    return calls


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
