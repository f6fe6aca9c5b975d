"""A plan by hand: level 3 of the paper, a burn-in, and what is selected and moved."""

import torch

import mlmcgrad as mg
from mlmcgrad.lengths import Lengths, join

# H^{(1)} + 8 (H^{(8)} − H^{(4)}); the mean of steps 3 … 6; one step.
PLAN = Lengths(
    levels=torch.tensor([3, 0, 1]),
    terms=torch.tensor([[1, 4, 8], [2, 2, 6], [1, 1, 1]]),
    weights=torch.tensor([[1.0, -2.0, 1.0], [0.0, -0.25, 0.25], [1.0, 0.0, 0.0]]).double(),
)


def test_weights_of_the_steps() -> None:
    steps = PLAN.step_weights(1, 9)
    assert steps[:, 0].tolist() == [0.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    assert steps[:, 1].tolist() == [0.0, 0.0, 0.25, 0.25, 0.25, 0.25, 0.0, 0.0, 0.0]
    assert steps[:, 2].tolist() == [1.0] + [0.0] * 8
    assert torch.equal(PLAN.step_weights(4, 6), steps[3:6])
    chosen = PLAN.select(torch.tensor([2, 0, 0, 1]))
    assert chosen.at(torch.tensor([1, 2, 8, 6])).tolist() == [1.0, -1.0, 1.0, 0.25]


def test_weights_of_the_steps_chain_after_chain() -> None:
    """Those of `step_weights`, of as many steps as each chain has, from any part of the chains."""
    for first, last in ((1, 8), (1, 1), (2, 5), (5, 7), (7, 20)):
        steps = PLAN.step_weights(first, last)
        expected = torch.cat(
            [
                steps[: max(0, min(length, last) - first + 1), chain]
                for chain, length in enumerate(PLAN.longest.tolist())
            ]
        )
        assert torch.equal(PLAN.flat(first, last), expected)


def test_longest_and_largest() -> None:
    assert PLAN.longest.tolist() == [8, 6, 1]
    assert PLAN.largest_step_weight.tolist() == [1.0, 0.25, 1.0]


def test_some_of_the_chains() -> None:
    some = PLAN.select(torch.tensor([2, 0]))
    assert some.levels.tolist() == [1, 3]
    assert torch.equal(some.step_weights(1, 8), PLAN.step_weights(1, 8)[:, [2, 0]])


def test_joined_plans_keep_their_chains() -> None:
    estimator = mg.MLMCSum(64)
    plans = [
        estimator.lengths_for(torch.tensor(levels)) for levels in ([0, 1], [5], [0], [2, 0, 3])
    ]
    whole, begin = join(plans), 0
    for plan in plans:
        part = whole.select(slice(begin, begin + len(plan.levels)))
        steps = int(whole.longest.max())
        assert torch.equal(part.levels, plan.levels)
        assert torch.equal(part.longest, plan.longest)
        assert torch.equal(part.step_weights(1, steps), plan.step_weights(1, steps))
        begin += len(plan.levels)
    assert begin == len(whole.levels)
    assert join(plans[:1]) is plans[0]
