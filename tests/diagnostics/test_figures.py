"""Figures of plans and comparisons: what they show is what was found."""

import builtins
import io
from typing import Any

import numpy as np
import pytest

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics import Comparison
from mlmcgrad.diagnostics._plan import describe, plan
from tests.chains import rng
from tests.diagnostics.test_compare_result import contender

pytest.importorskip("matplotlib")

FOUND = Comparison(
    (
        contender("short", 4.0, 10.0, 1.0, (0.1, 0.1)),
        contender("long", 1.0, 310.0, 1.0, (0.1, 0.1)),
        contender("unbiased", -0.1, 50.0, 2000.0, (0.1, 0.1)),
    ),
    (1e0, 1e3, 1e6),
    "the truth",
)


def test_lines_of_a_comparison() -> None:
    (axes,) = FOUND.plot().axes
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    legend = axes.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [f"{row.name}: {row.method}" for row in FOUND.rows]
    for row, line in zip(FOUND.rows, lines, strict=True):
        x, y = line.get_data()
        assert np.min(x) >= row.cost
        values = [row.error(float(b)).value for b in np.asarray(x)]
        assert np.allclose(np.asarray(y), values, rtol=1e-12)
    floors = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
    # Nobody knows whether the third has a bias at all.
    assert [float(np.asarray(line.get_ydata())[0]) for line in floors] == [4.0, 1.0]
    dots = [line.get_data() for line in axes.get_lines() if line.get_marker() == "o"]
    assert len(dots) == len(FOUND.crossovers) == 1


def _choice() -> Any:
    chain = problems.finite_chain(states=6, seed=1)
    gradient = mg.MarkovGradient(
        chain.kernel(), chain.loss, mg.Average(1), parameters=chain.parameters
    )
    return plan(gradient, chain.start(1), budget=1e5, simulations=10_000, generator=rng())


def test_panels_of_a_plan() -> None:
    choice = _choice()
    left, right = choice.plot().axes
    measured = next(line for line in left.get_lines() if line.get_marker() == "o")
    x, y = map(np.asarray, measured.get_data())
    assert x.tolist() == [2**level for level in range(1, choice.decay.pilot.highest + 1)]
    spread = float(choice.decay.pilot.covariance(1)[1, 1]) ** 0.5
    assert y[0] == pytest.approx(spread, rel=1e-12)
    drawn = {line.get_label(): line for line in right.get_lines()}
    for each in choice.shown():
        x, y = map(np.asarray, drawn[describe(each.estimator)].get_data())
        assert y[-1] == pytest.approx(each.error(float(x[-1])) ** 0.5, rel=1e-12)
    thick = max(right.get_lines(), key=lambda line: line.get_linewidth())
    assert thick.get_label() == describe(choice.estimator)
    assert "budget" in [text.get_text() for text in right.texts]


@pytest.mark.parametrize("form", ["png", "svg"])
def test_they_can_be_saved(form: str) -> None:
    for figure in (FOUND.plot(), _choice().plot()):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=20)
        assert len(buffer.getvalue()) > 1000


@pytest.mark.parametrize("name", ["$g_$0", "_hidden", r"a $\frac$ b", "<b>"])
def test_names_are_drawn_as_they_are(name: str) -> None:
    """The planted bug: as labels they are formulas to matplotlib, or hidden."""
    rows = contender(name, 4.0, 10.0, 1.0), contender("other", 1.0, 310.0, 1.0)
    figure = Comparison(rows, (1e0, 1e3), "the truth").plot()
    figure.savefig(io.BytesIO(), dpi=20)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text().split(":")[0] for text in legend.get_texts()] == [name, "other"]


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModuleNotFoundError, match=r"plot needs matplotlib; pip install"):
        FOUND.plot()
