"""`MarkovGradient` on several processes: each one runs a part of the chains of a batch."""

from __future__ import annotations

import dataclasses
from typing import Any, SupportsIndex, final

from torch import Tensor

from mlmcgrad.backward import accumulate
from mlmcgrad.distributed.collectives import check_same
from mlmcgrad.distributed.shards import Part, Shards, drawing, planning, rows_of
from mlmcgrad.distributed.spent import COUNT, added, spent
from mlmcgrad.distributed.worlds import current
from mlmcgrad.estimate import Estimate
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Context, Start, take, tensors_in
from mlmcgrad.ranges import whole
from mlmcgrad.schedules import check_iteration


@final
class Sharded:
    """The same gradient on any number of processes.

    Every process passes the whole batch and gets the whole estimate; it runs the chains of its
    shards only. What it computes follows from the seed, the iteration and the number of shards,
    not from the number of processes, up to the order of the sums.

    Args:
        gradient: what to compute; it names its `parameters`.
        shards: into how many parts a batch is cut, at least as many as there are processes; by
            default as many.
        seed: everything random follows from it and the iteration.

    Example:
        >>> import torch
        >>> import mlmcgrad as mg
        >>> theta = torch.zeros(2, requires_grad=True)
        >>> kernel = mg.kernels.Finite(torch.tensor([[0.9, 0.1], [0.4, 0.6]]))
        >>> estimator = mg.MLMC(truncation=64, assignment="balanced")
        >>> gradient = mg.MarkovGradient(kernel, lambda x: theta[x], estimator, parameters=[theta])
        >>> sharded = Sharded(gradient, shards=4)
        >>> estimate = sharded.backward(torch.zeros(100, dtype=torch.int64), n=1)
        >>> round(theta.grad.sum().item(), 6), len(estimate.last)
        (1.0, 100)
    """

    def __init__(
        self, gradient: MarkovGradient, *, shards: int | None = None, seed: int = 0
    ) -> None:
        if gradient.parameters is None:
            raise ValueError(
                "gradient must name its parameters, so that all processes add up the same tensors "
                "in the same order, got None; MarkovGradient(…, parameters=model.parameters())"
            )
        self.gradient, self.seed = gradient, whole(seed, "seed", 0)
        self.shards = current().size if shards is None else whole(shards, "shards")
        self._parameters: tuple[Tensor, ...] = tuple(gradient.parameters)
        self._checked = False

    def backward(self, x0: Start, *context: Any, n: SupportsIndex) -> Estimate:
        """Add the gradient estimate of all chains to `.grad` of the parameters.

        Args:
            x0: where all chains start, the same in every process.
            context: as in `MarkovGradient.backward`, a row for each of all chains.
            n: iteration, counted from 1; what is random follows from it.

        Returns:
            What all processes spent together; `last` and the like are of all chains.

        Raises:
            LostError: another process has ended.
            FloatingPointError: something is not finite in some process; `.grad` is as it was.
        """
        n = check_iteration(n)
        if not self._checked:
            self._check_same(x0, context)
        plan = self.gradient.plan(x0, context, n, planning(self.seed, n))
        shards = Shards.of(plan, self.shards)
        mean = self.gradient.reduction == "mean"

        def part(shard: int) -> Part:
            rows = shards.rows[shard]
            generator = drawing(self.seed, n, shard, self._parameters[0].device)
            tensors, estimate = self.gradient.gradient(
                rows_of(x0, rows),
                *take(context, rows),
                n=n,
                generator=generator,
                plan=shards.plans[shard],
            )
            return Part(tensors, spent(estimate), estimate.last)

        done = shards.compute(part, self._parameters, numbers=COUNT, mean=mean)
        accumulate(self._parameters, done.gradients)
        return added(plan, shards, done, self._parameters, mean=mean)

    def _check_same(self, x0: Start, context: Context) -> None:
        """Once: processes that begin with different numbers never meet again."""
        check_same(
            "parameters",
            self._parameters,
            "make them from the same seed, or load the same file in every process",
        )
        remedy = "every process passes the whole batch: draw it from the same seed"
        check_same("x0 or context", [*_tensors(x0), *tensors_in(context)], remedy)
        self._checked = True


def _tensors(x0: Start) -> list[Tensor]:
    return tensors_in(vars(x0) if dataclasses.is_dataclass(x0) else x0)
