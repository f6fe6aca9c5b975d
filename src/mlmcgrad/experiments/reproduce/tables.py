"""The tables of the report: findings as text, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlmcgrad.experiments.reproduce.claims import FAILS, HOLDS, UNDECIDED, Claim, Subject
from mlmcgrad.experiments.reproduce.diagnostics import Diagnostics
from mlmcgrad.experiments.reproduce.explain import note
from mlmcgrad.experiments.reproduce.findings import Findings
from mlmcgrad.experiments.reproduce.gather import LABELS, OPTIMIZERS
from mlmcgrad.experiments.reproduce.sentences import paper
from mlmcgrad.experiments.reproduce.text import estimate, number, setting, spread

# The symbol of a verdict, and the style of the page for it.
VERDICTS = {HOLDS: ("✓", "yes"), FAILS: ("✗", "no"), UNDECIDED: ("?", "open")}


def optimizers(findings: Findings) -> list[str]:
    """The optimizers of the claims, in their order."""
    present = {claim.optimizer for claim in findings.claims}
    return [name for name in OPTIMIZERS if name in present]


def claim_groups(claims: Sequence[Claim]) -> dict[str, dict[Subject, dict[str, Claim]]]:
    """The claims by the paper's sentence ("" for those beyond it), subject and optimizer."""
    groups: dict[str, dict[Subject, dict[str, Claim]]] = {}
    for claim in sorted(claims, key=lambda claim: not paper(claim)):
        rows = groups.setdefault(paper(claim), {})
        rows.setdefault(claim.subject, {})[claim.optimizer] = claim
    return groups


def counts(claims: Sequence[Claim]) -> str:
    """How many claims have each verdict."""
    verdicts = [claim.verdict for claim in claims]
    return ", ".join(f"{VERDICTS[each][0]} {each}: {verdicts.count(each)}" for each in VERDICTS)


def value(claim: Claim) -> str:
    """The number of a claim, its interval, and the verdict."""
    symbol, _ = VERDICTS[claim.verdict]
    return f"{estimate(claim.value, claim.low, claim.high)} {symbol} {claim.verdict}"


def final_rows(findings: Findings) -> list[dict[str, str]]:
    """The last tests, mean ± standard deviation over seeds."""
    rows = []
    for optimizer, name in OPTIMIZERS.items():
        for method, label in LABELS.items():
            last = [r for r in findings.final if (r.optimizer, r.method) == (optimizer, method)]
            if last:
                rows.append(
                    {
                        "optimizer": name,
                        "method": label,
                        "seeds": str(len(last)),
                        "iterations": number(max(row.iteration for row in last)),
                        "truncation": number(max(row.truncation for row in last)),
                        "nll": spread([row.nll for row in last]),
                        "gradient": spread([r.gradient for r in last if r.gradient is not None]),
                        "evaluations": number(
                            float(np.mean([row.evaluations for row in last])) / 1e6
                        ),
                        "seconds": number(float(np.mean([row.seconds for row in last]))),
                    }
                )
    return rows


def shares(findings: Findings) -> dict[Diagnostics, tuple[float | None, float | None]]:
    """Decoder passes of an iteration over BR-IWAE's: as budgets count them, and with all of them.

    An evaluation decodes a draw to weigh it; what keeps a weight is decoded again, with a gradient,
    which no budget counts.
    """
    of_br = {row.optimizer: row for row in findings.diagnostics if row.method == "br"}
    every: dict[Diagnostics, tuple[float | None, float | None]] = {}
    for row in findings.diagnostics:
        br = of_br.get(row.optimizer)
        counted = None if br is None else row.evaluations / br.evaluations
        both = None
        if br is not None and br.decoded_again is not None and row.decoded_again is not None:
            passes = row.evaluations + row.decoded_again
            both = passes / (br.evaluations + br.decoded_again)
        every[row] = counted, both
    return every


def notes(findings: Findings) -> dict[Claim, str]:
    """The note on every claim that has one."""
    every = {claim: note(claim, findings.diagnostics) for claim in findings.claims}
    return {claim: text for claim, text in every.items() if text}


def configuration(findings: Findings) -> dict[str, str]:
    """Settings of the reproduction, and then what all its training runs share."""
    both = {**findings.about["settings"], **findings.about["training"]}
    return {key: setting(value) for key, value in both.items()}
