"""A long chain of which other processes differentiate states: the same gradient, nothing lost."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import distributed
from mlmcgrad.distributed.giving import Giving
from mlmcgrad.distributed.post import Post
from mlmcgrad.distributed.shards import Shards, planning
from mlmcgrad.distributed.share import LEAST, Work, work_of_chains
from mlmcgrad.plan import Plan
from tests.distributed.processes import message, together
from tests.distributed.test_sharded import TOLERANCE, network

CHAINS, SEED = 12, 3
COUNTS = ("evaluations", "loss_evaluations", "invalid", "transitions", "cut")
sent: list[Any] = []  # by this process


@dataclass(frozen=True)
class Two:
    """Averages over chains, two of which are long: two shards of four give to the same ones."""

    def plan(self, chains: int, n: int | None, generator: torch.Generator) -> Plan:
        lengths = torch.tensor([160, 150] + [4] * (chains - 2))[:, None]
        return Plan(torch.zeros(chains, dtype=torch.int64), lengths, 1.0 / lengths.double())

    def longest(self, n: int | None = None) -> int:
        return 160

    def expected_length(self, n: int | None = None) -> float:
        return 30.0


def energy(dtype: torch.dtype) -> tuple[mg.MarkovGradient, tuple[Tensor, Tensor]]:
    """MALA in the plane, on a density with a small network."""
    net = network(dtype)

    def density(x: Tensor, shift: Tensor) -> Tensor:
        return -net(x)[:, 0] - (x - shift).square().sum(1)

    def loss(x: Tensor, shift: Tensor) -> Tensor:
        return net(x)[:, 0] - (x * shift).sum(1)

    start = torch.linspace(-1.0, 1.0, 2 * CHAINS, dtype=dtype).reshape(CHAINS, 2)
    estimator = mg.MLMC(256, assignment="balanced")
    gradient = mg.MarkovGradient(
        mg.kernels.MALA(density, 0.1), loss, estimator, parameters=net.parameters(), chunk=50
    )
    return gradient, (start, start.flip(0))


def energy_of_two(dtype: torch.dtype) -> tuple[mg.MarkovGradient, tuple[Tensor, Tensor]]:
    gradient, arguments = energy(dtype)
    return replace(gradient, estimator=Two()), arguments


def machine(dtype: torch.dtype) -> tuple[mg.MarkovGradient, tuple[Tensor]]:
    """Block Gibbs of a small Boltzmann machine, whose equal states are merged."""
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 4, generator=rng, dtype=dtype).requires_grad_()
    visible, hidden = (torch.zeros(n, dtype=dtype, requires_grad=True) for n in (6, 4))
    kernel = mg.kernels.Gibbs(weight, visible, hidden)
    gradient = mg.MarkovGradient(
        kernel,
        lambda v: -kernel.free_energy(v),
        mg.MLMC(256, assignment="balanced"),
        parameters=[weight, visible, hidden],
    )
    return gradient, (torch.zeros(CHAINS, 6, dtype=dtype),)


def work_of(gradient: mg.MarkovGradient, arguments: tuple[Tensor, ...], n: int, count: int) -> Work:
    plan = gradient.plan(arguments[0], arguments[1:], n, planning(SEED, n))
    return work_of_chains(Shards.of(plan, count).plans)


def iteration(make: Callable[..., Any], shards: int, *, gives: bool = True) -> int:
    """The first one in which something is given, to all others if there are three; or nothing."""
    gradient, arguments = make(torch.float64)
    wanted = shards - 1 if gives else 0
    return next(
        n for n in range(1, 1000) if len(work_of(gradient, arguments, n, shards).gifts) == wanted
    )


def computed(make: Callable[..., Any], dtype: torch.dtype, shards: int, n: int) -> dict[str, Any]:
    gradient, (state, *context) = make(dtype)
    sharded = distributed.Sharded(gradient, shards=shards, seed=SEED, least=LEAST)
    sent.clear()
    estimate = sharded.backward(state, *context, n=n)
    flat = torch.cat([p.grad.flatten() for p in estimate.parameters if p.grad is not None])
    found = {k: v for k, v in vars(estimate).items() if k != "parameters"}
    return {**found, "gradient": flat, "messages": len(sent)}


def counted(function: Callable[..., Any], *arguments: Any) -> Any:
    """With a count of messages, None among them."""
    send = Post.send

    def counting(post: Post, content: Any, rank: int) -> None:
        sent.append(content)
        send(post, content, rank)

    Post.send = counting  # type: ignore[method-assign, assignment]
    try:
        return function(*arguments)
    finally:
        Post.send = send  # type: ignore[method-assign]


def computed_in_both(make: Callable[..., Any], shards: int, n: int) -> list[dict[str, Any]]:
    return [counted(computed, make, dtype, shards, n) for dtype in TOLERANCE]


@pytest.mark.parametrize(("size", "shards"), [(2, 2), (2, 4), (4, 4)])
@pytest.mark.parametrize("make", [energy, machine])
def test_the_same_gradient_where_states_are_given(
    make: Callable[..., Any], size: int, shards: int
) -> None:
    n = iteration(make, shards)
    ranks = together(size, computed_in_both, make, shards, n)
    for alone, first, *others in zip(computed_in_both(make, shards, n), *ranks, strict=True):
        close = TOLERANCE[alone["gradient"].dtype]
        difference = (first["gradient"] - alone["gradient"]).norm() / alone["gradient"].norm()
        assert float(difference) <= close
        assert first["value"] == pytest.approx(alone["value"], rel=close)
        assert first["acceptance"] == pytest.approx(alone["acceptance"], rel=1e-12)
        assert torch.equal(first["last"], alone["last"])
        assert [first[name] for name in COUNTS] == [alone[name] for name in COUNTS]
        assert all(torch.equal(other["gradient"], first["gradient"]) for other in others)
        messages = [each["messages"] for each in (first, *others)]
        # One process gives, and with fewer processes than shards none does.
        assert sum(count > 0 for count in messages) == (size == shards)
        assert alone["messages"] == 0


def test_one_may_take_from_two() -> None:
    gradient, arguments = energy_of_two(torch.float64)
    gifts = work_of(gradient, arguments, 1, 4).gifts
    assert {(gift.giver, gift.taker) for gift in gifts} == {(0, 2), (0, 3), (1, 2), (1, 3)}
    alone = computed_in_both(energy_of_two, 4, 1)
    for rank in together(4, computed_in_both, energy_of_two, 4, 1):
        for one, found in zip(alone, rank, strict=True):
            difference = (found["gradient"] - one["gradient"]).norm() / one["gradient"].norm()
            assert float(difference) <= TOLERANCE[one["gradient"].dtype]
            assert found["loss_evaluations"] == one["loss_evaluations"]


def test_nothing_is_sent_where_shards_have_about_the_same() -> None:
    n = iteration(energy, 2, gives=False)
    for rank in together(2, computed_in_both, energy, 2, n):
        assert [each["messages"] for each in rank] == [0, 0]


def test_the_shards_put_together_are_the_plain_gradients() -> None:
    """Pieces change rounding only: the same states with the same weights."""
    n = iteration(energy, 4)
    found = computed(energy, torch.float64, 4, n)
    gradient, (state, shift) = energy(torch.float64)
    plan = gradient.plan(state, (shift,), n, planning(SEED, n))
    whole = Shards.of(plan, 4)
    total, states = torch.zeros_like(found["gradient"]), 0
    for shard, rows in enumerate(whole.rows):
        tensors, estimate = gradient.gradient(
            state[rows],
            shift[rows],
            generator=distributed.shards.drawing(SEED, n, shard, torch.device("cpu")),
            plan=whole.plans[shard],
        )
        total += torch.cat([t.flatten() for t in tensors]) * len(rows) / CHAINS
        states += estimate.loss_evaluations
    torch.testing.assert_close(found["gradient"], total, rtol=1e-11, atol=1e-13)
    assert found["loss_evaluations"] == states


def spoiled(times: int, n: int) -> dict[str, Any]:
    """Every piece that is given arrives so many times."""
    send = Giving.send

    def wrong(giving: Giving, content: Any, rank: int) -> None:
        for _ in range(times):
            send(giving, content, rank)

    Giving.send = wrong  # type: ignore[method-assign, assignment]
    return computed(energy, torch.float64, 4, n)


@pytest.mark.parametrize("times", [0, 2])
def test_a_piece_that_is_lost_or_comes_twice_would_be_seen(times: int) -> None:
    n = iteration(energy, 4)
    alone, found = computed(energy, torch.float64, 4, n), together(4, spoiled, times, n)[0]
    difference = (found["gradient"] - alone["gradient"]).norm() / alone["gradient"].norm()
    assert float(difference) > 1e-3
    assert (found["loss_evaluations"] < alone["loss_evaluations"]) == (times == 0)
    assert found["loss_evaluations"] != alone["loss_evaluations"]


def unfinite(where: str, n: int) -> str:
    """What is said if something is not finite in one process only."""
    gradient, (state, shift) = energy(torch.float32)
    work = work_of(gradient, (state, shift), n, 2)
    sharded = distributed.Sharded(gradient, shards=2, seed=SEED, least=LEAST)
    sharded._check_same(state, (shift,))
    plan = gradient.plan(state, (shift,), n, planning(SEED, n))
    shards = Shards.of(plan, 2)
    giver = work.gifts[0].giver
    gives = shards.ranks(work.whole)[giver] == distributed.current().rank
    if where == "giver" and gives:  # before anything is sent
        state = torch.full_like(state, float("nan"))
        gradient.parameters[0].data.fill_(float("nan"))  # type: ignore[index]
    elif where == "taker" and not gives:  # its own shard
        gradient.parameters[-1].data.fill_(float("inf"))  # type: ignore[index]
    elif where == "taken" and not gives:  # only what it is given
        shift = shift.clone()
        shift[shards.rows[giver]] = float("inf")
    return message(lambda: sharded.backward(state, shift, n=n))


@pytest.mark.parametrize("where", ["giver", "taker", "taken"])
def test_what_is_not_finite_in_one_process_ends_all(where: str) -> None:
    said = sorted(together(2, unfinite, where, iteration(energy, 2)))
    elsewhere = "FloatingPointError: it is in another process, whose message says what"
    assert elsewhere in said
    (other,) = (text for text in said if text != elsewhere)
    assert other.startswith("FloatingPointError: ")


def killed(rank: int, n: int) -> str:
    """What is said if a process ends while others wait for it."""
    if distributed.current().rank == rank:

        def end(*_: Any) -> None:
            os._exit(1)

        Giving.send = end  # type: ignore[method-assign, assignment]
        distributed.sharded.Sharded._differentiated = end  # type: ignore[method-assign, assignment]
    gradient, (state, shift) = energy(torch.float32)
    sharded = distributed.Sharded(gradient, shards=2, seed=SEED, least=LEAST)
    return message(lambda: sharded.backward(state, shift, n=n))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_ends_is_missed(rank: int) -> None:
    said = together(2, killed, rank, iteration(energy, 2), ended=True)
    assert isinstance(said[rank], EOFError)
    assert said[1 - rank].startswith(f"LostError: rank {1 - rank} of 2 stops: another process was")


def outside(n: int) -> Tensor:
    """A loss that uses a tensor that was computed from the parameters outside of it."""
    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)
    matrix = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    table = theta.exp()
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(matrix),
        lambda x: table[x],
        mg.MLMC(256, assignment="balanced"),
        parameters=[theta],
    )
    sharded = distributed.Sharded(gradient, shards=2, seed=SEED, least=LEAST)
    sharded.backward(torch.zeros(CHAINS, dtype=torch.int64), n=n)
    assert theta.grad is not None
    return theta.grad


def test_a_graph_outside_of_the_loss_is_there_for_all_shards() -> None:
    n = iteration(energy, 2)  # the same lengths: they follow from the seed
    alone = outside(n)
    for found in together(2, functools.partial(outside, n)):
        torch.testing.assert_close(found, alone, rtol=1e-12, atol=0)
