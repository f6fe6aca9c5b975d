"""Parts in processes: results by name, saved one by one, errors not swallowed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from mlmcgrad.runs.pool import Report, forget, run_parts

QUIET = Console(quiet=True)


def square(report: Report, x: int) -> dict[str, Any]:
    report(0.5)
    if x < 0:
        raise ValueError(f"x must not be negative, got {x}")
    return {"square": x * x, "threads": torch.get_num_threads()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_back_in_order_with_one_thread_each(tmp_path: Path, jobs: int) -> None:
    found = run_parts(square, {f"p{x}": {"x": x} for x in (3, 1, 2)}, tmp_path, jobs, QUIET)
    assert found == {f"p{x}": {"square": x * x, "threads": 1} for x in (3, 1, 2)}
    assert list(found) == ["p3", "p1", "p2"]
    assert len(list(tmp_path.glob("parts-*/*.json"))) == 3
    forget(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_part_that_fails_is_named_and_the_finished_ones_are_kept(
    tmp_path: Path, jobs: int
) -> None:
    arguments = {"good": {"x": 2}, "bad": {"x": -1}}
    with pytest.raises(ValueError, match="x must not be negative, got -1"):
        run_parts(square, arguments, tmp_path, jobs, QUIET)
    if jobs == 1:
        assert [p.name for p in tmp_path.glob("parts-*/*.json")] == ["good.json"]


def test_other_arguments_do_not_find_these_parts(tmp_path: Path) -> None:
    run_parts(square, {"p": {"x": 2}}, tmp_path, 1, QUIET)
    assert run_parts(square, {"p": {"x": 3}}, tmp_path, 1, QUIET)["p"]["square"] == 9
