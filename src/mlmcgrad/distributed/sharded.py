"""`MarkovGradient` on several processes: each one runs a part of the chains of a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, final

import torch
from torch import Tensor

from mlmcgrad.backward import accumulate
from mlmcgrad.distributed.collectives import check_same
from mlmcgrad.distributed.giving import Giving
from mlmcgrad.distributed.shards import Part, Shards, drawing, planning, rows_of
from mlmcgrad.distributed.share import work_of_chains, worth
from mlmcgrad.distributed.sharing import Done, Gives, Sharing
from mlmcgrad.distributed.spent import COUNT, added, of_states, spent
from mlmcgrad.distributed.worlds import current
from mlmcgrad.estimate import Estimate, warn_of
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Context, Start, take, tensors_in
from mlmcgrad.kernels.proposing import ProposingKernel
from mlmcgrad.measure import Measure, chunks
from mlmcgrad.plan import Plan
from mlmcgrad.ranges import whole
from mlmcgrad.schedules import check_iteration
from mlmcgrad.wrapped import refused


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
        least: where one chain is longer than what a process has, others differentiate some of its
            states: at least so many, which must be worth a message. By default it follows from
            the number of parameters; fewer are right where the loss takes longer than that says.

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
        self,
        gradient: MarkovGradient,
        *,
        shards: int | None = None,
        seed: int = 0,
        least: int | None = None,
    ) -> None:
        if gradient.parameters is None:
            raise ValueError(
                "gradient must name its parameters, so that all processes add up the same tensors "
                "in the same order, got None; MarkovGradient(…, parameters=model.parameters())"
            )
        self.gradient, self.seed = gradient, whole(seed, "seed", 0)
        self.shards = current().size if shards is None else whole(shards, "shards")
        self._parameters: tuple[Tensor, ...] = tuple(gradient.parameters)
        count = sum(parameter.numel() for parameter in self._parameters)
        self.least = worth(count) if least is None else whole(least, "least")
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
        kernel = self.gradient.kernel
        states = kernel.candidates if isinstance(kernel, ProposingKernel) else 1
        work = work_of_chains(shards.plans, self.least, states)
        sharing = Sharing(work, shards, self._parameters[0].device, answers=False)

        def own(shard: int, gives: Gives | None) -> Iterator[Part]:
            rows, chains = shards.rows[shard], shards.plans[shard]
            start, mine = rows_of(x0, rows), take(context, rows)
            generator = drawing(self.seed, n, shard, self._parameters[0].device)
            if gives is not None:
                yield from self._cut(start, mine, chains, generator, gives.end)
                return
            tensors, estimate = self.gradient.gradient(
                start, *mine, n=n, generator=generator, plan=chains
            )
            yield Part(tensors, spent(estimate), estimate.last)

        def taken(shard: int, message: Sequence[Tensor]) -> Done:
            mine = take(context, shards.rows[shard])
            return Done(self._differentiated(Measure(*message), mine, shards.plans[shard]), None)

        parts, mean = sharing.parts(own, taken), self.gradient.reduction == "mean"
        done = shards.compute(parts, self._parameters, numbers=COUNT, mean=mean)
        accumulate(self._parameters, done.gradients)
        return added(plan, shards, done, self._parameters, mean=mean)

    def _cut(
        self, x0: Start, context: Context, plan: Plan, rng: torch.Generator, giving: Giving
    ) -> Iterator[Part]:
        """A shard some of whose states others differentiate: the first ones, as they come."""
        simulation = self.gradient.simulate(x0, context, plan, rng)
        for piece in chunks(simulation, giving.sizes(self.gradient.chunk)):
            rank = giving.taker()
            giving.passed(len(piece))
            if rank is None:
                yield self._differentiated(piece, context, plan)
            else:
                giving.send(piece.parts, rank)
            giving.close()
        outcome = simulation.outcome
        warn_of(outcome, plan)
        estimate = Estimate.of(
            plan, outcome, value=0.0, loss_evaluations=0, parameters=self._parameters
        )
        nothing = tuple(map(torch.zeros_like, self._parameters))
        yield Part(nothing, spent(estimate), outcome.last)

    def _differentiated(self, measure: Measure, context: Context, plan: Plan) -> Part:
        """Some states of a shard."""
        total = self.gradient.total(context, plan, shared=True)
        with refused():
            total.add_all([measure])
        return Part(total.gradients(), of_states(total.value, total.count))

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
