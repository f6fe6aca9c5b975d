"""Random-walk Metropolis–Hastings.

Y = X + h Z,  Z ~ N(0, I);     accepted with probability 1 ∧ π(Y)/π(X).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from torch import Tensor

from mlmcgrad.kernels.acceptance import judged
from mlmcgrad.kernels.base import Context
from mlmcgrad.kernels.metropolis import MetropolisKernel


class State(NamedTuple):
    """Position and its log density."""

    x: Tensor  # (chains, *shape)
    log_density: Tensor  # (chains,)


@final
@dataclass(frozen=True)
class RWMH(MetropolisKernel[State]):
    """Random-walk Metropolis–Hastings with Gaussian proposals.

    Args:
        log_density: log π up to a constant, `log_density(x, *context) -> (chains,)`. It is
            evaluated once per step and never differentiated.
        step_size: h, standard deviation of the proposal, a number or a tensor that broadcasts
            against one state. In d dimensions about 2.4/√d standard deviations of π is a good
            start; `adapt` finds it.
        compile: make blocks of steps by `torch.compile`, see `MetropolisKernel`.

    Reference:
        Metropolis et al. (1953); Mengersen and Tweedie (1996) for its geometric ergodicity.
    """

    def at(self, x: Tensor, context: Context) -> State:
        """State at x; one density evaluation."""
        return State(x, judged(self.log_density(x, *context)))

    @property
    def deviation(self) -> float | Tensor:
        """The step size h."""
        return self.step_size

    def proposal(self, state: State, jump: Tensor) -> Tensor:
        """The point x + h z."""
        return state.x + jump

    def log_ratio(self, state: State, proposed: State, jump: Tensor) -> Tensor:
        """Log of π(y)/π(x)."""
        return proposed.log_density - state.log_density
