"""A reproduction is read from its folder; damage is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.cli import main
from mlmcgrad.paper.experiments.reproduce.data import read_reproduction
from tests.paper.experiments.reproduce import fabricated


def test_runs_by_method_optimizer_and_seed(tmp_path: Path) -> None:
    optimizers = ("adagrad", "amsgrad")
    folder = fabricated.write(tmp_path, optimizers=optimizers, methods=("br",), pictures=False)
    fabricated.fail(folder, "adagrad-br-0", "no memory")
    reproduction = read_reproduction(folder)
    assert [run.name for run in reproduction.of("br")] == [
        "amsgrad-br-0",
        "amsgrad-br-1",
        "adagrad-br-1",
    ]
    assert [run.name for run in reproduction.of("br", "adagrad")] == ["adagrad-br-1"]
    assert reproduction.of("mlmc") == []
    (failed,) = (run for run in reproduction.runs if not run.complete)
    assert failed.error == "no memory"


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path, methods=("br",), seeds=1, pictures=False)
    before = read_reproduction(folder)
    with (folder / "runs" / "amsgrad-br-0" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 110, "nl')
    assert read_reproduction(folder) == before


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "{", "config.json is damaged"),
        ("config.json", '{"experiment": "reproduce"}', "is damaged (KeyError: 'runs'); restore"),
        (
            "config.json",
            '{"experiment": "scaling"}',
            "its config.json names the experiment 'scaling'",
        ),
        ("config.json", "[]", "config.json is damaged: it is JSON, but not an object"),
        ("runs/amsgrad-br-0/metrics.jsonl", "{]\n", "metrics.jsonl is damaged: line 1 is not JSON"),
        ("runs/amsgrad-br-0/error.json", "{", "error.json is damaged: it is not JSON"),
        ("runs/amsgrad-br-0/metrics.jsonl", '{"nll": 1.0}\n', "is damaged (KeyError: 'iteration')"),
    ],
)
def test_a_damaged_folder_is_named(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br",), seeds=1, pictures=False)
    (folder / name).write_text(text)
    assert main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert str(folder) in error
    assert Path(name).name in error


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "r"
    return fabricated.write(folder, methods=("mlmc",), seeds=1, pictures=False)


def _refused(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """The report is refused in one line that names the file, and nothing is written over."""
    assert main(["report", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mlmcgrad: ")
    assert said.count("\n") == 1
    assert name in said
    assert str(folder) in said
    assert "train it again with `mlmcgrad reproduce --resume`" in said
    assert not (folder / "summary.json").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("settings", []),
        ("runs", {"a": 1}),
        ("runs", []),
        ("seconds", "long"),
        ("versions", "all"),
        ("commit", 7),
    ],
)
def test_config_json_with_a_wrong_field(
    field: str, value: Any, pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(pristine, tmp_path / "r")
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, field: value}))
    _refused(folder, capsys, "config.json")


@pytest.mark.parametrize(
    "name", ["../../elsewhere", "/etc", "..", "", "a/b", "a\x1b[31m", "<script>", "a\nb"]
)
def test_a_run_has_a_plain_name(
    name: str, pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs are folders of these names: one that leads elsewhere would be read from there."""
    folder = shutil.copytree(pristine, tmp_path / "r")
    shutil.copytree(pristine / "runs" / "amsgrad-mlmc-0", tmp_path / "elsewhere")
    about = json.loads((folder / "config.json").read_text())
    about["runs"] = {name: about["runs"].popitem()[1]}
    (folder / "config.json").write_text(json.dumps(about))
    _refused(folder, capsys, f"{name!r} is not the name of a run")


@pytest.mark.parametrize("dataset", ["<script>alert(1)</script>", "$g_$0", "a\x1b[31m", ""])
def test_the_dataset_is_a_known_one(
    dataset: str, pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(pristine, tmp_path / "r")
    about = json.loads((folder / "config.json").read_text())
    about["settings"]["dataset"] = dataset
    (folder / "config.json").write_text(json.dumps(about))
    _refused(folder, capsys, f"{dataset!r} is not the name of a dataset")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("optimizer", None),
        ("batch_size", 0),
        ("base", "1"),
        ("truncation_scale", "1"),
        ("truncation_exponent", 1e6),
    ],
)
def test_settings_of_a_run_with_a_wrong_field(
    field: str, value: Any, pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(pristine, tmp_path / "r")
    about = json.loads((folder / "config.json").read_text())
    (name,) = about["runs"]
    about["runs"][name][field] = value
    (folder / "config.json").write_text(json.dumps(about))
    _refused(folder, capsys, "config.json")


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("nll", "nll", "low"),
        ("nll", "gradient", []),
        ("nll", "seconds", None),
        ("bound", "levels", [1]),
        ("bound", "levels", {"one": 1}),
        ("bound", "effective", {}),
        ("bound", "loss_evaluations", "many"),
    ],
)
def test_metrics_with_a_wrong_field(
    kind: str,
    field: str,
    value: Any,
    pristine: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(pristine, tmp_path / "r")
    (path,) = folder.glob("runs/*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    next(row for row in reversed(rows) if kind in row)[field] = value
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _refused(folder, capsys, "metrics.jsonl")


@pytest.mark.parametrize("some", [-1, 0])
def test_a_complete_run_has_its_last_test(some: int, pristine: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pristine, tmp_path / "r")
    (path,) = folder.glob("runs/*/metrics.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:some]))
    tests = [row for row in map(json.loads, lines[:some]) if "nll" in row]
    last = tests[-1]["iteration"] if tests else None
    said = rf"^{path} is damaged: its last test is at iteration {last}, but .* says 200; restore"
    with pytest.raises(ValueError, match=said):
        read_reproduction(folder)
