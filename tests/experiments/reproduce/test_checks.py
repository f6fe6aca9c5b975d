"""What a reproduction's files must hold: each field is checked, and named."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.experiments.reproduce.checks import check_about, check_complete, check_rows
from tests.experiments.reproduce import fabricated

PATH = Path("somewhere/runs/amsgrad-br-0/metrics.jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checks")
    return fabricated.write(folder, methods=("mlmc",), seeds=1, pictures=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("settings", []),
        ("settings", {"dataset": 3}),
        ("runs", {"a": 1}),
        ("seconds", "long"),
        ("seconds", -1.0),
        ("cores", 0),
        ("versions", "all"),
        ("command", 7),
    ],
)
def test_config_json(field: str, value: Any, folder: Path) -> None:
    path = folder / "config.json"
    about = json.loads(path.read_text())
    check_about(path, about)
    with pytest.raises(ValueError, match=rf"^{path} is damaged: {field} is "):
        check_about(path, {**about, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "vae"),
        ("optimizer", None),
        ("seed", 1.5),
        ("rao_blackwell", 1),
        ("batch_size", 0),
        ("base", True),
        ("truncation_scale", "1"),
        ("truncation_exponent", 1e6),
    ],
)
def test_settings_of_a_run(field: str, value: Any, folder: Path) -> None:
    about = json.loads((folder / "config.json").read_text())
    (name,) = about["runs"]
    about["runs"][name][field] = value
    with pytest.raises(ValueError, match=rf"of the run {name} {field} is "):
        check_about(PATH, about)
    del about["runs"][name][field]
    with pytest.raises(ValueError, match=rf"of the run {name} {field} is missing"):
        check_about(PATH, about)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("nll", "nll", "low"),
        ("nll", "nll", float("inf")),
        ("nll", "gradient", []),
        ("nll", "iteration", 0),
        ("nll", "seconds", None),
        ("bound", "levels", [1]),
        ("bound", "levels", {"one": 1}),
        ("bound", "levels", {"1": -1}),
        ("bound", "effective", {}),
        ("bound", "evaluations", -1),
        ("bound", "loss_evaluations", "many"),
    ],
)
def test_lines(kind: str, field: str, value: Any, folder: Path) -> None:
    (path,) = folder.glob("runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    check_rows(PATH, rows)
    number = next(i for i, row in enumerate(rows) if kind in row)
    rows[number][field] = value
    said = rf"^{PATH} is damaged: in line {number + 1} {field} is .*; move {PATH.parent} away"
    with pytest.raises(ValueError, match=said):
        check_rows(PATH, rows)


def test_complete_run_has_its_last_test(folder: Path) -> None:
    (path,) = folder.glob("runs/*/metrics.jsonl")
    summary = path.with_name("summary.json")
    tests = [row for row in map(json.loads, path.read_text().splitlines()) if "nll" in row]
    check_complete(path, tests, summary)
    end = tests[-1]["iteration"]
    for some, last in ((tests[:-1], tests[-2]["iteration"]), ([], None)):
        said = rf"^{path} is damaged: its last test is of iteration {last}, but .* says {end}; move"
        with pytest.raises(ValueError, match=said):
            check_complete(path, some, summary)
