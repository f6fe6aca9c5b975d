"""`mlmcgrad boltzmann`: machines trained by contrastive divergence and by what removes its bias.

Stochastic gradient descent on −mean log p_θ(data), with step size 0.1. The data's part of the
gradient is exact; methods differ in how they estimate ∇log Z. With 16 hidden units the likelihood
is known exactly, so what is compared is what users want: the likelihood, against Gibbs steps and
against processor seconds, of the last iterate and of an average of the iterates

    θ̄_n = θ̄_{n−1} + (η + 1)/(n + η) (θ_n − θ̄_{n−1}),     η = 3,

which gives the last tenth of the iterates a third of the weight (Shamir, Zhang 2013).
"""

from __future__ import annotations

import time
from typing import Any

import torch
from rich.console import Console

from mlmcgrad.experiments.boltzmann import figures, tables
from mlmcgrad.experiments.boltzmann.exact import Hidden, log_likelihood
from mlmcgrad.experiments.boltzmann.findings import summarise
from mlmcgrad.experiments.boltzmann.methods import make
from mlmcgrad.experiments.boltzmann.pictures import pictures
from mlmcgrad.experiments.boltzmann.settings import (
    BESIDE,
    EFFORT,
    HIDDEN,
    LABELS,
    ONCE,
    SCALE,
    STEP_SIZE,
    Boltzmann,
    Data,
)
from mlmcgrad.experiments.folder import simulated
from mlmcgrad.kernels import Gibbs
from mlmcgrad.runs.atomic import write_atomically
from mlmcgrad.runs.pool import Report

_POINTS = 50  # of a curve
_SAMPLES = 16
_LATE = 3.0  # η
_STREAMS = 1000  # seeds of generators are this many times the seed of the run, and a few more


def run(settings: Boltzmann, console: Console) -> dict[str, Any]:
    """Train in the run folder, compare, draw and print; returns the summary."""
    arguments = {}
    for data in settings.data:
        effort = EFFORT[settings.preset][data]
        seeds = {ONCE: 1, **dict.fromkeys(BESIDE, effort.few)}
        for seed in range(effort.seeds):
            for method in LABELS:
                if seed < seeds.get(method, effort.seeds):
                    arguments[f"{data} {method} {seed}"] = {
                        "data": data,
                        "method": method,
                        "iterations": effort.iterations,
                        "chains": effort.chains,
                        "seed": settings.seed + seed,
                    }
    with simulated(settings, train, arguments, summarise, console) as findings:
        path = figures.draw(settings.out, findings)
        figures.draw_samples(settings.out, findings)
        table = tables.markdown(findings.summary)
        write_atomically(settings.out / "table.md", table.encode())
        tables.show(findings.summary, console)
    console.print(f"figure: {path}", style="bold", highlight=False, soft_wrap=True)
    return findings.summary


def train(
    report: Report, *, data: Data, method: str, iterations: int, chains: int, seed: int
) -> dict[str, Any]:
    """Train one machine.

    Args:
        report: called with the share of the work that is done.
        data: name of the pictures.
        method: of `settings.LABELS`.
        iterations: steps of the optimizer.
        chains: for each estimate.
        seed: of the machine's start, the same for all methods, and of its chains.

    Returns:
        `data`, `method`, `seed`; `curve`: for some iterations, the Gibbs steps a chain and the
        processor seconds so far, and the mean log-likelihood of the last and of the averaged
        iterate;
        `samples`: exact draws of the last machine.
    """
    rows = pictures(data)
    number = list(LABELS).index(method)
    start = torch.Generator().manual_seed(_STREAMS * seed)
    generator = torch.Generator().manual_seed(_STREAMS * seed + 1 + number)
    machine = Gibbs.of_size(rows.shape[1], HIDDEN, scale=SCALE, generator=start)
    averaged = Gibbs(*(parameter.detach().clone() for parameter in machine.parameters))
    estimate = make(method, machine, rows, chains, generator)
    optimizer = torch.optim.SGD(machine.parameters, lr=STEP_SIZE)
    every = max(1, iterations // _POINTS)
    curve, steps, seconds = [], 0, 0.0
    for n in range(1, iterations + 1):
        begin = time.process_time()
        optimizer.zero_grad()
        machine.free_energy(rows).mean().backward()
        steps += estimate.backward()
        optimizer.step()
        share = (_LATE + 1.0) / (n + _LATE)
        with torch.no_grad():
            for mean, parameter in zip(averaged.parameters, machine.parameters, strict=True):
                mean.lerp_(parameter, share)
        seconds += time.process_time() - begin
        if n % every == 0 or n == iterations:
            curve.append(
                {
                    "iteration": n,
                    "steps": steps / chains,
                    "seconds": seconds,
                    "last": log_likelihood(machine, rows),
                    "averaged": log_likelihood(averaged, rows),
                }
            )
            report(n / iterations)
    samples = Hidden(machine).sample(_SAMPLES, generator).long().tolist()
    return {"data": data, "method": method, "seed": seed, "curve": curve, "samples": samples}
