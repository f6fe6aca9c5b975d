"""A reproduction is read from its folder; damage is named."""

from pathlib import Path

import pytest

from mlmcgrad.cli import main
from mlmcgrad.experiments.reproduce.gather import gather
from tests.experiments.reproduce import fabricated


def test_runs_by_method_optimizer_and_seed(tmp_path: Path) -> None:
    optimizers = ("adagrad", "amsgrad")
    folder = fabricated.write(tmp_path, optimizers=optimizers, methods=("br",), pictures=False)
    fabricated.fail(folder, "adagrad-br-0", "no memory")
    reproduction = gather(folder)
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
    before = gather(folder)
    with (folder / "runs" / "amsgrad-br-0" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 110, "nl')
    assert gather(folder) == before


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "{", "config.json is damaged"),
        (
            "config.json",
            '{"experiment": "reproduce"}',
            "config.json is damaged: settings is missing",
        ),
        ("config.json", '{"experiment": "scaling"}', "not a reproduction"),
        ("config.json", "[]", "config.json is damaged: it is JSON, but not an object"),
        ("runs/amsgrad-br-0/metrics.jsonl", "{]\n", "metrics.jsonl is damaged: line 1 is not JSON"),
        ("runs/amsgrad-br-0/error.json", "{", "error.json is damaged: it is not JSON"),
        ("runs/amsgrad-br-0/metrics.jsonl", '{"nll": 1.0}\n', "in line 1 iteration is missing"),
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
