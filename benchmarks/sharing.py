"""A step with one long chain on four processes: whole chains, and work that is given to others.

Seconds that each process computed (its clock stands still while it waits) in one gradient of the
training objective, 40 images, the least of 5: in the first iteration whose plan of `MLMC(256)`, cut
into whole chains, gives the slowest process more than 1.5 times the mean. Bytes are those of all
messages of the step, both ways. `python -m benchmarks.sharing` takes minutes, writes sharing.json
and prints the table of docs/scale.md; `… tables` only prints.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mlmcgrad.distributed import post
from mlmcgrad.distributed.shards import Shards, planning
from mlmcgrad.distributed.share import LEAST, work_of_chains, work_of_draws
from mlmcgrad.iwae import CIFAR10, DIGITS, Bernoulli, LatentModel, Objective
from mlmcgrad.iwae.objective import KernelName
from mlmcgrad.training.sharded import ShardedObjective

PATH = Path(__file__).with_suffix(".json")
NETWORKS = {"digits": DIGITS, "cifar10": CIFAR10}
CASES: tuple[tuple[str, KernelName], ...] = (
    ("digits", "isir"),
    ("cifar10", "isir"),
    ("cifar10", "importance"),
    ("cifar10", "mala"),
)
PROCESSES, IMAGES, TRUNCATION, NEVER = 4, 40, 256.0, 10**9


def objective_of(network: str, kernel: KernelName) -> tuple[Objective, torch.Tensor]:
    sizes = NETWORKS[network]
    model = LatentModel(sizes, Bernoulli(), torch.Generator().manual_seed(0))
    y = torch.rand(IMAGES, *sizes.shape, generator=torch.Generator().manual_seed(1))
    return Objective(model, truncation=TRUNCATION, assignment="balanced", kernel=kernel), y


def iteration(kernel: KernelName) -> tuple[int, float, float]:
    """One with a long chain, and what the slowest process has over the mean: whole, shared."""
    objective, _ = objective_of("digits", kernel)
    for n in range(1, 1000):
        plans = Shards.of(objective.planned(IMAGES, n, planning(0, n)), PROCESSES).plans
        work = (work_of_chains if kernel == "mala" else work_of_draws)(plans, LEAST)
        mean = sum(work.whole) / PROCESSES
        if max(work.whole) > 1.5 * mean:
            return n, max(work.whole) / mean, max(work.shared) / mean
    raise RuntimeError("no such plan")


def process(
    rank: int, port: int, network: str, kernel: KernelName, n: int, least: int, answer: Any
) -> None:
    """Seconds and bytes of one of the processes."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    objective, y = objective_of(network, kernel)
    sharded = ShardedObjective(objective, PROCESSES, 0, least=least)
    sizes, packed = list[int](), post.packed

    def counted(message: Any) -> torch.Tensor:
        data = packed(message)
        sizes.append(len(data) + 8)
        return data

    post.packed = counted
    best = float("inf")
    sharded.backward(y, n=n, x0=None)  # connects the processes
    for _ in range(5):
        sizes.clear()
        dist.barrier()
        begin = time.process_time()
        sharded.backward(y, n=n, x0=None)
        best = min(best, time.process_time() - begin)
    answer.send((best, sum(sizes)))
    dist.destroy_process_group()


def measured(network: str, kernel: KernelName, n: int, least: int) -> tuple[list[float], int]:
    """Seconds of each process, and the bytes of all messages."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(PROCESSES)]
    started = []
    for rank, (_, there) in enumerate(pipes):
        arguments = (rank, port, network, kernel, n, least, there)
        started.append(context.Process(target=process, args=arguments))
        started[-1].start()
    found = [here.recv() for here, _ in pipes]
    for one in started:
        one.join()
    return [seconds for seconds, _ in found], sum(size for _, size in found)


def rows() -> list[dict[str, Any]]:
    """A row for each case."""
    done = []
    for network, kernel in CASES:
        n, whole, shared = iteration(kernel)
        row: dict[str, Any] = {"network": network, "kernel": kernel, "work": (whole, shared)}
        row["whole"], _ = measured(network, kernel, n, NEVER)
        row["shared"], row["bytes"] = measured(network, kernel, n, LEAST)
        done.append(row)
    return done


def table(record: list[dict[str, Any]]) -> str:
    """The table of docs/scale.md."""
    lines = [
        "| network | kernel | work: whole, shared | whole chains: slowest, over the mean | shared: "
        "slowest, over the mean | of all: more | kilobytes |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record:
        cells = [f"{row['work'][0]:.2f}, {row['work'][1]:.2f}"]
        for kind in ("whole", "shared"):
            slowest, total = max(row[kind]), sum(row[kind])
            cells.append(f"{1e3 * slowest:.0f} ms, {PROCESSES * slowest / total:.2f}")
        more = sum(row["shared"]) / sum(row["whole"]) - 1.0
        cells += [f"{100 * more:.0f} %", f"{row['bytes'] / 1e3:.0f}"]
        lines.append(f"| {row['network']} | {row['kernel']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:] != ["tables"]:
        PATH.write_text(json.dumps(rows(), indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(PATH.read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    main()
