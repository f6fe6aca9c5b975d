"""A run that takes a fraction of a second, and everything it leaves that must be reproducible.

As a program it plays the machine on which a run is killed again and again.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlmcgrad.iwae.networks import Sizes
from mlmcgrad.paper.runs.folder import CHECKPOINTS
from mlmcgrad.paper.training import loop
from mlmcgrad.paper.training.config import Config
from mlmcgrad.paper.training.loop import Result, train
from mlmcgrad.paper.training.trainer import Source

SIZES = Sizes((1, 4, 4), latent=2, channels=(4,))


def source(levels: int = 4) -> Source:
    random_images = np.random.default_rng(0).integers(0, levels, (60, 1, 4, 4), dtype=np.uint8)
    return Source(random_images[:44], random_images[44:], levels, SIZES)


def config(folder: Path, **changes: Any) -> Config:
    # Numbers without common factors: lines, tests, checkpoints and epochs end apart.
    settings: dict[str, Any] = {
        "out": folder,
        "iterations": 24,
        "batch_size": 8,
        "candidates": 3,
        "latent": 2,
        "log_every": 4,
        "evaluate_every": 7,
        "checkpoint_every": 3,
        "nll_samples": 5,
        "truncation_scale": 3.0,
        "seed": 1,
        "probe_images": 9,
        "probe_length": 2,
        "probe_repeats": 3,
    }
    return Config.from_flat(**{**settings, **changes})


def run(folder: Path, **changes: Any) -> Result:
    return train(config(folder, **changes), _source=source())


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def remains(folder: Path) -> dict[str, Any]:
    """Checkpoint, metrics, summary and pictures, without times and what cannot be compared."""
    state = loop.latest_checkpoint(folder)
    assert state is not None
    state.pop("seconds")
    for name in ("out", "resume", "force", "iterations", "checkpoint_every"):
        state["settings"].pop(name, None)
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("seconds")
    pictures = {p.name: p.read_bytes() for p in sorted(folder.glob("*.png"))}
    return {"state": state, "metrics": metrics(folder), "summary": summary, "png": pictures}


def same(a: Any, b: Any) -> bool:
    """Equality to the last bit, also inside dicts and lists."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def kill_and_resume(folder: Path, iterations: int, kills: int) -> int:
    """Let a run be killed at random moments and resumed; return how often it was killed."""
    moments = random.Random(0)
    done = 0
    # What torch imports and prepares at first use, the children of this process have from it.
    run(folder.with_name("warm"), iterations=1)
    for target in sorted(moments.sample(range(iterations * 9 // 10), kills)):
        child = _start(folder, iterations)
        while _reached(folder) < target and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        done += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    _, status = os.waitpid(_start(folder, iterations), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return done


def _start(folder: Path, iterations: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            run(folder, iterations=iterations, resume=True)
            os._exit(0)
        finally:
            os._exit(1)
    return child


def _reached(folder: Path) -> int:
    names = [p.stem for p in (folder / CHECKPOINTS).glob("*.pt")]
    return max((int(name.split("-")[1]) for name in names), default=-1)


if __name__ == "__main__":
    sys.stdout.write(str(kill_and_resume(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
