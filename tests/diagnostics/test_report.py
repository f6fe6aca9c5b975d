"""Results in notebooks: tables whose text is escaped."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

import pytest

import mlmcgrad as mg
from mlmcgrad import diagnostics, problems
from mlmcgrad.diagnostics import Check
from tests.chains import rng
from tests.diagnostics.planned import finite

TAGS = {"div", "p", "b", "table", "tr", "th", "td"}


class Reader(HTMLParser):
    """Tags with their nesting checked, cells of each row, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.rows: list[int] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert not attrs
        self.open.append(tag)
        self.seen.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_plan() -> None:
    known = finite(6, 1)
    plan = diagnostics.plan(known.gradient, known.x0, budget=1e5, generator=rng())
    read = Reader(plan._repr_html_())
    assert read.rows == [6] * (1 + len(plan.shown()))
    for text in (plan.verdict, diagnostics.describe(plan.estimator), "evaluations"):
        assert text in read.text


def test_the_warnings_of_a_plan() -> None:
    known = finite(20, 2)
    plan = diagnostics.plan(known.gradient, known.x0, budget=1e4, generator=rng())
    vars(plan)["warnings"] = ("<b>one</b> & two",)
    assert "<p>&lt;b&gt;one&lt;/b&gt; &amp; two</p>" in plan._repr_html_()


def test_a_comparison_escapes_the_names_of_contenders() -> None:
    problem = problems.finite_chain(states=6, seed=1)

    def by(estimator: mg.estimators.Estimator) -> mg.MarkovGradient:
        return mg.MarkovGradient(
            problem.kernel(), problem.loss, estimator, parameters=problem.parameters
        )

    name = "<b onclick='x()'>&\"short"
    comparison = diagnostics.compare(
        {name: by(mg.Average(2)), "long": by(mg.Average(32))},
        problem.start(1),
        reference=problem,
        evaluations=1e3,
        budgets=(1e2, 1e4, 1e6),
        generator=rng(),
    )
    read = Reader(comparison._repr_html_())
    assert read.rows == [5] * 3 + [3] * 4
    assert read.seen.count("b") == 1  # the title only
    assert read.text.count(name) == comparison.verdict.count(name) + 2
    assert comparison.verdict in read.text


def test_a_certificate_escapes_checks_and_units() -> None:
    problem = problems.finite_chain(states=6, seed=1)
    gradient = mg.MarkovGradient(
        problem.kernel(), problem.loss, mg.MLMC(2), parameters=problem.parameters
    )
    certificate = diagnostics.certify(
        gradient, problem.start(1), generator=rng(), evaluations=1e5, tolerance=1.0
    )
    checks = (*certificate.checks, Check("<b>", None, "a < b & c"))
    odd = dataclasses.replace(certificate, checks=checks, unit_name="<u>")
    read = Reader(odd._repr_html_())
    assert read.rows == [3] * (1 + len(odd.checks))
    assert read.seen.count("b") == 1
    for text in ("<b>", "a < b & c", "<u>", "passed", odd.verdict):
        assert text in read.text


@pytest.mark.parametrize("consistent", [True, False])
def test_levels(consistent: bool) -> None:
    check = 0.5 if consistent else 1.5
    rows = [diagnostics.LevelRow(k, 2**k, 1.0, 0.01, 1.0, 1.0, 3.0, check, 10) for k in range(3)]
    read = Reader(diagnostics.LevelTest(tuple(rows))._repr_html_())
    assert read.rows == [8] * 4
    assert ("NOT" not in read.text) == consistent
