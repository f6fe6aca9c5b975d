"""Block Gibbs of a Boltzmann machine of 784×500 units with 1000 chains, on one core.

A step against one of the package `rbms`, which draws by `torch.bernoulli`. And what a multilevel
gradient costs: against as many steps of all chains at once and the free energy's gradient at as
many states, by hand, which nothing can avoid.
"""

from __future__ import annotations

from dataclasses import replace

import torch

import mlmcgrad as mg
from benchmarks.timing import Result, compare, one_core

VISIBLE, HIDDEN, CHAINS, TRUNCATION, STEPS = 784, 500, 1000, 128, 4


def run() -> list[Result]:
    from rbms.bernoulli_bernoulli.classes import BBRBM

    rng = torch.Generator().manual_seed(0)
    machine = mg.kernels.Gibbs.of_size(VISIBLE, HIDDEN, scale=0.1, generator=rng)
    x0 = machine.random_states(CHAINS, rng)
    theirs = BBRBM(*(parameter.detach() for parameter in machine.parameters))
    start = theirs.init_chains(CHAINS, start_v=x0)
    gradient = mg.MarkovGradient(
        machine,
        machine.loss,
        mg.MLMC(TRUNCATION, assignment="balanced"),
        parameters=machine.parameters,
    )
    estimate = gradient.backward(x0, generator=rng)
    steps, states = estimate.transitions / CHAINS, estimate.loss_evaluations / CHAINS

    def walk(count: int) -> torch.Tensor:
        with torch.no_grad():
            state, _ = machine.start(x0, ())
            for _ in range(count):
                one = machine.walk(state, machine.noise(1, x0, rng), ())
                state = one.state
        return state.x

    def by_hand() -> None:
        x = walk(round(steps))
        for _ in range(round(states)):
            torch.autograd.grad(machine.loss(x).mean(), machine.parameters)

    def multilevel() -> None:
        gradient.gradient(x0, generator=rng)

    size = f"{CHAINS} chains of {VISIBLE}×{HIDDEN} units"
    with one_core():
        alone = compare("", lambda: walk(round(steps)), multilevel, 0.0)
        return [
            compare(
                f"Gibbs step, {size}: rbms over ours",
                lambda: walk(STEPS),
                lambda: theirs.sample_state(n_steps=STEPS, chains=start),
                1.2,
                repeats=21,
            ),
            replace(
                compare(
                    f"MLMC(128), {size}: over its steps and gradients by hand",
                    by_hand,
                    multilevel,
                    1.15,
                    at_most=True,
                ),
                note=f"{alone.ratio:.2f} times its steps alone",
            ),
        ]
