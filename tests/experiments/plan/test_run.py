import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.experiments.plan.run import run
from mlmcgrad.experiments.plan.settings import FILES, Plan
from tests.faults.commands import shortened
from tests.folders import content
from tests.training import tiny


def plan(folder: Path, *, draw: bool = False, **changes: Any) -> tuple[dict[str, Any], str]:
    """The summary, and what is printed; figures, which take longest, are drawn on demand."""
    console = Console(file=io.StringIO(), width=80)
    values: dict[str, Any] = {"rows": 2, "evaluations": 200.0, "budget": 1e4, **changes}
    with shortened(), pytest.MonkeyPatch.context() as patch:
        if not draw:
            patch.setattr("mlmcgrad.experiments.plan.run.save", lambda figure, path: None)
        summary = run(Plan(folder, **values), console)
    assert isinstance(console.file, io.StringIO)
    return summary, console.file.getvalue()


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "mlmc"},
        {"method": "br", "kernel": "rwmh", "candidates": 1},
        {"method": "iwae", "candidates": 1},
        {"method": "mlmc", "persistent": True, "estimator": "sum", "assignment": "shared"},
        {"method": "mlmc", "kernel": "importance"},
    ],
)
def test_a_training_is_planned_and_compared(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tiny.run(folder, iterations=3, **changes)
    before = content(folder)
    summary, printed = plan(folder)
    after = content(folder)
    assert {name: after[name] for name in before} == before  # the training is as it was
    assert json.loads((folder / "plan" / "summary.json").read_text()) == summary
    assert set(summary["plans"]) == {"isir", "importance"}
    assert summary["iteration"] == 3
    names = [row["name"] for row in summary["comparison"]["contenders"]]
    own = ["this run"] if changes["method"] == "mlmc" or "kernel" in changes else []
    assert names == ["IWAE", "BR-IWAE", *own, "planned"]
    budgets = [row["budget"] for row in summary["comparison"]["best"]]
    assert budgets == pytest.approx([1e1, 1e2, 1e3, 1e4, 1e5, 1e6])
    assert summary["estimator"] == summary["plans"][summary["kernel"]]["estimator"]
    assert summary["best"] == summary["comparison"]["best"][3]["names"]
    assert f"measured at 10000 evaluations: best is {summary['best'][0]}" in printed
    for text in ("i-SIR. A gradient", "Importance sampling. A gradient", "Best is", str(folder)):
        assert text in printed


def test_figures_are_written(tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=3)
    plan(tmp_path, draw=True)
    written = {path.name for path in (tmp_path / "plan").iterdir()}
    assert written == {*FILES, "config.json", "summary.json", "lock"}


def test_the_same_numbers_again_in_place(tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=3)
    first, _ = plan(tmp_path)
    assert plan(tmp_path)[0] == first
    with pytest.raises(ValueError, match=r"seed must be 0 as .*config\.json says, got 1"):
        plan(tmp_path, seed=1)
    assert plan(tmp_path, seed=1, out=tmp_path / "other")[0] != first


def test_the_plan_has_the_least_predicted_error(tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=3)
    summary, _ = plan(tmp_path)
    errors = {name: each["error"] for name, each in summary["plans"].items()}
    assert errors[summary["kernel"]] == min(errors.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 0.0}, "budget must be positive, got 0.0"),
        ({"budget": 1e16}, "budget must be ≤ 1e\\+15, got 1e\\+16"),
        ({"evaluations": 1e10}, "evaluations must be ≤ 1e\\+09"),
        ({"rows": 0}, "rows must be an integer from 1"),
        ({"simulations": 0}, "simulations must be an integer"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(Path("run"), **changes)


def test_a_budget_for_too_many_simulations(tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=3)
    with pytest.raises(ValueError, match="budget must allow 5000 simulations"):
        plan(tmp_path, simulations=5000)
