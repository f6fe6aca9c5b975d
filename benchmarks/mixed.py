"""Mixed-effects models against `lme4::glmer`: seconds, and the log-likelihood that each loses.

Binary responses of 294 simulated patients at up to 7 visits with σ = 4, as in a well-known trial of
a nail infection; `cbpp` of lme4, and `Contraception` of mlmRev with one and with two effects. R
runs beside us, a fit of ours and one of its own in turn; only the calls `mixed.fit` and `glmer` are
timed, in seconds of the processor. What is lost is the largest exact log-likelihood found, by
quadrature, minus that at the estimate. Without R the rows of `glmer` are missing.

Growth: seconds with 10 times the groups over seconds. Memory: the peak of a process that fits
100 000 groups.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.glmer import Fitted, Glmer, available
from benchmarks.quadrature import Exact
from benchmarks.timing import Result, one_core, summary
from mlmcgrad import mixed

REPEATS = 5
NODES = {1: 150, 2: 30}
MANY = 100_000
LOST = 0.02


@dataclass(frozen=True)
class Case:
    """A model and its data."""

    name: str
    frame: str  # in R
    formula: str
    response: str  # in R
    family: str
    effects: int = 1


SIMULATED = Case("σ = 4", "simulated", "y ~ time * treatment + (1 | patient)", "y", "bernoulli")
_WOMEN = "use['Y'] ~ age + urban + livch"
CASES = (
    SIMULATED,
    Case(
        "cbpp",
        "cbpp",
        "incidence | trials(size) ~ period + (1 | herd)",
        "cbind(incidence, size - incidence)",
        "binomial",
    ),
    Case("Contraception", "Contraception", f"{_WOMEN} + (1 | district)", "use", "bernoulli"),
    Case(
        "Contraception",
        "Contraception",
        f"{_WOMEN} + (1 + urban | district)",
        "use",
        "bernoulli",
        effects=2,
    ),
)


def visits(groups: int, seed: int = 0) -> pd.DataFrame:
    """Patients who are seen at most 7 times, with σ = 4; a tenth of the later visits is missing."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(groups), 7)
    time = np.tile([0.0, 1.0, 2.0, 3.0, 6.0, 9.0, 12.0], groups)
    treatment = rng.integers(0, 2, groups)[patient]
    fixed = -1.6 - 0.16 * treatment - 0.39 * time - 0.14 * treatment * time
    eta = fixed + 4.0 * rng.standard_normal(groups)[patient]
    y = (rng.random(len(eta)) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
    table = pd.DataFrame({"y": y, "time": time, "treatment": treatment, "patient": patient})
    return table[(time == 0.0) | (rng.random(len(y)) > 0.1)]


def run() -> list[Result]:
    with one_core(), TemporaryDirectory() as folder:
        rows = [*_compared(Path(folder)), *_growth()]
    return [*rows, _memory()]


def _compared(folder: Path) -> list[Result]:
    """Seconds and lost log-likelihood of every case; without R, what is lost in the simulation."""
    path = folder / f"{SIMULATED.frame}.csv"
    visits(294).to_csv(path, index=False)
    if not available():
        return _against(SIMULATED, path, None)
    rows = []
    with Glmer() as glmer:
        glmer.read(SIMULATED.frame, path)
        for case in CASES:
            path = folder / f"{case.frame}.csv"
            if not path.exists():
                glmer.export(case.frame, path)
            rows += _against(case, path, glmer)
    return rows


def _against(case: Case, path: Path, glmer: Glmer | None) -> list[Result]:
    data = pd.read_csv(path)
    exact = Exact(mixed.build(case.formula, data), NODES[case.effects])
    formula = f"{case.response} ~{case.formula.split('~')[1]}"
    theirs: dict[str, Callable[[], Fitted]] = {}
    if glmer is not None:
        here = glmer
        if case.effects == 1:
            theirs["nAGQ = 25"] = lambda: here.fit(formula, case.frame, 25)
        theirs["Laplace"] = lambda: here.fit(formula, case.frame, 1)
    ours: list[Fitted] = []
    found: dict[str, list[Fitted]] = {name: [] for name in theirs}
    _fit(case.formula, data, case.family, seed=0)  # the first one also imports
    for seed in range(REPEATS):
        ours.append(_fit(case.formula, data, case.family, seed))
        for name, fit in theirs.items():
            found[name].append(fit())
    values = [exact(fit.theta) for fit in ours]
    others = {name: exact(fits[0].theta) for name, fits in found.items()}
    largest = max(exact.maximum(ours[0].theta), *values, *others.values())
    lost = [largest - value for value in values]
    effects = "one effect" if case.effects == 1 else "two effects"
    losses = [f"{name} loses {largest - value:.3f}" for name, value in others.items()]
    rows = [
        replace(
            summary(
                f"log-likelihood lost by mixed.fit, {case.name}, {effects}, largest",
                lost,
                LOST,
                at_most=True,
                note=f"glmer: {', '.join(losses)}" if losses else "no R: nothing to compare",
            ),
            ratio=max(lost),
        )
    ]
    for name, target in (("nAGQ = 25", 1.0), ("Laplace", 3.0)):
        if name in found and (case.effects == 2 or name != "Laplace"):
            pairs = list(zip(ours, found[name], strict=True))
            a, b = (statistics.median(fit.seconds for fit in fits) for fits in (ours, found[name]))
            title = f"mixed.fit over glmer ({name}), {case.name}, {effects}, seconds"
            ratios = [mine.seconds / other.seconds for mine, other in pairs]
            rows.append(summary(title, ratios, target, True, f"{a:.2f} s over {b:.2f} s"))
    return rows


def _fit(formula: str, data: pd.DataFrame, family: str, seed: int) -> Fitted:
    start = time.process_time()
    fit = mixed.fit(formula, data, family, seed=seed, progress=False)
    spent = time.process_time() - start
    if fit.problem is not None:
        raise RuntimeError(f"no estimate with seed {seed}: {fit.problem}")
    return Fitted(spent, fit.theta.numpy())


def _growth() -> list[Result]:
    """Seconds with 10 times the groups over seconds, 300 to 30 000."""
    sizes = (300, 3000, 30_000)
    data = {size: visits(size, seed=1) for size in sizes}
    spent: dict[int, list[float]] = {size: [] for size in sizes}
    for seed in range(3):
        for size in sizes:
            fit = _fit(SIMULATED.formula, data[size], SIMULATED.family, seed)
            spent[size].append(fit.seconds)
    rows = []
    for small, large in ((300, 3000), (3000, 30_000)):
        ratios = [b / a for a, b in zip(spent[small], spent[large], strict=True)]
        a, b = (statistics.median(spent[size]) for size in (small, large))
        title = f"mixed.fit, seconds with {large} groups over {small}"
        rows.append(summary(title, ratios, 11.0, True, f"{b:.1f} s over {a:.1f} s"))
    return rows


def _memory() -> Result:
    # A process of its own: the peak of this one is that of everything before.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        peak, spent, seen = pool.submit(_many).result()
    title = f"mixed.fit, {MANY} groups, peak of memory in GB"
    return Result(title, peak, peak, peak, 8.0, True, f"{spent:.0f} s, {seen} rows")


def _many() -> tuple[float, float, int]:
    """GB, seconds, rows."""
    with one_core():
        data = visits(MANY, seed=2)
        fit = _fit(SIMULATED.formula, data, SIMULATED.family, seed=0)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak / 1e9, fit.seconds, len(data)
