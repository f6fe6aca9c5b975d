"""A run goes on from what is intact, says what is not, and never starts over by itself."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.paper.training import loop
from tests.paper.training import tiny


def _aside(folder: Path) -> dict[str, bytes]:
    place = folder / "old-1"
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def test_force_starts_over_and_keeps_the_old_run(whole: Path, tmp_path: Path) -> None:
    tiny.run(tmp_path, seed=2)
    (tmp_path / "samples-mine.png").write_bytes(b"mine")
    run = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*.*")}
    assert run.pop("samples-mine.png") == b"mine"
    with pytest.raises(ValueError, match=r"^seed must be 2 as .*config.json says, got 1"):
        tiny.run(tmp_path, resume=True, force=True)  # what is resumed is not moved
    with pytest.raises(ValueError, match="device must be cpu"):
        tiny.run(tmp_path, force=True, device="nowhere")
    assert not (tmp_path / "old-1").exists()
    tiny.run(tmp_path, force=True)
    assert _aside(tmp_path) == run
    assert (tmp_path / "samples-mine.png").read_bytes() == b"mine"
    (tmp_path / "samples-mine.png").unlink()
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("left", ["metrics.jsonl", "summary.json"])
def test_a_run_whose_checkpoints_are_gone_does_not_start_over(
    left: str, seed: int, tmp_path: Path
) -> None:
    tiny.run(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / ("summary.json" if left == "metrics.jsonl" else "metrics.jsonl")).unlink()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    said = rf"holds no checkpoint, but .*{left} .*--force" if seed == 1 else "seed must be 1 as"
    with pytest.raises(ValueError, match=said):
        tiny.run(tmp_path, resume=True, seed=seed)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_that_had_only_begun_begins_again(whole: Path, seed: int, tmp_path: Path) -> None:
    """Killed before its first checkpoint: nothing is lost, and its settings are known."""
    (tmp_path / "config.json").write_bytes((whole / "config.json").read_bytes())
    (tmp_path / "metrics.jsonl").touch()
    if seed == 1:
        tiny.run(tmp_path, resume=True)
        assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))
    else:
        with pytest.raises(ValueError, match="seed must be 1 as"):
            tiny.run(tmp_path, resume=True, seed=seed)


def _bad_line(content: bytes, line: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join([*lines[:2], line, *lines[3:]])


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda content: content[: len(content) // 2], 3),
        (lambda content: None, 0),
        (lambda content: _bad_line(content, b'{"\xff": 1}\n'), 6),
        (lambda content: _bad_line(content, b"\n"), 6),
        (lambda content: _bad_line(content, b"3\n"), 6),
        (lambda content: _bad_line(content, b'{"nll": 1}\n'), 6),
    ],
)
def test_damaged_metrics_are_named_and_the_checkpoint_stays_usable(
    damage: Any, kept: int, whole: Path, tmp_path: Path
) -> None:
    said = rf"metrics.jsonl has {kept} intact lines of the 7 up to iteration 20"
    tiny.run(tmp_path, iterations=20)
    path = tmp_path / "metrics.jsonl"
    damaged = damage(path.read_bytes())
    path.unlink() if damaged is None else path.write_bytes(damaged)
    before = {p.name: p.read_bytes() for p in tmp_path.rglob("*.*")}
    with pytest.raises(ValueError, match=rf"{said}.*iteration 20 is intact.*--resume --force"):
        tiny.run(tmp_path, resume=True)
    assert {p.name: p.read_bytes() for p in tmp_path.rglob("*.*")} == before
    tiny.run(tmp_path, iterations=22, resume=True, force=True)
    assert _aside(tmp_path) == ({} if damaged is None else {"metrics.jsonl": damaged})
    tiny.run(tmp_path, resume=True)  # what is missing was accepted once and for all
    expected, found = tiny.remains(whole), tiny.remains(tmp_path)
    assert tiny.same(expected["state"]["model"], found["state"]["model"])
    intact = [row for row in expected["metrics"] if row in found["metrics"]]
    assert [row for row in found["metrics"] if row in expected["metrics"]] == intact
    assert len(intact) >= len(expected["metrics"]) - 7


STRUCTURES: dict[str, Any] = {
    "no model": lambda s: s.pop("model"),
    "a tensor less": lambda s: s["model"].popitem(),
    "another shape": lambda s: s["model"].update({next(iter(s["model"])): torch.zeros(3)}),
    "no tensor": lambda s: s["model"].update({next(iter(s["model"])): "text"}),
    "its groups": lambda s: s["optimizer"].update(param_groups=[]),
    "a list": lambda s: s.update(optimizer=[]),
    "a generator": lambda s: s.update(generator=torch.zeros(3, dtype=torch.uint8)),
    "its numbers": lambda s: s.update(generator=torch.full_like(s["generator"], 255)),
    "sums": lambda s: s["window"].update(total=[]),
    "seconds": lambda s: s.pop("seconds"),
    "settings": lambda s: s.update(settings=None),
    "another seed": lambda s: s["settings"].update(seed=7),
    "images": lambda s: s["source"].update(levels=256),
}


@pytest.mark.parametrize("change", STRUCTURES)
def test_a_checkpoint_of_another_structure_is_refused_by_name(
    change: str, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum is right. The one before it is used; if there is none, nothing is changed."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    state = loop.load_checkpoint(newer)
    STRUCTURES[change](state)
    loop.save_checkpoint(tmp_path, 24, state)
    tiny.run(tmp_path, resume=True)
    assert f"checkpoint {newer.name}" in caplog.text
    assert f"{older.name} is used instead" in caplog.text
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    loop.save_checkpoint(tmp_path, 24, state)
    before = {p.name: p.read_bytes() for p in tmp_path.rglob("*.*")}
    with pytest.raises(ValueError, match=rf"^checkpoint {newer.name} in .* is refused: .*is left"):
        tiny.run(tmp_path, resume=True)
    assert {p.name: p.read_bytes() for p in tmp_path.rglob("*.*")} == before
