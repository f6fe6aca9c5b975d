"""How often `certify` and `compare` hold what they promise, over 200 replications.

**certify.** A right kernel is refused with a probability of at most 10^-5. The interval, the norm
and ε, the distance of all components from 0, each cover with 95 %; Hotelling's p-value is below
0.05 in 5 % of the runs. A run ends when its interval is narrow, which may cost some coverage.

**compare.** The intervals of bias², variance and mean squared error cover with 95 %. The chain has
eight states, so all three are known from its transition matrix. A squared bias below its noise has
an interval that is cut at 0, and covers more often.

The numbers of 200 replications have a standard deviation of 3 if the promise is 190.

    python -m benchmarks.coverage

takes about six minutes of one core and writes coverage.md beside this file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.progress import track
from tests.diagnostics.exact import Exact
from torch import Tensor

import mlmcgrad as mg
from benchmarks.certify_cases import Case, right
from mlmcgrad import problems
from mlmcgrad.diagnostics import Certificate, Contender, certify, compare
from mlmcgrad.diagnostics._certify import Z, norm_interval, norm_of
from mlmcgrad.estimators import Estimator
from mlmcgrad.paper.runs.process import threads

REPLICATIONS = 200
CERTIFIED = (
    "finite chain, 6 states",
    "Gaussian, RWMH",
    "i-SIR, log weights ±1",
    "i-SIR, log weights ±2.25",
    "importance, log weights ±1",
    "importance, log weights ±2.25",
    "random intercepts, MALA",
)
STATEMENTS = ("certified", "interval", "norm", "within", "0.05")
PROBLEM = problems.finite_chain()
STARTS = torch.tensor([0, 0, 4])  # rows that differ
ESTIMATORS: dict[str, Estimator] = {
    "Average(2)": mg.Average(2),
    "Average(32)": mg.Average(32),
    "MLMC(16)": mg.MLMC(16),
    "MLMCSum(256)": mg.MLMCSum(256),
}
BUDGETS = (1e3, 1e6)
REFERENCES = ("exact", "simulated", "a certificate")


def certificates(case: Case) -> Counter[str]:
    """Return how often a right kernel is certified, and how often each statement is true."""
    count: Counter[str] = Counter()
    for seed in track(range(REPLICATIONS), description=case.name):
        generator = torch.Generator().manual_seed(seed)
        result = certify(case.gradient, case.x0, *case.context, generator=generator)
        count.update(name for name, true in statements(result, case.exact) if true)
    return count


def statements(result: Certificate, exact: Tensor) -> Iterator[tuple[str, bool]]:
    """Yield the statements of a certificate, and whether they are true."""
    exact, p = exact.detach().double().flatten(), result.p_value_of(exact)
    wrong = (result.gradient - exact).abs() / result.units
    low, high = norm_interval(*norm_of(result.gradient, result.estimate.spread))
    # All components have intervals of the same number of standard errors.
    widths = result.half_width * result.se / (result.se / result.units).max()
    yield "certified", result.certified
    yield "interval", bool((wrong <= widths / result.units).all())
    yield "norm", low <= float(exact.norm()) <= high
    yield "within", float((exact.abs() / result.units).max()) <= result.zero_within
    yield "0.05", p < 0.05


def comparisons(kind: str) -> dict[str, Counter[str]]:
    """Return how often the intervals of each estimator cover, with one kind of reference."""
    truth, count = exact(), {name: Counter[str]() for name in ESTIMATORS}
    contenders = {name: gradient(estimator) for name, estimator in ESTIMATORS.items()}
    for seed in track(range(REPLICATIONS), description=f"compare, reference {kind}"):
        generator = torch.Generator().manual_seed(seed)
        reference: problems.Problem | Certificate | None = PROBLEM
        if kind == "simulated":
            reference = None
        elif kind != "exact":
            reference = certify(contenders["MLMC(16)"], STARTS, generator=generator)
        result = compare(
            contenders, STARTS, reference=reference, evaluations=2e4, generator=generator
        )
        for row in result.rows:
            count[row.name].update(name for name, true in covered(row, *truth[row.name]) if true)
    return count


def covered(
    row: Contender, bias2: float, variance: float, steps: float
) -> Iterator[tuple[str, bool]]:
    """Yield the intervals of a contender, and whether they cover."""
    yield "bias²", row.bias2.low <= bias2 <= row.bias2.high
    yield "variance", abs(row.variance - variance) <= Z * row.variance_se
    for budget in BUDGETS:
        error = row.error(budget)
        yield f"{budget:g}", error.low <= bias2 + variance * steps / budget <= error.high


def gradient(estimator: Estimator) -> mg.MarkovGradient:
    """Return the gradient of the chain by an estimator."""
    return mg.MarkovGradient(
        PROBLEM.kernel(), PROBLEM.loss, estimator, parameters=PROBLEM.parameters
    )


def exact() -> dict[str, tuple[float, float, float]]:
    """Return squared bias over all rows, variance within them, and steps of each estimator."""
    chain = Exact(
        PROBLEM.matrix(),
        torch.bincount(STARTS, minlength=len(PROBLEM.features)).double() / len(STARTS),
        PROBLEM.features - PROBLEM.data_mean,
        longest=256,
    )
    rows = [
        replace(chain, start=torch.eye(len(PROBLEM.features), dtype=torch.float64)[start])
        for start in STARTS
    ]
    found = {}
    for name, estimator in ESTIMATORS.items():
        bias2, _, steps = chain.moments(estimator)
        within = [row.moments(estimator)[1] for row in rows]
        found[name] = bias2, sum(within) / len(within), steps
    return found


def _row(labels: Sequence[str], count: Counter[str], names: Sequence[str]) -> str:
    return f"| {' | '.join([*labels, *(str(count[name]) for name in names)])} |"


def main() -> None:
    """Run all cases and write the tables."""
    lines = [
        f"{REPLICATIONS} replications of each row; see coverage.py.",
        "",
        "| right kernel | certified | interval covers | norm covers | ε covers | p < 0.05 |",
        "|---|---|---|---|---|---|",
        f"| promised | {REPLICATIONS} | {0.95 * REPLICATIONS:.0f} | {0.95 * REPLICATIONS:.0f} "
        f"| ≥ {0.95 * REPLICATIONS:.0f} | {0.05 * REPLICATIONS:.0f} |",
    ]
    cases = [case for case in right() if case.name in CERTIFIED]
    lines += [_row([case.name], certificates(case), STATEMENTS) for case in cases]
    names = ["bias²", "variance", *(f"{budget:g}" for budget in BUDGETS)]
    errors = " | ".join(f"error at {budget:g} covers" for budget in BUDGETS)
    lines += [
        "",
        f"| estimator | reference | bias² covers | variance covers | {errors} |",
        "|---|---|---|---|---|---|",
        f"| promised | | ≥ {0.95 * REPLICATIONS:.0f} | {0.95 * REPLICATIONS:.0f} "
        + f"| ≥ {0.95 * REPLICATIONS:.0f} " * len(BUDGETS)
        + "|",
    ]
    for kind in REFERENCES:
        for name, count in comparisons(kind).items():
            lines.append(_row([f"`{name}`", kind], count, names))
    text = "\n".join(lines) + "\n"
    print(text)
    Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with threads(1):
        main()
