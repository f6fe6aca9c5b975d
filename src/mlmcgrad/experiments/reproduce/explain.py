"""Claims with the reason where multilevel does not win: how noisy a gradient is for its cost.

SGD with small steps averages gradients, so for a budget what counts is the variance of one gradient
times its cost. i-SIR whose k weights have an effective number near 1 keeps its state most of the
time: then the terms of a multilevel gradient hardly cancel, and its variance is large.
"""

from __future__ import annotations

import dataclasses

from mlmcgrad.experiments.reproduce.claims import FAILS, HOLDS, Claim, evaluate
from mlmcgrad.experiments.reproduce.gather import LABELS, Reproduction
from mlmcgrad.experiments.reproduce.tables import Diagnostics, diagnostics


def explained(reproduction: Reproduction) -> list[Claim]:
    """All claims; those on budgets that do not hold say what the gradients were like."""
    rows = {(row.optimizer, row.method): row for row in diagnostics(reproduction)}
    found = []
    for claim in evaluate(reproduction):
        mine = rows.get((claim.optimizer, claim.method))
        other = rows.get((claim.optimizer, "iwae" if "iwae_" in claim.id else "br"))
        if mine is not None and other is not None and _does_not_win(claim):
            note = "; ".join(filter(None, (claim.note, _reason(mine, other))))
            claim = dataclasses.replace(claim, note=note)
        found.append(claim)
    return found


def _does_not_win(claim: Claim) -> bool:
    """Whether a claim on budgets fails, or is undecided with a number on the wrong side."""
    identity = claim.id.removeprefix("rb_").removeprefix("iwae_")
    if not identity.startswith("budget") or claim.verdict == HOLDS:
        return False
    even = 1.0 if identity.startswith("budget_ratio") else 0.0
    return claim.verdict == FAILS or claim.value is None or claim.value > even


def _reason(row: Diagnostics, other: Diagnostics) -> str:
    text = (
        f"at T = {row.truncation:.0f} the weights count as {row.effective:.1f} candidates and a "
        f"step moves with probability {row.acceptance:.2f}"
    )
    if row.relative is not None and other.relative:
        text += (
            f"; a gradient of {LABELS[row.method]} has {row.relative / other.relative:.1f} times "
            f"the variance × evaluations of {LABELS[other.method]}'s"
        )
    return text


__all__ = ["explained"]
