"""Every command that writes a folder, with options that take about a second, and what it leaves."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mlmcgrad.cli import main
from mlmcgrad.paper.experiments import boltzmann, plots, rates, scaling
from mlmcgrad.paper.experiments.reproduce import figures
from mlmcgrad.paper.training.loop import load_checkpoint
from tests.mixed.test_fit_published import SEEDS
from tests.paper.experiments.reproduce import fabricated
from tests.paper.training import tiny

TRAIN = (
    *("--batch-size", "8", "--nll-samples", "2", "--test-images", "4", "--latent", "2"),
    *("--log-every", "1", "--evaluate-every", "3", "--checkpoint-every", "2", "--candidates", "2"),
)
SMALL = ("--optimizer", "amsgrad", "--methods", "br", "--seeds", "1", "--jobs", "1")
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train", "--iterations", "6", *TRAIN),
    "demo": ("demo", "--chains", "100", "--truncation", "4", "--budget", "4", "--seeds", "1"),
    "bound": ("bound", "--preset", "smoke"),
    "scaling": ("scaling", "--preset", "smoke", "--jobs", "1"),
    "boltzmann": ("boltzmann", "--preset", "smoke", "--data", "bars", "--jobs", "1"),
    "rates": ("rates", "--preset", "smoke", "--jobs", "1"),
    "reproduce": ("reproduce", "--preset", "smoke", *SMALL),
    "report": ("report",),
    "plan": ("plan", "--rows", "2", "--pilot", "100", "--budget", "1e4"),
    "fit": ("fit", str(SEEDS), "germinated ~ extract + (1 | plate)", "--family", "poisson"),
}
RESUMES = ("train", "scaling", "boltzmann", "rates", "reproduce")
MINE = {
    "notes.txt": b"mine",
    "parts-1/a.json": b"{}",
    "samples-mine.png": b"mine",
    "config.json.bak": b"mine",
    ".hidden": b"\0\1\2",
}


@contextmanager
def shortened() -> Iterator[None]:
    """Images without a file, one kernel, few replicas: what a fault does is the same."""
    with pytest.MonkeyPatch.context() as patch:
        source = tiny.source()
        patch.setattr("mlmcgrad.paper.training.loop.load", lambda settings: source)
        patch.setattr(scaling, "KERNELS", ("mala",))
        patch.setitem(scaling.EFFORT, "smoke", {"mala": scaling.ScalingEffort(2_000, 50, 5)})
        for data in ("bars", "digits"):
            patch.setitem(boltzmann.EFFORT["smoke"], data, boltzmann.BoltzmannEffort(2, 2, 1, 10))
        patch.setitem(rates.EFFORT, "smoke", (40, 8))
        for style in (plots.STYLE, figures._STYLE):
            patch.setitem(style, "savefig.dpi", 10)
        yield


def call(name: str, out: Path, *options: str) -> tuple[int, str]:
    """The exit code of a command, and what it says on stderr."""
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        code = main([*COMMANDS[name], *options, "--out", str(out)])
    return code, said.getvalue()


def needed(name: str, folder: Path) -> tuple[str, ...]:
    """What a command reads, made in a folder, as it stands on the command line."""
    if name == "report":
        shown = fabricated.write(folder / "shown", methods=("br",), seeds=1, pictures=False)
        return (str(shown),)
    if name == "plan":
        trained = folder / "trained"
        assert call("train", trained)[0] == 0
        return (str(trained),)
    return ()


def resume(name: str) -> tuple[str, ...]:
    """The option that continues a run, for the commands that have it."""
    return ("--resume",) if name in RESUMES else ()


def add_mine(folder: Path) -> None:
    """Files of the user's in a run folder."""
    for name, content in MINE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def mine(folder: Path) -> dict[str, bytes]:
    """What is left of them."""
    return {name: (folder / name).read_bytes() for name in MINE if (folder / name).exists()}


def files(folder: Path) -> dict[str, Path]:
    """The files of a run folder by name, without the lock and those of the user's."""
    every = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: p for name, p in every.items() if p.name != "lock" and name not in MINE}


def half(folder: Path) -> list[str]:
    """Names of files that are not whole."""
    return [name for name, path in files(folder).items() if not _whole(path)]


def numbers(folder: Path) -> Any:
    """summary.json and metrics.jsonl without what depends on the clock."""
    lines = (folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else None
    rows = [] if lines is None else [json.loads(line) for line in lines.read_text().splitlines()]
    return _timeless([json.loads((folder / "summary.json").read_text()), rows])


def chosen(kind: str, many: list[Any], count: int) -> list[Any]:
    """Some of many, always the same, spread over them."""
    return many if count >= len(many) else random.Random(kind).sample(many, count)


def _whole(path: Path) -> bool:
    try:
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            content = path.read_text()
            return all(map(json.loads, content.splitlines())) and content[-1:] in ("\n", "")
        elif path.suffix == ".png":
            with Image.open(path) as picture:
                picture.load()
        elif path.suffix == ".pt":
            load_checkpoint(path)
        elif path.suffix in (".svg", ".html"):
            return path.read_text().rstrip().endswith(f"</{path.suffix[1:]}>")
        else:
            return path.suffix == ".md"
    except (ValueError, OSError, SyntaxError):
        return False
    return True


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        clock = ("seconds", "seconds_an_iteration", "finished", "about")
        return {k: _timeless(v) for k, v in value.items() if k not in clock}
    if isinstance(value, list):
        claims = [v for v in value if isinstance(v, dict) and v.get("axis") == "seconds"]
        return [_timeless(v) for v in value if v not in claims]
    # The last digits of some sums depend on where in memory their terms happen to be.
    return float(f"{value:.10g}") if isinstance(value, float) else value
