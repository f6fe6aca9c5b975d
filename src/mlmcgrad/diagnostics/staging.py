"""The estimators of a training, from a plan: one for each T, in the order of T_n.

After n iterations of N chains, n = B / (N cost), the squared error of averaged iterates is

    bias² + (variance / N + n_0 m) / n = bias² + cost × (variance + F) / B,     F = N n_0 m,

with m n_0 / n the way to go (`truncations.py`). What has the truncation T has the bias of T,
whatever else it is (but for averages with a burn-in, whose bias is known to an order of magnitude
only, and which are left out): so for each T, and for all B alike, that estimator is best which has
the least

    cost × (variance + F).

With a long way to go it is the cheapest, as iterations count; near the end it is the one with the
least work × variance, where a larger base or another continuation is often worth a factor of two.

m is known as far as it is more than the noise of the pilot (`Decay.left`). Nor can a pilot know the
tails of differences that it has not seen, so that T ends soon after its longest simulation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from mlmcgrad.diagnostics.decay import Decay
from mlmcgrad.diagnostics.predicted import Predicted
from mlmcgrad.diagnostics.truncations import Rung, Truncations
from mlmcgrad.estimators import Average, Estimator, Stages

_BEYOND = 2  # levels after the pilot's last whose variance is believed


def family(
    candidates: Iterable[Predicted], decay: Decay, *, simulations: int, present: float = 1.0
) -> list[Rung]:
    """For each T the best estimator, the shortest T first.

    Args:
        candidates: what there is.
        decay: for the way to go.
        simulations: N n_0, made before the plan.
        present: T of the training when the plan is made: what is shorter is left out.
    """

    def work(each: Predicted) -> float:
        return each.cost * (each.variance + simulations * decay.left(_level(each.estimator)))

    best: dict[int, Predicted] = {}
    for each in sorted(candidates, key=work):
        seen = _level(each.estimator) <= decay.highest + _BEYOND
        if seen and not getattr(each.estimator, "burn_in", 0):
            best.setdefault(each.estimator.longest(), each)
    first = min(present, max(best))
    return [
        Rung(float(t), best[t], decay.left(_level(best[t].estimator)))
        for t in sorted(best)
        if t >= first
    ]


def stages(rungs: Sequence[Rung], schedule: Truncations) -> Stages:
    """The estimators of a family by the T_n of a schedule.

    An earlier schedule may ask for a T that the family does not have: it is given to the estimator
    of the next shorter one.
    """

    def at(truncation: float) -> Estimator:
        found = [each for each in rungs if each.truncation <= truncation][-1].predicted.estimator
        return found if found.longest() == truncation else _with(found, truncation)

    return Stages(tuple((n, at(truncation)) for n, truncation in schedule.steps))


def _level(estimator: Estimator) -> int:
    return estimator.longest().bit_length() - 1


def _with(estimator: Estimator, truncation: float) -> Estimator:
    """The same with another truncation, or length and no burn-in."""
    if isinstance(estimator, Average):
        return Average(truncation)
    return dataclasses.replace(estimator, truncation=truncation)  # type: ignore[type-var]
