"""Trainings with a decay of the step size, averaged parameters and a finish."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad import optim
from mlmcgrad.iwae.objective import Objective
from mlmcgrad.paper.runs.process import Stopped
from mlmcgrad.paper.training import loop
from mlmcgrad.paper.training.loop import read_trainer
from mlmcgrad.paper.training.trainer import Trainer
from tests.paper.training import tiny

RECIPE: dict[str, Any] = {
    "method": "iwae",
    "encoder": "dreg",
    "optimizer": "adam",
    "schedule": "constant_linear",
    "average": True,
    "lr": 0.003,
}


def trainer(tmp_path: Path, **changes: Any) -> Trainer:
    settings = tiny.config(tmp_path, **{**RECIPE, **changes}).settings()
    return Trainer(settings, tiny.source())


@pytest.mark.parametrize("finish", ["auto", "mlmc", "jsa"])
@pytest.mark.parametrize("after", [15, 16, 17, 20, 22])
def test_a_resumed_finish_has_the_same_bits(finish: str, after: int, tmp_path: Path) -> None:
    """The decay begins after 16 of 24 iterations; a rule that always says yes decides there."""
    whole = trainer(tmp_path, finish=finish, candidates=4)
    for n in whole:
        if n == after:
            state = copy.deepcopy(whole.state_dict())
    resumed = trainer(tmp_path, finish=finish, candidates=4)
    resumed.load_state_dict(state)
    list(resumed)
    first, second = whole.state_dict(), resumed.state_dict()
    for each in (first, second):
        each.pop("seconds")
    assert tiny.same(first, second)
    assert len(whole.checks) == (2 if finish == "auto" else 0)


def test_the_check_of_an_interrupted_iteration_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes in iteration 17, after its check: resumed, it is as if it had not come."""
    monkeypatch.setattr("mlmcgrad.finish._LEAST", 1)
    monkeypatch.setattr("mlmcgrad.finish._GROUPS", 4)
    settings = {**RECIPE, "finish": "auto", "iterations": 120, "batch_size": 40, "nll_samples": 2}
    settings |= {"probe_images": 0, "evaluate_every": 40, "checkpoint_every": 40, "log_every": 20}
    tiny.run(tmp_path / "whole", **settings)
    backward = Objective.backward

    def interrupted(self: Objective, *arguments: Any, n: int, **options: Any) -> Any:
        if n == 81:
            raise KeyboardInterrupt
        return backward(self, *arguments, n=n, **options)

    monkeypatch.setattr(Objective, "backward", interrupted)
    with pytest.raises((KeyboardInterrupt, Stopped)):
        tiny.run(tmp_path / "killed", **settings)
    monkeypatch.setattr(Objective, "backward", backward)
    tiny.run(tmp_path / "killed", **settings, resume=True)
    first, second = tiny.remains(tmp_path / "whole"), tiny.remains(tmp_path / "killed")
    assert first["summary"]["checks"][0]["iteration"] == 81
    assert "gain" in first["summary"]["checks"][0]
    assert tiny.same(first["state"], second["state"])
    assert first["summary"] == second["summary"]


def test_the_finisher_takes_over_when_the_step_size_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str, bool]] = []
    backward = Objective.backward

    def noting(self: Objective, y: Any, *, n: int, x0: Any = None, **options: Any) -> Any:
        seen.append((n, self.method, x0 is not None))
        return backward(self, y, n=n, x0=x0, **options)

    monkeypatch.setattr(Objective, "backward", noting)
    for finish, late in (("mlmc", ("mlmc", False)), ("jsa", ("iwae", True))):
        seen.clear()
        list(trainer(tmp_path, finish=finish))
        assert seen == [(n, *(late if n > 16 else ("iwae", False))) for n in range(1, 25)]
    seen.clear()
    rule = trainer(tmp_path, finish="auto")
    for n in rule:
        if n == 18:
            assert rule.finish is not None
            rule.finish.finishing = True
    assert [method for _, method, _ in seen] == ["iwae"] * 18 + ["mlmc"] * 6


def test_the_check_is_at_the_averages_and_its_evaluations_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlmcgrad.finish import Finish

    check, places = Finish.check, []
    rule = trainer(tmp_path, finish="auto", iterations=120)

    def noting(self: Finish, *arguments: Any, **options: Any) -> Any:
        places.append([p.detach().clone() for p in rule.model.parameters()])
        self.evaluations += 7
        return check(self, *arguments, **options)

    monkeypatch.setattr(Finish, "check", noting)
    for n in rule:
        if n == 80:
            with rule.averaged.applied():
                expected = [p.detach().clone() for p in rule.model.parameters()]
            spent = rule.spent["evaluations"]
        if n == 81:
            assert all(map(torch.equal, places[0], expected))
            assert rule.spent["evaluations"] >= spent + 7 + 8 * 3  # check and iteration


def test_tests_and_plans_use_the_averages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "load", lambda settings: tiny.source())
    tiny.run(tmp_path / "mean", **RECIPE)
    tiny.run(tmp_path / "last", **{**RECIPE, "average": False})
    mean, last = (tiny.metrics(tmp_path / name) for name in ("mean", "last"))
    assert [row.get("bound") for row in mean] == [row.get("bound") for row in last]
    tests = [[row["nll"] for row in rows if "nll" in row] for rows in (mean, last)]
    assert tests[0] != tests[1]
    read = read_trainer(tmp_path / "mean")
    assert read.averaged.n == 24
    before = [p.detach().clone() for p in read.model.parameters()]
    with read.tested():
        assert not all(map(torch.equal, before, read.model.parameters()))


def test_step_sizes_of_every_optimizer(tmp_path: Path) -> None:
    for optimizer in ("adam", "amsgrad"):
        run = trainer(tmp_path, optimizer=optimizer, iterations=9)
        rates = [run.optimizer.param_groups[0]["lr"] for n in run if n]
        assert rates == pytest.approx([0.003] * 7 + [0.002, 0.001])
    assert isinstance(run.optimizer, optim.AMSGrad)
    cosine = trainer(tmp_path, schedule="cosine", finish="mlmc", iterations=9)
    assert cosine._current(6)[0] is cosine.objective
    assert cosine._current(7)[0] is cosine.finisher


def test_the_length_of_a_run_with_a_decay_is_fixed(tmp_path: Path) -> None:
    tiny.run(tmp_path, **RECIPE)
    with pytest.raises(ValueError, match=r"^iterations must be 24 as .* says, got 30"):
        tiny.run(tmp_path, **RECIPE, resume=True, iterations=30)


def test_a_finish_needs_a_decay(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="schedule must be constant_linear or cosine for finish"):
        tiny.config(tmp_path, finish="auto")


def test_the_summary_says_what_the_rule_measured(tmp_path: Path) -> None:
    tiny.run(tmp_path, **RECIPE, finish="auto")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [each["iteration"] for each in summary["checks"]] == [17, 21]
