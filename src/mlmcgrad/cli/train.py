"""The command `mlmcgrad train`: a run with its progress on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from mlmcgrad.distributed.worlds import group
from mlmcgrad.training.config import Config
from mlmcgrad.training.loop import train


def run(config: Config, console: Console) -> dict[str, Any]:
    """Train and print the result; returns the contents of summary.json.

    Of processes that torchrun has started, the first one prints.
    """
    with group(config.device) as world:
        result = train(config, console if world.rank == 0 else None)
    summary = result.summary
    if world.rank:
        return summary
    bits = summary.get("bits_per_dimension")
    console.print(
        f"{config.method} on {config.dataset}: test NLL {summary['nll']:.2f} ± "
        f"{summary['nll_se']:.2f} nats per image"
        + (f" ({bits:.3f} bits per dimension)" if bits is not None else "")
        + f" after {summary['iteration']} iterations, "
        f"{summary['evaluations']} network evaluations, {summary['seconds']:.0f} s",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    line = f"run folder: {result.folder}"
    console.print(line, style="bold", highlight=False, markup=False, soft_wrap=True)
    return summary
