"""What `adapt` refuses, and what it warns of."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mlmcgrad.kernels import MALA, RWMH, Finite, adapt, adaptation
from tests.chains import rng

BOTH = pytest.mark.parametrize("kind", [RWMH, MALA])


def _normal(x: Tensor) -> Tensor:
    return -0.5 * x.square().sum(1)


def test_refuses_kernels_without_a_step_size() -> None:
    for kernel in (Finite(torch.eye(2)), MALA, None):
        with pytest.raises(TypeError, match=r"kernel must be MALA\(…\) or RWMH\(…\).*got"):
            adapt(kernel, torch.zeros(2), generator=rng())  # type: ignore[type-var]


@pytest.mark.parametrize("target", [0.0, 1.0, -0.2, 57.4])
def test_refuses_a_target_that_is_no_share(target: float) -> None:
    with pytest.raises(ValueError, match=rf"target must be between 0 and 1, got {target}"):
        adapt(RWMH(_normal, 1.0), torch.zeros(2, 1), generator=rng(), target=target)


def test_refuses_what_a_gradient_refuses() -> None:
    kernel = RWMH(_normal, 1.0)
    with pytest.raises(ValueError, match="steps must be an integer ≥ 5, got 4"):
        adapt(kernel, torch.zeros(2, 1), generator=rng(), steps=4)
    with pytest.raises(TypeError, match=r"generator must be a torch.Generator, got 0"):
        adapt(kernel, torch.zeros(2, 1), generator=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x0 must have at least one row"):
        adapt(kernel, torch.zeros(0, 1), generator=rng())
    with pytest.raises(ValueError, match="context tensor 1 must have one row for each of the 2"):
        adapt(kernel, torch.zeros(2, 1), torch.zeros(3), generator=rng())
    with pytest.raises(FloatingPointError, match="log_density must be finite"):
        adapt(kernel, torch.full((2, 1), math.nan), generator=rng())


@BOTH
@pytest.mark.parametrize("outside", [math.nan, math.inf, -math.inf])
def test_refuses_a_density_that_is_finite_at_the_start_only(kind: Any, outside: float) -> None:
    def spike(x: Tensor) -> Tensor:
        return torch.where((x == 0.0).all(1), 0.0 * x.sum(1), outside)

    with pytest.raises(RuntimeError, match=r"no step size down to 0.5 × 2\^-50 has proposals"):
        adapt(kind(spike, 0.5), torch.zeros(8, 2), generator=rng())


def test_moves_that_are_lost_in_rounding_are_not_taken_for_acceptance() -> None:
    def spike(x: Tensor) -> Tensor:
        return torch.where((x == 1.0).all(1), 0.0, -math.inf)

    with pytest.raises(RuntimeError, match=r"no chain has left x0.*lost in rounding"):
        adapt(RWMH(spike, 0.5), torch.ones(8, 2), generator=rng())


def test_few_steps_without_a_move_are_no_error() -> None:
    pilot = adapt(RWMH(_normal, 1.0), torch.zeros(1, 2), generator=rng(), target=0.02, steps=5)
    assert torch.equal(pilot.last, torch.zeros(1, 2))


@BOTH
def test_refuses_a_density_without_end(kind: Any) -> None:
    with pytest.raises(RuntimeError, match=r"even with the step size 0.5 × 2\^50 most proposals"):
        adapt(kind(lambda x: 0.0 * x.sum(1), 0.5), torch.zeros(8, 2), generator=rng())


def test_warns_of_a_pilot_that_was_too_short() -> None:
    """On the way to the mass large steps are right, once there they are all rejected."""
    with pytest.warns(RuntimeWarning, match=r"of 20 steps ended .* far from target = 0.574; raise"):
        adapt(MALA(_normal, 1.0), torch.full((64, 1000), 30.0), generator=rng(), steps=20)


def _accept_with(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Let `adapt` believe that every step has this probability to be accepted."""
    monkeypatch.setattr(adaptation, "_crossing", lambda *_: 0.0)
    monkeypatch.setattr(adaptation, "probability", lambda ratio: torch.full_like(ratio, share))


def test_how_far_from_its_target_a_pilot_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.125 away is near enough, 0.175 is not."""
    _accept_with(monkeypatch, 0.375)
    kernel, x0 = RWMH(_normal, 1.0), torch.zeros(4, 2)
    for target in (0.25, 0.5):
        assert adapt(kernel, x0, generator=rng(), target=target, steps=5).acceptance == 0.375
    for target in (0.2, 0.55):
        with pytest.warns(RuntimeWarning, match=rf"of 0.375, far from target = {target:.3f}") as w:
            adapt(kernel, x0, generator=rng(), target=target, steps=5)
        assert [warning.filename for warning in w] == [__file__]


def test_how_often_a_chain_should_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """To stay with 20 moves expected is no error yet, with 20.5 it is."""
    _accept_with(monkeypatch, 0.5)

    def spike(x: Tensor, free: Tensor) -> Tensor:
        return torch.where((x == 0.0).all(1) | free, 0.0, -math.inf)

    kernel, x0, free = RWMH(spike, 1.0), torch.zeros(4, 2), torch.zeros(4, dtype=torch.bool)
    options: Any = {"generator": rng(), "target": 0.5}
    assert torch.equal(adapt(kernel, x0, free, **options, steps=40).last, x0)
    with pytest.raises(RuntimeError, match="no chain has left x0"):
        adapt(kernel, x0, free, **options, steps=41)
    free[2] = True  # one chain that moves is enough
    moved = adapt(kernel, x0, free, **options, steps=41).last != x0
    assert torch.equal(moved.all(1), free)
