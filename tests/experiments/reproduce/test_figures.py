"""Figures of a reproduction: what is drawn is what the run folders hold."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes

from mlmcgrad.experiments import plots
from mlmcgrad.experiments.reproduce import curves
from mlmcgrad.experiments.reproduce import figures as reproduce_plot
from mlmcgrad.experiments.reproduce.gather import LABELS, Reproduction, gather, interpolate
from tests.experiments.reproduce import fabricated


@pytest.fixture(scope="module")
def reproduction(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    return gather(fabricated.write(tmp_path_factory.mktemp("plots") / "r", seeds=3))


def _draw(panel: reproduce_plot.Panel) -> Axes:
    figure, axes = plt.subplots()
    panel(axes)
    plt.close(figure)
    return axes


def _line(axes: Axes, label: str) -> Any:
    return next(line for line in axes.get_lines() if str(line.get_label()).startswith(label))


def test_against_epochs_the_line_is_the_mean_of_the_tests(reproduction: Reproduction) -> None:
    axes = _draw(reproduce_plot.tests(reproduction, "amsgrad", "nll", "epoch"))
    for method in fabricated.METHODS:
        runs = reproduction.of(method, "amsgrad")
        assert len(runs) == 3
        line = _line(axes, LABELS[method])
        np.testing.assert_allclose(line.get_xdata(), runs[0].test("epoch"))
        np.testing.assert_allclose(line.get_ydata(), np.mean([r.test("nll") for r in runs], 0))
        assert line.get_color() == plots.COLOURS[method]
    # Nobody can see the band's ends as a line: they are in the polygon of the fill.
    band = axes.collections[0].get_paths()[0].vertices
    rows = [run.test("nll") for run in reproduction.of("iwae", "amsgrad")]
    assert np.max(rows) == pytest.approx(float(np.max(np.asarray(band)[:, 1])))


def test_against_budget_seeds_are_compared_where_all_of_them_were(
    reproduction: Reproduction,
) -> None:
    axes = _draw(reproduce_plot.tests(reproduction, "amsgrad", "nll", "evaluations"))
    runs = reproduction.of("mlmc", "amsgrad")
    line = _line(axes, LABELS["mlmc"])
    places = 1e6 * np.asarray(line.get_xdata())
    budgets = [run.test("evaluations") for run in runs]
    assert len({tuple(b) for b in budgets}) == 3  # otherwise nothing is tested
    assert places[0] >= max(b[0] for b in budgets) * (1 - 1e-12)
    assert places[-1] <= min(b[-1] for b in budgets) * (1 + 1e-12)
    expected = np.mean([interpolate(run, "nll", "evaluations", places.tolist()) for run in runs], 0)
    np.testing.assert_allclose(line.get_ydata(), expected)


def test_the_dashed_curve_is_the_rate_through_the_stated_point(reproduction: Reproduction) -> None:
    axes = _draw(reproduce_plot.tests(reproduction, "amsgrad", "gradient", "epoch"))
    line = _line(axes, "(log N)²/√N")
    assert line.get_linestyle() == "--"
    epochs, heights = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    n = fabricated.PER_EPOCH * epochs
    ratio = heights / (np.log(n) ** 2 / np.sqrt(n))
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)  # epochs have six decimals
    found = {
        m: curves.tests(reproduction.of(m, "amsgrad"), "gradient", "epoch")
        for m in fabricated.METHODS
    }
    begin = max(c.x[0] for c in found.values() if c)
    end = min(c.x[-1] for c in found.values() if c)
    middle = float(np.sqrt(begin * end))
    mean = np.mean([c.at(middle) for c in found.values() if c])
    assert np.interp(middle, epochs, heights) == pytest.approx(mean, rel=5e-3)
    assert f"epoch {middle:.2g}" in str(line.get_label())


def test_against_budget_the_dashed_curve_counts_the_iterations_of_mlmc(
    reproduction: Reproduction,
) -> None:
    epochs = _line(_draw(reproduce_plot.tests(reproduction, "amsgrad", "gradient", "epoch")), "(l")
    budget = _draw(reproduce_plot.tests(reproduction, "amsgrad", "gradient", "evaluations"))
    line = _line(budget, "(log N)²/√N, N as in MLMC-IWAE")
    np.testing.assert_allclose(line.get_ydata(), epochs.get_ydata())  # of the same iterations
    spent = np.mean([run.test("evaluations")[-1] for run in reproduction.of("mlmc", "amsgrad")])
    assert line.get_xdata()[-1] == pytest.approx(1e-6 * spent)


def test_means_that_are_not_positive_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br", "mlmc"), seeds=1)
    reproduction = gather(folder)
    run = reproduction.of("br", "amsgrad")[0]
    for row in run.tests:
        row["gradient"] = abs(row["gradient"])
    for row in reproduction.of("mlmc", "amsgrad")[0].tests:
        row["gradient"] = abs(row["gradient"])
    panel = reproduce_plot.tests(reproduction, "amsgrad", "gradient", "epoch")
    assert "not drawn" not in _title(_draw(panel))
    run.tests[1]["gradient"], run.tests[3]["gradient"] = -0.01, 0.0
    axes = _draw(panel)
    drawn = np.asarray(_line(axes, LABELS["br"]).get_ydata())
    assert np.flatnonzero(np.isnan(drawn)).tolist() == [1, 3]
    assert "2 points not drawn" in _title(axes)
    assert axes.get_ylim()[0] > 0.0


def _title(axes: Axes) -> str:
    legend = axes.get_legend()
    assert legend is not None
    return legend.get_title().get_text()


def test_levels_are_counted_and_those_above_the_truncation_told_apart(
    reproduction: Reproduction,
) -> None:
    found = curves.levels(reproduction)
    assert found is not None
    lines = [row for run in reproduction.runs if "mlmc" in run.method for row in run.lines]
    assert found.draws == sum(sum(row["levels"].values()) for row in lines)
    ones = sum(row["levels"]["1"] for row in lines)
    assert found.used[0] + found.beyond[0] == pytest.approx(ones / found.draws)
    # T_n = √n: level 2 needs n ≥ 16, so only the line of the first ten iterations is above it.
    early = sum(row["levels"]["2"] for row in lines if row["iteration"] < 16)
    assert found.beyond[1] == pytest.approx(early / found.draws)
    assert early > 0
    assert found.used[-1] == 0.0  # 2^15 steps are never run here
    assert sum(found.used) + sum(found.beyond) == pytest.approx(1.0)
    assert sum(found.law) == pytest.approx(1.0)
    assert found.law[:3] == [0.5, 0.25, 0.125]
    axes = _draw(reproduce_plot.levels(reproduction))
    np.testing.assert_array_equal(_line(axes, "law").get_ydata(), found.law)


def test_cost_is_that_of_the_chains(reproduction: Reproduction) -> None:
    axes = _draw(reproduce_plot.cost(reproduction, "evaluations"))
    iwae = np.asarray(_line(axes, LABELS["iwae"]).get_ydata())
    np.testing.assert_allclose(iwae, fabricated.CANDIDATES)
    br = np.asarray(_line(axes, LABELS["br"]).get_ydata())
    assert br[-1] == pytest.approx(1 + 4 * np.floor(np.sqrt(100)), rel=0.15)
    total = reproduction.of("br", "amsgrad")[0].lines
    spent = total[-1]["evaluations"] - total[0]["evaluations"]
    found = curves.cost(reproduction.of("br", "amsgrad"), "evaluations")
    assert found is not None
    assert found.seeds == 3
    every = np.diff([row["iteration"] for row in total])
    assert len(every) == len(found.x)  # every line is an edge here: the sum is the whole
    assert float((found.mean * every).sum()) == pytest.approx(spent)


def test_all_figures_are_written_and_the_svg_is_small(
    tmp_path: Path, reproduction: Reproduction
) -> None:
    paths = reproduce_plot.draw(reproduction, tmp_path)
    assert {path.stem for path in paths} == {
        "gradient-amsgrad",
        "gradient-amsgrad-seconds",
        "nll-amsgrad",
        "nll-amsgrad-seconds",
        "main",
        "levels",
        "cost",
    }
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert 1000 < path.with_suffix(".svg").stat().st_size < 100_000
    text = plots.svg(reproduce_plot.tests(reproduction, "amsgrad", "nll", "epoch"))
    assert len(text) < 60_000
    assert ">MLMC-IWAE</text>" in text  # letters, not their outlines
    assert "<metadata>" not in text


def test_one_test_and_one_seed_are_enough(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("mlmc",), seeds=2, iterations=5)
    reproduction = gather(folder)
    assert all(len(run.tests) == 1 for run in reproduction.runs)
    assert reproduce_plot.draw(reproduction, tmp_path / "figures")
    axes = _draw(reproduce_plot.tests(reproduction, "amsgrad", "nll", "seconds"))
    expected = np.mean([run.tests[0]["nll"] for run in reproduction.runs])
    assert _line(axes, LABELS["mlmc"]).get_ydata() == pytest.approx([expected])


def test_without_a_complete_run_there_is_a_panel_that_says_so(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br",), seeds=1)
    fabricated.fail(folder, "amsgrad-br-0", "no memory")
    for panel in (
        reproduce_plot.tests(gather(folder), "amsgrad", "gradient", "epoch"),
        reproduce_plot.levels(gather(folder)),
        reproduce_plot.cost(gather(folder), "seconds"),
    ):
        assert [text.get_text() for text in _draw(panel).texts] == ["no complete run"]
