"""A run folder belongs to one experiment with its settings; what is in the way is only moved."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.paper.runs.folder import Owner, aside, check_same, held, versions, write_config
from tests.folders import content

TASTING = Owner("tasting", ("tasting.png", "glass-[0-9]*.txt"))
TRAIN = Owner("train", ("checkpoints",))


@dataclass(frozen=True)
class Tasting:
    out: Path
    seed: int = 3
    notes: tuple[str, ...] = ("sweet",)


def _enter(folder: Path, owner: Owner = TASTING, **how: bool) -> dict[str, Any]:
    with held(folder, owner, **{"resume": False, "force": False, **how}) as before:
        return before


@pytest.mark.parametrize("resume", [False, True])
def test_an_empty_folder_is_anyones(tmp_path: Path, resume: bool) -> None:
    assert _enter(tmp_path / "new" / "er", resume=resume) == {}
    (tmp_path / "notes.txt").write_text("mine")
    assert _enter(tmp_path, resume=resume) == {}
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_it_is_opened_once_or_resumed(tmp_path: Path) -> None:
    write_config(tmp_path, TASTING, settings={"seed": 3})
    with pytest.raises(
        ValueError, match=r"out: .* already holds a run of tasting; .*--resume.*--out.*--force"
    ):
        _enter(tmp_path)
    before = _enter(tmp_path, resume=True)
    assert before["settings"] == {"seed": 3}
    assert before["versions"] == versions()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", '{"experiment": "train"}', "holds a run of train, as its config"),
        ("config.json", '{"mine": 1}', "holds a foreign config.json"),
        ("config.json", '{"experiment": 3}', "holds a foreign config.json"),
        ("config.json", "mine", r"config.json is damaged: it is not JSON"),
        ("metrics.jsonl", "mine", "holds metrics.jsonl, but no config.json"),
        ("summary.json", "mine", "holds summary.json, but no config.json"),
        ("tasting.png", "mine", "holds tasting.png, but no config.json"),
        ("glass-12.txt", "mine", "holds glass-12.txt, but no config.json"),
    ],
)
def test_what_is_not_of_this_experiment_is_refused_and_left_alone(
    name: str, text: str, said: str, resume: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{said}.*--out.*--force"):
        _enter(tmp_path, resume=resume)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: text}


def test_force_moves_the_run_aside_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An owner knows by name what it writes, whatever config.json says."""
    write_config(tmp_path, Owner("train", ("*",)))
    mine = {"notes.txt": b"mine", "old-1/mine.txt": b"mine", "glass-half.txt": b"mine"}
    run = {
        "glass-12.txt": b"1",
        "summary.json": b"{}",
        "checkpoints/1.pt": b"2",
        "tasting.png": b"",
    }
    for name, text in {**mine, **run}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    run["config.json"] = (tmp_path / "config.json").read_bytes()
    with caplog.at_level(logging.WARNING):
        assert _enter(tmp_path, TASTING, force=True) == {}
    moved = {f"old-2/{name}": text for name, text in run.items()}
    assert content(tmp_path) == {**mine, **moved}
    assert f"now in {tmp_path / 'old-2'}" in caplog.text
    assert _enter(tmp_path, TASTING, force=True) == {}  # nothing is left to move
    assert not (tmp_path / "old-3").exists()


def test_force_does_not_need_a_config_that_can_be_read(tmp_path: Path) -> None:
    for i, text in enumerate(("", '{"files": 3}', '{"files": ["../*", 3]}'), start=1):
        (tmp_path / "config.json").write_text(text)
        assert _enter(tmp_path, force=True) == {}
        assert content(tmp_path / f"old-{i}") == {"config.json": text.encode()}


def test_resume_is_stronger_than_force(tmp_path: Path) -> None:
    write_config(tmp_path, TASTING)
    assert _enter(tmp_path, resume=True, force=True)["experiment"] == "tasting"
    with pytest.raises(ValueError, match="holds a run of tasting"):
        _enter(tmp_path, TRAIN, resume=True, force=True)


def test_checkpoints_need_no_config(tmp_path: Path) -> None:
    """They have the settings too: a training goes on without the file, or once it is removed."""
    (tmp_path / "checkpoints").mkdir()
    assert _enter(tmp_path, TRAIN, resume=True) == {}
    with pytest.raises(ValueError, match=r"holds checkpoints, but no config.json"):
        _enter(tmp_path, TRAIN)
    with pytest.raises(ValueError, match=r"holds checkpoints, but no config.json"):
        _enter(tmp_path, resume=True)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is damaged.*remove it, for the checkpoints"):
        _enter(tmp_path, TRAIN, resume=True)


def test_what_cannot_be_moved_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file.*absent"):
        aside(tmp_path, ["absent"])


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (
            {"seed": 4, "notes": ["sweet"]},
            "^seed must be 4 as .*config.json says, got 3; .*--force",
        ),
        ({"notes": ["sour"]}, "^notes must be"),
        ({"seed": "3"}, "^seed must be '3' as .*config.json says, got 3"),
        ({"seed": None}, "^seed must be None"),
        ([], "config.json is damaged: it has no settings"),
        (None, "config.json is damaged: it has no settings"),
    ],
)
def test_other_settings_are_refused_by_name(before: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        check_same(tmp_path / "config.json", before, Tasting(tmp_path), ("out",))


def test_the_same_settings(tmp_path: Path) -> None:
    """Folders may move; what a file lacks had the default; more is of no interest."""
    path = tmp_path / "config.json"
    for before in ({}, {"seed": 3, "out": "elsewhere", "colour": "red"}, {"notes": ["sweet"]}):
        check_same(path, before, Tasting(tmp_path), ("out",))
    with pytest.raises(ValueError, match=r"^rows must be None"):
        check_same(path, {}, Tasting(tmp_path), ("out",), rows=5)
    write_config(tmp_path, TASTING)
    assert json.loads(path.read_text())["files"] == list(TASTING.files)
