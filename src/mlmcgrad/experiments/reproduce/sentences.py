"""What claims say, in words: the paper's sentence, ours, the number, and what to take away.

No sentence to take away is about seconds: they depend on the machine and on what else it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlmcgrad.experiments.reproduce.claims import (
    BUDGETS,
    FAILS,
    HOLDS,
    UNDECIDED,
    Axis,
    Claim,
    Quantity,
    Subject,
)
from mlmcgrad.experiments.reproduce.findings import Findings
from mlmcgrad.experiments.reproduce.gather import LABELS, OPTIMIZERS
from mlmcgrad.experiments.reproduce.text import number

# The claims that matter most.
HEADLINES = (
    Subject("nll", "mlmc", "br", "evaluations"),
    Subject("gradient", "mlmc", "br", "evaluations"),
    Subject("nll", "mlmc", "br", "iteration"),
    Subject("decay", "mlmc", "br", "iteration"),
    Subject("rate", "mlmc", None, "iteration"),
    Subject("budget", "mlmc", "br", "evaluations"),
    Subject("nll", "mlmc-rb", "br", "evaluations"),
    Subject("nll", "mlmc-rb", "iwae", "evaluations"),
    Subject("nll", "mlmc", "iwae", "evaluations"),
    Subject("nll", "mlmc", "iwae", "iteration"),
    Subject("nll", "mlmc-is", "iwae", "evaluations"),
    Subject("nll", "jsa", "iwae", "evaluations"),
    Subject("nll", "jsa", "dreg", "evaluations"),
)
_PAPERS = ("mlmc", "br")  # methods of the paper, with their baseline
_MULTILEVEL = ("mlmc", "mlmc-rb", "mlmc-is")
# A budget: its unit, as much of it as the other, and less of it.
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
    """The paper's sentence; empty for what goes beyond it."""
    beyond = subject.method not in _PAPERS or subject.baseline not in ("br", None)
    return "" if beyond else _PAPER.get((subject.quantity, subject.axis), "")


def measured(subject: Subject) -> str:
    """What the number of a claim is."""
    method, baseline = _labels(subject)
    unit, _, _ = _BUDGETS[subject.axis]
    goal = f"when it reaches {baseline}'s final test NLL"
    equal = f"{'after' if subject.axis == 'iteration' else 'for'} equal {unit}"
    return {
        "decay": f"slope of log ‖∇V‖² against log n, {method} minus {baseline}",
        "rate": f"slope of log ‖∇V‖² − log((log n)²/√n) against log n, {method}",
        "nll": f"test NLL {equal}, {method} minus {baseline} (nats)",
        "gradient": f"‖∇V‖² {equal}, {method} minus {baseline}, relative to {baseline}'s",
        "budget": f"{unit} of {method} {goal}, over {baseline}'s",
    }[subject.quantity]


def statement(subject: Subject) -> str:
    """What a claim says if it holds."""
    method, baseline = _labels(subject)
    _, same, less = _BUDGETS[subject.axis]
    better, worse = method, baseline
    if (subject.baseline, subject.axis) == ("br", "iteration"):
        better, worse = baseline, method
    return {
        "decay": f"‖∇V‖² of {method} falls like that of {baseline}, iteration for iteration.",
        "rate": f"‖∇V‖² of {method} falls at least as fast as (log n)²/√n.",
        "nll": f"{better} has a better test NLL than {worse} {same}.",
        "gradient": f"{method} has a smaller ‖∇V‖² than {baseline} {same}.",
        "budget": f"{method} reaches {baseline}'s final test NLL {less}.",
    }[subject.quantity]


def _labels(subject: Subject) -> tuple[str, str]:
    return LABELS[subject.method], LABELS.get(subject.baseline or "", "")


def takeaways(findings: Findings) -> list[str]:
    """Seven sentences; fewer where runs are missing."""

    def select(
        quantity: Quantity, baseline: str | None, axis: Axis, methods: Sequence[str] = tuple(LABELS)
    ) -> list[Claim]:
        key = (quantity, baseline, axis)
        return [
            claim
            for claim in findings.claims
            if (claim.quantity, claim.baseline, claim.axis) == key and claim.method in methods
        ]

    sentences = (
        _count(
            "For the same number of network evaluations, multilevel gradients reach a better test "
            "NLL than BR-IWAE",
            select("nll", "br", "evaluations"),
        ),
        _count(
            "For the same number of network evaluations, plain IWAE, which the paper does not "
            "compare with, reaches a better test NLL than multilevel gradients",
            select("nll", "iwae", "evaluations", _MULTILEVEL),
            FAILS,
        ),
        _count(
            "For the same number of network evaluations, IWAE-DReG reaches a better test NLL than "
            "multilevel gradients",
            select("nll", "dreg", "evaluations", _MULTILEVEL),
            FAILS,
        ),
        _count(
            "For the same number of network evaluations, persistent chains with the wake gradient "
            "(JSA) reach a better test NLL than plain IWAE",
            select("nll", "iwae", "evaluations", ("jsa",)),
        ),
        _count(
            "After the same number of iterations, BR-IWAE, whose iterations cost more, has a "
            "better test NLL than multilevel gradients",
            select("nll", "br", "iteration"),
        ),
        _gradients(select("rate", None, "iteration"), select("gradient", "br", "evaluations")),
        _basis(findings),
    )
    return [sentence for sentence in sentences if sentence]


def _count(lead: str, claims: Sequence[Claim], verdict: str = HOLDS) -> str:
    """How often something happens, by how much, and what happens otherwise."""
    yes, no, undecided = (
        [claim for claim in claims if claim.verdict == each]
        for each in (verdict, FAILS if verdict == HOLDS else HOLDS, UNDECIDED)
    )
    if not claims:
        return ""
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
    if not rates or not budgets:
        return ""
    fast = sum(claim.verdict == HOLDS for claim in rates)
    smaller, larger = (sum(c.verdict == verdict for c in budgets) for verdict in (HOLDS, FAILS))
    undecided = len(budgets) - smaller - larger
    return (
        f"‖∇V‖² falls at least as fast as (log n)²/√n in {fast or 'none'} of {len(rates)} cases; "
        "whether multilevel gradients make it smaller than BR-IWAE does for the same number of "
        f"network evaluations is undecided in {undecided or 'none'} of {len(budgets)} cases"
        + (f", true in {smaller}" if smaller else "")
        + (f", false in {larger}" if larger else "")
        + "."
    )


def _basis(findings: Findings) -> str:
    """What the sentences rest on."""
    seeds = f"{findings.seeds} seed{'s' * (findings.seeds != 1)}"
    images = findings.about.get("training", {}).get("test_images")
    which = f"the first {number(images)} test images" if images else "the same test images"
    errors = [row.nll_se for row in findings.final if row.nll_se is not None]
    error = number(sum(errors) / len(errors)) if errors else ""
    return (
        f"All of this rests on {seeds}, over which the intervals are taken, and on {which} for "
        "every run; the intervals do not cover the choice of these images"
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
