"""The gradient of 1, 2 and 4 processes is the same; it is that of the shards, put together."""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import distributed
from mlmcgrad.backward import Estimate
from mlmcgrad.distributed.shards import ShardGradient, Shards, lengths_generator, shard_generator
from mlmcgrad.kernels.base import Outcome
from mlmcgrad.store import Remembered
from tests.distributed.processes import message, together

CHAINS, SHARDS = 22, 4
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def network(dtype: torch.dtype) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)]
    return torch.nn.Sequential(*layers).to(dtype)


def sharded(dtype: torch.dtype, shards: int | None = SHARDS, **options: Any) -> Any:
    """An energy model of a small network, and where its chains start."""
    energy = network(dtype)

    def density(x: Tensor, shift: Tensor) -> Tensor:
        return -energy(x)[:, 0] - (x - shift).square().sum(1)

    gradient = mg.MarkovGradient(
        mg.kernels.MALA(density, 0.1),
        lambda x, shift: energy(x)[:, 0] - (x * shift).sum(1),
        mg.MLMC(16, assignment="balanced"),
        parameters=energy.parameters(),
        **options,
    )
    start = torch.linspace(-1.0, 1.0, 2 * CHAINS, dtype=dtype).reshape(CHAINS, 2)
    return distributed.Sharded(gradient, shards=shards, seed=3), start, start.flip(0)


def computed(dtype: torch.dtype, steps: int = 1, **options: Any) -> dict[str, Any]:
    """The gradient after some steps, and what was reported; states go on from step to step."""
    mine, state, shift = sharded(dtype, **options)
    optimizer = mg.optim.SGD(mine.gradient.parameters, lr=0.1)
    for n in range(1, steps + 1):
        optimizer.zero_grad()
        estimate = mine.backward(state, shift, n=n)
        optimizer.step()
        state = estimate.last
    flat = torch.cat([p.grad.flatten() for p in estimate.parameters])
    found = {k: v for k, v in vars(estimate).items() if k != "parameters"}
    return {**found, "gradient": flat}


def computed_in_both() -> list[dict[str, Any]]:
    return [computed(dtype, steps=3) for dtype in TOLERANCE]


@pytest.mark.parametrize("size", [2, 4])
def test_any_number_of_processes(size: int) -> None:
    ranks = together(size, computed_in_both)
    for alone, first, *others in zip(computed_in_both(), *ranks, strict=True):
        close = TOLERANCE[alone["gradient"].dtype]
        difference = (first["gradient"] - alone["gradient"]).norm() / alone["gradient"].norm()
        assert float(difference) <= close
        assert first["value"] == pytest.approx(alone["value"], rel=close)
        assert first["acceptance"] == pytest.approx(alone["acceptance"], rel=1e-12)
        torch.testing.assert_close(first["last"], alone["last"])
        torch.testing.assert_close(first["levels"], alone["levels"])
        for name in ("evaluations", "loss_evaluations", "invalid", "transitions", "cut"):
            assert first[name] == alone[name]
        for other in others:  # the same step everywhere
            assert torch.equal(other["gradient"], first["gradient"])
            assert torch.equal(other["last"], first["last"])


def from_parts(mean: bool, weighted: bool = True, one_seed: bool = False) -> Tensor:
    """The same gradient by hand, from `MarkovGradient.gradient` of each shard."""
    mine, state, shift = sharded(torch.float64, reduction="mean" if mean else "sum")
    plan = mine.gradient.draw_lengths(state, (shift,), 1, lengths_generator(3, 1))
    total = torch.zeros(65, dtype=torch.float64)
    shards = Shards.of(plan, SHARDS)
    for shard, rows in enumerate(shards.rows):
        generator = shard_generator(3, 1, 0 if one_seed else shard, torch.device("cpu"))
        tensors, _ = mine.gradient.gradient(
            state[rows], shift[rows], generator=generator, lengths=shards.lengths[shard]
        )
        share = len(rows) / CHAINS if weighted else 1.0 / SHARDS
        total = total + torch.cat([t.flatten() for t in tensors]) * (share if mean else 1.0)
    return total


@pytest.mark.parametrize("mean", [True, False])
def test_it_is_the_mean_over_all_chains(mean: bool) -> None:
    found = computed(torch.float64, reduction="mean" if mean else "sum")["gradient"]
    torch.testing.assert_close(found, from_parts(mean), rtol=1e-12, atol=1e-15)


def test_shards_that_count_the_same_would_be_seen() -> None:
    found = computed(torch.float64)["gradient"]
    assert not torch.allclose(found, from_parts(True, weighted=False), rtol=1e-3)


def test_shards_that_draw_the_same_would_be_seen() -> None:
    found = computed(torch.float64)["gradient"]
    assert not torch.allclose(found, from_parts(True, one_seed=True), rtol=1e-3)


def test_the_order_of_the_shards_decides_no_digit() -> None:
    """A batch of 50, and 10⁴ float32: the same bits in any order of the sums."""
    plan = mg.MLMC(16, assignment="balanced").draw(50, None, torch.Generator().manual_seed(0))
    shards = Shards.of(plan, SHARDS)
    sizes = list(map(len, shards.rows))
    assert len(set(sizes)) > 1
    weights = torch.randn(SHARDS, 10_000, generator=torch.Generator().manual_seed(1))
    none = Outcome(torch.zeros(0), evaluations=0, accepted=0.0, invalid=0)
    estimate = Estimate.of(plan, none, value=0.0, loss_evaluations=0, parameters=())
    parameter, found = torch.zeros(10_000), list[Tensor]()
    for order in itertools.permutations(range(SHARDS)):
        same = Shards(
            plan, tuple(shards.rows[i] for i in order), tuple(shards.lengths[i] for i in order)
        )

        def part(number: int, order: tuple[int, ...] = order) -> ShardGradient:
            return (weights[order[number]],), estimate, ()

        found += same.compute(part, [parameter], last=False)[0]
    assert all(torch.equal(gradient, found[0]) for gradient in found)
    shares = torch.tensor(sizes, dtype=torch.float64) / 50
    torch.testing.assert_close(found[0].double(), shares @ weights.double(), rtol=1e-6, atol=1e-7)
    # Shares that are rounded before they are added would not do.
    terms = list(shares[:, None] * weights.double())
    forth, back = (functools.reduce(torch.add, row) for row in (terms, terms[::-1]))
    assert not torch.equal(forth.float(), back.float())


def test_one_shard_is_the_plain_gradient() -> None:
    mine, state, shift = sharded(torch.float64, shards=1)
    estimate = mine.backward(state, shift, n=7)
    plan = mine.gradient.draw_lengths(state, (shift,), 7, lengths_generator(3, 7))
    generator = shard_generator(3, 7, 0, torch.device("cpu"))
    tensors, plain = mine.gradient.gradient(state, shift, generator=generator, lengths=plan)
    assert all(torch.equal(p.grad, t) for p, t in zip(estimate.parameters, tensors, strict=True))
    assert torch.equal(estimate.last, plain.last)
    assert estimate.value == plain.value
    assert estimate.acceptance == pytest.approx(plain.acceptance)


def test_iterations_and_seeds_differ() -> None:
    mine, state, shift = sharded(torch.float64)
    last = [mine.backward(state, shift, n=n).last for n in (1, 2, 1)]
    assert torch.equal(last[0], last[2])
    assert not torch.equal(last[0], last[1])
    other = distributed.Sharded(mine.gradient, shards=SHARDS, seed=4)
    assert not torch.equal(last[0], other.backward(state, shift, n=1).last)


def test_the_gradient_has_the_expectation_of_the_plain_one() -> None:
    """A finite chain, 100 iterations: the mean is within 5 standard errors of H^(8), exactly."""
    matrix = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: theta[x], mg.MLMC(8), parameters=[theta]
    )
    mine, start = distributed.Sharded(gradient, shards=3), torch.zeros(1200, dtype=torch.int64)
    draws = []
    for n in range(1, 101):
        theta.grad = torch.zeros_like(theta)
        mine.backward(start, n=n)
        draws.append(theta.grad[0])
    sample = torch.stack(draws)
    law, exact = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.zeros(2).double()
    for _ in range(8):
        law = law @ matrix
        exact += law / 8
    error = float(sample.std() / len(sample) ** 0.5)
    assert abs(float(sample.mean() - exact[0])) < 5 * error
    assert abs(float(sample.mean() - 0.8)) > 5 * error  # it would see the stationary law


def test_a_start_may_have_gaps_or_be_left_to_the_kernel() -> None:
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    kernel = mg.kernels.ISIR(
        lambda x, y: -(x - y).square().sum(1),
        lambda rows, y, generator: torch.randn(rows, 1, dtype=torch.float64, generator=generator),
        4,
    )
    gradient = mg.MarkovGradient(
        kernel, lambda x, y: (theta * x).sum(1), mg.MLMC(8), parameters=[theta]
    )
    mine, y = distributed.Sharded(gradient, shards=3), torch.linspace(0, 1, 9).double()[:, None]
    assert mine.backward(None, y, n=1).last.shape == (9, 1)
    known = torch.arange(9) % 2 == 0
    assert mine.backward(Remembered(y, known), y, n=1).last.shape == (9, 1)


def refusals() -> list[str]:
    """What is refused, in each of two processes."""
    rank = distributed.current().rank
    mine, start, shift = sharded(torch.float32)
    with torch.no_grad():
        mine.gradient.parameters[0].add_(float(rank))
    other, *_ = sharded(torch.float32)
    few, *_ = sharded(torch.float32, shards=1)
    nan, *_ = sharded(torch.float32)
    broken = torch.full_like(shift, float("nan")) if rank else shift
    return [
        message(lambda: mine.backward(start, shift, n=1)),
        message(lambda: other.backward(start + rank, shift, n=1)),
        message(lambda: few.backward(start, shift, n=1)),
        message(lambda: _unfinite(nan, start, shift)),
        message(lambda: nan.backward(start, broken, n=1)),
        *(_steps_apart(rank, by_seed) for by_seed in (False, True)),
    ]


def _steps_apart(rank: int, by_seed: bool) -> str:
    """In the second call the processes have other iterations, or other seeds: `.grad` stays."""
    mine, start, shift = sharded(torch.float32)
    mine.backward(start, shift, n=1)
    before = [p.grad.clone() for p in mine.gradient.parameters]
    mine.seed += rank if by_seed else 0
    said = message(lambda: mine.backward(start, shift, n=2 if by_seed else 2 + rank))
    same = zip(before, mine.gradient.parameters, strict=True)
    assert all(torch.equal(grad, p.grad) for grad, p in same)
    return said


def _unfinite(mine: Any, start: Tensor, shift: Tensor) -> None:
    """In one process the parameters become infinite after the first step."""
    mine.backward(start, shift, n=1)
    before = [p.grad.clone() for p in mine.gradient.parameters]
    if distributed.current().rank:
        with torch.no_grad():
            mine.gradient.parameters[-1].fill_(float("inf"))
    try:
        mine.backward(start, shift, n=2)
    finally:
        same = zip(before, mine.gradient.parameters, strict=True)
        assert all(torch.equal(grad, p.grad) for grad, p in same)


def test_what_processes_must_have_in_common() -> None:
    first, second = together(2, refusals)
    remedy = "make them from the same seed, or load the same file in every process"
    assert first[0] == f"ValueError: parameters of rank 1 differs from that of rank 0; {remedy}"
    assert second[:3] == first[:3]
    assert "x0 or context of rank 1 differs from that of rank 0; every process" in first[1]
    assert "shards must be ≥ 2, the number of processes, got 1; start fewer" in first[2]
    assert first[3] == "FloatingPointError: another process reports the reason"
    assert second[3].startswith("FloatingPointError: ")
    assert second[3] != first[3]
    apart = "ValueError: n, seed or lengths of rank 1 differs from that of rank 0; every process"
    assert all(said.startswith(apart) for said in [*first[5:], *second[5:]])
    assert len(first[5:]) == 2


def test_parameters_must_be_named() -> None:
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(torch.eye(2)), lambda x: x.float(), mg.Average(1)
    )
    with pytest.raises(ValueError, match=r"gradient must name its parameters.*got None"):
        distributed.Sharded(gradient)


def test_more_shards_than_chains_are_refused() -> None:
    mine, start, shift = sharded(torch.float64, shards=3)
    with pytest.raises(ValueError, match=r"shards must be ≤ 2, the number of chains, got 3; use"):
        mine.backward(start[:2], shift[:2], n=1)


def test_a_plan_of_other_chains_is_refused() -> None:
    mine, start, shift = sharded(torch.float64)
    plan = mine.gradient.draw_lengths(start, (shift,), 1, lengths_generator(0, 1))
    with pytest.raises(
        ValueError, match=r"lengths must have a row for each of the 3 chains, got 22"
    ):
        mine.gradient.gradient(
            start[:3], shift[:3], generator=lengths_generator(0, 1), lengths=plan
        )


def killed(rank: int) -> str:
    """What is said if a process ends while the other waits for it."""
    mine, start, shift = sharded(torch.float32)
    if distributed.current().rank == rank:

        def end(*_: Any, **__: Any) -> None:
            os._exit(1)

        distributed.shards.MarkovGradient.gradient = end  # type: ignore[assignment, attr-defined]
    return message(lambda: mine.backward(start, shift, n=1))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_ends_is_missed(rank: int) -> None:
    said = together(2, killed, rank, ended=True)
    assert isinstance(said[rank], EOFError)
    assert said[1 - rank].startswith(f"LostError: rank {1 - rank} of 2 stops: another process was")


def outside() -> Tensor:
    """A loss that uses a tensor that was computed from the parameters outside of it."""
    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)
    matrix = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    table = theta.exp()
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: table[x], mg.MLMC(64), parameters=[theta]
    )
    distributed.Sharded(gradient, shards=4).backward(torch.zeros(12, dtype=torch.int64), n=1)
    assert theta.grad is not None
    return theta.grad


def test_a_graph_outside_of_the_loss_is_there_for_all_shards() -> None:
    alone = outside()
    for found in together(2, outside):
        torch.testing.assert_close(found, alone, rtol=1e-12, atol=0)
