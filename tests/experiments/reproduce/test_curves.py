"""The numbers that figures draw are those of the run folders."""

import dataclasses

import numpy as np
import pytest

from mlmcgrad.experiments.reproduce import curves
from mlmcgrad.experiments.reproduce.gather import Reproduction, gather
from tests.experiments.reproduce import fabricated


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
    lines = [row for run in reproduction.runs if "mlmc" in run.method for row in run.lines]
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
    lines = [row for run in runs if "mlmc" in run.method for row in run.lines]
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
