"""What one gradient estimate spent, and what the user should be told about it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor

from mlmcgrad.kernels.base import Outcome
from mlmcgrad.plan import Plan

# With fewer transitions or chains than this a warning could be a matter of chance.
_ENOUGH_TRANSITIONS, _ENOUGH_CHAINS = 64, 8


@dataclass(frozen=True)
class Estimate:
    """What one gradient estimate spent, and what happened on the way.

    Attributes:
        value: the weighted loss Σ_j c_j loss(x_j), mean (or sum) over chains.
        lengths: transitions made by each chain, (chains,).
        levels: level K drawn for each chain, (chains,); 0 where the estimator has no levels. A
            K beyond the truncation means that the chain took only the base term.
        transitions: total over the chains, `lengths.sum()`.
        evaluations: states at which the density (or the network behind the importance weights)
            was evaluated, total over the chains.
        loss_evaluations: states at which the loss was evaluated and differentiated.
        acceptance: share of the transitions that moved the chain.
        invalid: proposals refused because the density or its gradient was NaN or +∞ there.
        last: final state of each chain, (chains, *shape): a warm start for the next call.
        parameters: the tensors that received a gradient, in the order of `gradient.gradient`.
        cut: chains that the budget of an infinite truncation made shorter; 0 leaves no bias.
    """

    value: float
    lengths: Tensor
    levels: Tensor
    transitions: int
    evaluations: int
    loss_evaluations: int
    acceptance: float
    invalid: int
    last: Tensor
    parameters: tuple[Tensor, ...]
    cut: int = 0

    @classmethod
    def of(
        cls,
        plan: Plan,
        outcome: Outcome,
        *,
        value: float,
        loss_evaluations: int,
        parameters: tuple[Tensor, ...],
    ) -> Estimate:
        """What a plan and its outcome amount to."""
        transitions = int(plan.longest.sum())
        return cls(
            value=value,
            lengths=plan.longest,
            levels=plan.levels,
            transitions=transitions,
            evaluations=outcome.evaluations,
            loss_evaluations=loss_evaluations,
            acceptance=outcome.accepted / transitions,
            invalid=outcome.invalid,
            last=outcome.last,
            parameters=parameters,
            cut=plan.cut,
        )


def warn_of(outcome: Outcome, plan: Plan) -> None:
    """Warn of chains that cannot have explored anything.

    The texts are constant, so that Python shows each of them once in a process.
    """
    transitions, chains = int(plan.longest.sum()), len(plan.levels)
    # A chain that evaluates no model, of a transition matrix, may well stay where it is.
    if outcome.evaluations and transitions >= _ENOUGH_TRANSITIONS and outcome.accepted == 0:
        text = _INVALID if outcome.invalid >= transitions else _STUCK
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    elif chains >= _ENOUGH_CHAINS and 2 * outcome.collapsed > chains:
        warnings.warn(_COLLAPSED, RuntimeWarning, stacklevel=4)
    if plan.cut:
        warnings.warn(_CUT, RuntimeWarning, stacklevel=4)


_INVALID = (
    "every proposal was refused because the density or its gradient was NaN or +inf there, so the "
    "estimate is that of the starting states; check log_density (or log_weight) on what the kernel "
    "proposes"
)
_STUCK = (
    "no transition moved any chain, so the estimate is that of the starting states; lower the step "
    "size, or use a proposal that is closer to the target"
)
_COLLAPSED = (
    "in most chains one candidate of the first step has more than 99.9 % of the weight, so the "
    "others are evaluated for nothing; use a proposal that is closer to the target (if it is being "
    "trained, wait)"
)
_CUT = (
    "a chain drew a level beyond the budget of its infinite truncation and was cut there, so the "
    "estimate has the bias of that length; raise max_transitions of the estimator, or lower its "
    "continuation"
)
