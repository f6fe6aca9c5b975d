"""The modules that four calls cross, in the order of their first call.

`python -m tests.walks` prints them; `docs/architecture.md` describes them.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pandas as pd
import torch

import mlmcgrad as mg
from mlmcgrad import mixed
from mlmcgrad.paper.training import Config, train

ROOT = Path(mg.__file__).parent


def crossed(call: Callable[[], object]) -> list[str]:
    """Return the modules of the package whose functions run in a call, in order."""
    modules: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            path = Path(code.co_filename)
            if path.is_relative_to(ROOT) and path != ROOT / "__init__.py":
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                modules[name.removesuffix(".__init__")] = None

    call()  # imports and caches
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(modules)


def backward() -> list[str]:
    """Return the walk of `MarkovGradient.backward` with MALA and MLMCSum."""
    gradient, x0, rng = _gradient()
    return crossed(lambda: gradient.backward(x0, generator=rng))


def plan() -> list[str]:
    """Return the walk of `diagnostics.plan` for the same gradient."""
    gradient, x0, rng = _gradient()
    return crossed(lambda: mg.diagnostics.plan(gradient, x0, budget=100_000, generator=rng))


def fit() -> list[str]:
    """Return the walk of `mixed.fit` for a logistic model with a random intercept."""
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(30), 6), rng.normal(size=180)
    y = rng.random(180) < 1.0 / (1.0 + np.exp(-x - rng.normal(size=30)[group]))
    data = pd.DataFrame({"y": y.astype(int), "x": x, "g": group.astype(str)})
    return crossed(lambda: mixed.fit("y ~ x + (1 | g)", data, family="bernoulli", seed=1))


def training() -> list[str]:
    """Return the walk of a training of MLMC-IWAE on digits, with a test and a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"dataset": "digits", "iterations": 6, "batch_size": 10, "nll_samples": 5}
        settings |= {"test_images": 5, "log_every": 2, "evaluate_every": 3}
        config = Config.from_flat(**settings, out=Path(folder, "run"), force=True)
        return crossed(lambda: train(config))


def _gradient() -> tuple[mg.MarkovGradient, torch.Tensor, torch.Generator]:
    theta = torch.zeros(3, requires_grad=True)
    gradient = mg.MarkovGradient(
        mg.kernels.MALA(lambda x: -0.5 * x.square().sum(1), step_size=0.3),
        lambda x: ((x - 1.0) * theta).sum(1),
        mg.MLMCSum(64),
        parameters=[theta],
    )
    return gradient, torch.zeros(20, 3), torch.Generator().manual_seed(0)


WALKS = {"backward": backward, "plan": plan, "mixed.fit": fit, "train": training}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, walk in WALKS.items():
        modules = walk()
        print(f"{name}: {len(modules)} modules\n    {' '.join(modules)}")  # noqa: T201
