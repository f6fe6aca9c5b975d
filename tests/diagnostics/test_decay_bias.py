"""The law of the bias: right where it is measured, cautious where it cannot be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mlmcgrad.diagnostics._decay import Approach, Squared
from mlmcgrad.diagnostics._pilot import Group, Pilot, Simulator, run_pilot
from tests.diagnostics.planned import finite, importance


def made(
    highest: int, bias: list[float], noise: float, *, nested: bool = False, count: int = 400
) -> Pilot:
    """A pilot whose means of H^{(2^l)} are given, with noise of a given size on them."""
    rng = np.random.default_rng(0)
    groups = []
    for j in range(highest + 1):
        steps = rng.standard_normal((count, j + 1, 1)) * noise
        groups.append(Group(torch.from_numpy(np.array(bias)[: j + 1, None] + steps), 2.0**j, 1.0))
    return Pilot(tuple(groups), 0, nested=nested)


def shapes(time: float, levels: int) -> list[float]:
    """The mean of e^{−(t−1)/τ} over the first 2^l steps."""
    return [float(np.exp(-np.arange(2**level) / time).mean()) for level in range(levels)]


@pytest.mark.parametrize("time", [1.0, 4.0, 12.0])
def test_one_mode_is_found_and_continued(time: float) -> None:
    true = shapes(time, 12)
    found = Approach(made(7, true[:8], 1e-3), scale=1.0, time=time)
    for level in range(12):
        estimate = math.sqrt(found.bias({level: 1.0}).value)
        assert estimate == pytest.approx(true[level], rel=0.1), level


def test_a_burn_in_leaves_little() -> None:
    true = shapes(2.0, 8)
    found = Approach(made(7, true, 1e-3), scale=1.0, time=2.0)
    # Steps 17 to 32 of a chain that forgets in two.
    left = math.sqrt(found.bias({5: 2.0, 4: -1.0}).value)
    assert left < 0.05 * true[4]


def test_two_modes_are_told_apart() -> None:
    fast, slow = shapes(1.0, 10), shapes(20.0, 10)
    true = [a - 0.3 * b for a, b in zip(fast, slow, strict=True)]
    found = Approach(made(7, true[:8], 1e-3), scale=1.0, time=20.0)
    assert math.sqrt(found.bias({9: 1.0}).value) == pytest.approx(abs(true[9]), rel=0.3)


def test_a_short_pilot_leaves_slow_modes_possible() -> None:
    flat = made(2, [1.0, 1.0, 1.0], 0.1)
    slow = Approach(flat, scale=1.0, time=8.0)
    fast = Approach(made(7, shapes(1.0, 8), 1e-3), scale=1.0, time=1.0)
    assert slow.slow > 0.5 > fast.slow
    # Nothing is known: the start may be a standard deviation away, and still is after 64 steps.
    assert slow.bias({6: 1.0}).value > 3.0 * fast.bias({6: 1.0}).value


def test_noise_hides_a_bias_and_the_prior_decides() -> None:
    silent = Approach(made(4, [0.0] * 5, 50.0), scale=1.0, time=1.0)
    assert 0.1 < silent.bias({0: 1.0}).value < 1.5
    assert silent.bias({10: 1.0}).value < 1e-5


@pytest.mark.parametrize("time", [0.0, 8.0])
def test_importance_sampling_needs_draws_for_its_weights(time: float) -> None:
    true = [(1.0 + time) / (2.0**level + time) for level in range(13)]
    found = Approach(made(7, true[:8], 1e-3, nested=True), scale=25.0, time=1.0)
    for level in (0, 4, 7, 12):
        estimate = math.sqrt(found.bias({level: 1.0}).value)
        assert estimate == pytest.approx(true[level], rel=0.2), level
    assert found.slow < 0.1
    flat = Approach(made(3, [1.0] * 4, 1e-2, nested=True), scale=25.0, time=1.0)
    assert flat.slow > 0.5


def test_biases_of_a_real_chain() -> None:
    """Within 4 standard errors of its own, for every length and window: a million to one."""
    known = finite(6, 1)
    rng = torch.Generator().manual_seed(0)
    measured = run_pilot(Simulator(known.gradient, known.x0, (), rng), 1e6)
    found = Approach(measured, scale=0.35, time=2.0)
    for level in range(9):
        bias = known.exact.mean(2**level) - known.exact.limit
        square, estimate = float(bias @ bias), found.bias({level: 1.0})
        assert abs(estimate.value - square) < 4.0 * estimate.se + 1e-12, level
        assert estimate.se < 0.4 * square, level


def test_a_wrong_sign_is_seen() -> None:
    """The planted bug: windows from the sum of two lengths instead of their difference."""
    known = finite(6, 1)
    rng = torch.Generator().manual_seed(0)
    measured = run_pilot(Simulator(known.gradient, known.x0, (), rng), 1e6)
    found = Approach(measured, scale=0.35, time=2.0)
    window = 2.0 * known.exact.mean(8) - known.exact.mean(4) - known.exact.limit
    right, wrong = found.bias({3: 2.0, 2: -1.0}), found.bias({3: 0.5, 2: 0.5})
    square = float(window @ window)
    assert abs(right.value - square) < 4.0 * right.se
    assert abs(wrong.value - square) > 4.0 * wrong.se


def test_bias_of_importance_sampling() -> None:
    gradient, y = importance()
    rng = torch.Generator().manual_seed(1)
    measured = run_pilot(Simulator(gradient, None, (y,), rng), 1e6)
    found = Approach(measured, scale=float(measured.covariance(0)[0, 0]), time=1.0)
    # The limit is 0: means of short lengths are biases.
    for level in range(3):
        h = torch.cat([g.estimates[:, level] for g in measured.groups[level:]]).mean(0)
        assert math.sqrt(found.bias({level: 1.0}).value) == pytest.approx(float(h.norm()), rel=0.15)


def test_cautious_is_above() -> None:
    assert Squared(0.5, 0.25).cautious == 0.75
    assert Squared(-0.5, 0.25).cautious == 0.25
