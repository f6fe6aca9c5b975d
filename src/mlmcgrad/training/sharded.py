"""The objective on several processes: each one has a part of the images of a batch.

Every process has the whole batch, draws the same plan and ends with the same gradients; see
`distributed/shards.py`. What is counted is put together shard by shard, so that no digit of it
depends on the number of processes. An image with a long chain does not hold up the others: draws of
its shard are weighed by processes that have less to do (`distributed/share.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mlmcgrad.backward import WeightedBackward, accumulate
from mlmcgrad.distributed.giving import taken
from mlmcgrad.distributed.shards import Part, Shards, drawing, planning, rows_of
from mlmcgrad.distributed.share import work_of_chains, work_of_draws, worth
from mlmcgrad.distributed.sharing import Done, Gives, Sharing
from mlmcgrad.distributed.spent import COUNT, added, of_states, spent
from mlmcgrad.iwae.drawing import Batch
from mlmcgrad.iwae.objective import Objective, Step
from mlmcgrad.iwae.spread import here
from mlmcgrad.kernels import ISIR
from mlmcgrad.kernels.proposing import ProposingKernel
from mlmcgrad.measure import Measure
from mlmcgrad.plan import Plan
from mlmcgrad.store import Remembered


class ShardedObjective:
    """Gradients of a batch in shards.

    Args:
        objective: of one shard.
        shards: how many there are.
        seed: everything random follows from it and the iteration.
        least: transitions that are worth a message, by default as many as the networks say.
    """

    def __init__(
        self, objective: Objective, shards: int, seed: int, *, least: int | None = None
    ) -> None:
        self.objective, self.shards, self.seed = objective, shards, seed
        count = sum(parameter.numel() for parameter in objective.parameters)
        self.least = worth(count) if least is None else least

    def backward(self, y: Tensor, *, n: int, x0: Tensor | Remembered | None) -> Step:
        """Add the gradients of a batch to `.grad` of decoder and encoder.

        Args:
            y: images, the same batch in every process.
            n: iteration.
            x0: where the chains go on; None starts them anew, and the step then has no states.
        """
        objective, log_joint = self.objective, self.objective.model.log_joint
        theta, parameters = tuple(objective.model.decoder.parameters()), objective.parameters
        plan = objective.planned(len(y), n, planning(self.seed, n))
        shards = Shards.of(plan, self.shards)
        # A step of `mala` or `rwmh` is made where the chain is.
        proposes = isinstance(objective.sampler, ProposingKernel)
        work = (work_of_draws if proposes else work_of_chains)(shards.plans, self.least)
        sharing = Sharing(work, shards, y.device, answers=True)

        def own(shard: int, gives: Gives | None) -> Iterator[Part]:
            rows = shards.rows[shard]
            if gives is not None and proposes:
                gives.start.of(_draws(objective, shards.plans[shard]))
            gradients, step = objective.gradient(
                rows_of(y, rows),
                n=n,
                x0=rows_of(x0, rows),
                generator=drawing(self.seed, n, shard, y.device),
                plan=shards.plans[shard],
                weighing=gives.start.spread if gives and proposes else here,
                differentiating=gives.end.spread_all if gives else here,
            )
            means = (step.bound, step.effective, step.largest)
            numbers = (*spent(step.estimate), step.evaluations, *means)
            yield Part(gradients, numbers, step.estimate.last)

        def weighed(shard: int, message: Sequence[Tensor]) -> Done:
            batch = Batch(rows_of(y, shards.rows[shard]), log_joint, objective.chunk)
            with torch.no_grad():
                return Done(None, taken(message, batch.log_p))

        def differentiated(shard: int, message: Sequence[Tensor]) -> Done:
            mine = rows_of(y, shards.rows[shard])
            total = WeightedBackward(log_joint, (mine,), divisor=1, parameters=theta, wide=True)
            slopes = taken(message, lambda *part: total.add_with_slopes(Measure(*part)))
            zeros = map(torch.zeros_like, parameters[len(theta) :])
            numbers = (*of_states(total.value, total.count), 0, 0.0, 0.0, 0.0)
            return Done(Part((*total.gradients(), *zeros), numbers), slopes)

        parts = sharing.parts(own, differentiated, weighed if proposes else None)
        done = shards.compute(parts, parameters, numbers=COUNT + 4, last=x0 is not None)
        accumulate(parameters, done.gradients)
        evaluations, *means = list(zip(*done.numbers, strict=True))[COUNT:]
        bound, effective, largest = map(shards.mean, means)
        estimate = added(plan, shards, done, parameters)
        return Step(bound, estimate, int(sum(evaluations)), effective, largest)


def _draws(objective: Objective, plan: Plan) -> int:
    """Draws that are weighed for planned chains; a step of i-SIR keeps one of its candidates."""
    kept = int(isinstance(objective.sampler, ISIR))
    steps = int(plan.longest.sum())
    return kept * len(plan.levels) + (objective.candidates - kept) * steps
