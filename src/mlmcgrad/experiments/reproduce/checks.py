"""What files of a reproduction must hold so that findings can be made from them.

A file that a disk, an editor or a hand has altered is refused by name, with the line and the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlmcgrad.runs.folder import read_json

Rule = Callable[[Any], bool]


def _number(least: float = -math.inf) -> Rule:
    return lambda v: type(v) in (int, float) and least <= v and math.isfinite(v)


def _integer(least: int) -> Rule:
    return lambda v: type(v) is int and least <= v < 2**63


def _text(*choices: str) -> Rule:
    return lambda v: isinstance(v, str) and (not choices or v in choices)


def _histogram(value: Any) -> bool:
    return isinstance(value, dict) and all(
        name.isascii() and name.isdigit() and len(name) < 5 and _integer(0)(count)
        for name, count in value.items()
    )


def _absent_or(rule: Rule) -> Rule:
    return lambda v: v is None or rule(v)


_ABOUT: dict[str, Rule] = {
    "settings": lambda v: isinstance(v, dict) and isinstance(v.get("dataset"), str),
    "runs": lambda v: isinstance(v, dict) and all(isinstance(run, dict) for run in v.values()),
    **dict.fromkeys(("command", "note", "commit", "finished"), _absent_or(_text())),
    "seconds": _absent_or(_number(0.0)),
    "cores": _absent_or(_integer(1)),
    "versions": _absent_or(lambda v: isinstance(v, dict)),
}
_RUN: dict[str, Rule] = {
    "method": _text("iwae", "br", "mlmc"),
    "optimizer": _text("amsgrad", "adagrad"),
    "rao_blackwell": lambda v: isinstance(v, bool),
    "seed": _integer(0),
    "batch_size": _integer(1),
    "base": _integer(1),
    "truncation_scale": _number(0.0),
    "truncation_exponent": lambda v: _number(0.0)(v) and v <= 1.0,
    "test_images": _absent_or(_integer(1)),
}
_WHERE: dict[str, Rule] = {
    "iteration": _integer(1),
    **dict.fromkeys(("epoch", "evaluations", "seconds"), _number(0.0)),
}
_LINES: dict[str, dict[str, Rule]] = {
    "nll": {
        **_WHERE,
        "nll": _number(),
        **dict.fromkeys(("nll_se", "gradient", "gradient_se"), _absent_or(_number())),
    },
    "bound": {
        **_WHERE,
        "levels": _histogram,
        **dict.fromkeys(("effective", "acceptance", "theta_squared"), _number()),
        "loss_evaluations": _absent_or(_number(0.0)),
    },
}


def check_about(path: Path, about: Mapping[str, Any]) -> None:
    """Refuse config.json of a reproduction that lacks something, or has it in another form.

    Raises:
        ValueError: the message names the file and the field.
    """
    remedy = "put back what `mlmcgrad reproduce` has written"
    _check(f"{path} is damaged:", about, _ABOUT, remedy)
    for name, run in about["runs"].items():
        _check(f"{path} is damaged: of the run {name}", run, _RUN, remedy)


def check_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse lines of metrics.jsonl that lack a number, or have something else in its place.

    Raises:
        ValueError: the message names the file, the line and the field.
    """
    for number, row in enumerate(rows, start=1):
        for kind, rules in _LINES.items():
            if kind in row:
                _check(f"{path} is damaged: in line {number}", row, rules, train_again(path))


def check_complete(path: Path, tests: Sequence[Mapping[str, Any]], summary: Path) -> None:
    """Refuse metrics.jsonl of a complete run that ends before the run did.

    Raises:
        ValueError: the message names both files and what they say.
    """
    last = tests[-1]["iteration"] if tests else None
    end = read_json(summary).get("iteration")
    if last != end:
        raise ValueError(
            f"{path} is damaged: its last test is of iteration {last}, but {summary} says {end}; "
            f"{train_again(path)}"
        )


def train_again(path: Path) -> str:
    """What helps when a file in the folder of a training run is damaged."""
    return f"move {path.parent} away and train it again with `mlmcgrad reproduce --resume`"


def _check(where: str, record: Mapping[str, Any], rules: Mapping[str, Rule], remedy: str) -> None:
    for name, holds in rules.items():
        if not holds(record.get(name)):
            found = repr(record[name])[:40] if name in record else "missing"
            raise ValueError(f"{where} {name} is {found}; {remedy}")
