"""Who is best at which budget: lines whose crossings can be computed by hand."""

import math

import numpy as np
import pytest

from mlmcgrad.diagnostics import Comparison, Contender


def contender(
    name: str, squared: float, variance: float, cost: float, se: tuple[float, float] = (0.0, 0.0)
) -> Contender:
    return Contender(name, f"{name} by hand", 100, squared, se[0], variance, se[1], cost)


def comparison(*rows: Contender) -> Comparison:
    return Comparison(rows, (1e2, 1e4, 1e6), "the truth")


def test_a_crossover_by_hand() -> None:
    """4 + 1 · 10/B against 1 + 2 · 155/B: equal at B = 100."""
    found = comparison(contender("short", 4.0, 10.0, 1.0), contender("long", 1.0, 155.0, 2.0))
    (crossing,) = found.crossovers
    assert (crossing.before, crossing.after) == ("short", "long")
    assert crossing.budget.value == crossing.budget.low == crossing.budget.high == 100.0
    assert found.best(99.0) == ("short",)
    assert found.best(101.0) == ("long",)
    assert found["long"].error(310.0).value == 2.0
    assert found.verdict == (
        "short is best at budgets above 2 evaluations; above 1e+02 evaluations (1e+02 to "
        "1e+02) long is best."
    )


@pytest.mark.parametrize("seed", range(20))
def test_crossovers_are_where_the_best_changes(seed: int) -> None:
    """Against a fine grid of budgets, for six random contenders."""
    random = np.random.default_rng(seed)
    rows = [contender(str(i), *np.exp(random.normal(0.0, 2.0, 3)).tolist()) for i in range(6)]
    found = comparison(*rows)
    crossings = found.crossovers
    first = max(row.cost for row in rows)
    for budget in np.geomspace(first, 1e6 * first, 500):
        passed = [c for c in crossings if c.budget.value <= budget]
        expected = passed[-1].after if passed else found.best(first)[0]
        assert found.best(float(budget))[0] == expected
    budgets = [c.budget.value for c in crossings]
    assert budgets == sorted(budgets)


def test_no_budget_changes_the_best_of_all() -> None:
    found = comparison(contender("all", 0.0, 1.0, 1.0), contender("none", 1.0, 1.0, 2.0))
    assert found.crossovers == ()
    assert found.verdict == "all is best at budgets above 2 evaluations; no crossover was detected."


def test_intervals_by_hand() -> None:
    row = contender("a", 1.0, 100.0, 2.0, se=(0.3, 20.0))
    z = 1.959963984540054
    assert row.bias2.low == 1.0 - z * 0.3
    error = row.error(100.0)  # 1 ± 0.3 and 2 ± 0.4
    assert error.value == 3.0
    assert error.low == pytest.approx(3.0 - z * 0.5, rel=1e-12)
    assert error.high == pytest.approx(3.0 + z * 0.5, rel=1e-12)


def test_no_bias_is_negative() -> None:
    """What is left when noise is subtracted may be; the error is then that of the noise."""
    row = contender("a", -0.5, 100.0, 2.0, se=(1.0, 0.0))
    assert row.bias2.value == row.bias2.low == 0.0
    error = row.error(100.0)
    assert error.value == error.low == 2.0
    assert error.high == pytest.approx(1.5 + 1.959963984540054, rel=1e-12)


def test_a_tie_is_an_overlap() -> None:
    sharp, vague = contender("sharp", 1.0, 1.0, 1.0), contender("vague", 2.0, 1.0, 1.0, (0.6, 0.0))
    assert comparison(sharp, vague).best(1e9) == ("sharp", "vague")
    clear = contender("clear", 2.0, 1.0, 1.0, (0.4, 0.0))
    assert comparison(sharp, clear).best(1e9) == ("sharp",)


def test_a_crossover_that_may_never_come() -> None:
    rows = contender("a", 1.0, 1.0, 1.0, (0.4, 0.0)), contender("b", 0.5, 9.0, 1.0, (0.4, 0.0))
    (crossing,) = comparison(*rows).crossovers
    assert crossing.budget.value == 16.0
    assert crossing.budget.high == math.inf
    assert comparison(*rows).verdict.endswith("to ∞) b is best.")
    assert comparison(*rows).record()["crossovers"][0]["high"] is None


def test_a_budget_below_one_simulation() -> None:
    found = comparison(contender("long", 0.0, 1.0, 1000.0), contender("short", 1.0, 1.0, 150.0))
    assert found.best(100.0) == ()
    assert found.best(200.0) == ("short",)
    assert found["long"].error(999.0).value == math.inf
    assert found.record()["contenders"][0]["error"][0]["value"] is None
    assert "–\n" in str(found)


def test_the_table_has_every_contender_and_budget() -> None:
    text = str(comparison(contender("first", 4.0, 10.0, 1.0), contender("second", 1.0, 150.0, 2.0)))
    lines = text.splitlines()
    assert lines[0].endswith("; bias against the truth")
    assert [line.split()[0] for line in lines[2:4]] == ["first", "second"]
    assert [line.split()[0] for line in lines[6:9]] == ["100", "1e+04", "1e+06"]
    assert "first by hand" in lines[2]
    assert lines[-1].startswith("first is best")
