"""What the benchmarks compute besides times."""

from pathlib import Path

import benchmarks
import pytest
import torch
from benchmarks import coverage
from benchmarks.certify_cases import planted, right
from benchmarks.iwae_cost import averaged
from benchmarks.iwae_mlmc_step import record
from benchmarks.scale import exchange, imbalance, loads
from benchmarks.timing import Result, summary

import mlmcgrad as mg
from mlmcgrad.diagnostics import Contender, certify
from mlmcgrad.iwae import DIGITS, BernoulliLikelihood, LatentModel, Objective
from tests.chains import rng


def test_targets_have_a_direction() -> None:
    assert Result("fast", 2.0, 1.9, 2.1, target=1.5).row()["met"] is True
    assert Result("slow", 1.0, 0.9, 1.1, target=1.5).row()["met"] is False
    assert Result("small", 1.0, 0.9, 1.1, target=1.5, at_most=True).row()["met"] is True
    assert summary("large", [1.0, 2.0, 3.0], target=1.5, at_most=True).row() == {
        "name": "large",
        "ratio": 2.0,
        "low": 1.5,
        "high": 2.5,
        "target": 1.5,
        "at_most": True,
        "note": "",
        "met": False,
    }


def test_the_level_law_averages_lengths_to_the_expected_length() -> None:
    lengths = [2.0**k for k in range(11)]
    for kappa, mean in enumerate(averaged(lengths), start=1):
        assert mean == pytest.approx(mg.MLMC(2**kappa).expected_length(1))


def test_the_recorded_passes_are_those_that_the_estimate_reports() -> None:
    model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
    y = torch.rand(20, *DIGITS.shape, generator=rng(1))
    objective = Objective(model, "mlmc", truncation=8)
    estimates = []
    passes = record(
        model, lambda: estimates.append(objective.backward(y, n=1, generator=rng(2)).estimate)
    )
    (estimate,) = estimates
    assert sum(len(p.z) for p in passes if not p.graph) == estimate.evaluations
    assert sum(len(p.z) for p in passes if p.graph) == estimate.loss_evaluations
    assert {p.parameters for p in passes if p.graph} == {True, False}
    assert "log_joint" not in vars(model)


def test_the_table_of_certificates_has_a_row_for_every_case() -> None:
    """All right kernels certified and within their intervals, no planted bug."""
    table = Path(benchmarks.__path__[0], "certify.md").read_text(encoding="utf-8")
    for case in right():
        assert f"| {case.name} | 10 of 10 | 10 of 10 |" in table
    for case in planted():
        assert f"| {case.name} | 0 of 10 | {case.fails} | 10 of 10 |" in table
    rows = [line for line in table.splitlines() if " of 10 |" in line]
    assert len(rows) == len(right()) + len(planted())
    page = Path(benchmarks.__path__[0]).parent / "docs" / "diagnostics.md"
    assert table.strip() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["coverage", "mixed_errors"])
def test_the_page_has_the_tables_of_coverage(name: str) -> None:
    folder = Path(benchmarks.__path__[0])
    written = folder.joinpath(f"{name}.md").read_text(encoding="utf-8")
    page = (folder.parent / "docs" / "validation.md").read_text(encoding="utf-8")
    tables = [part for part in written.split("\n\n") if part.startswith("|")]
    assert len(tables) == {"coverage": 2, "mixed_errors": 1}[name]
    assert all(table.strip() in page for table in tables)
    assert f"python -m benchmarks.{name}" in page


def test_promises_are_counted_as_they_are_made() -> None:
    """For the exact numbers of the chain all is covered; for others nothing."""
    truth = coverage.exact()
    for name, (bias2, variance, steps) in truth.items():
        row = Contender(name, "", 10, bias2, 1e-9, variance, 1e-9, steps)
        assert all(true for _, true in coverage.covered(row, bias2, variance, steps))
        wrong = coverage.covered(row, bias2 + 1e-3, variance + 1e-3, steps)
        assert not any(true for _, true in wrong)
    case = next(case for case in right() if case.name == coverage.CERTIFIED[0])
    generator = torch.Generator().manual_seed(0)
    result = certify(case.gradient, case.x0, generator=generator, evaluations=3e4, tolerance=0.3)
    found = dict(coverage.statements(result, case.exact))
    assert found == dict(zip(coverage.STATEMENTS, (True, True, True, True, False), strict=True))
    far = dict(coverage.statements(result, case.exact + 10.0))
    assert far == dict(zip(coverage.STATEMENTS, (True, False, False, False, True), strict=True))


def test_a_ring_of_two_takes_what_was_measured_between_two() -> None:
    record = {"latency": 1e-4, "seconds_a_byte": 1e-9}
    assert exchange(record, 10**6, 1) == 0.0
    assert exchange(record, 10**6, 2) == pytest.approx(1e-4 + 1e-3)
    assert exchange(record, 10**6, 4) == pytest.approx(3e-4 + 1.5e-3)


def test_dealing_moves_chains_and_loses_none() -> None:
    """8 ranks, 64 chains each, T = 1024: with independent levels the slowest has twice the mean."""
    for dealing in (False, True):
        shared = loads(8, 512, 1024, dealing, seed=3)
        assert shared.sum() == loads(1, 512, 1024, dealing, seed=3).sum()
        assert len(shared) == 8
    slowest, mean = imbalance(8, 512, 1024, dealing=False)
    assert 1.7 < slowest / mean < 2.3
    slowest, mean = imbalance(8, 512, 1024, dealing=True)
    assert 1.2 < slowest / mean < 1.3  # the chain of 1024, in every other step
