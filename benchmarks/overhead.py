"""What the library itself costs: around the kernel and the loss, at import, at `--help`.

`MarkovGradient.backward` against its parts as bare calls: MALA of 128 chains in 100 dimensions for
64 steps, with the energy of a small network, and the loss of a network with its backward pass on
the states that the same chains visit. Target: at most 5 % more. Imports are timed in fresh
processes: seconds that mlmcgrad takes once torch is there, and seconds of `mlmcgrad --help`.
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch
from torch import Tensor

import mlmcgrad as mg
from benchmarks.timing import Result, compare, one_core, summary
from mlmcgrad.measure import concatenate

CHAINS, DIMENSION, STEPS, H, CHUNK = 128, 100, 64, 0.02, 1024

IMPORT = """
import time, torch
start = time.perf_counter()
import mlmcgrad
mlmcgrad.MLMC, mlmcgrad.MarkovGradient, mlmcgrad.kernels.MALA, mlmcgrad.optim.AMSGrad
print(time.perf_counter() - start)
"""
HELP = "from mlmcgrad.cli import main; main(['--help'])"


def run() -> list[Result]:
    with one_core():
        backward = _backward()
    imports = [float(_python(IMPORT)) for _ in range(9)]
    helps = []
    for _ in range(9):
        start = time.perf_counter()
        _python(HELP)
        helps.append(time.perf_counter() - start)
    return [
        backward,
        summary("import mlmcgrad after torch, seconds", imports, 0.3, at_most=True),
        summary("mlmcgrad --help, seconds", helps, 0.5, at_most=True),
    ]


def _backward() -> Result:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(DIMENSION, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    generator = torch.Generator()
    x0 = torch.zeros(CHAINS, DIMENSION)

    def log_density(x: Tensor) -> Tensor:
        return network(x)[:, 0] - 0.5 * x.square().sum(1)

    def loss(x: Tensor) -> Tensor:
        return network(x)[:, 0]

    kernel, estimator = mg.kernels.MALA(log_density, H), mg.Average(STEPS)
    gradient = mg.MarkovGradient(kernel, loss, estimator, chunk=CHUNK)
    plan = estimator.draw(CHAINS, 1, generator)
    whole = concatenate(list(kernel.run(x0, (), plan, generator.manual_seed(0))))
    states = [
        (whole.points[i : i + CHUNK], whole.coefficient[i : i + CHUNK].float())
        for i in range(0, len(whole), CHUNK)
    ]

    def bare() -> None:
        network.zero_grad()
        for _ in kernel.run(x0, (), plan, generator.manual_seed(0)):
            pass
        for points, coefficient in states:
            ((coefficient * loss(points)).sum() / CHAINS).backward()

    def ours() -> None:
        network.zero_grad()
        gradient.backward(x0, generator=generator.manual_seed(0))

    name = "backward / its kernel and loss as bare calls"
    return compare(name, bare, ours, target=1.05, repeats=101, at_most=True)


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
