"""The figure of `bound`."""

from __future__ import annotations

import math
from pathlib import Path

from mlmcgrad.experiments.bound.tables import order
from mlmcgrad.experiments.folder import Findings
from mlmcgrad.experiments.plots import COLOURS, CYCLE, panels


def draw(folder: Path, findings: Findings | None = None) -> Path:
    """The terms of the bound against N, their sum and the rate."""
    findings = findings or Findings.read(folder)
    rows, rate = findings.rows, findings.summary["rate"]
    N, total = [row["N"] for row in rows], [row["total"] for row in rows]
    with panels(1, folder / "bound") as (figure, (axes,)):
        figure.set_size_inches(7.6, 4.8)
        # Wide and pale, below the others: the largest term often lies right on it.
        axes.plot(N, total, color=COLOURS["theory"], lw=5.0, alpha=0.3, label="bound, the sum")
        for name, colour in zip(rows[0]["terms"], CYCLE, strict=False):
            y = [row["terms"][name] for row in rows]
            if min(y) > 0.0:  # a gap of 0 has no place on a logarithmic axis
                axes.plot(N, y, color=colour, lw=1.5, label=name.replace("_", " "))
        shape = [n ** rate["exponent"] * math.log(n) ** rate["log_power"] for n in N]
        above = [1.6 * total[-1] / shape[-1] * value for value in shape]
        label = f"rate: {order(rate['exponent'], rate['log_power'])} (moved up)"
        axes.plot(N, above, "--", color=COLOURS["theory"], lw=1.2, label=label)
        axes.set(xlabel="iterations N", ylabel="bound of E‖∇V(θ_R)‖²", xscale="log", yscale="log")
        axes.set_title(f"Terms of the bound ({findings.summary['optimizer']})")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return folder / "bound.png"
