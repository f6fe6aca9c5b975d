"""What the paper says of its experiments, checked against runs.

With S(n) = ‖∇V(θ_n)‖², NLL(n) the test NLL, N the iterations of BR-IWAE and B(n) the budget spent:

    decay        slope of log S against log n, MLMC minus BR; similar: within ±1/4, which is half
                 the exponent of the rate
    rate         slope of log S − log((log n)²/√n) against log n; at most 0 if S falls as predicted
    per_epoch    NLL(N) of MLMC minus that of BR
    budget_*     NLL, or log S, of MLMC minus that of BR when both have spent the same: as much as
                 the one that spent less in all
    budget_ratio what MLMC has spent when it reaches the NLL that BR ends with, over what BR spent
    iwae_*       the same for plain IWAE instead of BR, which the paper does not compare with

Runs with the same seed start from the same parameters and see the same data, so they are paired.
Intervals are Student's over seeds, 95 %, for each claim alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from mlmcgrad.experiments.reproduce.compare import (
    at_end,
    common,
    decay,
    interval,
    longest,
    matched,
    reaches,
)
from mlmcgrad.experiments.reproduce.gather import LABELS, Reproduction, TrainingRun

Pair: TypeAlias = tuple[TrainingRun, TrainingRun]
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
SIMILAR = 0.25
_BUDGETS = {"evaluations": "network evaluations", "seconds": "seconds of training"}

DECAY = (
    "We observe similar convergence rates for both BR-IWAE and MLMC-IWAE in terms of iterations "
    "for the squared gradient norm."
)
RATE = "The empirical results match the convergence rate O((log N)²/√N)."
PER_EPOCH = "For the negative log-likelihood, BR-IWAE performs slightly better."
BUDGET = (
    "When plotted against the computational budget, MLMC-IWAE converges faster for both the "
    "squared gradient norm and the test negative log-likelihood."
)


@dataclass(frozen=True)
class Claim:
    """One claim, as measured."""

    id: str
    dataset: str
    optimizer: str
    method: str  # the one that is compared with BR-IWAE, or (`iwae_…`) with IWAE
    paper: str  # the paper's sentence; empty for what goes beyond it
    measured: str  # what the number is
    value: float | None  # None where no number can be given; the note says why
    low: float | None  # 95 % confidence interval over seeds
    high: float | None
    verdict: str  # holds, does not hold, undecided
    note: str = ""


def evaluate(reproduction: Reproduction) -> list[Claim]:
    """All claims of which there are runs; those on a gradient norm only where it was measured."""
    found: list[Claim] = []
    for optimizer in reproduction.optimizers:
        for method in ("mlmc", "mlmc-rb"):
            for baseline in ("br", "iwae"):
                pairs = _pairs(reproduction, method, baseline, optimizer)
                if pairs:
                    judge = _Judge(reproduction.dataset, optimizer, method, pairs)
                    found += judge.claims() if baseline == "br" else judge.against_iwae()
    return found


def _pairs(reproduction: Reproduction, method: str, baseline: str, optimizer: str) -> list[Pair]:
    """(MLMC, baseline) for every seed of which both are complete."""
    others = {run.seed: run for run in reproduction.of(baseline, optimizer)}
    runs = reproduction.of(method, optimizer)
    return [(run, others[run.seed]) for run in runs if run.seed in others]


@dataclass(frozen=True)
class _Judge:
    """The claims for one optimizer and one multilevel method."""

    dataset: str
    optimizer: str
    method: str
    pairs: list[Pair]

    def claims(self) -> list[Claim]:
        label = LABELS[self.method]
        found: list[Claim] = []
        gradient = all(
            "gradient" in row for pair in self.pairs for run in pair for row in run.tests
        )
        if gradient:
            found.append(self._decay(label))
            found += self._rates(label)
        found.append(
            self._claim(
                "per_epoch",
                PER_EPOCH,
                f"test NLL after equal iterations, {label} minus BR-IWAE (nats)",
                [at_end(m, b, "nll") for m, b in self.pairs],
                _above,
                _relative([b.test("nll")[-1] for _, b in self.pairs]),
            )
        )
        for axis, words in _BUDGETS.items():
            suffix = "" if axis == "evaluations" else f"_{axis}"
            if gradient:
                found.append(self._matched_gradient(f"budget_gradient{suffix}", axis, words, label))
            found.append(
                self._claim(
                    f"budget_nll{suffix}",
                    BUDGET,
                    f"test NLL for equal {words}, {label} minus BR-IWAE (nats)",
                    [matched(m, b, "nll", axis)[0] for m, b in self.pairs],
                    _below,
                    _where(self.pairs, axis),
                )
            )
            found.append(self._ratio(f"budget_ratio{suffix}", axis, words, label))
        return found

    def against_iwae(self) -> list[Claim]:
        """Is it worth it at all? The paper does not ask."""
        label = LABELS[self.method]
        found = [
            self._claim(
                "iwae_per_epoch",
                "",
                f"test NLL after equal iterations, {label} minus IWAE (nats)",
                [at_end(m, b, "nll") for m, b in self.pairs],
                _below,
                "",
            )
        ]
        for axis, words in _BUDGETS.items():
            suffix = "" if axis == "evaluations" else f"_{axis}"
            found.append(
                self._claim(
                    f"iwae_budget_nll{suffix}",
                    "",
                    f"test NLL for equal {words}, {label} minus IWAE (nats)",
                    [matched(m, b, "nll", axis)[0] for m, b in self.pairs],
                    _below,
                    _where(self.pairs, axis),
                )
            )
        return found

    def _decay(self, label: str) -> Claim:
        values, lost = [], 0
        for m, b in self.pairs:
            last = float(b.test("iteration")[-1])
            (mine, left), (theirs, also_left) = (decay(run, last) for run in (m, b))
            values.append(mine - theirs)
            lost += left + also_left
        return self._claim(
            "decay",
            DECAY,
            f"slope of log ‖∇V‖² against log n, {label} minus BR-IWAE",
            values,
            _similar,
            _lost(lost),
        )

    def _rates(self, label: str) -> list[Claim]:
        found = []
        both = [(label, "rate", [m for m, _ in self.pairs])]
        if self.method == "mlmc":
            both.append((LABELS["br"], "rate_br", [b for _, b in self.pairs]))
        for name, identity, runs in both:
            slopes = [decay(run, math.inf, against_rate=True) for run in runs]
            found.append(
                self._claim(
                    identity,
                    RATE,
                    f"slope of log ‖∇V‖² − log((log n)²/√n) against log n, {name}",
                    [slope for slope, _ in slopes],
                    _below,
                    _lost(sum(lost for _, lost in slopes)),
                )
            )
        return found

    def _matched_gradient(self, identity: str, axis: str, words: str, label: str) -> Claim:
        """The difference relative to BR's mean: single estimates of S may be negative."""
        found = [matched(m, b, "gradient", axis) for m, b in self.pairs]
        scale = float(np.mean([theirs for _, theirs in found]))
        if scale <= 0.0:
            return self._claim(
                identity,
                BUDGET,
                "‖∇V‖² at equal budget",
                [],
                _below,
                "‖∇V‖² of BR-IWAE is lost in noise",
            )
        return self._claim(
            identity,
            BUDGET,
            f"‖∇V‖² for equal {words}, {label} minus BR-IWAE, relative to BR-IWAE's",
            [difference / scale for difference, _ in found],
            _below,
            _where(self.pairs, axis),
        )

    def _ratio(self, identity: str, axis: str, words: str, label: str) -> Claim:
        ratios = [reaches(m, b, axis) for m, b in self.pairs]
        words = f"{words} of {label} when it reaches BR-IWAE's final test NLL, over BR-IWAE's"
        missing = [ratio for ratio, there in ratios if not there]
        if missing:
            spent = min(missing)
            note = (
                f"{len(missing)} of {len(ratios)} runs ended before they reached it, having "
                f"spent {spent:.2f} of BR-IWAE's budget or more"
            )
            claim = self._claim(identity, "", words, [], _below, note)
            failed = spent >= 1.0 and len(missing) == len(ratios)
            return Claim(**{**claim.__dict__, "verdict": FAILS if failed else UNDECIDED})
        logs = [math.log(ratio) for ratio, _ in ratios]
        claim = self._claim(identity, "", words, logs, _below, "")
        values = {
            key: None if (old := getattr(claim, key)) is None else math.exp(old)
            for key in ("value", "low", "high")
        }
        return Claim(**{**claim.__dict__, **values})

    def _claim(
        self,
        identity: str,
        paper: str,
        measured: str,
        values: list[float],
        verdict: Callable[[float, float], str],
        note: str,
    ) -> Claim:
        value, low, high = interval(values)
        decided = UNDECIDED if low is None or high is None else verdict(low, high)
        beyond = self.method != "mlmc"
        return Claim(
            f"rb_{identity}" if beyond else identity,
            self.dataset,
            self.optimizer,
            self.method,
            "" if beyond else paper,
            measured,
            value,
            low,
            high,
            decided,
            note,
        )


def _where(pairs: list[Pair], axis: str) -> str:
    """At which iterations, and hence T_n, the two are compared."""
    n = []
    for which in (0, 1):
        places = [
            float(
                np.exp(
                    np.interp(
                        math.log(common(*pair, axis)),
                        np.log(pair[which].test(axis)),
                        np.log(pair[which].test("iteration")),
                    )
                )
            )
            for pair in pairs
        ]
        n.append(float(np.mean(places)))
    t = [longest(run, count) for run, count in zip(pairs[0], n, strict=True)]
    return f"at n = {n[0]:.0f} (T = {t[0]:.0f}) against n = {n[1]:.0f} (T = {t[1]:.0f})"


def _relative(values: list[float]) -> str:
    return f"BR-IWAE: {np.mean(values):.2f}"


def _lost(count: int) -> str:
    return f"{count} tests with an estimate below 0 left out" if count else ""


def _above(low: float, high: float) -> str:
    return HOLDS if low > 0.0 else FAILS if high < 0.0 else UNDECIDED


def _below(low: float, high: float) -> str:
    return HOLDS if high < 0.0 else FAILS if low > 0.0 else UNDECIDED


def _similar(low: float, high: float) -> str:
    if low >= -SIMILAR and high <= SIMILAR:
        return HOLDS
    return FAILS if low > SIMILAR or high < -SIMILAR else UNDECIDED


__all__ = ["FAILS", "HOLDS", "SIMILAR", "UNDECIDED", "Claim", "evaluate"]
