"""Options of every command: sensible, borderline, absurd, of the wrong type, unknown.

The options are those of the command's settings, so a new one is tried without a change here. A set
of options ends with exit code 0, or with 2 and a message that names an option: never with a
traceback, and nothing is left running. What is legal but long, such as `--iterations 1000000000` or
`--preset full`, is stopped by SIGINT after a moment, as a user would, and ends with 130.

`scaling`, `boltzmann` and `rates` simulate less than they do otherwise, so that most runs are
complete within that moment; those of `reproduce` are stopped while they train.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
import types
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlmcgrad.cli.commands import COMMANDS
from mlmcgrad.paper.training.config import Config
from mlmcgrad.paper.training.loop import train
from tests.faults import times
from tests.faults.process import Ended, run
from tests.paper.experiments.reproduce import fabricated

Tokens = tuple[str, ...]

# What keeps a run short, unless the option is tried.
SHORT: dict[str, dict[str, Tokens]] = {
    "train": {
        "iterations": ("2",),
        "batch_size": ("4",),
        "nll_samples": ("3",),
        "test_images": ("4",),
        "out": ("new",),
    },
    "scaling": {"preset": ("smoke",), "jobs": ("1",), "out": ("new",)},
    "boltzmann": {"preset": ("smoke",), "jobs": ("1",), "data": ("bars",), "out": ("new",)},
    "rates": {"preset": ("smoke",), "jobs": ("1",), "out": ("new",)},
    "bound": {"preset": ("smoke",), "out": ("new",)},
    "demo": {
        "chains": ("100",),
        "truncation": ("4",),
        "budget": ("8",),
        "seeds": ("1",),
        "out": ("new",),
    },
    "reproduce": {
        "preset": ("smoke",),
        "seeds": ("1",),
        "methods": ("mlmc",),
        "optimizer": ("adagrad",),
        "jobs": ("1",),
        "out": ("new",),
    },
    "report": {"folders": ("reproduction",), "out": ("new",)},
    "plan": {
        "run": ("training",),
        "rows": ("2",),
        "pilot": ("100",),
        "budget": ("1e4",),
        "out": ("new",),
    },
    "data": {"dataset": ("digits",)},
    "fit": {
        "data": ("table.csv",),
        "formula": ("y ~ x + (1 | g)",),
        "family": ("bernoulli",),
        "out": ("new",),
    },
}
WRONG = ("abc", "", "ä", "1,2", "0x1p3")
# By type: what may be right, and what is borderline or absurd.
VALUES: dict[Any, tuple[Tokens, Tokens]] = {
    int: (
        ("1", "2", "3", "4", "8"),
        ("0", "-1", str(10**9), str(2**31), str(2**63), str(2**64), str(10**23), "9" * 400, "1.5"),
    ),
    float: (
        ("0.5", "1", "2", "0.01", "0.9"),
        ("0", "-1", "1e300", "-1e300", "nan", "inf", "-inf", "1e-320", "1e9", "1e37", "0.9999999"),
    ),
    str: (("cpu",), ("meta", "mps", "xla", "hpu", "cuda", "cuda:99", "cpu:7", "cpu\n")),
    Path: (
        ("new", "a/b/c", "matrix.txt", "reproduction", "pictures.npz"),
        (
            *("file", "file/below", "", ".", "/proc/nothing", "x" * 300, "of-train", "absent", "~"),
            *("text.npz", "colour.npz", "absent.npz", "file/below.npz", "x" * 300 + ".npz"),
        ),
    ),
}
MATRICES = {
    "matrix.txt": b"0.7 0.3\n0.2 0.8\n",
    "empty.txt": b"",
    "ragged.txt": b"0.5 0.5\n1\n",
    "text.txt": b"to be, or not to be\n",
    "nan.txt": b"nan 1\n0.5 0.5\n",
    "huge.txt": b"1e308 1e308\n1e308 1e308\n",
    "wide.txt": b"0 " * 5000,
    "tall.txt": b"0.5\n" * 5000,
    "negative.txt": b"1.5 -0.5\n0.5 0.5\n",
    "tiny.txt": b"1e-320 1\n1 1e-320\n",
    "slow.txt": b"0.999999999999 0.000000000001\n0.000000000001 0.999999999999\n",
    "binary.txt": bytes(range(256)),
}


def options(command: str) -> dict[str, Any]:
    """The types of a command's options; those of groups are among them."""
    return _flat(COMMANDS[command][0])


def _flat(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if dataclasses.is_dataclass(hint):
            found |= _flat(hint)  # type: ignore[arg-type]
        elif ClassVar not in (hint, get_origin(hint)):
            found[name] = hint
    return found


def values(kind: Any) -> st.SearchStrategy[Tokens]:
    """What may stand after an option of this type."""
    if get_origin(kind) is Annotated:
        return values(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return st.one_of([values(each) for each in get_args(kind)])
    if get_origin(kind) is tuple:
        return st.lists(values(get_args(kind)[0]), max_size=3).map(lambda each: sum(each, ()))
    if kind is type(None):
        return st.just(("None",))
    right, wrong = (get_args(kind), ()) if get_origin(kind) is Literal else VALUES[kind]
    return st.one_of(*[st.sampled_from(right)] * 2, st.sampled_from((*wrong, *WRONG))).map(
        lambda value: (str(value),)
    )


@st.composite
def option_sets(draw: st.DrawFn, command: str) -> dict[str, Tokens]:
    """Some options of a command, with values; now and then one that does not exist."""
    kinds = options(command)
    names = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=6, unique=True))
    chosen = {name: draw(values(kinds[name])) for name in names if kinds[name] is not bool}
    chosen |= {name: draw(st.sampled_from([(), ("maybe",)])) for name in {*names} - {*chosen}}
    if "matrix" in chosen:
        chosen["matrix"] = (draw(st.sampled_from([*MATRICES, "absent", "file/below", "."])),)
    if draw(st.integers(0, 9)) == 0:
        chosen["nonsense"] = ("3",)
    return chosen


def line(command: str, chosen: dict[str, Tokens]) -> list[str]:
    """The command line of these options."""
    kinds, words = options(command), [command]
    for name, tokens in {**SHORT[command], **chosen}.items():
        if get_origin(kinds.get(name)) is not Annotated:  # else it stands without its name
            words.append("--" + name.replace("_", "-"))
        words += tokens
    return words


# A port that nobody listens on: a download fails at once, and npm is not found.
OFFLINE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "no_proxy": "",
    "PATH": "nowhere",
    "MLMCGRAD_DATA": "cache",
}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to run commands in."""
    folder = tmp_path_factory.mktemp("options")
    (folder / "file").write_text("in the way")
    (folder / "of-train").mkdir()
    (folder / "of-train" / "config.json").write_text('{"experiment": "train", "settings": {}}')
    grey = np.zeros((20, 8, 8), np.uint8)
    np.savez(folder / "pictures.npz", train=grey, test=grey)
    np.savez(folder / "colour.npz", train=grey, test=np.zeros((20, 8, 8, 4), np.uint8))
    (folder / "text.npz").write_text("to be, or not to be")
    for name, content in MATRICES.items():
        (folder / name).write_bytes(content)
    rows = (f"{i % 3 % 2},{i % 7},{i % 5}\n" for i in range(60))
    (folder / "table.csv").write_text("y,x,g\n" + "".join(rows))
    values = {"batch_size": 4, "nll_samples": 2, "test_images": 2}
    train(Config.from_flat(iterations=1, out=folder / "training", **values))
    fabricated.write(
        folder / "reproduction", methods=("br", "mlmc"), seeds=1, iterations=20, pictures=False
    )
    return folder


def check_message(ended: Ended, chosen: dict[str, Tokens]) -> None:
    """The message names an option, or what was given for it; it is one line, or the parser's."""
    known = [name.split("_")[0] for name in chosen]
    known += [token for tokens in chosen.values() for token in tokens if token]
    known += [Path(token).name for tokens in chosen.values() for token in tokens if token]
    lines = [line for line in ended.err.splitlines() if line]
    if lines[0].startswith("mlmcgrad: memory ran out"):
        return
    assert any(word in line for word in known for line in lines), ended
    if ended.began:
        listed = lines[0].startswith("mlmcgrad: no source of")  # and what was wrong with each
        assert len(lines) <= (5 if listed else 1), ended
        assert lines[0].startswith("mlmcgrad: "), ended
        assert len(ended.err) < 1000, ended


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_set_of_options_ends_with_a_result_or_a_message(command: str, material: Path) -> None:
    """200 sets of options for each command in `make faults`, 2 in `make test`."""
    count: Counter[int | None] = Counter()

    @settings(max_examples=times(2, 200), suppress_health_check=list(HealthCheck))
    @given(option_sets(command))
    def attempt(chosen: dict[str, Tokens]) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = shutil.copytree(material, Path(name) / "here")
            ended = run(line(command, chosen), folder, times(1, 4), OFFLINE)
        said = ended.out + ended.err
        # A SIGINT inside a `__del__` is reported so by Python, and lost; the next one is not.
        ignored = ended.stopped and "Exception ignored in" in said
        assert "Traceback" not in said or ignored, said
        assert ended.code in ((0, 2, 130) if ended.stopped else (0, 2)), ended
        if ended.code == 2:
            check_message(ended, chosen)
        count[ended.code] += 1

    attempt()
    sys.stdout.write(f"{command}: {dict(count)}\n")
    assert count[2] > 0 or count.total() < 100  # some of many sets are wrong
