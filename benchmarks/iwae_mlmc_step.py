"""An MLMC-IWAE step against the network work in it, as bare calls on the same tensors.

Batch 128 with balanced levels, which has just the level law: 64 chains of length 2, … 2 of length
64, 2 of length 1. The passes of the decoder in a step are recorded and made again:

    all          encoder forward and backward; decoder and likelihood on k + (t−1)(k−1) latents for
                 each datum; the same with a graph, and backward, on the states that carry weight;
    unavoidable  the decoder without the likelihood, and of the states that carry weight only the
                 backward pass: their graph, which the step makes anew, is not timed.

Processor time of one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import networks
from benchmarks.timing import Result, seconds, summary
from mlmcgrad.iwae import LatentModel, Objective
from mlmcgrad.iwae.objective import KernelName
from mlmcgrad.paper.runs.process import threads

K, T, REPEATS = 5, 64, 9
UNAVOIDABLE = ("encoder", "decoder", "backward")


@dataclass
class Pass:
    """One pass of the decoder."""

    z: Tensor
    y: Tensor
    graph: bool
    parameters: bool = False  # whether it was differentiated in θ, or only in z


def run() -> list[Result]:
    model, y, trained = networks.cifar10()
    shares = _shares(Objective(model, "mlmc", candidates=K, truncation=T, assignment="balanced"), y)
    what = f"MLMC-IWAE step, T = {T}{'' if trained else ', untrained'}, over"
    unavoidable = [1.0 / sum(share[part] for part in UNAVOIDABLE) for share in shares]
    parts = ", ".join(f"{part} {_percent(shares, part)}" for part in shares[0])
    results = [
        summary(f"{what} its network calls", _over_calls(shares), target=1.10, at_most=True),
        summary(f"{what} the unavoidable ones", unavoidable, 1.10, at_most=True, note=parts),
    ]
    model, y = networks.digits()
    # What the arithmetic of the chains costs where the networks cost next to nothing.
    rows: tuple[tuple[KernelName, str, float], ...] = (
        ("isir", "i-SIR", 1.7),
        ("importance", "importance levels", 1.3),
    )
    for kernel, name, target in rows:
        objective = Objective(
            model,
            "mlmc",
            candidates=K,
            truncation=T,
            assignment="balanced",
            kernel=kernel,
            multilevel="single" if kernel == "isir" else "sum",
            chunk=1024,
        )
        what = f"MLMC-IWAE step on digits by {name}, T = {T}, over its network calls"
        results.append(summary(what, _over_calls(_shares(objective, y)), target, at_most=True))
    return results


def _shares(objective: Objective, y: Tensor) -> list[dict[str, float]]:
    """Time of each kind of network call over that of the step, for every repetition."""
    model = objective.model
    assert isinstance(model, LatentModel)

    def step() -> None:
        model.zero_grad()
        objective.backward(y, n=1, generator=torch.Generator().manual_seed(0))

    found = []
    with threads(1):
        passes = record(model, step)
        for repeat in range(REPEATS + 1):
            ours, alone = seconds(step, time.process_time), bare(model, y, passes)
            if repeat:  # the first is the warm-up
                found.append({part: spent / ours for part, spent in alone.items()})
    return found


def _over_calls(shares: list[dict[str, float]]) -> list[float]:
    return [1.0 / sum(share.values()) for share in shares]


def _percent(shares: list[dict[str, float]], part: str) -> str:
    return f"{statistics.median(share[part] for share in shares):.0%}"


def record(model: LatentModel, step: Callable[[], object]) -> list[Pass]:
    """The passes of the decoder in one step."""
    passes: list[Pass] = []
    log_joint = model.log_joint

    def recorded(z: Tensor, y: Tensor) -> Tensor:
        passes.append(Pass(z.detach(), y, torch.is_grad_enabled()))
        return log_joint(z, y)

    def differentiated(gradient: Tensor) -> None:
        passes[-1].parameters = True

    hook = next(model.decoder.parameters()).register_hook(differentiated)
    model.log_joint = recorded  # type: ignore[method-assign]
    try:
        step()
    finally:
        hook.remove()
        del model.log_joint
    return passes


def bare(model: LatentModel, y: Tensor, passes: list[Pass]) -> dict[str, float]:
    """Seconds of each kind of work."""
    theta, phi = tuple(model.decoder.parameters()), tuple(model.encoder.parameters())
    spent = dict.fromkeys(("encoder", "decoder", "likelihood", "graph", "backward"), 0.0)

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        spent[name] += time.process_time() - start

    with timed("encoder"):
        mean, log_scale = model.encoder(y)
        torch.autograd.grad(mean.sum() + log_scale.sum(), phi)
    for one in passes:
        if one.graph:
            z = one.z.requires_grad_()
            with timed("graph"):
                value = model.log_joint(z, one.y).sum()
            with timed("backward"):
                torch.autograd.grad(value, (*theta, z) if one.parameters else (z,))
        else:
            with torch.no_grad():
                with timed("decoder"):
                    decoded = model.decoder(one.z)
                with timed("likelihood"):
                    model.likelihood.log_prob(decoded, one.y)
    return spent
