"""Work × variance of the estimators on a Gaussian target, at equal or less bias².

Target N(0, I_d), proposal N(m, s² I_d), H(x) = x, k = 5 draws a block: bias² = ‖E Ĥ‖², variance =
trace of the covariance of Ĥ, work = draws that are weighed. The spread of the log weights is 2.25
for d = 8, s = 1.25, m = 0.55, and 4.1 for d = 16, s = 1.3, m = 0.7. Then the sum form against the
single term for chains at T = 128, and how fast the variance of the levels falls.

Written to estimators.json; `python -m benchmarks.estimators` takes some minutes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mlmcgrad as mg
from benchmarks.timing import Result
from mlmcgrad.diagnostics import level_test
from mlmcgrad.kernels import ISIR, Importance, Kernel, Simulation
from mlmcgrad.paper.experiments.accuracy import fit_power
from mlmcgrad.paper.runs.process import threads

K = 5
REPLICATES = 200_000
_CALL = 20_000  # replicates of one call


@dataclass(frozen=True)
class Target:
    """N(0, I_d), seen through draws of N(m, s² I_d)."""

    name: str
    d: int
    s: float
    m: float

    def log_weight(self, z: Tensor, *_: Tensor) -> Tensor:
        """Log w = log π − log q up to a constant."""
        return 0.5 * ((z - self.m) / self.s).square().sum(1) - 0.5 * z.square().sum(1)

    def propose(self, rows: int, *_: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of the proposal."""
        noise = torch.randn(rows, self.d, dtype=torch.float64, generator=generator)
        return self.m + self.s * noise

    def isir(self) -> ISIR:
        """The chain."""
        return ISIR(self.log_weight, self.propose, K)

    def importance(self) -> Importance:
        """The ladder of importance sampling."""
        return Importance(self.log_weight, self.propose, K)


NARROW = Target("log-weight sd 2.25", 8, 1.25, 0.55)
WIDE = Target("log-weight sd 4.1", 16, 1.3, 0.7)
# log w = −m·z + …: its spread is m·√d for s = 1.
MILD = Target("log-weight sd 1", 4, 1.0, 0.5)


@dataclass(frozen=True)
class Row:
    """One estimator on one target."""

    target: str
    estimator: str
    bias2: float
    bias2_se: float
    variance: float
    evaluations: float
    gain: float  # work × variance of `MLMC` on i-SIR over this one's


def run() -> list[Result]:
    with threads(1):
        rows, results = [], []
        for target, wanted in ((NARROW, 5.0), (WIDE, 2.0)):
            table = list(_table(target))
            rows += table
            best = next(row for row in table if row.estimator.startswith("importance levels, sum"))
            label = f"work × variance, MLMC(32) on i-SIR / importance levels, {target.name}"
            results.append(Result(label, best.gain, best.gain, best.gain, target=wanted))
        single, summed = (
            _measure(NARROW.isir(), estimator, NARROW.d)
            for estimator in (mg.MLMC(128), mg.MLMCSum(128))
        )
        gain = single.variance * single.evaluations / summed.variance / summed.evaluations
        label = "work × variance, MLMC(128) / MLMCSum(128), i-SIR, log-weight sd 2.25"
        results.append(Result(label, gain, gain, gain, target=1.25))
        slopes = {
            # Beyond the mixing time, which importance sampling has not.
            "chain": (_slope(MILD, MILD.isir(), 64.0, 10), -1.0),
            "importance": (_slope(MILD, MILD.importance(), 8.0, 7), -2.0),
        }
    record = {
        "replicates": REPLICATES,
        "rows": [asdict(row) for row in rows],
        "sum form at T = 128": gain,
        "slopes of the level variance": {name: slope for name, (slope, _) in slopes.items()},
    }
    path = Path(__file__).with_name("estimators.json")
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    Console().print(_printed(rows))
    for name, (slope, theory) in slopes.items():
        Console().print(f"level variance of {name}: slope {slope:.2f} (in theory {theory})")
    return results


def _table(target: Target) -> Iterator[Row]:
    isir, importance = target.isir(), target.importance()
    made: dict[str, tuple[Kernel, mg.estimators.Estimator]] = {
        "IWAE, SNIS(5)": (isir, mg.Average(1)),
        "MLMC(32) on i-SIR, the paper": (isir, mg.MLMC(32)),
        "MLMCSum(32) on i-SIR": (isir, mg.MLMCSum(32)),
        "importance levels, single, 32 blocks": (importance, mg.MLMC(32)),
        "importance levels, sum, 32 blocks": (importance, mg.MLMCSum(32)),
        "importance levels, sum, r = 2^-1.5, T = ∞": (importance, mg.MLMCSum(math.inf, 2**-1.5)),
    }
    measured = {name: _measure(*pair, target.d) for name, pair in made.items()}
    paper = measured["MLMC(32) on i-SIR, the paper"]
    for name, m in measured.items():
        gain = paper.variance * paper.evaluations / m.variance / m.evaluations
        yield Row(target.name, name, m.bias2, m.bias2_se, m.variance, m.evaluations, gain)


@dataclass(frozen=True)
class _Measured:
    bias2: float
    bias2_se: float
    variance: float
    evaluations: float


def _measure(kernel: Kernel, estimator: mg.estimators.Estimator, d: int) -> _Measured:
    """Moments of Ĥ over the replicates; the noise of the mean is taken out of bias²."""
    generator = torch.Generator().manual_seed(0)
    estimates, evaluations = [], 0
    for _ in range(REPLICATES // _CALL):
        plan = estimator.draw(_CALL, 1, generator)
        total = torch.zeros(_CALL, d, dtype=torch.float64)
        simulation = Simulation(kernel.run(None, (torch.zeros(_CALL),), plan, generator))
        for piece in simulation:
            total.index_add_(0, piece.owner, piece.coefficient[:, None] * piece.points)
        estimates.append(total)
        evaluations += simulation.outcome.evaluations
    each = torch.cat(estimates)
    mean, noise = each.mean(0), each.var(0) / len(each)
    bias2 = float(mean.square().sum() - noise.sum())
    spread = float((4.0 * mean.square() * noise + 2.0 * noise.square()).sum()) ** 0.5
    return _Measured(bias2, spread, float(each.var(0).sum()), evaluations / len(each))


def _slope(target: Target, kernel: Kernel, since: float, highest: int) -> float:
    """Slope of log Var(H^{(ℓ_k)} − H^{(ℓ_{k−1})}) against log ℓ_k, from a length on."""
    theta = torch.zeros(target.d, dtype=torch.float64, requires_grad=True)
    loss: Callable[..., Tensor] = lambda z, _: z @ theta  # noqa: E731
    gradient = mg.MarkovGradient(kernel, loss, mg.MLMC(128), parameters=[theta])
    generator = torch.Generator().manual_seed(1)
    test = level_test(
        gradient, None, torch.zeros(1), highest=highest, generator=generator, replicates=10**6
    )
    rows = [row for row in test.rows[1:] if row.length >= since]
    return fit_power([row.length for row in rows], [row.variance for row in rows]).slope


def _printed(rows: list[Row]) -> Table:
    table = Table("target", "estimator", "bias²", "±", "variance", "evaluations", "gain")
    for row in rows:
        table.add_row(
            row.target,
            row.estimator,
            f"{row.bias2:.4f}",
            f"{row.bias2_se:.4f}",
            f"{row.variance:.2f}",
            f"{row.evaluations:.1f}",
            f"{row.gain:.2f}",
        )
    return table


if __name__ == "__main__":
    run()
