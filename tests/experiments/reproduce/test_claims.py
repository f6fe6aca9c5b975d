"""Verdicts on runs whose curves are formulas."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from mlmcgrad.experiments.reproduce import markdown as claims_markdown
from mlmcgrad.experiments.reproduce.claims import FAILS, HOLDS, UNDECIDED, Claim, evaluate
from mlmcgrad.experiments.reproduce.gather import Reproduction, TrainingRun
from tests.experiments.reproduce.test_compare import formula_run

Curve = Callable[[float], float]


def _claims(runs: list[TrainingRun]) -> dict[str, Claim]:
    about = {"settings": {"dataset": "digits"}}
    found = evaluate(Reproduction(Path(), about, runs))
    assert len({(claim.id, claim.optimizer) for claim in found}) == len(found)
    return {claim.id: claim for claim in found}


def _runs(
    offset: float,
    slope: float = -0.5,
    method: str = "mlmc",
    last: int = 2048,
    br_last: int = 256,
    spread: float = 0.01,
    seeds: int = 3,
) -> list[TrainingRun]:
    """BR: NLL 9.5 − log2 n, S = n^{-0.6}, cost 4. The other: 9.5 + offset − log2 n, n^slope, 1."""
    found = []
    for seed in range(1, seeds + 1):
        wiggle = spread * (seed - 2)

        def nll(n: float, wiggle: float = wiggle) -> float:
            return 9.5 + offset + wiggle - math.log2(n)

        def gradient(n: float, wiggle: float = wiggle) -> float:
            return float(n ** (slope + wiggle / 5.0))

        found += [
            formula_run(lambda n: 9.5 - math.log2(n), lambda n: n**-0.6, 4.0, br_last, seed, "br"),
            formula_run(nll, gradient, 1.0, last, seed, method),
        ]
    return found


def test_the_papers_picture() -> None:
    """Slightly worse per iteration, better per budget: everything holds."""
    found = _claims(_runs(offset=0.5))
    assert found["per_epoch"].value == pytest.approx(0.5)
    assert found["per_epoch"].verdict == HOLDS
    assert found["budget_nll"].value == pytest.approx(-1.5)
    assert found["budget_nll"].verdict == HOLDS
    assert found["budget_nll"].note == "at n = 1024 (T = 64) against n = 256 (T = 32)"
    assert found["budget_nll_seconds"].verdict == HOLDS
    assert found["decay"].value == pytest.approx(0.1)
    assert found["decay"].verdict == HOLDS
    assert found["budget_ratio"].value == pytest.approx(2.0**8.5 / 1024.0)
    assert found["budget_ratio"].verdict == HOLDS
    # At n = 1024 and 256: 1024^-0.5 against 256^-0.6.
    expected = 1024.0**-0.5 / 256.0**-0.6 - 1.0
    assert found["budget_gradient"].value == pytest.approx(expected, abs=0.01)
    assert found["budget_gradient"].verdict == HOLDS
    for claim in found.values():
        assert claim.dataset == "digits"
        assert claim.optimizer == "amsgrad"
        assert claim.method == "mlmc"
        assert (claim.paper == "") == claim.id.startswith("budget_ratio")


def test_the_opposite_picture() -> None:
    found = _claims(_runs(offset=2.5, slope=-0.1))
    assert found["budget_nll"].verdict == FAILS
    assert found["budget_gradient"].verdict == FAILS
    assert found["decay"].verdict == FAILS
    assert found["rate"].verdict == FAILS
    assert found["budget_ratio"].value == pytest.approx(2.0**10.5 / 1024.0)
    assert found["budget_ratio"].verdict == FAILS
    better = _claims(_runs(offset=-0.5, slope=-1.0))
    assert better["per_epoch"].verdict == FAILS
    assert better["rate"].verdict == HOLDS


def test_noise_decides_nothing() -> None:
    found = _claims(_runs(offset=0.5, spread=2.0))
    for name in ("per_epoch", "budget_nll", "budget_ratio", "decay"):
        assert found[name].verdict == UNDECIDED
    alone = _claims(_runs(offset=0.5, seeds=1))
    assert alone["per_epoch"].value == pytest.approx(0.51, abs=0.05)
    assert alone["per_epoch"].low is None
    assert {claim.verdict for claim in alone.values()} == {UNDECIDED}


def test_a_goal_that_was_not_reached() -> None:
    short = _claims(_runs(offset=0.5, last=256))["budget_ratio"]
    assert short.value is None
    assert short.verdict == UNDECIDED
    assert "3 of 3 runs ended before they reached it, having spent 0.25 of" in short.note
    never = _claims(_runs(offset=5.0))["budget_ratio"]
    assert never.value is None
    assert never.verdict == FAILS


def test_beyond_the_paper_and_incomplete_runs() -> None:
    runs = _runs(offset=0.5, method="mlmc-rb")
    found = _claims(runs)
    assert set(found) >= {"rb_decay", "rb_rate", "rb_budget_nll", "rb_budget_ratio"}
    assert all(claim.paper == "" for claim in found.values())
    assert not _claims([run for run in runs if run.method != "br"])
    assert not _claims([])


def test_against_iwae() -> None:
    """IWAE: NLL 9 − log2 n at the cost 1/2; MLMC 8 − log2 n at 1: better per iteration only."""
    runs = [
        formula_run(
            lambda n, w=0.01 * seed, c=c: c + w - math.log2(n),  # type: ignore[misc]
            cost=cost,
            seed=seed,
            method=method,
        )
        for seed in (1, 2, 3)
        for method, c, cost in (("iwae", 9.0, 0.25), ("mlmc", 8.0, 1.0))
    ]
    found = _claims(runs)
    assert set(found) == {"iwae_per_epoch", "iwae_budget_nll", "iwae_budget_nll_seconds"}
    assert found["iwae_per_epoch"].value == pytest.approx(-1.0)
    assert found["iwae_per_epoch"].verdict == HOLDS
    # Both have spent 512 at n = 2048 (IWAE, −2) and n = 512 (MLMC, −1).
    assert found["iwae_budget_nll"].value == pytest.approx(1.0)
    assert found["iwae_budget_nll"].verdict == FAILS
    assert found["iwae_budget_nll"].note == "at n = 512 (T = 45) against n = 2048 (T = 1)"


def test_without_gradient_norms_there_are_no_claims_on_them() -> None:
    runs = _runs(offset=0.5)
    for run in runs:
        for row in run.tests:
            del row["gradient"]
    assert set(_claims(runs)) == {
        "per_epoch",
        "budget_nll",
        "budget_ratio",
        "budget_nll_seconds",
        "budget_ratio_seconds",
    }


def test_markdown_has_every_claim() -> None:
    found = list(_claims(_runs(offset=0.5)).values())
    about = {"settings": {"dataset": "digits"}, "command": "mlmcgrad reproduce", "cores": 2}
    text = claims_markdown.page(["digits"], [Reproduction(Path(), about, [])], [found])
    assert text.startswith("# Claims on digits\n\n`mlmcgrad reproduce`, unknown on 2 cores")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    sentences = {claim.paper for claim in found}
    assert len(rows) == len(found) + 2 * len(sentences)
    assert all(f"“{sentence}”" in text for sentence in sentences if sentence)
    assert {row.count(" | ") for row in rows} == {1}
    (nll,) = (row for row in rows if "test NLL for equal network evaluations" in row)
    assert "−1.5 (" in nll
    assert "✓ holds |" in nll
    assert "- budget_nll, AMSGrad: at n = 1024 (T = 64)" in text
