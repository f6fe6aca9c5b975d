"""Tune the step size of MALA or RWMH in a pilot run, by dual averaging of its logarithm.

With a_t the mean over the chains of the probability 1 ∧ e^r to accept step t, and a* the target,

    H̄_t = (1 − 1/(t + t₀)) H̄_{t−1} + (a* − a_t)/(t + t₀),
    log h_{t+1} = log(10 h_1) − (√t/γ) H̄_t,
    log h̄_{t+1} = t^{−κ} log h_{t+1} + (1 − t^{−κ}) log h̄_t,     γ = 0.05, t₀ = 10, κ = 0.75.

The chains move with h_t; the result is h̄. Before that, h_1 is doubled or halved until the
acceptance at x0 crosses the target.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from mlmcgrad._checks import number, whole
from mlmcgrad.kernels.base import check, check_call, check_places
from mlmcgrad.kernels.metropolis import MALA, RWMH, probability

K = TypeVar("K", MALA, RWMH)

_SHRINKAGE, _DELAY, _FORGETTING = 0.05, 10, 0.75  # γ, t₀ and κ of Hoffman and Gelman
# Nobody's first guess is off by more than 2^50 = 10^15; nor does the pilot go further.
_DOUBLINGS = 50
# A pilot whose acceptance is farther from its target than this has not found its step size.
_FAR = 0.15
# A chain that should have moved so often has: the probability of the contrary is below e^−20.
_MOVES = 20


@dataclass(frozen=True)
class Adapted(Generic[K]):
    """The result of `adapt`.

    Attributes:
        kernel: the kernel with its new step size.
        acceptance: mean acceptance probability of this kernel in the last fifth of the pilot.
        target: the target acceptance.
        last: final states of the pilot, (chains, *shape), for a warm start.
    """

    kernel: K
    acceptance: float
    target: float
    last: Tensor

    @property
    def step_size(self) -> float | Tensor:
        """The step size of the kernel."""
        return self.kernel.step_size


@torch.no_grad()
def adapt(
    kernel: K,
    x0: Tensor,
    *context: Any,
    generator: torch.Generator,
    target: float | None = None,
    steps: int = 1000,
) -> Adapted[K]:
    """Find a step size at which the kernel accepts a wanted share of its proposals.

    The chains of the pilot are pooled: one step size for all of them, and more chains make it more
    accurate. Of a step size that is a tensor the ratios are kept, and one factor is found. The
    kernel that comes back is an ordinary one, with a fixed step size; adapt again when the density
    has changed much, as it does in training.

    Args:
        kernel: `MALA` or `RWMH`. Its step size is the first guess, which may be off by orders of
            magnitude. The pilot is not compiled.
        x0: where the chains of the pilot start, (chains, *shape). Near the mass of the density:
            chains that are still on their way to it adapt to the way.
        context: as for `MarkovGradient.backward`.
        generator: source of all randomness.
        target: the acceptance to aim at, between 0 and 1. By default 0.574 for MALA, the optimum in
            high dimension, and 0.234 + 0.206/d for RWMH with states of d numbers: 0.44 for d = 1
            and 0.234 in high dimension are the optima for a Gaussian target, and those for
            2 ≤ d ≤ 50 are less than 0.02 away.
        steps: transitions of each chain of the pilot. One takes an evaluation of the density, and
            the search before it at most 51 more.

    Example:
        >>> pilot = adapt(
        ...     MALA(lambda x: -0.5 * x.square().sum(1), step_size=1e-4),
        ...     torch.zeros(20, 10),
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> 0.4 < pilot.step_size < 0.8
        True

    Reference:
        Hoffman and Gelman (2014), "The No-U-Turn sampler", section 3.2. Targets: Gelman, Roberts
        and Gilks (1996); Roberts and Rosenthal (1998).
    """
    if not isinstance(kernel, MALA | RWMH):
        raise TypeError(
            f"kernel must be MALA(…) or RWMH(…), which have a step size, got {kernel!r}"
        )
    whole(steps, "steps", 5)
    check_call(kernel, x0, context, generator)
    check_places(x0, context, generator)
    wanted = _default_target(kernel, x0) if target is None else number(target, "target")
    if not 0.0 < wanted < 1.0:
        raise ValueError(f"target must be between 0 and 1, got {target!r}; for example 0.574")

    state: Any = kernel.start(x0.detach(), context)[0]
    check(kernel.fault(state))

    def tried(log_factor: float) -> tuple[Any, float]:
        """The next state with this step size, and the mean probability to accept."""
        sized = _sized(kernel, log_factor)
        (noise,) = sized.noise(1, state.x, generator).unbind()
        after, _, (log_ratio, _) = sized.advance(state, noise, context)
        return after, probability(log_ratio).mean().item()

    found = _Averages(0, 0.0, _crossing(lambda size: tried(size)[1], wanted, kernel), 0.0)
    centre = found.size + math.log(10.0)
    measured = steps // 5
    accepted = []
    for step in range(steps):
        adapting = step < steps - measured
        state, share = tried(found.size if adapting else found.averaged)
        accepted.append(share)
        if adapting:
            found = _updated(found, wanted - share, centre)

    # A proposal that differs from its state by less than rounding is always accepted.
    if sum(accepted) > _MOVES and bool((state.x == x0).all()):
        raise RuntimeError(_NOWHERE.format(found=f"{math.exp(found.averaged):.3g}"))
    acceptance = sum(accepted[-measured:]) / measured
    if abs(acceptance - wanted) > _FAR:
        warnings.warn(
            f"the pilot of {steps} steps ended with an acceptance of {acceptance:.3f}, far from "
            f"target = {wanted:.3f}; raise steps, or start closer to where the density has its "
            "mass",
            RuntimeWarning,
            stacklevel=3,  # 2 is the decorator
        )
    adapted = _sized(kernel, found.averaged)
    return Adapted(adapted, acceptance, wanted, state.x)


class _Averages(NamedTuple):
    """The state of dual averaging; logarithms are of factors of the first guess."""

    updates: int  # t
    error: float  # H̄_t
    size: float  # log h_{t+1}
    averaged: float  # log h̄_{t+1}


def _updated(now: _Averages, error: float, centre: float) -> _Averages:
    """One step of dual averaging, with error = a* − a_t and centre = log(10 h_1)."""
    count = now.updates + 1
    share = 1.0 / (count + _DELAY)
    mean = (1.0 - share) * now.error + share * error
    limit = _DOUBLINGS * math.log(2.0)
    size = min(max(centre - math.sqrt(count) / _SHRINKAGE * mean, -limit), limit)
    weight = count**-_FORGETTING
    return _Averages(count, mean, size, weight * size + (1.0 - weight) * now.averaged)


def _crossing(acceptance: Callable[[float], float], target: float, kernel: MALA | RWMH) -> float:
    """Log of the first factor 2^±i at which the acceptance is on the other side of its target."""
    often = acceptance(0.0) > target
    sign = 1.0 if often else -1.0
    for doublings in range(1, _DOUBLINGS + 1):
        factor = sign * doublings * math.log(2.0)
        if (acceptance(factor) > target) != often:
            return factor
    reached = f"{kernel.step_size!r} × 2^{sign * _DOUBLINGS:.0f}"
    raise RuntimeError((_ALWAYS if often else _NEVER).format(reached=reached))


def _sized(kernel: K, log_factor: float) -> K:
    return dataclasses.replace(kernel, step_size=kernel.step_size * math.exp(log_factor))


def _default_target(kernel: MALA | RWMH, x0: Tensor) -> float:
    return 0.574 if isinstance(kernel, MALA) else 0.234 + 0.206 / max(1, x0[0].numel())


_NEVER = (
    "no step size down to {reached} has proposals that are accepted from x0; check that "
    "log_density is finite around x0, not only there"
)
_ALWAYS = (
    "even with the step size {reached} most proposals are accepted from x0; check that "
    "log_density depends on x and falls off far away"
)
_NOWHERE = (
    "no chain has left x0, although proposals of {found} times the step size were accepted: they "
    "are lost in rounding; check that log_density is finite around x0, not only there"
)
