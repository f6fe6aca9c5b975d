"""Findings are computed from runs alone; `summary.json` holds all of them but the curves."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from mlmcgrad.paper.experiments.reproduce.claims import evaluate
from mlmcgrad.paper.experiments.reproduce.data import Reproduction, TrainingRun, read_reproduction
from mlmcgrad.paper.experiments.reproduce.findings import (
    Diagnostics,
    Levels,
    RateCurve,
    average_costs,
    average_tests,
    count_levels,
    diagnose,
    find,
    measure_curves,
)
from tests.paper.experiments.reproduce import fabricated
from tests.paper.experiments.reproduce.fabricated import formula_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reproduction with a failed run."""
    folder = fabricated.write(tmp_path_factory.mktemp("findings") / "digits", seeds=2)
    fabricated.fail(folder, "amsgrad-mlmc-1", "FloatingPointError")
    return folder


def test_findings_are_those_of_the_runs(folder: Path) -> None:
    reproduction = read_reproduction(folder)
    (findings,) = find([reproduction])
    assert findings.name == "digits"
    assert (findings.runs, findings.seeds) == (14, 2)
    assert findings.claims == evaluate(reproduction)
    assert len(findings.claims) > 20
    assert findings.failed == (("amsgrad-mlmc-1", "FloatingPointError"),)
    assert len(findings.final) == 13  # one of fourteen runs failed
    rows = {(row.method, row.seed): row for row in findings.final}
    last = reproduction.of("mlmc-rb", "amsgrad")[1].tests[-1]
    for name in ("nll", "evaluations", "seconds", "iteration", "gradient", "nll_se"):
        assert getattr(rows["mlmc-rb", 1], name) == last[name]
    assert rows["mlmc-rb", 1].truncation == pytest.approx(200**0.5)
    assert rows["iwae", 0].truncation == 1.0


def test_the_record_is_the_whole_but_the_curves(folder: Path) -> None:
    (findings,) = find([read_reproduction(folder)])
    record = json.loads(json.dumps(findings.record(), allow_nan=False))
    names = {field.name for field in dataclasses.fields(findings)}
    assert set(record) == names - {"curves"}
    assert fabricated.read_back(record) == dataclasses.replace(
        findings, curves=fabricated.NO_CURVES
    )
    assert str(folder) not in json.dumps(record)  # a folder of this machine is nobody's business
    assert record["about"]["settings"]["preset"] == "quick"
    assert record["about"]["training"]["batch_size"] == fabricated.BATCH
    assert "seed" not in record["about"]["training"]  # it differs between runs


def test_json_has_no_infinity(folder: Path) -> None:
    claim = dataclasses.replace(fabricated.claims()[0], high=float("inf"))
    (row,) = fabricated.findings(folder, (claim,)).record()["claims"]
    assert row["high"] is None


def test_diagnostics_are_of_the_same_iterations(folder: Path) -> None:
    reproduction = read_reproduction(folder)
    (findings,) = find([reproduction])
    rows = {row.method: row for row in findings.diagnostics}
    br, mlmc = rows["br"], rows["mlmc"]
    assert {row.iteration for row in rows.values()} == {100}
    assert br.truncation == mlmc.truncation == pytest.approx(10.0)  # √100
    assert rows["iwae"].truncation == 1.0
    assert rows["iwae"].evaluations == pytest.approx(fabricated.CANDIDATES)
    assert br.decoded_again == pytest.approx(2.0)
    last = [run.lines for run in reproduction.of("br", "amsgrad")]
    assert br.evaluations == pytest.approx(
        sum(rows[-1]["evaluations"] - rows[-2]["evaluations"] for rows in last) / 2 / 500
    )
    second = sum(rows[-1]["theta_squared"] for rows in last) / 2
    gradient = sum(run.tests[-1]["gradient"] for run in reproduction.of("br", "amsgrad")) / 2
    assert br.variance == pytest.approx(second - gradient)
    assert br.relative == 1.0
    assert mlmc.variance is not None
    assert br.variance is not None
    expected = mlmc.variance * mlmc.evaluations / (br.variance * br.evaluations)
    assert mlmc.relative == pytest.approx(expected)


def test_two_of_one_dataset_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [
        fabricated.write(tmp_path / name, dataset, methods=("br",), seeds=1, pictures=False)
        for name, dataset in (("first", "digits"), ("second", "digits"), ("third", "cifar10"))
    ]
    names = [findings.name for findings in find([read_reproduction(folder) for folder in folders])]
    assert names == ["digits (first)", "digits (second)", "CIFAR-10"]


@pytest.fixture(scope="module")
def reproduction(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    return read_reproduction(fabricated.write(tmp_path_factory.mktemp("curves") / "r", seeds=3))


def test_against_epochs_a_curve_is_the_mean_and_the_range_of_the_tests(
    reproduction: Reproduction,
) -> None:
    for method in fabricated.METHODS:
        runs = reproduction.of(method, "amsgrad")
        assert len(runs) == 3
        curve = average_tests(runs, "nll", "epoch")
        assert curve is not None
        values = [run.test("nll") for run in runs]
        np.testing.assert_allclose(curve.x, runs[0].test("epoch"))
        np.testing.assert_allclose(curve.mean, np.mean(values, 0))
        np.testing.assert_allclose(curve.low, np.min(values, 0))
        np.testing.assert_allclose(curve.high, np.max(values, 0))


def test_against_budget_seeds_are_compared_where_all_of_them_were(
    reproduction: Reproduction,
) -> None:
    runs = reproduction.of("mlmc", "amsgrad")
    curve = average_tests(runs, "nll", "evaluations")
    assert curve is not None
    budgets = [run.test("evaluations") for run in runs]
    assert len({tuple(b) for b in budgets}) == 3  # otherwise nothing is tested
    assert curve.x[0] >= max(b[0] for b in budgets) * (1 - 1e-12)
    assert curve.x[-1] <= min(b[-1] for b in budgets) * (1 + 1e-12)
    places = curve.x.tolist()
    expected = np.mean([run.at("nll", "evaluations", places) for run in runs], 0)
    np.testing.assert_allclose(curve.mean, expected)


def test_the_rate_passes_through_the_stated_point(reproduction: Reproduction) -> None:
    measured = measure_curves(reproduction)
    line = measured.rates["amsgrad", "epoch"]
    n = fabricated.PER_EPOCH * line.x
    ratio = line.y / (np.log(n) ** 2 / np.sqrt(n))
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)  # epochs have six decimals
    every = [
        measured.tests["amsgrad", "gradient", "epoch", method] for method in fabricated.METHODS
    ]
    middle = float(np.sqrt(max(c.x[0] for c in every) * min(c.x[-1] for c in every)))
    assert line.anchor == pytest.approx(middle, rel=1e-3)
    mean = np.mean([curve.at(middle) for curve in every])
    assert np.interp(middle, line.x, line.y) == pytest.approx(mean, rel=5e-3)


def test_against_budget_the_rate_counts_the_iterations_of_mlmc(reproduction: Reproduction) -> None:
    rates = measure_curves(reproduction).rates
    line = rates["amsgrad", "evaluations"]
    assert line.method == "mlmc"
    np.testing.assert_allclose(line.y, rates["amsgrad", "epoch"].y)  # of the same iterations
    spent = np.mean([run.test("evaluations")[-1] for run in reproduction.of("mlmc", "amsgrad")])
    assert line.x[-1] == pytest.approx(spent)


def test_levels_are_counted_and_those_above_the_truncation_told_apart(
    reproduction: Reproduction,
) -> None:
    levels = count_levels(reproduction)
    assert levels is not None
    lines = [
        row for run in reproduction.runs if run.method in ("mlmc", "mlmc-rb") for row in run.lines
    ]
    assert levels.draws == sum(sum(row["levels"].values()) for row in lines)
    ones = sum(row["levels"]["1"] for row in lines)
    assert levels.used[0] + levels.beyond[0] == pytest.approx(ones / levels.draws)
    # T_n = √n: level 2 needs n ≥ 16, so only the line of the first ten iterations is above it.
    early = sum(row["levels"]["2"] for row in lines if row["iteration"] < 16)
    assert levels.beyond[1] == pytest.approx(early / levels.draws)
    assert early > 0
    assert levels.used[-1] == 0.0  # 2^15 steps are never run here
    assert sum(levels.used) + sum(levels.beyond) == pytest.approx(1.0)
    assert sum(levels.law) == pytest.approx(1.0)
    assert levels.law[:3] == [0.5, 0.25, 0.125]


def test_a_larger_base_lets_fewer_levels_through(reproduction: Reproduction) -> None:
    """With base 4 level 1 has chains of 8 steps and needs T_n ≥ 8, hence n ≥ 64."""
    runs = [
        dataclasses.replace(run, settings={**run.settings, "base": 4}) for run in reproduction.runs
    ]
    levels = count_levels(dataclasses.replace(reproduction, runs=runs))
    assert levels is not None
    lines = [row for run in runs if run.method in ("mlmc", "mlmc-rb") for row in run.lines]
    early = sum(row["levels"]["1"] for row in lines if row["iteration"] < 64)
    assert levels.beyond[0] == pytest.approx(early / levels.draws)


def test_cost_is_that_of_the_chains(reproduction: Reproduction) -> None:
    costs = measure_curves(reproduction).costs
    np.testing.assert_allclose(costs["evaluations", "iwae"].mean, fabricated.CANDIDATES)
    br = costs["evaluations", "br"]
    assert br.seeds == 3
    assert br.mean[-1] == pytest.approx(1 + 4 * np.floor(np.sqrt(100)), rel=0.15)
    lines = reproduction.of("br", "amsgrad")[0].lines
    spent = lines[-1]["evaluations"] - lines[0]["evaluations"]
    every = np.diff([row["iteration"] for row in lines])
    assert len(every) == len(br.x)  # every line is an edge here: the sum is the whole
    assert float((br.mean * every).sum()) * fabricated.BATCH == pytest.approx(spent)
    seconds = [run.lines for run in reproduction.of("br", "amsgrad")]
    total = np.mean([rows[-1]["seconds"] - rows[0]["seconds"] for rows in seconds])
    assert float((costs["seconds", "br"].mean * every).sum()) == pytest.approx(1e3 * total)


def _with_lines(run: TrainingRun, rows: list[tuple[int, float]]) -> TrainingRun:
    lines = [{"iteration": n, "evaluations": e, "seconds": e / 1e4} for n, e in rows]
    return dataclasses.replace(run, lines=lines, settings={**run.settings, "batch_size": 10})


def test_places_are_those_that_all_seeds_cover() -> None:
    """Budgets 1 … 2048 and 3 … 1536: the places of the first within 3 … 1536, ends included."""
    first = formula_run(lambda n: 10.0 - math.log2(n))
    second = formula_run(lambda n: 12.0 - math.log2(n), cost=3.0, last=512, seed=2)
    bare = formula_run(lambda n: 0.0, seed=3)
    for row in bare.tests:
        del row["nll"]
    curve = average_tests([bare, first, second], "nll", "evaluations")
    assert curve is not None
    assert curve.x.tolist() == [3.0, *(2.0**i for i in range(2, 11)), 1536.0]
    assert curve.seeds == 2
    # At the budget b the first has 10 − log2 b, the second 12 − log2 (b/3).
    np.testing.assert_allclose(curve.low, 10.0 - np.log2(curve.x))
    np.testing.assert_allclose(curve.high, 12.0 - np.log2(curve.x / 3.0))
    assert average_tests([bare], "nll", "evaluations") is None
    # One place in common; and none, which puts single tests in the middle.
    one = average_tests([first, _tests_from(first, 2048)], "nll", "evaluations")
    assert one is not None
    assert one.x.tolist() == [2048.0]
    apart = [_tests_from(formula_run(lambda n: n, last=n), n) for n in (4, 8)]
    none = average_tests(apart, "nll", "iteration")
    assert none is not None
    assert (none.x.tolist(), none.mean.tolist()) == ([6.0], [6.0])


def _tests_from(run: TrainingRun, first: int) -> TrainingRun:
    return dataclasses.replace(run, tests=[r for r in run.tests if r["iteration"] >= first])


def test_cost_by_hand() -> None:
    """10 and 30 evaluations an image; lines of the second seed begin later and end earlier."""
    run = formula_run(lambda n: 0.0)
    first = _with_lines(run, [(n, 100.0 * n) for n in range(10, 101, 10)])
    second = _with_lines(run, [(n, 300.0 * n) for n in (20, 50, 80)])
    single = _with_lines(run, [(40, 1.0)])
    curve = average_costs([single, first, second], "evaluations")
    assert curve is not None
    edges = np.arange(20.0, 81.0, 10.0)
    np.testing.assert_allclose(curve.x, np.sqrt(edges[1:] * edges[:-1]))
    assert curve.seeds == 2
    np.testing.assert_allclose(
        (curve.low, curve.mean, curve.high), [[10.0] * 6, [20.0] * 6, [30.0] * 6]
    )
    seconds = average_costs([first], "seconds")
    assert seconds is not None
    np.testing.assert_allclose(seconds.mean, 10.0)  # milliseconds an iteration
    pair = average_costs([_with_lines(run, [(10, 100.0), (20, 300.0)])], "evaluations")
    assert pair is not None
    assert pair.mean.tolist() == [2.0]
    assert average_costs([single], "evaluations") is None
    # Edges lie inside what both cover: 19 is closer to 20 than 30 is, and outside.
    uneven = _with_lines(run, [(n, 100.0 * n) for n in (10, 19, 30, 40)])
    inside = average_costs([uneven, second], "evaluations")
    assert inside is not None
    assert inside.x.tolist() == pytest.approx([math.sqrt(30.0 * 40.0)])
    later = _with_lines(run, [(20, 1.0), (30, 2.0)])
    earlier = _with_lines(run, [(10, 1.0), (20, 2.0)])
    assert average_costs([earlier, later], "evaluations") is None


def test_a_rate_needs_something_to_pass_through() -> None:
    def line(*runs: TrainingRun) -> RateCurve | None:
        return measure_curves(Reproduction(Path(), {}, list(runs))).rates.get(("amsgrad", "epoch"))

    def levelled(run: TrainingRun) -> TrainingRun:
        return dataclasses.replace(run, settings={**run.settings, "base": 1})

    good = levelled(formula_run(lambda n: 0.0, lambda n: 3.0))
    found = line(good)
    assert found is not None
    assert found.x[0] == pytest.approx(0.2)  # n = 2: the rate is 0 at n = 1
    assert found.anchor == pytest.approx(np.sqrt(2048.0) / 10.0)
    late = line(_tests_from(good, 64))
    assert late is not None
    assert late.x[0] == pytest.approx(6.4)
    short = line(levelled(formula_run(lambda n: 0.0, lambda n: 3.0, last=2)))
    assert short is not None  # middle √2
    assert line(levelled(formula_run(lambda n: 0.0, lambda n: 3.0, last=1))) is None
    for height in (0.0, -1.0):
        assert line(levelled(formula_run(lambda n: 0.0, lambda n, h=height: h))) is None  # type: ignore[misc]
    early = levelled(formula_run(lambda n: 0.0, lambda n: 1.0, last=32, method="br"))
    assert line(_tests_from(good, 64), early) is None  # nothing in common
    touching = line(_tests_from(good, 32), early)
    assert touching is not None
    assert touching.anchor == pytest.approx(3.2)


def test_the_last_bar_stands_for_all_that_follow() -> None:
    """Bars expect at least 5 draws: of 90, down to level 5 (90/2^4 ≥ 5); of 4 there is one bar."""
    run = dataclasses.replace(formula_run(lambda n: 0.0), settings={"base": 1} | _TRUNCATION)

    def counted(levels: dict[str, int]) -> Levels:
        lines = [{"iteration": 16, "levels": levels}]  # T = 8: levels up to 3 are used
        made = count_levels(Reproduction(Path(), {}, [dataclasses.replace(run, lines=lines)]))
        assert made is not None
        return made

    many = counted({"1": 45, "2": 22, "3": 11, "4": 6, "5": 3, "6": 2, "7": 1})
    assert many.level == [1, 2, 3, 4, 5]
    assert many.used == pytest.approx([45 / 90, 22 / 90, 11 / 90, 0.0, 0.0])
    assert many.beyond == pytest.approx([0.0, 0.0, 0.0, 6 / 90, 6 / 90])
    assert many.law == [0.5, 0.25, 0.125, 0.0625, 0.0625]
    few = counted({"1": 3, "2": 1})
    assert (few.level, few.used, few.law, few.draws) == ([1], [1.0], [1.0], 4)
    low = counted({"1": 60, "2": 30})
    assert low.level == [1, 2]


_TRUNCATION = {"truncation_scale": 2.0, "truncation_exponent": 0.5}


def _diagnosed(method: str, iterations: list[int], last: int = 2048) -> TrainingRun:
    """A run whose lines have numbers that are functions of n."""
    run = formula_run(lambda n: 20.0, lambda n: 0.5, method=method, last=last)
    lines = [
        {
            "iteration": n,
            "evaluations": n**2,
            "loss_evaluations": 3 * n,
            "effective": n,
            "acceptance": n / 1000,
            "theta_squared": 2.0 * n,
        }
        for n in iterations
    ]
    return dataclasses.replace(run, lines=lines, settings={**run.settings, "batch_size": 50})


def _diagnose(*runs: TrainingRun) -> dict[str, Diagnostics]:
    return {row.method: row for row in diagnose(Reproduction(Path(), {}, list(runs)))}


def test_diagnostics_are_means_over_the_last_tenth_of_the_iterations() -> None:
    row = _diagnose(_diagnosed("br", list(range(10, 201, 10))))["br"]
    assert (row.iteration, row.effective) == (200, 195.0)
    assert row.acceptance == pytest.approx(0.195)
    assert row.variance == pytest.approx(2 * 195 - 0.5)
    assert row.evaluations == pytest.approx((200**2 - 180**2) / (20 * 50))
    assert row.decoded_again == pytest.approx(3 / 50)
    # Without a line in the last tenth, the last one before the end; else the first one.
    for iterations, end, used in (([100, 200], 150, 100), ([100, 200], 50, 100)):
        rows = _diagnose(_diagnosed("br", iterations), _diagnosed("mlmc", [10, end]))
        assert rows["br"].effective == used
        assert rows["br"].evaluations == pytest.approx(used**2 / (used * 50))
    assert _diagnose(_diagnosed("br", [100, 200]))["br"].effective == 200


def test_diagnostics_need_lines_and_tests() -> None:
    br = _diagnosed("br", [100])
    without_lines, without_tests = _diagnosed("mlmc", []), _diagnosed("iwae", [50], last=0)
    assert set(_diagnose(br, without_lines, without_tests)) == {"br"}
    bare = [{k: v for k, v in row.items() if k != "gradient"} for row in br.tests]
    rows = _diagnose(dataclasses.replace(br, tests=bare), _diagnosed("mlmc", [100]))
    assert (rows["br"].variance, rows["br"].relative) == (None, None)
    assert rows["mlmc"].relative is None
    about = {"settings": {"dataset": "digits"}}
    (findings,) = find([Reproduction(Path(), about, [without_tests])])
    assert findings.final == ()
