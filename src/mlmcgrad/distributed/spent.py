"""What the shards of a batch spent, put together: the numbers of an `Estimate` of all chains."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mlmcgrad.distributed.shards import Shards, Whole
from mlmcgrad.estimate import Estimate
from mlmcgrad.plan import Plan

COUNT = 5  # numbers that `spent` returns


def spent(estimate: Estimate) -> tuple[float, ...]:
    """What is to be known of the estimate of a shard, besides what its plan says."""
    moved = estimate.acceptance * estimate.transitions
    counts = (estimate.evaluations, estimate.loss_evaluations, estimate.invalid)
    return (estimate.value, moved, *counts)


def of_states(value: float, count: int) -> tuple[float, ...]:
    """What is to be known of some states that were differentiated, in the order of `spent`."""
    return (value, 0.0, 0, count, 0)


def added(
    plan: Plan, shards: Shards, done: Whole, parameters: Sequence[Tensor], *, mean: bool = True
) -> Estimate:
    """The estimate of all chains.

    Shard by shard in their order, so that no digit depends on which process had them.

    Args:
        plan: of all chains.
        shards: its parts.
        done: what they gave; the first numbers of a shard are those of `spent`.
        parameters: what was differentiated.
        mean: whether the estimate is a mean over chains, or a sum.
    """
    values, moved, *counts = list(zip(*done.numbers, strict=True))[:COUNT]
    evaluations, losses, invalid = (int(sum(column)) for column in counts)
    transitions = int(plan.longest.sum())
    return Estimate(
        value=shards.mean(values) if mean else sum(values),
        lengths=plan.longest,
        levels=plan.levels,
        transitions=transitions,
        evaluations=evaluations,
        loss_evaluations=losses,
        acceptance=sum(moved) / transitions,
        invalid=invalid,
        last=done.last,
        parameters=tuple(parameters),
        cut=plan.cut,
    )
