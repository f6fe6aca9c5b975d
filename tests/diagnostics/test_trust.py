"""No verb returns numbers where the loss has none, and extreme arguments are refused by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import diagnostics, problems
from mlmcgrad.diagnostics import Reference
from tests.chains import rng
from tests.diagnostics.planned import finite, importance

CHAIN, OTHER = problems.finite_chain(states=6, seed=1), problems.finite_chain(states=6, seed=1)


def gradient(loss: Callable[[Tensor], Tensor] = CHAIN.loss) -> mg.MarkovGradient:
    return mg.MarkovGradient(CHAIN.kernel(), loss, mg.MLMC(4), parameters=CHAIN.parameters)


def infinite(x: Tensor) -> Tensor:
    """An infinite loss in one state, whose gradient is finite."""
    return CHAIN.loss(x) + torch.where(x == 3, torch.inf, 0.0)


def not_a_number(x: Tensor) -> Tensor:
    """A finite loss whose gradient is NaN in one state: √0 in a branch that is not taken."""
    return CHAIN.loss(x) + torch.where(x == 3, (CHAIN.parameters[0][0] * 0.0).sqrt(), 0.0)


def huge(x: Tensor) -> Tensor:
    """A gradient whose square overflows."""
    return 1e200 * CHAIN.loss(x)


VERBS: dict[str, Callable[[mg.MarkovGradient], object]] = {
    "plan": lambda g: diagnostics.plan(g, CHAIN.start(1), budget=1e5, generator=rng()),
    "compare": lambda g: diagnostics.compare(
        {"good": gradient(), "bad": g}, CHAIN.start(1), reference=CHAIN, generator=rng()
    ),
    "certify": lambda g: diagnostics.certify(
        g, CHAIN.start(1), evaluations=2e4, tolerance=1.0, generator=rng()
    ),
    "level_test": lambda g: diagnostics.level_test(
        g, CHAIN.start(1), highest=3, replicates=1000, generator=rng()
    ),
}


@pytest.mark.parametrize("loss", [infinite, not_a_number, huge])
@pytest.mark.parametrize("verb", VERBS)
def test_a_loss_without_mean_or_variance_is_refused(
    verb: str, loss: Callable[[Tensor], Tensor]
) -> None:
    """The planted bug: a NaN has bias² max(0, NaN) = 0, and wins."""
    words = "the loss is NaN" if loss is infinite else "the gradient of the loss is NaN"
    with pytest.raises(FloatingPointError, match=words) as error:
        VERBS[verb](gradient(loss))
    assert str(error.value).startswith("contender 'bad': ") == (verb == "compare")


def unused(x: Tensor) -> Tensor:
    """A loss of other parameters than those that are given."""
    return OTHER.loss(x)


def constant(x: Tensor) -> Tensor:
    """A loss without parameters."""
    return CHAIN.loss(x).detach()


def mean(x: Tensor) -> Tensor:
    """One number for all rows."""
    return CHAIN.loss(x).mean()


def changing(x: Tensor) -> Tensor:
    """A loss that moves the states."""
    return CHAIN.loss(x.sub_(x % 2))


def normalised(x: Tensor) -> Tensor:
    """A loss that depends on the other states of its chunk."""
    return torch.nn.functional.batch_norm(CHAIN.loss(x)[:, None], None, None, training=True)[:, 0]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        # Torch itself refuses a chunk of a single row.
        (normalised, "loss normalises over its rows|Expected more than 1 value per channel"),
        (unused, "the loss depends on none of the 1"),
        (constant, "the loss depends on none of the 1"),
        (mean, "loss must return one number for each row"),
        (changing, "loss changed its first argument in place"),
    ],
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_loss_that_is_refused_in_training_is_refused_by_all(
    verb: str, loss: Callable[[Tensor], Tensor], message: str
) -> None:
    """The planted bugs: a certificate that the gradient is 0, and a number that is broadcast."""
    with pytest.raises(ValueError, match=message):
        VERBS[verb](gradient(loss))


def test_no_grad_makes_no_difference() -> None:
    usual = str(VERBS["certify"](gradient()))
    with torch.no_grad():
        assert str(VERBS["certify"](gradient())) == usual


@pytest.mark.parametrize(
    ("x0", "context", "generator", "message"),
    [
        (torch.zeros(0, dtype=torch.int64), (), rng(), "x0 must have at least one row"),
        (CHAIN.start(2), (torch.zeros(3),), rng(), "context tensor 1 must have one row for each"),
        (CHAIN.start(2), (), None, "generator must be a torch.Generator"),
        (mg.Store(4, ()).start(torch.arange(4)), (), rng(), "x0 "),
    ],
)
def test_starts_and_contexts_are_checked_by_all(
    x0: Any, context: Any, generator: Any, message: str
) -> None:
    g, options = gradient(), {"generator": generator}
    calls: list[Callable[[], object]] = [
        lambda: diagnostics.plan(g, x0, *context, budget=1e5, **options),
        lambda: diagnostics.compare({"a": g}, x0, *context, **options),
        lambda: diagnostics.certify(g, x0, *context, **options),
        lambda: diagnostics.level_test(g, x0, *context, highest=2, **options),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call()


@pytest.mark.parametrize(
    ("name", "value"),
    [("highest", -1), ("highest", 1.5), ("base", 0), ("replicates", 0), ("least", 0)],
)
def test_numbers_of_a_level_test(name: str, value: Any) -> None:
    options: Any = {"highest": 2, name: value}
    with pytest.raises(ValueError, match=f"{name} must be an integer ≥ "):
        diagnostics.level_test(gradient(), CHAIN.start(1), generator=rng(), **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reference_that_is_not_finite_is_refused(bad: float) -> None:
    value, se = torch.zeros(2, dtype=torch.float64), torch.full((2,), bad, dtype=torch.float64)
    for reference in (Reference(value, se), Reference(se, value), [se]):
        with pytest.raises(
            ValueError, match="reference must have a finite entry for each of the 2"
        ):
            diagnostics.compare(
                {"a": gradient()}, CHAIN.start(1), reference=reference, generator=rng()
            )


def planned(**options: Any) -> diagnostics.Plan:
    options = {"pilot": 1e3, **options}
    return diagnostics.plan(gradient(), CHAIN.start(1), generator=rng(), **options)


@pytest.mark.parametrize("accuracy", [1e300, 1.7e308])
def test_an_accuracy_that_everything_reaches(accuracy: float) -> None:
    plan = planned(accuracy=accuracy)
    assert plan.budget == 8.0  # one step of each simulation
    assert plan.estimator == mg.Average(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 5e-324}, "budget must be ≥ 8, .*, got 5e-324"),
        ({"accuracy": 5e-324}, "accuracy must be > .*, got 5e-324"),
        ({"accuracy": 1e-300}, "accuracy must be > .*, got 1e-300"),
        ({"budget": 1e5, "simulations": 10**400}, "simulations must be an integer from 1 to"),
        ({"budget": 1e5, "iteration": 10**400}, "iteration must be an integer from 0 to"),
        ({"budget": math.inf}, "budget must be a finite number, got inf"),
        ({"budget": 1e5, "pilot": math.nan}, "pilot must be a finite number, got nan"),
    ],
)
def test_extreme_arguments_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(**options)


@pytest.mark.parametrize("options", [{"budget": 1e300}, {"budget": 1e5, "pilot": 5e-324}])
def test_extreme_arguments_that_mean_something(options: dict[str, Any]) -> None:
    plan = planned(**options)
    assert math.isfinite(plan.error)
    assert plan.verdict in str(plan)


def test_many_evaluations_are_a_limit_and_not_a_task() -> None:
    """The planted bug: checks that take a share of all of them never end."""
    found = diagnostics.certify(
        gradient(), CHAIN.start(1), evaluations=1e300, tolerance=0.5, generator=rng()
    )
    assert found.certified
    assert found.evaluations < 3e6


def everything() -> Iterator[str]:
    """All verbs, with what they print."""
    known, (weighed, y) = finite(6, 1), importance()
    cases: list[tuple[mg.MarkovGradient, Tensor | None, tuple[Tensor, ...]]]
    cases = [(known.gradient, known.x0, ()), (weighed, None, (y,))]
    for g, x0, context in cases:
        # The bias of 2^12 steps underflows.
        plan = diagnostics.plan(g, x0, *context, budget=1e5, simulations=9000, generator=rng())
        yield f"{plan}{plan.known}{plan.schedule}{plan.scheduled}{plan.crossover}"
        options: Any = {"evaluations": 1e4, "tolerance": 0.5}
        yield str(diagnostics.certify(g, x0, *context, generator=rng(), **options))
        pair = {"a": g, "b": dataclasses.replace(g, estimator=mg.Average(2))}
        yield repr(diagnostics.compare(pair, x0, *context, evaluations=500, generator=rng()))
        options = {"highest": 3, "replicates": 100, "least": 10}
        yield repr(diagnostics.level_test(g, x0, *context, generator=rng(), **options))


def test_settings_of_the_process_change_nothing() -> None:
    """`np.seterr(all="raise")`, and float64 as torch's default."""
    usual = list(everything())
    with np.errstate(all="raise"):
        assert list(everything()) == usual
    torch.set_default_dtype(torch.float64)
    try:
        assert list(everything()) == usual
    finally:
        torch.set_default_dtype(torch.float32)
