"""The objective on several processes: each one has a part of the images of a batch.

Every process has the whole batch, draws the same plan and ends with the same gradients; see
`distributed/shards.py`. What is counted is put together shard by shard, so that no digit of it
depends on the number of processes.
"""

from __future__ import annotations

from torch import Tensor

from mlmcgrad.backward import accumulate
from mlmcgrad.distributed.shards import Part, Shards, drawing, planning, rows_of
from mlmcgrad.distributed.spent import COUNT, added, spent
from mlmcgrad.iwae.objective import Objective, Step
from mlmcgrad.store import Remembered


class ShardedObjective:
    """Gradients of a batch in shards.

    Args:
        objective: of one shard.
        shards: how many there are.
        seed: everything random follows from it and the iteration.
    """

    def __init__(self, objective: Objective, shards: int, seed: int) -> None:
        self.objective, self.shards, self.seed = objective, shards, seed

    def backward(self, y: Tensor, *, n: int, x0: Tensor | Remembered | None) -> Step:
        """Add the gradients of a batch to `.grad` of decoder and encoder.

        Args:
            y: images, the same batch in every process.
            n: iteration.
            x0: where the chains go on; None starts them anew, and the step then has no states.
        """
        objective = self.objective
        plan = objective.planned(len(y), n, planning(self.seed, n))
        shards = Shards.of(plan, self.shards)

        def part(shard: int) -> Part:
            rows = shards.rows[shard]
            gradients, step = objective.gradient(
                rows_of(y, rows),
                n=n,
                x0=rows_of(x0, rows),
                generator=drawing(self.seed, n, shard, y.device),
                plan=shards.plans[shard],
            )
            means = (step.bound, step.effective, step.largest)
            numbers = (*spent(step.estimate), step.evaluations, *means)
            return Part(gradients, numbers, step.estimate.last)

        parameters = objective.parameters
        done = shards.compute(part, parameters, numbers=COUNT + 4, last=x0 is not None)
        accumulate(parameters, done.gradients)
        evaluations, *means = list(zip(*done.numbers, strict=True))[COUNT:]
        bound, effective, largest = map(shards.mean, means)
        estimate = added(plan, shards, done, parameters)
        return Step(bound, estimate, int(sum(evaluations)), effective, largest)
