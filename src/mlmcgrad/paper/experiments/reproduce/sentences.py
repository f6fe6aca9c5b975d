"""Findings as text: the sentences of the report, notes on claims, and formatted numbers.

No summary sentence is about seconds: they depend on the machine and its load.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mlmcgrad.paper.experiments.reproduce.claims import (
    BUDGETS,
    FAILS,
    HOLDS,
    UNDECIDED,
    Axis,
    Claim,
    Quantity,
    Subject,
)
from mlmcgrad.paper.experiments.reproduce.findings import Diagnostics, ReproductionFindings
from mlmcgrad.paper.experiments.reproduce.settings import LABELS, OPTIMIZERS
from mlmcgrad.paper.runs.process import printable

NONE = "–"
# The symbol of a verdict, and its style in the page.
VERDICTS = {HOLDS: ("✓", "yes"), FAILS: ("✗", "no"), UNDECIDED: ("?", "open")}
_PAPERS = ("mlmc", "br")  # in the paper
_MULTILEVEL = ("mlmc", "mlmc-rb", "mlmc-is")
# Unit of a budget, and phrases for an equal and for a smaller one.
_BUDGETS: dict[Axis, tuple[str, str, str]] = {
    "iteration": ("iterations", "after the same number of iterations", "in fewer iterations"),
    "evaluations": (
        "network evaluations",
        "for the same number of network evaluations",
        "with fewer network evaluations",
    ),
    "seconds": ("seconds of training", "in the same training time", "in less training time"),
}
_PAPER_BUDGET = (
    "When plotted against the computational budget, MLMC-IWAE converges faster for both the "
    "squared gradient norm and the test negative log-likelihood."
)
_PAPER: dict[tuple[str, str], str] = {
    ("decay", "iteration"): (
        "We observe similar convergence rates for both BR-IWAE and MLMC-IWAE in terms of "
        "iterations for the squared gradient norm."
    ),
    ("rate", "iteration"): "The empirical results match the convergence rate O((log N)²/√N).",
    ("nll", "iteration"): "For the negative log-likelihood, BR-IWAE performs slightly better.",
    **{(quantity, axis): _PAPER_BUDGET for quantity in ("nll", "gradient") for axis in BUDGETS},
}


def paper(subject: Subject) -> str:
    """Return the paper's sentence; empty for claims beyond the paper."""
    beyond = subject.method not in _PAPERS or subject.baseline not in ("br", None)
    return "" if beyond else _PAPER.get((subject.quantity, subject.axis), "")


def measured(subject: Subject) -> str:
    """Describe the number of a claim."""
    method, baseline = _labels(subject)
    unit, _, _ = _BUDGETS[subject.axis]
    equal = f"{'after' if subject.axis == 'iteration' else 'for'} equal {unit}"
    return {
        "decay": f"slope of log ‖∇V‖² against log n, {method} minus {baseline}",
        "rate": f"slope of log ‖∇V‖² − log((log n)²/√n) against log n, {method}",
        "nll": f"test NLL {equal}, {method} minus {baseline} (nats)",
        "gradient": f"‖∇V‖² {equal}, {method} minus {baseline}, relative to {baseline}'s",
        "budget": f"{unit} until {method} reaches {baseline}'s final test NLL, over {baseline}'s",
    }[subject.quantity]


def statement(subject: Subject) -> str:
    """Return the statement that is true if the claim holds."""
    method, baseline = _labels(subject)
    _, same, less = _BUDGETS[subject.axis]
    better, worse = method, baseline
    if (subject.baseline, subject.axis) == ("br", "iteration"):
        better, worse = baseline, method
    return {
        "decay": f"Per iteration, ‖∇V‖² of {method} falls at a rate similar to {baseline}'s.",
        "rate": f"‖∇V‖² of {method} falls at least as fast as (log n)²/√n.",
        "nll": f"{better} has a better test NLL than {worse} {same}.",
        "gradient": f"{method} has a smaller ‖∇V‖² than {baseline} {same}.",
        "budget": f"{method} reaches {baseline}'s final test NLL {less}.",
    }[subject.quantity]


def _labels(subject: Subject) -> tuple[str, str]:
    return LABELS[subject.method], LABELS.get(subject.baseline or "", "")


_EQUAL = "For the same number of network evaluations, "
# Sentences, the claims that they count (quantity, baseline, axis, methods), and the verdict with
# which the sentence is true.
_COUNTED: tuple[tuple[str, tuple[Quantity, str, Axis], Sequence[str], str], ...] = (
    (
        f"{_EQUAL}multilevel gradients reach a better test NLL than BR-IWAE",
        ("nll", "br", "evaluations"),
        tuple(LABELS),
        HOLDS,
    ),
    (
        f"{_EQUAL}plain IWAE, which the paper does not compare with, reaches a better test NLL "
        "than multilevel gradients",
        ("nll", "iwae", "evaluations"),
        _MULTILEVEL,
        FAILS,
    ),
    (
        f"{_EQUAL}IWAE-DReG reaches a better test NLL than multilevel gradients",
        ("nll", "dreg", "evaluations"),
        _MULTILEVEL,
        FAILS,
    ),
    (
        f"{_EQUAL}persistent chains with the wake gradient (JSA) reach a better test NLL than "
        "plain IWAE",
        ("nll", "iwae", "evaluations"),
        ("jsa",),
        HOLDS,
    ),
    (
        "After the same number of iterations, BR-IWAE, whose iterations cost more, has a better "
        "test NLL than multilevel gradients",
        ("nll", "br", "iteration"),
        tuple(LABELS),
        HOLDS,
    ),
)


def takeaways(findings: ReproductionFindings) -> list[str]:
    """Summarise the findings in seven sentences, or fewer where runs are missing."""
    by_subject: dict[Any, list[Claim]] = {}
    for claim in findings.claims:
        subject = claim.quantity, claim.baseline, claim.axis
        by_subject.setdefault(subject, []).append(claim)
    sentences = [
        _count(lead, [c for c in by_subject.get(subject, ()) if c.method in methods], verdict)
        for lead, subject, methods, verdict in _COUNTED
    ]
    rates = by_subject.get(("rate", None, "iteration"), [])
    sentences.append(_gradients(rates, by_subject.get(("gradient", "br", "evaluations"), [])))
    return [sentence for sentence in (*sentences, _basis(findings)) if sentence]


def _count(lead: str, claims: Sequence[Claim], verdict: str = HOLDS) -> str:
    """Complete a sentence: in how many cases it is true, by how much, and the other cases."""
    yes, no, undecided = (
        [claim for claim in claims if claim.verdict == each]
        for each in (verdict, FAILS if verdict == HOLDS else HOLDS, UNDECIDED)
    )
    if not claims:
        return ""
    if len(claims) == 1:
        (claim,) = claims
        lead = lead.replace("multilevel gradients reach ", "multilevel gradients reaches ")
        lead = lead.replace("multilevel gradients", LABELS[claim.method])
        if claim.verdict != verdict:
            lead += ": undecided" if undecided else ": the opposite is true"
        interval = f", 95 % interval {number(claim.low)} to {number(claim.high)}"
        size = f"{number(claim.value)} nats{interval if claim.low is not None else ''}"
        return f"{lead} (difference {size})."
    if len(yes) == len(claims):
        every = "both" if len(claims) == 2 else f"all {len(claims)}"
        return f"{lead} in {every} cases (by {_sizes(yes)})."
    text = f"{lead} in {len(yes) or 'none'} of {len(claims)} cases"
    if yes:
        text += f" ({_who(yes)}; by {_sizes(yes)})"
    if no:
        text += f"; in {len(no)} the opposite is true ({_who(no)}; by {_sizes(no)})"
    if undecided and len(undecided) < len(claims):
        text += f"; undecided: {_who(undecided)}"
    return text + ("; all are undecided." if len(undecided) == len(claims) else ".")


def _gradients(rates: Sequence[Claim], budgets: Sequence[Claim]) -> str:
    if not rates or len(budgets) < 2:
        return ""
    fast = sum(claim.verdict == HOLDS for claim in rates)
    smaller, larger = (sum(c.verdict == verdict for c in budgets) for verdict in (HOLDS, FAILS))
    undecided = len(budgets) - smaller - larger
    return (
        f"‖∇V‖² falls at least as fast as (log n)²/√n in {fast or 'none'} of {len(rates)} cases; "
        "for the same number of network evaluations, multilevel gradients make it smaller than "
        f"BR-IWAE in {smaller or 'none'} of {len(budgets)} cases and larger in {larger or 'none'}"
        + (f"; undecided: {undecided}." if undecided else ".")
    )


def _basis(findings: ReproductionFindings) -> str:
    """State the number of seeds and test images."""
    seeds = f"{findings.seeds} seed{'s' * (findings.seeds != 1)}"
    images = findings.about.get("training", {}).get("test_images")
    which = f"the first {number(images)} test images" if images else "the same test images"
    errors = [row.nll_se for row in findings.final if row.nll_se is not None]
    error = number(sum(errors) / len(errors)) if errors else ""
    return (
        f"These results come from {seeds} and {which}; the intervals cover the choice of seeds, "
        "not that of the images"
        + (f" (standard error of one NLL: {error} nats)." if error else ".")
    )


def _who(claims: Sequence[Claim]) -> str:
    by_method = {
        label: [OPTIMIZERS[claim.optimizer] for claim in claims if claim.method == method]
        for method, label in LABELS.items()
    }
    who = [f"{label} with {' and '.join(names)}" for label, names in by_method.items() if names]
    return ", ".join(who)


def _sizes(claims: Sequence[Claim]) -> str:
    sizes = sorted(abs(claim.value) for claim in claims if claim.value is not None)
    return " to ".join(dict.fromkeys(map(number, (sizes[0], sizes[-1])))) + " nats"


def note(claim: Claim, diagnostics: Iterable[Diagnostics]) -> str:
    """Explain a claim: where the runs were compared and, if multilevel does not win there, why.

    SGD with small steps averages gradients, so at a given budget the variance of one gradient times
    its cost matters. With an effective number of candidates near 1, i-SIR rarely moves: the terms
    of a multilevel gradient hardly cancel, and its variance is large.
    """
    parts, baseline = [], LABELS.get(claim.baseline or "", "")
    if claim.reference is not None and claim.axis == "iteration":
        parts.append(f"{baseline}: {claim.reference:.2f}")
    if claim.iterations and claim.truncations and claim.axis != "iteration":
        places = zip(claim.iterations, claim.truncations, strict=True)
        parts.append("at " + " against ".join(f"n = {n:.0f} (T = {t:.0f})" for n, t in places))
    if claim.left_out:
        were = "test was" if claim.left_out == 1 else "tests were"
        parts.append(f"{claim.left_out} {were} left out: estimate ≤ 0")
    if claim.spent is not None:
        parts.append(
            f"{claim.unreached} of {claim.seeds} runs did not reach it after spending at least "
            f"{claim.spent:.2f} of {baseline}'s budget"
        )
    if claim.value is None and claim.quantity == "gradient":
        parts.append(f"‖∇V‖² of {baseline} is too noisy to compare with")
    rows = {row.method: row for row in diagnostics if row.optimizer == claim.optimizer}
    if _does_not_win(claim) and claim.method in rows and claim.baseline in rows:
        parts.append(_reason(rows[claim.method], rows[claim.baseline]))
    return "; ".join(parts)


def _does_not_win(claim: Claim) -> bool:
    """Return whether a claim on budgets fails, or is undecided with the wrong sign."""
    if claim.axis == "iteration" or claim.verdict == HOLDS:
        return False
    even = 1.0 if claim.quantity == "budget" else 0.0
    return claim.verdict == FAILS or claim.value is None or claim.value > even


def _reason(row: Diagnostics, baseline: Diagnostics) -> str:
    text = (
        f"at T = {row.truncation:.0f} the effective number of candidates is {row.effective:.1f} "
        f"and a step moves with probability {row.acceptance:.2f}"
    )
    if row.relative is not None and baseline.relative:
        text += (
            f"; variance × evaluations of one {LABELS[row.method]} gradient are "
            f"{row.relative / baseline.relative:.1f} times those of {LABELS[baseline.method]}"
        )
    return text


def verdict(claim: Claim) -> str:
    """Format the number of a claim, its interval and the verdict."""
    symbol, _ = VERDICTS[claim.verdict]
    return f"{estimate(claim.value, claim.low, claim.high)} {symbol} {claim.verdict}"


def number(value: float | None) -> str:
    """Format a number with three or four significant digits."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0 or 1e-3 <= abs(value) < 1000:
        text = f"{value:.3g}"
    else:
        text = f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.2e}"
    return text.replace("-", "−")


def estimate(value: float | None, low: float | None, high: float | None) -> str:
    """Format a number with its interval, if it has one."""
    if low is None or high is None:
        return number(value)
    return f"{number(value)} ({number(low)} to {number(high)})"


def spread(values: Sequence[float]) -> str:
    """Format mean ± standard deviation."""
    if not values:
        return NONE
    mean = float(np.mean(values))
    if len(values) == 1:
        return _digits(mean, mean / 1000.0)
    error = float(np.std(values, ddof=1))
    return f"{_digits(mean, error)} ± {_digits(error, error)}"


def _digits(value: float, error: float) -> str:
    """Format with as many decimals as two digits of the error need."""
    decimals = 2 if error == 0.0 else min(6, max(0, 1 - math.floor(math.log10(abs(error)))))
    return f"{value:,.{decimals}f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """Format a time in seconds, minutes or hours."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.0f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def markdown(value: object) -> str:
    r"""Format what a file says as Markdown, in which it is a text and nothing else.

    Example:
        >>> markdown("<b> [a](b)")
        '&lt;b&gt; \\[a\\](b)'
    """
    text = html.escape(printable(str(value)).replace("\n", " "), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


def code(value: object) -> str:
    """Format what a file says as code of Markdown.

    Example:
        >>> code("mlmcgrad `x`")
        "`mlmcgrad 'x'`"
    """
    return f"`{printable(str(value)).replace('`', chr(39)).replace(chr(10), ' ')}`"


def setting(value: Any) -> str:
    """Format the value of a setting."""
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value))
    return NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)
