"""Step sizes found by a pilot give the acceptance that was asked for, from any first guess.

Null hypothesis: the adapted kernel accepts with its target, up to 0.05. With 64 chains the
acceptance of adapted kernels had standard deviations of at most 0.004 over 40 seeds and a bias
of at most 0.004, so 0.05 is more than ten of them away: a false alarm has a probability below 1e-9
a row, over all seeds. Every bug that is planted must be seen by the same test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.kernels import MALA, RWMH, Adapted, FromStep, adapt, adaptation
from tests.chains import rng, run
from tests.statistics import mean_is

BOTH = pytest.mark.parametrize("kind", [RWMH, MALA])
TARGETS: dict[str, Any] = {
    "Gaussian, 1": problems.gaussian(1),
    "Gaussian, 10": problems.gaussian(10),
    "skewed, 2": problems.skewed(2),
}
ROWS = pytest.mark.parametrize("name", TARGETS)
GUESSES = pytest.mark.parametrize("guess", [1e-4, 1e4])


def _pilot(
    kind: Any, name: str, guess: float, seed: int = 0, chains: int = 64, **options: Any
) -> Adapted[Any]:
    problem = TARGETS[name]
    kernel = kind(problem.log_density, guess)
    return adapt(kernel, problem.start(chains), generator=rng(seed), **options)


def _acceptance(kernel: Any, name: str) -> float:
    """By chains of their own, from exact draws of the target: standard error below 0.002."""
    generator, chains, length = rng(1000), 2000, 50
    x0 = TARGETS[name].sample(chains, generator)
    plan = mg.Average(length).draw(chains, None, generator)
    _, outcome = run(kernel, x0, plan, (), generator)
    return outcome.accepted / (chains * length)


def _is_on_target(pilot: Adapted[Any], name: str) -> bool:
    return abs(_acceptance(pilot.kernel, name) - pilot.target) <= 0.05


@BOTH
@ROWS
@GUESSES
def test_the_adapted_kernel_accepts_as_often_as_was_asked(
    kind: Any, name: str, guess: float
) -> None:
    pilot = _pilot(kind, name, guess)
    assert _is_on_target(pilot, name)
    assert abs(pilot.acceptance - pilot.target) <= 0.05
    assert pilot.last.shape == TARGETS[name].start(64).shape


@pytest.mark.parametrize("target", [0.2, 0.8])
def test_any_target_can_be_asked_for(target: float) -> None:
    pilot = _pilot(MALA, "skewed, 2", 1.0, target=target)
    assert pilot.target == target
    assert _is_on_target(pilot, "skewed, 2")


Update = Callable[[Any, float, float], Any]


def _reversed(update: Update) -> Update:
    """The planted bug: a step size that grows where it should shrink."""
    return lambda now, error, centre: update(now, -error, centre)


def _not_averaged(update: Update) -> Update:
    """The planted bug: the last step size instead of the average."""

    def changed(now: Any, error: float, centre: float) -> Any:
        after = update(now, error, centre)
        return after._replace(averaged=after.size)

    return changed


def _shrunk_only(update: Update) -> Update:
    """The planted bug: errors are not added up, so the size stays near ten first guesses."""
    return lambda now, error, centre: update(now._replace(error=0.0), error, centre)


@pytest.mark.filterwarnings("ignore:the pilot of")
@BOTH
@pytest.mark.parametrize("bug", [_reversed, _shrunk_only])
def test_planted_bugs_are_seen(
    monkeypatch: pytest.MonkeyPatch, kind: Any, bug: Callable[[Update], Update]
) -> None:
    monkeypatch.setattr(adaptation, "_updated", bug(adaptation._updated))
    assert not _is_on_target(_pilot(kind, "skewed, 2", 1e-4), "skewed, 2")


def _spread(seeds: range) -> float:
    """Standard deviation of log h over pilots of two chains."""
    sizes = [_pilot(RWMH, "Gaussian, 1", 1.0, seed, 2, steps=200).step_size for seed in seeds]
    return float(torch.tensor(sizes, dtype=torch.float64).log().std())


@pytest.mark.filterwarnings("ignore:the pilot of")
def test_averaging_makes_the_size_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last size itself is more than twice as uncertain.

    Null hypothesis: the standard deviation of log h is at most 0.18 (it is 0.13); estimated from
    30 independent normal values it exceeds 0.3 with a probability below 1e-5 (χ²). That of the
    twin is 0.45.
    """
    assert _spread(range(30)) < 0.3
    monkeypatch.setattr(adaptation, "_updated", _not_averaged(adaptation._updated))
    assert _spread(range(30)) > 0.3


def test_defaults() -> None:
    """0.574 for MALA, 0.44 … 0.234 for RWMH by the number of entries of a state."""
    assert _pilot(MALA, "Gaussian, 10", 1.0, steps=50).target == 0.574
    assert _pilot(RWMH, "Gaussian, 1", 1.0, steps=50).target == pytest.approx(0.44)
    assert _pilot(RWMH, "Gaussian, 10", 0.5, steps=50).target == pytest.approx(0.2546)
    kernel, one = RWMH(TARGETS["Gaussian, 10"].log_density, 0.5), torch.zeros(1, 2, 5)
    assert adaptation._default_target(kernel, one) == pytest.approx(0.2546)


@BOTH
def test_the_same_generator_gives_the_same_size(kind: Any) -> None:
    first, again, other = (_pilot(kind, "skewed, 2", 1.0, seed, 4, steps=100) for seed in (0, 0, 1))
    assert first.step_size == again.step_size != other.step_size
    assert torch.equal(first.last, again.last)


@cache
def _dual_averages() -> list[float]:
    """Log sizes by the formulas of the paper, for acceptances 0.9, 0.2, 0.6, 0.5."""
    mean, averaged, sizes = 0.0, 0.0, []
    for t, a in enumerate((0.9, 0.2, 0.6, 0.5), start=1):
        mean = (1.0 - 1.0 / (t + 10)) * mean + (0.574 - a) / (t + 10)
        size = math.log(10.0 * 0.5) - math.sqrt(t) / 0.05 * mean
        averaged = t**-0.75 * size + (1.0 - t**-0.75) * averaged
        sizes += [size, averaged]
    return sizes


def test_dual_averaging_by_hand() -> None:
    now = adaptation._Averages(0, 0.0, math.log(0.5), 0.0)
    sizes: list[float] = []
    for a in (0.9, 0.2, 0.6, 0.5):
        now = adaptation._updated(now, 0.574 - a, math.log(10.0 * 0.5))
        sizes += [now.size, now.averaged]
    assert sizes == pytest.approx(_dual_averages(), abs=1e-14)


def test_the_pilot_is_dual_averaging_from_the_crossing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps adapt, by the acceptances of `_dual_averages`; the last one only measures."""
    shares = iter((0.9, 0.2, 0.6, 0.5, 0.625))
    monkeypatch.setattr(adaptation, "_crossing", lambda *_: math.log(0.5))
    monkeypatch.setattr(adaptation, "probability", lambda r: torch.full_like(r, next(shares)))
    pilot = _pilot(MALA, "Gaussian, 1", 2.0, steps=5)
    # Shares may be rounded to single precision.
    assert pilot.step_size == pytest.approx(2.0 * math.exp(_dual_averages()[-1]), rel=1e-5)
    assert (pilot.acceptance, list(shares)) == (0.625, [])


def test_the_order_of_magnitude_is_found_by_doubling() -> None:
    kernel, log2 = RWMH(TARGETS["skewed, 2"].log_density, 1.0), math.log(2.0)
    for doublings in (1, 2, 50):
        edge = (doublings - 0.5) * log2
        found = adaptation._crossing(lambda size, e=edge: float(size < e), 0.3, kernel)  # type: ignore[misc]
        assert found == pytest.approx(doublings * log2)
        found = adaptation._crossing(lambda size, e=edge: float(size < -e), 0.3, kernel)  # type: ignore[misc]
        assert found == pytest.approx(-doublings * log2)
    with pytest.raises(RuntimeError, match="most proposals are accepted"):
        adaptation._crossing(lambda size: float(size < 50.5 * log2), 0.3, kernel)


def test_sizes_stay_within_reach() -> None:
    now = adaptation._Averages(10_000, 1.0, 0.0, 0.0)
    assert adaptation._updated(now, 1.0, 0.0).size == pytest.approx(-50.0 * math.log(2.0))
    now = now._replace(error=-1.0)
    assert adaptation._updated(now, -1.0, 0.0).size == pytest.approx(50.0 * math.log(2.0))


def _far(x: Tensor, centre: Tensor) -> Tensor:
    return -0.5 * ((x - centre) * torch.tensor([1.0, 100.0])).square().sum(1)


@BOTH
def test_ratios_of_a_tensor_stay_and_context_follows_its_chain(kind: Any) -> None:
    centre = torch.arange(8.0)[:, None].expand(-1, 2)
    guess = torch.tensor([1.0, 0.01]) if kind is RWMH else torch.tensor([1.0, 1e-4])
    pilot = adapt(kind(_far, 1e3 * guess), centre, centre, generator=rng())
    assert isinstance(pilot.step_size, Tensor)
    assert pilot.step_size.dtype == torch.float32
    assert torch.allclose(pilot.step_size / pilot.step_size[0], guess)
    assert 0.3 < float(pilot.step_size[0]) < 4.0  # standard deviations are 1 and 0.01
    assert (pilot.last - centre).abs()[:, 0].max() < 8.0
    assert (pilot.last - centre).abs()[:, 1].max() < 0.08


@BOTH
def test_a_compiled_kernel_is_adapted_without_compiling(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(torch, "compile", None)  # would fail
    problem = TARGETS["skewed, 2"]
    kernel = kind(problem.log_density, 0.1, compile=True)
    pilot = adapt(kernel, problem.start(4), generator=rng(), steps=50)
    plain = kind(problem.log_density, 0.1)
    assert pilot.kernel.compile
    assert pilot.kernel.log_density == kernel.log_density
    assert pilot.step_size == adapt(plain, problem.start(4), generator=rng(), steps=50).step_size
    assert kernel.step_size == 0.1


def _keeps_the_target(kernel: Any) -> bool:
    """Moments after six steps from exact draws; false-alarm rate 1e-5, see `mean_is`."""
    problem, generator = TARGETS["skewed, 2"], rng(3)
    x0 = problem.sample(20_000, generator)
    plan = mg.Average(6).draw(len(x0), None, generator)
    _, outcome = run(kernel, x0, plan, (), generator)
    moments = torch.cat([outcome.last, (outcome.last - problem.mean).square()], 1)
    return mean_is(moments, torch.cat([problem.mean, problem.variance]))


@BOTH
def test_the_adapted_kernel_leaves_the_target_invariant(kind: Any) -> None:
    assert _keeps_the_target(_pilot(kind, "skewed, 2", 1e4).kernel)


def test_a_step_size_that_goes_on_adapting_is_seen() -> None:
    """The planted bug: a size that depends on where the chain is."""
    problem = TARGETS["skewed, 2"]

    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        size = torch.where(x[:, :1] < problem.mean[0], 2.0, 0.5)
        y = x + size * torch.randn(x.shape, dtype=x.dtype, generator=generator)
        u = torch.rand(len(x), dtype=x.dtype, generator=generator)
        accepted = u.log() < problem.log_density(y) - problem.log_density(x)
        return torch.where(accepted[:, None], y, x)

    assert not _keeps_the_target(FromStep(step))
