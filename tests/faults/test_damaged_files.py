"""Every file of a run, damaged in every way: continue, or say which file, in one line.

A trial copies a run folder, damages one file and repeats the command that made it, with --resume
where it has that. The exit code is 0 or 2; a message names the file; the user's files stay; and a
run that goes on ends with the numbers of an undisturbed one.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.paper.experiments import boltzmann, rates, scaling
from tests.faults import times
from tests.faults.commands import MINE, add_mine, call, files, mine, numbers, resume, shortened
from tests.paper.experiments.reproduce import fabricated

OTHERS: list[Any] = [None, True, -1, 0, 1e308, 10**30, "text", "", [], {}, [1], {"a": {}}]


def _cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(max(path.stat().st_size, 1))])


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def _empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def _folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _foreign(path: Path, rng: random.Random) -> None:
    """JSON of another shape."""
    path.write_text(json.dumps(rng.choice(OTHERS)) + "\n")


def _blank(path: Path, rng: random.Random) -> None:
    """An empty line somewhere."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(rng.randrange(len(lines) + 1), b"\n")
    path.write_bytes(b"".join(lines))


def _alter(path: Path, rng: random.Random) -> None:
    """One value of a JSON file, or of a line, replaced or taken away."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    i = rng.randrange(len(lines))
    record = json.loads(lines[i])
    place: Any = record
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = rng.choice(keys)
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.2:
            break
        place = inner
    if rng.random() < 0.3:
        del place[key]
    else:
        place[key] = rng.choice(OTHERS)
    lines[i] = json.dumps(record)
    path.write_text("".join(line + "\n" for line in lines))


def _unreadable(path: Path, rng: random.Random) -> None:
    if os.geteuid():
        path.chmod(0)
    else:  # root reads everything, except a link to itself
        path.unlink()
        path.symlink_to(path.name)


ALL: list[Callable[[Path, random.Random], None]]
ALL = [_cut, _flip, _remove, _empty, _folder, _foreign, _unreadable]
JSON = [_alter, _alter, _blank]


def _interrupted(folder: Path, name: str, module: Any, function: str, after: int) -> None:
    """A run that was stopped after some of its parts."""
    original, calls = getattr(module, function), []

    def interrupted(*arguments: Any, **values: Any) -> Any:
        calls.append(values)
        if len(calls) > after:
            raise KeyboardInterrupt
        return original(*arguments, **values)

    interrupted.__module__, interrupted.__qualname__ = original.__module__, original.__qualname__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, function, interrupted)
        assert call(name, folder)[0] == 130


def _make(kind: str, folder: Path) -> tuple[str, tuple[str, ...]]:
    """A run folder; the command that is repeated after the damage, and its options."""
    name, _, state = kind.partition(" ")
    if state == "interrupted":
        if name == "train":
            assert call(name, folder, "--iterations", "4")[0] == 0
        elif name == "scaling":
            _interrupted(folder, name, scaling, "measure", 1)
        elif name == "boltzmann":
            _interrupted(folder, name, boltzmann, "train", 7)
        else:
            _interrupted(folder, name, rates, "train", 7)
    elif name == "report":
        fabricated.write(folder, methods=("br", "mlmc"), seeds=2)
        return name, (str(folder),)
    elif name == "plan":  # the training's files are damaged, as those of the reproduction
        assert call("train", folder)[0] == 0
        return name, (str(folder),)
    else:
        assert call(name, folder)[0] == 0
    return name, resume(name)


def _content(folder: Path) -> dict[str, bytes]:
    """All but config.json, which is written again with the same settings."""
    return {n: p.read_bytes() for n, p in files(folder).items() if n != "config.json"}


# What takes long to repeat is tried in `make faults` only.
TRIALS = {
    "train interrupted": times(8, 1000),
    "train": times(4, 500),
    "scaling interrupted": times(2, 200),
    "scaling": times(0, 100),
    "boltzmann interrupted": times(0, 100),
    "boltzmann": times(0, 50),
    "rates interrupted": times(0, 100),
    "rates": times(0, 50),
    "reproduce": times(0, 60),
    "report": times(1, 200),
    "plan": times(1, 100),
    "bound": times(2, 50),
    "demo": times(0, 20),
}


@pytest.fixture(scope="module", autouse=True)
def _shortened() -> Iterator[None]:
    with shortened():
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind, trials in TRIALS.items() if trials])
def test_a_damaged_file_is_survived_or_named(kind: str, tmp_path: Path) -> None:
    pristine = tmp_path / "pristine"
    name, options = _make(kind, pristine)
    add_mine(pristine)
    expected = None
    if "interrupted" in kind:
        whole = shutil.copytree(pristine, tmp_path / "whole")
        assert call(name, whole, *options) == (0, "")
        expected = numbers(whole)
    rng, complaints = random.Random(kind), []
    for trial in range(TRIALS[kind]):
        folder = shutil.copytree(pristine, tmp_path / "damaged")
        path = rng.choice(sorted(files(folder).values()))
        damage = rng.choice([*ALL, *JSON] if path.suffix in (".json", ".jsonl") else ALL)
        damage(path, rng)
        try:
            wrong = _complaint(name, options, folder, path, expected)
        except Exception as error:
            wrong = repr(error)
        if wrong:
            where = path.relative_to(folder)
            complaints.append(f"trial {trial}, {damage.__name__} of {where}: {wrong}")
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "report", ignore_errors=True)
    assert not complaints, "\n".join(complaints)


def _complaint(
    name: str, options: tuple[str, ...], folder: Path, path: Path, expected: Any
) -> str | None:
    """What is wrong with how a command takes a damaged file."""
    before = _content(folder)
    out = folder.with_name("report") if name in ("report", "plan") else folder
    code, said = call(name, out, *options)
    if mine(folder) != MINE:
        return "files of the user's are not what they were"
    if code == 2:
        if not said.startswith("mlmcgrad: ") or said.count("\n") != 1 or path.name not in said:
            return f"it says {said!r}"
        if name in ("train", "scaling", "boltzmann", "rates") and _content(folder) != before:
            return f"it changed files, and said {said!r}"
        return None
    if code:
        return f"exit code {code}, {said!r}"
    if expected is not None:
        found = numbers(folder)
        # A digit in an earlier line may be another one: nobody can tell.
        if found[0] != expected[0] or (found != expected and path.name != "metrics.jsonl"):
            return "the numbers are others"
    return None
