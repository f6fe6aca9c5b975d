"""What stands beside a claim: where it was compared, and why multilevel does not win there.

SGD with small steps averages gradients, so for a budget what counts is the variance of one gradient
times its cost. i-SIR whose k weights have an effective number near 1 keeps its state most of the
time: then the terms of a multilevel gradient hardly cancel, and its variance is large.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlmcgrad.experiments.reproduce.claims import FAILS, HOLDS, Claim
from mlmcgrad.experiments.reproduce.diagnostics import Diagnostics
from mlmcgrad.experiments.reproduce.gather import LABELS


def note(claim: Claim, diagnostics: Iterable[Diagnostics]) -> str:
    """The note on a claim; claims on budgets that do not hold say what the gradients were like."""
    parts, baseline = [], LABELS.get(claim.baseline or "", "")
    if claim.reference is not None and claim.axis == "iteration":
        parts.append(f"{baseline}: {claim.reference:.2f}")
    if claim.iterations and claim.truncations and claim.axis != "iteration":
        places = zip(claim.iterations, claim.truncations, strict=True)
        parts.append("at " + " against ".join(f"n = {n:.0f} (T = {t:.0f})" for n, t in places))
    if claim.left_out:
        tests = f"test{'s' * (claim.left_out > 1)}"
        parts.append(f"{claim.left_out} {tests} with an estimate ≤ 0 left out")
    if claim.spent is not None:
        parts.append(
            f"{claim.unreached} of {claim.seeds} runs ended before they reached it, having spent "
            f"{claim.spent:.2f} of {baseline}'s budget or more"
        )
    if claim.value is None and claim.quantity == "gradient":
        parts.append(f"‖∇V‖² of {baseline} is lost in noise")
    rows = {row.method: row for row in diagnostics if row.optimizer == claim.optimizer}
    if _does_not_win(claim) and claim.method in rows and claim.baseline in rows:
        parts.append(_reason(rows[claim.method], rows[claim.baseline]))
    return "; ".join(parts)


def _does_not_win(claim: Claim) -> bool:
    """Whether a claim on budgets fails, or is undecided with a number on the wrong side."""
    if claim.axis == "iteration" or claim.verdict == HOLDS:
        return False
    even = 1.0 if claim.quantity == "budget" else 0.0
    return claim.verdict == FAILS or claim.value is None or claim.value > even


def _reason(row: Diagnostics, baseline: Diagnostics) -> str:
    text = (
        f"at T = {row.truncation:.0f} the weights count as {row.effective:.1f} candidates and a "
        f"step moves with probability {row.acceptance:.2f}"
    )
    if row.relative is not None and baseline.relative:
        text += (
            f"; a gradient of {LABELS[row.method]} has {row.relative / baseline.relative:.1f} "
            f"times the variance × evaluations of {LABELS[baseline.method]}'s"
        )
    return text
