"""Network models: how far fits are from the maximum, and seconds against pyERGM.

The Florentine marriages by `examples/ergm_florentine.py`, ten seeds of each model. The distance is
the larger one of both coefficients from `ergm_reference.json`. pyERGM fits edges and triangles (it
has no two-stars) in the same process, a fit of ours and one of its own in turn, on one core. Only
the fits are timed, in seconds of the processor, after one of each (numba compiles). With its
defaults it stops where it starts, near the pseudolikelihood estimate; a note says how far away. So
it is timed with what brings it near the maximum, and its own rule to stop: whole Newton steps and
5000 networks a step. Its Monte Carlo error is then about six times ours. Without pyERGM its row is
missing.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from examples.ergm_florentine import TERMS, Graphs, fit, florence

from benchmarks.ergm_reference import PATH
from benchmarks.timing import Result, one_core, summary

SEEDS, PAIRS = 10, 3
FAR = 0.01
ENOUGH = {"lr": 1.0, "mcmc_sample_size": 5000}


@dataclass(frozen=True)
class Timed:
    """A fit: its seconds, and its largest distance from the reference."""

    seconds: float
    distance: float


def run() -> list[Result]:
    reference = json.loads(PATH.read_text(encoding="utf-8"))
    rows = []
    with one_core():
        for term in TERMS:
            ours, target = _ours(term), np.array(reference[term]["estimates"])
            fits = [_timed(ours, seed, target) for seed in range(SEEDS)]
            far = [found.distance for found in fits]
            seconds = statistics.median(found.seconds for found in fits)
            title = f"network model, edges + {term}, distance from the maximum, largest of {SEEDS}"
            row = summary(title, far, FAR, at_most=True, note=f"{seconds:.1f} s a fit")
            rows.append(replace(row, ratio=max(far)))
        if find_spec("pyERGM") is not None:
            rows.append(_against(np.array(reference["triangles"]["estimates"])))
    return rows


def _against(target: Any) -> Result:
    """Seconds of pyERGM over ours, with both distances."""
    ours, theirs = _ours("triangles"), _pyergm(ENOUGH)
    pairs = [(_timed(theirs, s, target), _timed(ours, s, target)) for s in range(PAIRS)]
    default = [_timed(_pyergm({}), seed, target) for seed in range(PAIRS)]
    (a, b), (far, near) = (
        [choose(getattr(pair[k], what) for pair in pairs) for k in (0, 1)]
        for what, choose in (("seconds", statistics.median), ("distance", max))
    )
    said = f"{a:.1f} s over {b:.1f} s, largest distances {far:.4f} and {near:.4f}; its defaults: "
    said += f"{statistics.median(f.seconds for f in default):.1f} s and "
    said += f"{max(f.distance for f in default):.3f}"
    ratios = [their.seconds / our.seconds for their, our in pairs]
    return summary("pyERGM / ours, edges + triangles, seconds", ratios, 1.0, note=said)


def _timed(fitted: Callable[[int], Any], seed: int, target: Any) -> Timed:
    start = time.process_time()
    estimates = fitted(seed)
    spent = time.process_time() - start
    return Timed(spent, float(np.abs(estimates - target).max()))


def _ours(term: str) -> Callable[[int], Any]:
    graphs = Graphs(florence(), [term])
    fit(graphs, chains=50)  # the first one also imports

    def fitted(seed: int) -> Any:
        found = fit(graphs, seed)
        if not found.certificate.holds:
            raise RuntimeError(f"seed {seed}: {found.certificate}")
        return found.estimates.numpy()

    return fitted


def _pyergm(settings: dict[str, float]) -> Callable[[int], Any]:
    from pyERGM.ergm import ERGM
    from pyERGM.metrics import NumberOfEdgesUndirected, NumberOfTrianglesUndirected

    network = florence().numpy()
    logging.getLogger("pyERGM").setLevel(logging.WARNING)

    def fitted(seed: int, **options: float) -> Any:
        np.random.seed(seed)  # noqa: NPY002
        metrics = [NumberOfEdgesUndirected(), NumberOfTrianglesUndirected()]
        model = ERGM(len(network), metrics, is_directed=False, verbose=False)
        model.fit(network, **{**settings, **options})
        return np.array(list(model.get_model_parameters().values()))

    fitted(0, mcmc_sample_size=100)  # numba compiles
    return fitted
