"""The numbers that figures draw are those of the run folders."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from mlmcgrad.experiments.reproduce import curves
from mlmcgrad.experiments.reproduce.gather import Reproduction, TrainingRun, gather
from tests.experiments.reproduce import fabricated
from tests.experiments.reproduce.test_compare import formula_run


@pytest.fixture(scope="module")
def reproduction(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    return gather(fabricated.write(tmp_path_factory.mktemp("curves") / "r", seeds=3))


def test_against_epochs_a_curve_is_the_mean_and_the_range_of_the_tests(
    reproduction: Reproduction,
) -> None:
    for method in fabricated.METHODS:
        runs = reproduction.of(method, "amsgrad")
        assert len(runs) == 3
        curve = curves.tests(runs, "nll", "epoch")
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
    curve = curves.tests(runs, "nll", "evaluations")
    assert curve is not None
    budgets = [run.test("evaluations") for run in runs]
    assert len({tuple(b) for b in budgets}) == 3  # otherwise nothing is tested
    assert curve.x[0] >= max(b[0] for b in budgets) * (1 - 1e-12)
    assert curve.x[-1] <= min(b[-1] for b in budgets) * (1 + 1e-12)
    places = curve.x.tolist()
    expected = np.mean([run.at("nll", "evaluations", places) for run in runs], 0)
    np.testing.assert_allclose(curve.mean, expected)


def test_the_rate_passes_through_the_stated_point(reproduction: Reproduction) -> None:
    measured = curves.measure(reproduction)
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
    rates = curves.measure(reproduction).rates
    line = rates["amsgrad", "evaluations"]
    assert line.method == "mlmc"
    np.testing.assert_allclose(line.y, rates["amsgrad", "epoch"].y)  # of the same iterations
    spent = np.mean([run.test("evaluations")[-1] for run in reproduction.of("mlmc", "amsgrad")])
    assert line.x[-1] == pytest.approx(spent)


def test_levels_are_counted_and_those_above_the_truncation_told_apart(
    reproduction: Reproduction,
) -> None:
    levels = curves.levels(reproduction)
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
    levels = curves.levels(dataclasses.replace(reproduction, runs=runs))
    assert levels is not None
    lines = [row for run in runs if run.method in ("mlmc", "mlmc-rb") for row in run.lines]
    early = sum(row["levels"]["1"] for row in lines if row["iteration"] < 64)
    assert levels.beyond[0] == pytest.approx(early / levels.draws)


def test_cost_is_that_of_the_chains(reproduction: Reproduction) -> None:
    costs = curves.measure(reproduction).costs
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
    curve = curves.tests([bare, first, second], "nll", "evaluations")
    assert curve is not None
    assert curve.x.tolist() == [3.0, *(2.0**i for i in range(2, 11)), 1536.0]
    assert curve.seeds == 2
    # At the budget b the first has 10 − log2 b, the second 12 − log2 (b/3).
    np.testing.assert_allclose(curve.low, 10.0 - np.log2(curve.x))
    np.testing.assert_allclose(curve.high, 12.0 - np.log2(curve.x / 3.0))
    assert curves.tests([bare], "nll", "evaluations") is None
    # One place in common; and none, which puts single tests in the middle.
    one = curves.tests([first, _tests_from(first, 2048)], "nll", "evaluations")
    assert one is not None
    assert one.x.tolist() == [2048.0]
    apart = [_tests_from(formula_run(lambda n: n, last=n), n) for n in (4, 8)]
    none = curves.tests(apart, "nll", "iteration")
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
    curve = curves.cost([single, first, second], "evaluations")
    assert curve is not None
    edges = np.arange(20.0, 81.0, 10.0)
    np.testing.assert_allclose(curve.x, np.sqrt(edges[1:] * edges[:-1]))
    assert curve.seeds == 2
    np.testing.assert_allclose(
        (curve.low, curve.mean, curve.high), [[10.0] * 6, [20.0] * 6, [30.0] * 6]
    )
    seconds = curves.cost([first], "seconds")
    assert seconds is not None
    np.testing.assert_allclose(seconds.mean, 10.0)  # milliseconds an iteration
    pair = curves.cost([_with_lines(run, [(10, 100.0), (20, 300.0)])], "evaluations")
    assert pair is not None
    assert pair.mean.tolist() == [2.0]
    assert curves.cost([single], "evaluations") is None
    # Edges lie inside what both cover: 19 is closer to 20 than 30 is, and outside.
    uneven = _with_lines(run, [(n, 100.0 * n) for n in (10, 19, 30, 40)])
    inside = curves.cost([uneven, second], "evaluations")
    assert inside is not None
    assert inside.x.tolist() == pytest.approx([math.sqrt(30.0 * 40.0)])
    later = _with_lines(run, [(20, 1.0), (30, 2.0)])
    earlier = _with_lines(run, [(10, 1.0), (20, 2.0)])
    assert curves.cost([earlier, later], "evaluations") is None


def test_a_rate_needs_something_to_pass_through() -> None:
    def line(*runs: TrainingRun) -> curves.Rate | None:
        return curves.measure(Reproduction(Path(), {}, list(runs))).rates.get(("amsgrad", "epoch"))

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

    def found(levels: dict[str, int]) -> curves.Levels:
        lines = [{"iteration": 16, "levels": levels}]  # T = 8: levels up to 3 are used
        made = curves.levels(Reproduction(Path(), {}, [dataclasses.replace(run, lines=lines)]))
        assert made is not None
        return made

    many = found({"1": 45, "2": 22, "3": 11, "4": 6, "5": 3, "6": 2, "7": 1})
    assert many.level == [1, 2, 3, 4, 5]
    assert many.used == pytest.approx([45 / 90, 22 / 90, 11 / 90, 0.0, 0.0])
    assert many.beyond == pytest.approx([0.0, 0.0, 0.0, 6 / 90, 6 / 90])
    assert many.law == [0.5, 0.25, 0.125, 0.0625, 0.0625]
    few = found({"1": 3, "2": 1})
    assert (few.level, few.used, few.law, few.draws) == ([1], [1.0], [1.0], 4)
    low = found({"1": 60, "2": 30})
    assert low.level == [1, 2]


_TRUNCATION = {"truncation_scale": 2.0, "truncation_exponent": 0.5}
