"""`compare` on a chain with a few states, where all that it measures is known exactly."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics import Comparison, Contender, Reference, compare
from mlmcgrad.estimators import Estimator
from mlmcgrad.lengths import Lengths
from tests.chains import rng
from tests.diagnostics.exact import Exact
from tests.statistics import mean_is

PROBLEM = problems.finite_chain()
STARTS = torch.tensor([0, 0, 4])  # rows that differ
ESTIMATORS: dict[str, Estimator] = {
    "short": mg.Average(2),
    "late": mg.Average(4, burn_in=4),
    "multilevel": mg.MLMC(16),
    "sum": mg.MLMCSum(16, base=2),
}


def by(estimator: Estimator) -> mg.MarkovGradient:
    return mg.MarkovGradient(
        PROBLEM.kernel(), PROBLEM.loss, estimator, parameters=PROBLEM.parameters
    )


def exact(rows: Tensor = STARTS) -> Exact:
    start = torch.bincount(rows, minlength=8).double() / len(rows)
    return Exact(PROBLEM.matrix(), start, PROBLEM.features - PROBLEM.data_mean, longest=64)


def moments(estimator: Estimator) -> tuple[float, float, float]:
    """Squared bias over all rows, variance within them, and steps."""
    bias2, _, steps = exact().moments(estimator)
    each = [exact(row).moments(estimator)[1] for row in STARTS.split(1)]
    return bias2, math.fsum(each) / len(each), steps


def expected() -> Tensor:
    """Squared bias and variance of each estimator."""
    found = [moments(estimator)[:2] for estimator in ESTIMATORS.values()]
    return torch.tensor(found, dtype=torch.float64)


def measured(
    repetitions: int,
    contenders: Mapping[str, mg.MarkovGradient],
    reference: Any = PROBLEM,
    evaluations: float = 900.0,
) -> Tensor:
    """(repetitions, contenders, 2)."""
    generator, found = rng(), []
    for _ in range(repetitions):
        known = reference(generator) if callable(reference) else reference
        result = compare(
            contenders, STARTS, reference=known, evaluations=evaluations, generator=generator
        )
        found.append([[row.squared, row.variance] for row in result.rows])
    return torch.tensor(found, dtype=torch.float64)


def everyone() -> dict[str, mg.MarkovGradient]:
    return {name: by(estimator) for name, estimator in ESTIMATORS.items()}


def test_bias_and_variance_are_exact_in_expectation() -> None:
    """Null hypothesis: the means over repetitions are those of the transition matrix."""
    assert mean_is(measured(50, everyone()), expected())


def test_costs_are_exact() -> None:
    found = compare(everyone(), STARTS, reference=PROBLEM, evaluations=100.0, generator=rng())
    for name, estimator in ESTIMATORS.items():
        assert found[name].cost == pytest.approx(exact().moments(estimator)[2], rel=1e-12)


class Halved:
    """A planted bug: the corrections have half their weight."""

    def __init__(self) -> None:
        self.right = mg.MLMC(16)

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        plan = self.right.draw(chains, n, generator)
        weights = plan.weights.clone()
        lengths = plan.terms.double()
        total = (weights * lengths)[:, 1:] * 0.5
        weights[:, 1:] = total / lengths[:, 1:]
        return dataclasses.replace(plan, weights=weights)

    def longest(self, n: int | None = None) -> int:
        return self.right.longest(n)

    def expected_length(self, n: int | None = None) -> float:
        return self.right.expected_length(n)


def test_a_wrong_estimator_is_noticed() -> None:
    contenders = everyone() | {"multilevel": by(Halved())}
    assert not mean_is(measured(30, contenders), expected())


def _noisy(generator: torch.Generator, said: float = 0.8) -> Reference:
    (value,) = PROBLEM.exact_gradient()
    noise = 0.8 * torch.randn(2, dtype=torch.float64, generator=generator)
    return Reference(value + noise, torch.full((2,), said, dtype=torch.float64))


def test_noise_of_the_reference_is_counted() -> None:
    """Null hypothesis as above; a reference that hides its noise is the planted bug."""
    assert mean_is(measured(60, everyone(), _noisy), expected())
    hidden = measured(60, everyone(), lambda generator: _noisy(generator, said=0.0))
    assert not mean_is(hidden, expected())


def _covered(rows: list[Contender], shrink: float) -> int:
    """Count the intervals that hold the exact error, each at one of three budgets."""
    exactly = {row.name: moments(ESTIMATORS[row.name]) for row in rows[:2]}
    hits = 0
    for i, row in enumerate(rows):
        bias2, variance, steps = exactly[row.name]
        shrunk = dataclasses.replace(
            row, squared_se=shrink * row.squared_se, variance_se=shrink * row.variance_se
        )
        budget = (1e2, 1e4, 1e6)[i % 3]
        interval = shrunk.error(budget)
        hits += interval.low <= bias2 + variance * steps / budget <= interval.high
    return hits


def test_intervals_cover() -> None:
    """Of 300 intervals with 95 % each, fewer than 265 hold with a probability below 1e-5; half
    as wide they would hold 67 %."""
    generator, contenders = rng(), {name: by(ESTIMATORS[name]) for name in ("short", "late")}
    rows: list[Contender] = []
    for _ in range(150):
        rows += compare(
            contenders, STARTS, reference=PROBLEM, evaluations=4000.0, generator=generator
        ).rows
    assert len(rows) == 300
    assert _covered(rows, 1.0) >= 265
    assert _covered(rows, 0.5) < 265


def test_without_a_reference_one_is_simulated() -> None:
    """Its noise is in the standard errors, and its bias is far below them."""
    found = compare(everyone(), STARTS, evaluations=20_000.0, generator=rng())
    assert found.reference == "66 × Average(625, burn_in=625) by Finite"
    for name, (bias2, _) in zip(("short", "late"), expected().tolist(), strict=False):
        assert abs(found[name].squared - bias2) < 5.0 * found[name].squared_se
        assert found[name].squared_se < 0.2 * bias2  # so that it says something


def test_importance_sampling_has_a_reference_without_burn_in() -> None:
    model = problems.linear_gaussian()
    kernel = model.kernel()
    draws = mg.kernels.Importance(kernel.log_weight, kernel.propose, 4)
    contenders = {
        name: mg.MarkovGradient(draws, model.loss, estimator, parameters=model.parameters)
        for name, estimator in (("one", mg.Average(1)), ("levels", mg.MLMC(8)))
    }
    found = compare(contenders, None, model.data[:8], evaluations=2000.0, generator=rng())
    assert "burn_in" not in found.reference
    assert "by Importance" in found.reference
    assert found["one"].cost == 4.0
    assert found["levels"].cost == 4.0 * mg.MLMC(8).expected_length()


def test_levels_are_drawn_for_each_simulation() -> None:
    """With one level for all of them they would not be independent."""

    def row(assignment: Any) -> Any:
        gradient = by(mg.MLMC(64, assignment=assignment))
        return compare(
            {"a": gradient}, STARTS, reference=PROBLEM, evaluations=1e4, generator=rng()
        )["a"]

    assert row("shared") == row("independent")


def test_schedules_are_read_at_n() -> None:
    gradient = by(mg.MLMC(mg.schedules.power(1.0, 0.5)))
    found = compare(
        {"a": gradient}, STARTS, reference=PROBLEM, n=256, evaluations=1e3, generator=rng()
    )
    assert found["a"].cost == mg.MLMC(16).expected_length()
    assert found["a"].method == "MLMC(16) by Finite"


def test_starts_may_differ_by_name() -> None:
    both = {"here": by(mg.Average(1)), "there": by(mg.Average(1))}
    starts = {"here": torch.zeros(2, dtype=torch.int64), "there": torch.full((2,), 3)}
    found = compare(both, starts, reference=PROBLEM, evaluations=1e4, generator=rng())
    for name, state in (("here", 0), ("there", 3)):
        bias = PROBLEM.average_gradient(1, state) - PROBLEM.exact_gradient()[0]
        row = found[name]
        assert abs(row.squared - float(bias @ bias)) < 6.0 * row.squared_se
        other = PROBLEM.average_gradient(1, 3 - state) - PROBLEM.exact_gradient()[0]
        assert abs(row.squared - float(other @ other)) > 6.0 * row.squared_se


def _result() -> Comparison:
    return compare(everyone(), STARTS, reference=PROBLEM, evaluations=2e4, generator=rng(1))


def test_same_generator_same_bits_and_strict_json() -> None:
    first, second = _result(), _result()
    assert first == second
    record = json.loads(json.dumps(first.record(), allow_nan=False))
    assert [row["name"] for row in record["contenders"]] == list(ESTIMATORS)


def test_report_goes_up_to_one() -> None:
    shares: list[float] = []
    compare(everyone(), STARTS, evaluations=100.0, generator=rng(), report=shares.append)
    assert shares == [0.125, 0.25, 0.375, 0.5, 1.0]
    shares.clear()
    compare(everyone(), STARTS, reference=PROBLEM, evaluations=100.0, generator=rng(),
            report=shares.append)  # fmt: skip
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_errors_name_argument_and_value() -> None:
    gradient = by(mg.Average(1))
    other = problems.finite_chain()
    foreign = mg.MarkovGradient(
        other.kernel(), other.loss, mg.Average(1), parameters=other.parameters
    )
    calls: list[tuple[str, dict[str, Any]]] = [
        ("contenders must contain a gradient", {"contenders": {}}),
        (
            "same parameters.*those of 'b' and 'a' differ",
            {"contenders": {"a": gradient, "b": foreign}},
        ),
        ("evaluations must be", {"evaluations": 0.0}),
        ("budgets must be", {"budgets": (1e3, math.nan)}),
        ("budgets must contain", {"budgets": ()}),
        (
            "same number of rows.*got 1 for 'b' and 3 for 'a'",
            {"contenders": {"a": gradient, "b": gradient}, "x0": {"a": STARTS, "b": STARTS[:1]}},
        ),
    ]
    for message, changes in calls:
        arguments: dict[str, Any] = {"contenders": {"a": gradient}, "x0": STARTS, **changes}
        with pytest.raises(ValueError, match=message):
            compare(
                arguments.pop("contenders"),
                arguments.pop("x0"),
                **arguments,
                reference=PROBLEM,
                generator=rng(),
            )
