"""What holds for chains of different lengths, whatever the kernel."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import MALA, RWMH, FromStep, base
from mlmcgrad.lengths import Lengths
from tests.chains import Counter, rng, run


def _plan(lengths: list[int]) -> Lengths:
    """Every step has weight 1."""
    ends = torch.tensor(lengths)
    return Lengths(torch.zeros_like(ends), ends[:, None], torch.ones(len(lengths), 1).double())


def _count(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 1


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.sampled_from([(), (1,), (2, 3)]))
def test_every_chain_makes_its_steps(lengths: list[int], shape: tuple[int, ...]) -> None:
    """A kernel that counts: chain c visits x0+1 … x0+length, each once, with weight 1."""
    start = 100.0 * torch.arange(len(lengths), dtype=torch.float64)
    x0 = start.reshape(-1, *(1,) * len(shape)).expand(-1, *shape).clone()
    counter = Counter(_count)
    measure, outcome = run(FromStep(counter), x0, _plan(lengths))
    for chain, length in enumerate(lengths):
        mine = measure.points[measure.owner == chain].reshape(length, -1)
        expected = start[chain] + torch.arange(1.0, length + 1)
        assert torch.equal(mine[:, 0], expected)
        assert (mine == mine[:, :1]).all()
    assert (measure.coefficient == 1.0).all()
    assert torch.equal(outcome.last, x0 + torch.tensor(lengths).reshape(-1, *(1,) * len(shape)))
    # The active set shrinks: no row is touched after its chain has ended.
    assert counter.rows == sum(lengths)
    assert len(counter.calls) == max(lengths)
    assert outcome.evaluations == sum(lengths)
    assert outcome.accepted == sum(lengths)
    assert (outcome.invalid, outcome.collapsed) == (0, 0)


def test_context_follows_its_chain() -> None:
    def step(x: Tensor, stride: Tensor, unit: float, generator: torch.Generator) -> Tensor:
        assert len(x) == len(stride)
        return x + unit * stride

    stride = torch.tensor([1.0, 10.0, 100.0])
    _, outcome = run(FromStep(step), torch.zeros(3), _plan([3, 1, 2]), (stride, 2.0))
    assert outcome.last.tolist() == [6.0, 20.0, 400.0]


@pytest.mark.parametrize("kernel", ["RWMH", "MALA"])
def test_density_is_carried_and_never_recomputed(kernel: str) -> None:
    density = Counter(lambda x: -0.5 * x.square().sum(1))
    made: Any = {"RWMH": RWMH, "MALA": MALA}[kernel](density, 0.5)
    _, outcome = run(made, torch.zeros(4, 2), _plan([5, 1, 3, 5]))
    assert density.rows == 4 + 5 + 1 + 3 + 5
    assert outcome.evaluations == density.rows


def test_noise_is_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []
    original = RWMH.noise

    def noise(self: RWMH, steps: int, x: Tensor, generator: torch.Generator) -> Any:
        blocks.append(steps)
        return original(self, steps, x, generator)

    monkeypatch.setattr(RWMH, "noise", noise)
    kernel = RWMH(lambda x: -0.5 * x.square().sum(1), 0.5)
    longest = base._BLOCK_STEPS
    run(kernel, torch.zeros(4, 2), _plan([longest + 30, longest + 30, 10, 10]))
    assert blocks == [10, longest, 20]
    blocks.clear()
    wide = base._BLOCK_NUMBERS // (4 * (2 * base.STRIDE - 1))  # not quite 2 STRIDE steps fit in
    run(kernel, torch.zeros(4, wide), _plan([2 * base.STRIDE] * 4))
    assert blocks == [base.STRIDE, base.STRIDE]


def test_rejections_are_merged() -> None:
    """Points of the measure: at most one for each accepted move, and the start."""
    kernel = RWMH(lambda x: -0.5 * x.square().sum(1), 5.0)
    plan = mg.Average(200).draw(10, 1, rng())
    measure, outcome = run(kernel, torch.zeros(10, 3), plan)
    assert outcome.accepted < 0.5 * 2000
    assert len(measure) <= outcome.accepted + 10
    sums = torch.zeros(10, dtype=torch.float64).index_add_(0, measure.owner, measure.coefficient)
    assert (sums - 1.0).abs().max() < 1e-12


def test_x0_is_needed_and_kept_as_it_was() -> None:
    kernel = RWMH(lambda x: -0.5 * x.square().sum(1), 1.0)
    with pytest.raises(ValueError, match=r"x0 must be a tensor .* chain of RWMH .* got None"):
        run(kernel, None, _plan([1]))
    x0 = torch.zeros(3, 2)
    run(kernel, x0, _plan([4, 4, 4]))
    assert (x0 == 0.0).all()
