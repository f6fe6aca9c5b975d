"""Findings are computed from runs alone, and `summary.json` holds them."""

import dataclasses
import json
from pathlib import Path

import pytest

from mlmcgrad.experiments.reproduce.claims import evaluate
from mlmcgrad.experiments.reproduce.findings import find
from mlmcgrad.experiments.reproduce.gather import gather
from tests.experiments.reproduce import fabricated


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reproduction with a failed run."""
    folder = fabricated.write(tmp_path_factory.mktemp("findings") / "digits", seeds=2)
    fabricated.fail(folder, "amsgrad-mlmc-1", "FloatingPointError")
    return folder


def test_findings_are_those_of_the_runs(folder: Path) -> None:
    reproduction = gather(folder)
    (findings,) = find([reproduction])
    assert findings.name == "digits"
    assert (findings.runs, findings.seeds) == (14, 2)
    assert findings.claims == evaluate(reproduction)
    assert len(findings.claims) > 20
    assert [(row.name, row.error) for row in findings.failed] == [
        ("amsgrad-mlmc-1", "FloatingPointError")
    ]
    assert len(findings.final) == 13  # one of fourteen runs failed
    rows = {(row.method, row.seed): row for row in findings.final}
    last = reproduction.of("mlmc-rb", "amsgrad")[1].tests[-1]
    for name in ("nll", "evaluations", "seconds", "iteration", "gradient", "nll_se"):
        assert getattr(rows["mlmc-rb", 1], name) == last[name]
    assert rows["mlmc-rb", 1].truncation == pytest.approx(200**0.5)
    assert rows["iwae", 0].truncation == 1.0


def test_the_record_is_the_whole_but_the_curves(folder: Path) -> None:
    (findings,) = find([gather(folder)])
    record = json.loads(json.dumps(findings.record(), allow_nan=False))
    names = {field.name for field in dataclasses.fields(findings)}
    assert set(record) == names - {"curves"}
    assert fabricated.read_back(record) == dataclasses.replace(
        findings, curves=fabricated.NO_CURVES
    )
    assert str(folder) not in json.dumps(record)  # a folder of this machine is nobody's business
    assert record["about"]["settings"]["preset"] == "quick"
    assert record["about"]["training"]["batch_size"] == fabricated.BATCH
    assert "seed" not in record["about"]["training"]  # it differs between runs


def test_json_has_no_infinity(folder: Path) -> None:
    claim = dataclasses.replace(fabricated.claims()[0], high=float("inf"))
    (row,) = fabricated.findings(folder, (claim,)).record()["claims"]
    assert row["high"] is None


def test_diagnostics_are_of_the_same_iterations(folder: Path) -> None:
    reproduction = gather(folder)
    (findings,) = find([reproduction])
    rows = {row.method: row for row in findings.diagnostics}
    br, mlmc = rows["br"], rows["mlmc"]
    assert {row.iteration for row in rows.values()} == {100}
    assert br.truncation == mlmc.truncation == pytest.approx(10.0)  # √100
    assert rows["iwae"].truncation == 1.0
    assert rows["iwae"].evaluations == pytest.approx(fabricated.CANDIDATES)
    assert br.decoded_again == pytest.approx(2.0)
    last = [run.lines for run in reproduction.of("br", "amsgrad")]
    assert br.evaluations == pytest.approx(
        sum(rows[-1]["evaluations"] - rows[-2]["evaluations"] for rows in last) / 2 / 500
    )
    second = sum(rows[-1]["theta_squared"] for rows in last) / 2
    gradient = sum(run.tests[-1]["gradient"] for run in reproduction.of("br", "amsgrad")) / 2
    assert br.variance == pytest.approx(second - gradient)
    assert br.relative == 1.0
    assert mlmc.variance is not None
    assert br.variance is not None
    expected = mlmc.variance * mlmc.evaluations / (br.variance * br.evaluations)
    assert mlmc.relative == pytest.approx(expected)


def test_two_of_one_dataset_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [
        fabricated.write(tmp_path / name, dataset, methods=("br",), seeds=1, pictures=False)
        for name, dataset in (("first", "digits"), ("second", "digits"), ("third", "cifar10"))
    ]
    names = [findings.name for findings in find([gather(folder) for folder in folders])]
    assert names == ["digits (first)", "digits (second)", "CIFAR-10"]
