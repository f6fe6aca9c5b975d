"""An image with a long chain: other processes weigh its draws and differentiate its states."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad import distributed
from mlmcgrad.distributed.giving import Giving
from mlmcgrad.distributed.shards import Shards, planning
from mlmcgrad.distributed.share import LEAST, Work, work_of_chains, work_of_draws
from mlmcgrad.iwae.likelihoods import Bernoulli
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.iwae.objective import Objective
from mlmcgrad.plan import Plan
from mlmcgrad.store import Remembered
from mlmcgrad.training.sharded import ShardedObjective
from tests.chains import rng
from tests.distributed import test_sharing
from tests.distributed.processes import message, together
from tests.distributed.test_sharing import COUNTS, Two, counted
from tests.training import tiny

IMAGES, SEED = 12, 5
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
KINDS: dict[str, dict[str, Any]] = {
    "isir": {},
    "averaged": {"rao_blackwell": True, "encoder": "mixed"},  # in several parts
    "importance": {"kernel": "importance"},
    "sum": {"kernel": "importance", "estimator": "sum", "encoder": "dreg"},
    "mala": {"kernel": "mala"},
}


def made(dtype: torch.dtype, **options: Any) -> tuple[Objective, torch.Tensor]:
    model = LatentModel(tiny.SIZES, Bernoulli(), rng()).to(dtype)
    y = torch.rand(IMAGES, *tiny.SIZES.shape, generator=rng(1), dtype=dtype)
    changes = {"candidates": 3, "truncation": 256.0, "assignment": "balanced", "chunk": 60}
    two = options.pop("two", False)
    objective = Objective(model, **{**changes, **options})
    if two:
        vars(objective)["lengths"] = Two()
    return objective, y


def work_of(objective: Objective, plans: Sequence[Plan]) -> Work:
    return (work_of_chains if objective.kernel == "mala" else work_of_draws)(plans)


def iteration(shards: int, **options: Any) -> int:
    """The first one in which a shard gives to all others."""
    objective, _ = made(torch.float64, **options)
    for n in range(1, 1000):
        plans = Shards.of(objective.planned(IMAGES, n, planning(SEED, n)), shards).plans
        gifts = work_of(objective, plans).gifts
        longest = max(int(plan.longest.max()) for plan in plans)
        if len(gifts) == shards - 1 and (longest == 256 or not options.get("rao_blackwell")):
            return n
    raise AssertionError


def computed(dtype: torch.dtype, shards: int, n: int, options: dict[str, Any]) -> dict[str, Any]:
    objective, y = made(dtype, **options)
    # Some chains go on, where there are any.
    known = torch.arange(IMAGES) % 2 == 0
    x0 = Remembered(torch.ones(IMAGES, 2, dtype=dtype), known)
    chain = options.get("kernel") != "importance"
    test_sharing.sent.clear()
    step = ShardedObjective(objective, shards, SEED, least=LEAST).backward(
        y, n=n, x0=x0 if chain else None
    )
    flat = torch.cat([p.grad.flatten() for p in objective.parameters if p.grad is not None])
    found = {k: v for k, v in vars(step.estimate).items() if k != "parameters"}
    numbers = (step.bound, step.evaluations, step.effective, step.largest)
    return {**found, "gradient": flat, "numbers": numbers, "messages": len(test_sharing.sent)}


def both(shards: int, n: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    return [counted(computed, dtype, shards, n, options) for dtype in TOLERANCE]


@pytest.mark.parametrize(("size", "shards"), [(2, 2), (2, 4), (4, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_gradient_where_work_is_given(kind: str, size: int, shards: int) -> None:
    options = KINDS[kind]
    n = iteration(shards, **options)
    ranks = together(size, both, shards, n, options)
    for alone, first, *others in zip(both(shards, n, options), *ranks, strict=True):
        close = TOLERANCE[alone["gradient"].dtype]
        difference = (first["gradient"] - alone["gradient"]).norm() / alone["gradient"].norm()
        assert float(difference) <= close
        assert first["value"] == pytest.approx(alone["value"], rel=close)
        assert first["numbers"] == alone["numbers"]
        assert first["acceptance"] == alone["acceptance"]
        assert torch.equal(first["last"], alone["last"])
        assert [first[name] for name in COUNTS] == [alone[name] for name in COUNTS]
        assert all(torch.equal(other["gradient"], first["gradient"]) for other in others)
        messages = [each["messages"] for each in (first, *others)]
        assert all(messages) == (size == shards)  # one asks, the others answer
        assert any(messages) == (size == shards)
        assert alone["messages"] == 0


@pytest.mark.parametrize("kind", ["isir", "importance"])
def test_one_may_take_from_two(kind: str) -> None:
    options = KINDS[kind] | {"two": True}
    objective, _ = made(torch.float64, **options)
    gifts = work_of(objective, Shards.of(objective.planned(IMAGES, 1, rng()), 4).plans).gifts
    assert {(gift.giver, gift.taker) for gift in gifts} == {(0, 2), (0, 3), (1, 2), (1, 3)}
    alone = both(4, 1, options)
    for rank in together(4, both, 4, 1, options):
        for one, found in zip(alone, rank, strict=True):
            difference = (found["gradient"] - one["gradient"]).norm() / one["gradient"].norm()
            assert float(difference) <= TOLERANCE[one["gradient"].dtype]
            assert found["numbers"] == one["numbers"]


@pytest.mark.parametrize("kind", ["isir", "importance", "averaged"])
def test_giving_changes_rounding_only(kind: str) -> None:
    """In one process: the shards with the pieces of their gifts, and without."""
    options = KINDS[kind] | {"encoder": "iwae"}
    n, found = iteration(4, **options), []
    for cut in (True, False):
        objective, y = made(torch.float64, **options)
        with pytest.MonkeyPatch.context() as patch:
            if not cut:
                patch.setattr("mlmcgrad.distributed.share.Work.given", lambda *_: ())
            step = ShardedObjective(objective, 4, SEED, least=LEAST).backward(y, n=n, x0=None)
        flat = torch.cat([p.grad.flatten() for p in objective.parameters if p.grad is not None])
        found.append((flat, step.estimate.loss_evaluations, step.evaluations, step.bound))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-10, atol=1e-13)
    assert found[0][1:] == found[1][1:]


def spoiled(kind: str, what: int, n: int) -> dict[str, Any]:
    """Draws (with two tensors more), or states (with three), are not those of their owners."""
    send = Giving.send

    def wrong(giving: Giving, content: Any, rank: int) -> None:
        points, *rest = content
        if len(rest) == what:
            points = points.roll(1, 0)
        send(giving, (points, *rest), rank)

    Giving.send = wrong  # type: ignore[method-assign, assignment]
    return computed(torch.float64, 4, n, KINDS[kind])


@pytest.mark.parametrize("what", [2, 3])
@pytest.mark.parametrize("kind", ["isir", "importance"])
def test_rows_in_another_order_would_be_seen(kind: str, what: int) -> None:
    n = iteration(4, **KINDS[kind])
    alone = computed(torch.float64, 4, n, KINDS[kind])["gradient"]
    found = together(4, spoiled, kind, what, n)[0]["gradient"]
    assert float((found - alone).norm() / alone.norm()) > 1e-5


def unfinite(where: str, n: int) -> str:
    """What is said if something is not finite in one process only."""
    objective, y = made(torch.float32)
    shards = Shards.of(objective.planned(IMAGES, n, planning(SEED, n)), 2)
    work = work_of(objective, shards.plans)
    giver = work.gifts[0].giver
    gives = shards.ranks(work.whole)[giver] == distributed.current().rank
    if gives == (where == "giver"):  # its first draws, before anything is sent
        y[shards.rows[1 - giver if where == "taker" else giver]] = float("nan")
    return message(
        lambda: ShardedObjective(objective, 2, SEED, least=LEAST).backward(y, n=n, x0=None)
    )


@pytest.mark.parametrize("where", ["giver", "taker", "taken"])
def test_what_is_not_finite_in_one_process_ends_all(where: str) -> None:
    """In a shard that gives, in one that takes, and in what it takes: nobody waits for ever."""
    said = together(2, unfinite, where, iteration(2))
    assert all(text.startswith("FloatingPointError: ") for text in said)
    assert len(set(said)) == 2


def killed(rank: int, n: int) -> str:
    """What is said if a process ends while others wait for it."""
    if distributed.current().rank == rank:

        def end(*_: Any) -> None:
            os._exit(1)

        Giving.send = end  # type: ignore[method-assign, assignment]
        LatentModel.log_joint = end  # type: ignore[method-assign, assignment]
    objective, y = made(torch.float32)
    return message(
        lambda: ShardedObjective(objective, 2, SEED, least=LEAST).backward(y, n=n, x0=None)
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_ends_is_missed(rank: int) -> None:
    said = together(2, killed, rank, iteration(2), ended=True)
    assert isinstance(said[rank], EOFError)
    assert said[1 - rank].startswith(f"LostError: rank {1 - rank} of 2 stops: another process was")


def trained(folder: Path) -> int:
    """A whole training whose small networks share; how many messages this process has sent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlmcgrad.distributed.share.WORTH", 1)
        test_sharing.sent.clear()
        changes = {"iterations": 12, "probe_images": 0, "shards": 4, "batch_size": 12}
        counted(lambda: tiny.run(folder, truncation_scale=256.0, persistent=True, **changes))
    return len(test_sharing.sent)


def test_a_training_that_shares_has_the_same_numbers(tmp_path: Path) -> None:
    assert trained(tmp_path / "alone") == 0
    assert all(together(4, trained, tmp_path / "four"))
    found, expected = tiny.remains(tmp_path / "four"), tiny.remains(tmp_path / "alone")
    assert found["metrics"] == expected["metrics"]
    assert found["summary"] == expected["summary"]
    assert tiny.same(found["state"]["store"], expected["state"]["store"])
