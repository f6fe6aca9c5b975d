"""`compile="reduce-overhead"`: blocks of few shapes, and the chains that they stand for.

Only the number of graphs needs a compiler, of which the tracing is enough; elsewhere the graph is
replaced by Python.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import RWMH, base, metropolis
from mlmcgrad.kernels.base import Block, Walk
from tests.chains import rng
from tests.statistics import mean_is

GRAPHS: Any = "reduce-overhead"
CHAINS = 100


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, ...]]:
    """Shapes of the noise with which graphs, here Python, are called."""
    seen: set[tuple[int, ...]] = set()

    def compiled(plain: Any, _: Any) -> Any:
        def graph(state: Any, noise: Any, context: Any) -> Walk[Any]:
            seen.add((*noise.jump.shape, len(state[0]), *(len(c) for c in context)))
            return plain(state, noise, context)

        return graph

    monkeypatch.setattr(metropolis, "_compile", compiled)
    return seen


def log_density(x: Tensor, y: Tensor) -> Tensor:
    return -0.5 * (x - y).square().sum(1)


def calls(kernel: Any, count: int) -> None:
    theta = torch.zeros(2, requires_grad=True)
    gradient = mg.MarkovGradient(kernel, lambda x, y: (theta * x).sum(1), mg.MLMC(64))
    x0, y, generator = torch.zeros(CHAINS, 2), torch.zeros(CHAINS, 1), rng()
    for _ in range(count):
        gradient.backward(x0, y, generator=generator)


def test_few_shapes_in_50_steps(shapes: set[tuple[int, ...]]) -> None:
    calls(RWMH(log_density, 0.3, compile=GRAPHS), 50)
    rows = {shape[1] for shape in shapes}
    assert rows <= {100, 25, 6, 1}
    assert len(shapes) <= 4
    assert {shape[0] for shape in shapes} == {base.STRIDE}


def test_many_shapes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the test above: what the other kernels have."""
    seen, noise = set(), RWMH.noise

    def noted(kernel: Any, steps: int, x: Tensor, generator: torch.Generator) -> Any:
        seen.add((steps, len(x)))
        return noise(kernel, steps, x, generator)

    monkeypatch.setattr(RWMH, "noise", noted)
    calls(RWMH(log_density, 0.3), 50)
    assert len(seen) > 30


@pytest.fixture
def fresh() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.skipif(
    hasattr(builtins, "_mutants_heard"), reason="graphs would contain what listens to functions"
)
@pytest.mark.usefixtures("fresh")
def test_few_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by torch, which makes a new graph for each shape, in 20 steps."""
    graphs, compiled = [], torch.compile

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def traced(function: Any, *, options: Any, **rest: Any) -> Any:
        assert options == {"triton.cudagraphs": True}
        return compiled(function, backend=backend, **rest)

    monkeypatch.setattr(torch, "compile", traced)
    monkeypatch.setattr(base, "STRIDE", 2)
    calls(RWMH(log_density, 0.3, compile=GRAPHS), 20)
    assert 0 < len(graphs) <= 4


def blocks(kernel: Any, lengths: Tensor) -> tuple[list[Block], Any]:
    x0, y = torch.randn(len(lengths), 2, generator=rng(1)), torch.zeros(len(lengths), 1)
    generator = kernel.blocks(x0, (y,), lengths, rng(2))
    found = []
    while True:
        try:
            found.append(next(generator))
        except StopIteration as end:
            return found, end.value


@pytest.mark.usefixtures("shapes")
def test_chains_have_their_lengths_and_no_gaps() -> None:
    """Ends within blocks, at their borders, and several in one."""
    lengths = torch.tensor([1, 8, 3, 9, 16, 2, 2, 40, 17, 1, 1, 24])
    kernel = RWMH(log_density, 0.8, compile=GRAPHS)
    found, outcome = blocks(kernel, lengths)
    steps, moves = torch.zeros_like(lengths), 0
    at: dict[int, Tensor] = {}
    for block in found:
        for place, chain in enumerate(block.chains.tolist()):
            assert steps[chain] == block.step
            assert chain not in at or torch.equal(at[chain], block.path[0, place])
            at[chain] = block.path[-1, place]
            steps[chain] += len(block.moved)
        moves += int(block.moved.sum())
        ended = block.chains[len(block.chains) - block.ending :]
        assert (steps[ended] == lengths[ended]).all()
    assert torch.equal(steps, lengths)
    assert all(torch.equal(outcome.last[chain], x) for chain, x in at.items())
    counted, _ = outcome.read()
    assert counted.accepted == moves
    assert counted.evaluations == len(lengths) + int(lengths.sum())


@pytest.mark.usefixtures("shapes")
def test_full_blocks_are_those_of_the_plain_kernel() -> None:
    lengths = torch.full((5,), base.STRIDE)
    fixed, _ = blocks(RWMH(log_density, 0.8, compile=GRAPHS), lengths)
    plain, _ = blocks(RWMH(log_density, 0.8), lengths)
    assert torch.equal(fixed[0].path, plain[0].path)


def estimates(kernel: Any, estimator: Any) -> Tensor:
    """Return 20,000 independent estimates of the mean of x, by chains that start at 2."""
    theta = torch.zeros(20_000, requires_grad=True)
    gradient = mg.MarkovGradient(
        kernel, lambda x, chain: theta[chain] * x[:, 0], estimator, reduction="sum"
    )
    x0 = torch.full((len(theta), 1), 2.0)
    gradient.backward(x0, torch.arange(len(theta)), generator=rng(3))
    assert theta.grad is not None
    return theta.grad


@pytest.mark.usefixtures("shapes")
def test_the_mean_is_that_of_the_plain_kernel() -> None:
    """Null: E Ĥ = E H^{(16)}, from plain averages; false alarm 1e-5."""

    def density(x: Tensor, _: Tensor) -> Tensor:
        return -0.5 * x.square().sum(1)

    exact = estimates(RWMH(density, 1.5), mg.Average(16))
    kernel = RWMH(density, 1.5, compile=GRAPHS)
    assert mean_is(estimates(kernel, mg.MLMCSum(16)) - exact, torch.zeros(()))
    # Planted bug: the last level is missing.
    assert not mean_is(estimates(kernel, mg.MLMCSum(8)) - exact, torch.zeros(()))


def test_other_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="compile must be"):
        RWMH(log_density, 0.5, compile="max-autotune")  # type: ignore[arg-type]
