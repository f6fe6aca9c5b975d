"""Figures of a reproduction: what is drawn is what was found."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from mlmcgrad.paper.experiments import plots
from mlmcgrad.paper.experiments.reproduce import figures
from mlmcgrad.paper.experiments.reproduce.data import read_reproduction
from mlmcgrad.paper.experiments.reproduce.findings import (
    Curves,
    ReproductionFindings,
    find,
    measure_curves,
)
from mlmcgrad.paper.experiments.reproduce.settings import LABELS
from tests.paper.experiments.reproduce import fabricated


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> ReproductionFindings:
    return find(
        [read_reproduction(fabricated.write(tmp_path_factory.mktemp("plots") / "r", seeds=3))]
    )[0]


@pytest.fixture
def axes() -> Any:
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def _line(axes: Axes, label: str) -> Any:
    return next(line for line in axes.get_lines() if str(line.get_label()).startswith(label))


def _title(axes: Axes) -> str:
    legend = axes.get_legend()
    assert legend is not None
    return legend.get_title().get_text()


def test_a_line_is_the_mean_and_the_band_the_range(
    findings: ReproductionFindings, axes: Axes
) -> None:
    figures.tests(axes, findings.curves, "amsgrad", "nll", "evaluations")
    for method, band in zip(fabricated.METHODS, axes.collections, strict=True):
        curve = findings.curves.tests["amsgrad", "nll", "evaluations", method]
        line = _line(axes, LABELS[method])
        np.testing.assert_allclose(line.get_xdata(), 1e-6 * curve.x)
        np.testing.assert_allclose(line.get_ydata(), curve.mean)
        assert line.get_color() == plots.COLOURS[method]
        # Nobody can see the band's ends as a line: they are in the polygon of the fill.
        heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
        assert (heights.min(), heights.max()) == pytest.approx((curve.low.min(), curve.high.max()))


def test_the_dashed_curve_is_the_rate(findings: ReproductionFindings, axes: Axes) -> None:
    figures.tests(axes, findings.curves, "amsgrad", "gradient", "epoch")
    line, rate = _line(axes, "(log N)²/√N"), findings.curves.rates["amsgrad", "epoch"]
    assert line.get_linestyle() == "--"
    np.testing.assert_allclose(line.get_xdata(), rate.x)
    np.testing.assert_allclose(line.get_ydata(), rate.y)
    assert f"epoch {rate.anchor:.2g}" in str(line.get_label())
    axes.clear()
    figures.tests(axes, findings.curves, "amsgrad", "gradient", "seconds")
    assert _line(axes, "(log N)²/√N, N as in MLMC-IWAE") is not None


def test_means_that_are_not_positive_are_left_out_and_counted(tmp_path: Path, axes: Axes) -> None:
    reproduction = read_reproduction(
        fabricated.write(tmp_path / "r", methods=("br", "mlmc"), seeds=1)
    )
    for run in reproduction.runs:
        for row in run.tests:
            row["gradient"] = abs(row["gradient"])
    figures.tests(axes, measure_curves(reproduction), "amsgrad", "gradient", "epoch")
    assert "not drawn" not in _title(axes)
    tests = reproduction.of("br", "amsgrad")[0].tests
    tests[1]["gradient"], tests[3]["gradient"] = -0.01, 0.0
    axes.clear()
    figures.tests(axes, measure_curves(reproduction), "amsgrad", "gradient", "epoch")
    drawn = np.asarray(_line(axes, LABELS["br"]).get_ydata())
    assert np.flatnonzero(np.isnan(drawn)).tolist() == [1, 3]
    assert "2 points not drawn" in _title(axes)
    assert axes.get_ylim()[0] > 0.0


def test_levels_and_cost(findings: ReproductionFindings, axes: Axes) -> None:
    levels = findings.curves.levels
    assert levels is not None
    figures.levels(axes, findings.curves)
    np.testing.assert_array_equal(_line(axes, "law").get_ydata(), levels.law)
    axes.clear()
    figures.cost(axes, findings.curves, "evaluations")
    np.testing.assert_allclose(_line(axes, LABELS["iwae"]).get_ydata(), fabricated.CANDIDATES)


def test_every_panel_is_drawn_once_and_written(
    tmp_path: Path, findings: ReproductionFindings
) -> None:
    drawings = figures.draw(findings, tmp_path)
    tests = {
        f"{quantity}-amsgrad-{axis}"
        for quantity in ("gradient", "nll")
        for axis in ("epoch", "evaluations", "seconds")
    }
    assert set(drawings) == {*tests, "levels", "cost-evaluations", "cost-seconds"}
    for name, drawing in drawings.items():
        assert (tmp_path / f"{name}.png").read_bytes() == drawing.png
        assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8") == drawing.svg
        assert len(drawing.svg) < 60_000
        assert "<metadata>" not in drawing.svg
    assert ">MLMC-IWAE</text>" in drawings["nll-amsgrad-epoch"].svg  # letters, not outlines
    main, one = (
        Image.open(tmp_path / f"{name}.png") for name in ("main", "nll-amsgrad-evaluations")
    )
    assert main.size == (one.width, 2 * one.height)
    top = main.crop((0, 0, *one.size))
    assert top.tobytes() == one.convert("RGB").tobytes()


def test_one_test_and_one_seed_are_enough(tmp_path: Path, axes: Axes) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("mlmc",), seeds=2, iterations=5)
    (findings,) = find([read_reproduction(folder)])
    assert figures.draw(findings, tmp_path / "figures")
    figures.tests(axes, findings.curves, "amsgrad", "nll", "seconds")
    expected = np.mean([row.nll for row in findings.final])
    assert _line(axes, LABELS["mlmc"]).get_ydata() == pytest.approx([expected])


def test_without_a_complete_run_panels_say_so(tmp_path: Path, axes: Axes) -> None:
    nothing = Curves({}, {}, {}, None)
    figures.tests(axes, nothing, "amsgrad", "gradient", "epoch")
    figures.levels(axes, nothing)
    figures.cost(axes, nothing, "seconds")
    assert [text.get_text() for text in axes.texts] == ["not measured"] * 3
