"""Certificates of ten right kernels and of planted bugs, ten seeds each: benchmarks/certify.md.

`python -m benchmarks.certify` takes some minutes of one core.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.certify_cases import Case, planted, right
from mlmcgrad.diagnostics import Certificate, certify
from mlmcgrad.paper.runs.process import threads

SEEDS = 10
CONTAINS = 1e-6  # p-value from which on an interval contains the exact gradient


def run(case: Case, seed: int, **options: Any) -> Certificate:
    """One certificate."""
    generator = torch.Generator().manual_seed(seed)
    return certify(case.gradient, case.x0, *case.context, generator=generator, **options)


def row_of_right(case: Case) -> str:
    """How often it is certified, and whether the exact gradient is in the interval."""
    found = [run(case, seed) for seed in range(SEEDS)]
    p = [certificate.p_value_of(case.exact) for certificate in found]
    spent = statistics.mean(certificate.evaluations for certificate in found)
    width = statistics.mean(certificate.half_width for certificate in found)
    certified = sum(certificate.certified for certificate in found)
    inside = sum(value > CONTAINS for value in p)
    return (
        f"| {case.name} | {certified} of {SEEDS} | {inside} of {SEEDS} | {min(p):.2g} | "
        f"±{width:.3f} | {spent:,.0f} |"
    )


def row_of_planted(case: Case) -> str:
    """How often it is certified, and by which check it is refused."""
    found = [run(case, seed) for seed in range(SEEDS)]
    certified = sum(certificate.certified for certificate in found)
    failed = [{c.name for c in certificate.checks if c.passed is False} for certificate in found]
    named = sum(case.fails in names for names in failed)
    return f"| {case.name} | {certified} of {SEEDS} | {case.fails} | {named} of {SEEDS} |"


def main() -> None:
    lines = [
        "| right kernel | certified | contains the exact gradient | least p | interval "
        "| evaluations |",
        "|---|---|---|---|---|---|",
    ]
    for line in lines:
        print(line)
    for case in right():
        lines.append(row_of_right(case))
        print(lines[-1], flush=True)
    more = ["", "| planted bug | certified | refused by | in |", "|---|---|---|---|"]
    lines += more
    print("\n".join(more))
    for case in planted():
        lines.append(row_of_planted(case))
        print(lines[-1], flush=True)
    Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with threads(1):
        main()
