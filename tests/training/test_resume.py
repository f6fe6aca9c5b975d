"""A run goes on from what is intact, says what is not, and never starts over by itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.runs import checkpoint
from tests.training import tiny


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
    ("damage", "said"),
    [
        (lambda content: content[: len(content) // 2], r"metrics.jsonl has 3 of the 7 lines"),
        (lambda content: None, r"metrics.jsonl has 0 of the 7 lines up to iteration 20"),
        (lambda content: _bad_line(content, b'{"\xff": 1}\n'), r"line 3 of .*jsonl has a byte"),
        (lambda content: _bad_line(content, b"\n"), r"line 3 of .*metrics.jsonl is empty"),
        (
            lambda content: _bad_line(content, b"3\n"),
            r"line 3 of .*jsonl is JSON, but not an object",
        ),
        (
            lambda content: _bad_line(content, b'{"nll": 1}\n'),
            r"line 3 of .*jsonl has no iteration",
        ),
    ],
)
def test_damaged_metrics_are_named_and_the_checkpoint_stays_usable(
    damage: Any, said: str, whole: Path, tmp_path: Path
) -> None:
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


def test_a_run_of_a_version_that_did_not_count_lines_resumes(whole: Path, tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=20)
    (path,) = (tmp_path / "checkpoints").glob("*20.pt")
    state = checkpoint.load(path)
    del state["lines"], state["settings"]["force"]
    checkpoint.save(tmp_path, 20, state)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["files"], config["settings"]["force"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    tiny.run(tmp_path, resume=True)
    for kind in ("samples", "reconstructions"):
        (tmp_path / f"{kind}-000020.png").unlink()
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))


STRUCTURES: dict[str, Any] = {
    "no model": lambda s: s.pop("model"),
    "a tensor less": lambda s: s["model"].popitem(),
    "another shape": lambda s: s["model"].update({next(iter(s["model"])): torch.zeros(3)}),
    "another dtype": lambda s: s["model"].update({k: v.double() for k, v in s["model"].items()}),
    "no tensor": lambda s: s["model"].update({next(iter(s["model"])): "text"}),
    "another optimizer": lambda s: s["optimizer"]["state"][0].pop("momentum"),
    "its shapes": lambda s: s["optimizer"]["state"][0].update(momentum=torch.zeros(2)),
    "its state": lambda s: s["optimizer"].update(state={}),
    "its groups": lambda s: s["optimizer"].update(param_groups=[]),
    "a list": lambda s: s.update(optimizer=[]),
    "an iteration as text": lambda s: s.update(iteration="20"),
    "a truth for an iteration": lambda s: s.update(iteration=True),
    "a negative iteration": lambda s: s.update(iteration=-1),
    "a generator": lambda s: s.update(generator=torch.zeros(3, dtype=torch.uint8)),
    "its numbers": lambda s: s.update(generator=torch.full_like(s["generator"], 255)),
    "order": lambda s: s.update(order={"before": s["generator"], "position": 10**6}),
    "window": lambda s: s["window"].update(levels={"one": 1}),
    "sums": lambda s: s["window"].update(sums=[]),
    "test": lambda s: s.update(test={"nll": "low"}),
    "spent": lambda s: s.update(spent={}),
    "seconds": lambda s: s.pop("seconds"),
    "lines": lambda s: s.update(lines="7"),
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
    state = checkpoint.load(newer)
    STRUCTURES[change](state)
    checkpoint.save(tmp_path, 24, state)
    tiny.run(tmp_path, resume=True)
    assert f"checkpoint {newer.name}" in caplog.text
    assert f"{older.name} is used instead" in caplog.text
    assert tiny.same(tiny.remains(whole), tiny.remains(tmp_path))
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    checkpoint.save(tmp_path, 24, state)
    before = {p.name: p.read_bytes() for p in tmp_path.rglob("*.*")}
    with pytest.raises(ValueError, match=rf"^checkpoint {newer.name} in .* is refused: .*is left"):
        tiny.run(tmp_path, resume=True)
    assert {p.name: p.read_bytes() for p in tmp_path.rglob("*.*")} == before
