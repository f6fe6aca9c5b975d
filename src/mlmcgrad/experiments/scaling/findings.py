"""The numbers that matter in `scaling`, from what was measured of each kernel and estimator."""

from __future__ import annotations

import math
from typing import Any

from mlmcgrad.experiments.folder import Findings


def summarise(parts: dict[str, Any]) -> Findings:
    """One row for each kernel, estimator and T; the summary maps kernels to numbers."""
    mlmc = {part["kernel"]: part for part in parts.values() if part["estimator"] == "mlmc"}
    plain = {part["kernel"]: part for part in parts.values() if part["estimator"] == "average"}

    def fitted(which: dict[str, Any], quantity: str, field: str) -> dict[str, float]:
        return {name: part["fits"][quantity][field] for name, part in which.items()}

    def of_mlmc(field: str) -> dict[str, Any]:
        return {name: part[field] for name, part in mlmc.items()}

    summary = {
        "bias_slope": fitted(mlmc, "bias", "slope"),
        "bias_slope_se": fitted(mlmc, "bias", "slope_se"),
        "second_moment_r2": fitted(mlmc, "second_moment", "r2"),
        "third_moment_slope": fitted(mlmc, "third_moment", "slope"),
        "third_moment_slope_se": fitted(mlmc, "third_moment", "slope_se"),
        "cost_ratio": {name: _cost_ratio(rows) for name, rows in of_mlmc("rows").items()},
        "average_bias_slope": fitted(plain, "bias", "slope"),
        "average_cost_slope": fitted(plain, "cost", "slope"),
        "autocorrelation_time": of_mlmc("autocorrelation_time"),
        "acceptance": of_mlmc("acceptance"),
        "consistency": {
            name: max(row["check"] for row in levels) for name, levels in of_mlmc("levels").items()
        },
        "levels": of_mlmc("levels"),
        "fits": of_mlmc("fits"),
    }
    return Findings([row for part in parts.values() for row in part["rows"]], summary)


def _cost_ratio(rows: list[dict[str, Any]]) -> float:
    """Measured over expected cost, mean over T."""
    return math.fsum(row["cost"] / row["expected_cost"] for row in rows) / len(rows)
