"""The cost of a step of one training on many processes: measured constants, simulated loads.

    seconds = c_0 + c_1 · (transitions of the slowest rank) + d · (chains) + exchange(bytes, ranks)

Measured on this machine: c_0 and c_1 of a step of BR-IWAE (`Objective.gradient` with i-SIR, k = 5,
64 images), d of dealing chains to ranks, and the latency and the seconds per byte of an all-reduce
over gloo between two processes. The all-reduce of R ranks is modelled as a ring: 2(R − 1) messages
of bytes/R. Loads are simulated. `python -m benchmarks.scale` takes minutes, writes scale.json and
prints the tables of docs/scale.md; `… simulate` keeps the measured constants, and `… tables` only
prints.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import mlmcgrad as mg
from benchmarks.timing import one_core
from mlmcgrad.distributed.shards import deal
from mlmcgrad.iwae import CIFAR10, DIGITS, BernoulliLikelihood, LatentModel, Objective
from mlmcgrad.iwae.networks import Sizes

PATH = Path(__file__).with_suffix(".json")
NETWORKS = {"digits": DIGITS, "cifar10": CIFAR10}
RANKS = (1, 2, 4, 8, 16, 64, 256, 1024)
TRUNCATIONS = (64, 1024)
CHAINS = (64, 128)  # per rank
BATCH = 1024  # of all ranks, where ranks share a fixed one
DOUBLE = 8  # bytes: gradients are added in float64


def loads(ranks: int, chains: int, truncation: float, dealing: bool, seed: int) -> torch.Tensor:
    """Return the transitions of each rank in one step.

    Args:
        ranks: how many share the chains.
        chains: of all ranks.
        truncation: T of MLMC.
        dealing: balanced levels, dealt by length; else independent levels, as many chains each.
        seed: of the levels.
    """
    assignment = "balanced" if dealing else "independent"
    estimator = mg.MLMC(truncation, assignment=assignment)  # type: ignore[arg-type]
    longest = estimator.draw(chains, None, torch.Generator().manual_seed(seed)).longest
    if dealing:
        return torch.stack([longest[rows].sum() for rows in deal(longest, ranks)])
    return longest.reshape(ranks, -1).sum(1)


def imbalance(ranks: int, chains: int, truncation: float, dealing: bool) -> tuple[float, float]:
    """Return the mean transitions of the slowest rank, and of a rank, over many steps."""
    repeats = max(10, min(400, 100_000 // chains))
    drawn = [loads(ranks, chains, truncation, dealing, seed).double() for seed in range(repeats)]
    slowest = statistics.fmean(float(each.max()) for each in drawn)
    return slowest, statistics.fmean(float(each.mean()) for each in drawn)


def exchange(record: dict[str, Any], size: int, ranks: int) -> float:
    """Return the seconds of an all-reduce of `size` bytes: a ring."""
    if ranks == 1:
        return 0.0
    # Between two: two messages of half the bytes each.
    messages = 2 * (ranks - 1)
    return messages * (record["latency"] / 2 + record["seconds_a_byte"] * size / ranks)


def step(
    record: dict[str, Any], network: str, ranks: int, chains: int, truncation: float
) -> tuple[float, float]:
    """Return the seconds of a step, and the fraction in which the mean rank simulates."""
    of = record["networks"][network]
    slowest, mean = imbalance(ranks, chains, truncation, dealing=True)
    fixed = of["fixed"] + record["dealing"] * chains
    total = fixed + of["transition"] * slowest + exchange(record, DOUBLE * of["parameters"], ranks)
    return total, of["transition"] * mean / total


def measured() -> dict[str, Any]:
    """The constants, on this machine."""
    with one_core():
        networks = {name: _network(sizes) for name, sizes in NETWORKS.items()}
        lengths = mg.MLMC(1024, assignment="balanced").draw(2**15, None, torch.Generator()).longest
        dealing = _least(lambda: deal(lengths, 512), 5) / len(lengths)
    latency, slope = _between_two()
    record = {
        "networks": networks,
        "dealing": dealing,
        "latency": latency,
        "torch": torch.__version__,
    }
    return {**record, "seconds_a_byte": slope}


def _network(sizes: Sizes) -> dict[str, Any]:
    """c_0, c_1 and the parameters of a step: least squares over chain lengths, 64 images."""
    model = LatentModel(sizes, BernoulliLikelihood(), torch.Generator().manual_seed(0))
    y = torch.rand(64, *sizes.shape, generator=torch.Generator().manual_seed(1))
    transitions, seconds = [], []
    for length in (1, 4, 16):
        objective = Objective(model, "br", truncation=float(length))
        generator = torch.Generator().manual_seed(2)

        def call(objective: Objective = objective, source: torch.Generator = generator) -> None:
            objective.gradient(y, generator=source)

        call()
        transitions.append(64.0 * length)
        seconds.append(_least(call, 5))
    slope, fixed = np.polyfit(transitions, seconds, 1)
    count = sum(p.numel() for p in objective.parameters)
    return {"fixed": max(float(fixed), 0.0), "transition": float(slope), "parameters": count}


def _least(call: Callable[[], object], repeats: int) -> float:
    """Seconds of this process in the quickest of a few calls: other programs do not count."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        call()
        best = min(best, time.process_time() - begin)
    return best


def _between_two() -> tuple[float, float]:
    """Latency of an all-reduce between two processes, and its seconds a byte."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    ranks = [context.Process(target=_exchanging, args=(r, port, there)) for r in range(2)]
    for process in ranks:
        process.start()
    sizes, seconds = here.recv()
    for process in ranks:
        process.join()
    slope, _ = np.polyfit(sizes[1:], seconds[1:], 1)
    return float(seconds[0]), float(slope)


def _exchanging(rank: int, port: int, answer: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    sizes, seconds = [], []
    for numbers, repeats in ((1, 500), (10**6, 30), (4 * 10**6, 15)):
        tensor, taken = torch.ones(numbers, dtype=torch.float64), []
        for _ in range(repeats):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            taken.append(time.perf_counter() - begin)
        sizes.append(DOUBLE * numbers)
        seconds.append(statistics.quantiles(taken, n=4)[0])  # the lower quartile
    if rank == 0:
        answer.send((sizes, seconds))
    dist.destroy_process_group()


def simulated() -> list[dict[str, Any]]:
    """Return the imbalance of the ranks with independent levels, and with dealt chains."""
    return [
        {
            "truncation": t,
            "ranks": ranks,
            "chains": chains,
            "independent": np.divide(*imbalance(ranks, ranks * chains, t, False)).item(),
            "dealt": np.divide(*imbalance(ranks, ranks * chains, t, True)).item(),
        }
        for t in TRUNCATIONS
        for chains in CHAINS
        for ranks in RANKS[1:]
    ]


def modelled(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return seconds and efficiency for 64 chains per rank, and for a fixed batch."""
    rows = []
    for network in NETWORKS:
        for ranks in RANKS:
            grown = step(record, network, ranks, 64 * ranks, 1024)
            fixed = step(record, network, ranks, BATCH, 1024)
            rows.append({"network": network, "ranks": ranks, "grown": grown, "fixed": fixed})
    return rows


def tables(record: dict[str, Any]) -> str:
    """The tables of docs/scale.md."""
    of = record["networks"]
    lines = ["| constant | digits | cifar10 |", "|---|---|---|"]
    for name, text, scale in (
        ("parameters", "parameters", 1.0),
        ("fixed", "c_0, milliseconds", 1e3),
        ("transition", "c_1, microseconds per transition", 1e6),
    ):
        values = " | ".join(f"{scale * of[n][name]:,.0f}" for n in NETWORKS)
        lines.append(f"| {text} | {values} |")
    sizes = " | ".join(f"{DOUBLE * of[n]['parameters'] / 1e6:.1f}" for n in NETWORKS)
    seconds = [exchange(record, DOUBLE * of[n]["parameters"], 2) for n in NETWORKS]
    lines += [
        f"| megabytes of an all-reduce | {sizes} |",
        f"| its milliseconds, two ranks | {' | '.join(f'{1e3 * s:.1f}' for s in seconds)} |",
        "",
        f"Latency of an all-reduce between two processes: {1e6 * record['latency']:.0f} µs; "
        f"{1e-9 / record['seconds_a_byte']:.2f} GB per second; dealing: "
        f"{1e6 * record['dealing']:.1f} µs per chain.",
        "",
        "| T | chains per rank | ranks | independent levels | balanced levels, dealt |",
        "|---|---|---|---|---|",
    ]
    for row in record["simulated"]:
        ratios = " | ".join(f"{row[name]:.2f}" for name in ("independent", "dealt"))
        lines.append(f"| {row['truncation']} | {row['chains']} | {row['ranks']} | {ratios} |")
    lines += [
        "",
        f"| network | ranks | 64 chains per rank: seconds | efficiency | {BATCH} chains in all: "
        "seconds | efficiency |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["modelled"]:
        cells = [f"{s:.3f} | {100 * e:.0f} %" for s, e in (row["grown"], row["fixed"])]
        lines.append(f"| {row['network']} | {row['ranks']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:] != ["tables"]:
        old = sys.argv[1:] == ["simulate"]
        record = json.loads(PATH.read_text(encoding="utf-8")) if old else measured()
        record = {**record, "simulated": simulated(), "modelled": modelled(record)}
        PATH.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(tables(json.loads(PATH.read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    main()
