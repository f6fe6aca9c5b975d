"""What a trainer hands on: to shards, to the next step after a failure, to the one that resumes."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.seeds import seed_for
from mlmcgrad.training.data import Source
from mlmcgrad.training.sharded import ShardedObjective
from mlmcgrad.training.trainer import Trainer
from tests.training import tiny


def made(**changes: Any) -> Trainer:
    return Trainer(tiny.config(Path("unused"), **changes).settings(), tiny.source())


def test_shards_take_the_gradient_of_the_iteration() -> None:
    """By hand, with chains that go on: the same bits."""
    trainer, twin = (made(shards=3, persistent=True, truncation_exponent=0.5) for _ in range(2))
    sharded = ShardedObjective(twin.objective, 3, 1)
    assert twin.store is not None
    for n in range(1, 8):  # images are visited again from iteration 6 on
        trainer.step()
        rows = twin.order.next()
        y = twin.source.images(twin.source.train, rows.numpy(), twin.device)
        twin.optimizer.zero_grad()
        step = sharded.backward(y, n=n, x0=twin.store[rows])
        twin.optimizer.step()
        twin.store[rows] = step.estimate.last
        assert tiny.same(dict(trainer.model.state_dict()), dict(twin.model.state_dict()))


def test_lines_are_written_before_the_next_step() -> None:
    trainer = made()
    assert trainer.recorded
    trainer.step()
    assert not trainer.recorded


def test_noise_of_the_pixels_is_seeded_by_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, batch = [], Source.batch

    def listening(self: Source, rows: Any, device: Any, generator: torch.Generator) -> Any:
        seeds.append(generator.initial_seed())
        return batch(self, rows, device, generator)

    monkeypatch.setattr(Source, "batch", listening)
    trainer = made(seed=5)
    trainer.step()
    trainer.step()
    assert seeds == [seed_for(5, "pixels 1"), seed_for(5, "pixels 2")]


@contextmanager
def interrupted() -> Iterator[None]:
    yield
    raise KeyboardInterrupt


def test_an_interrupted_gradient_leaves_everything_as_it_was() -> None:
    trainer = made()
    trainer.step()
    before = copy.deepcopy(trainer.state())
    with pytest.raises(KeyboardInterrupt):
        trainer.step(interrupted)
    assert tiny.same(trainer.state(), before)


@pytest.mark.parametrize("name", ["bound", "norm of the gradient"])
def test_what_is_not_finite_ends_the_step_before_the_parameters_change(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = made()
    before, backward = copy.deepcopy(dict(trainer.model.state_dict())), trainer._backward

    def spoiled(*arguments: Any) -> Any:
        step = backward(*arguments)
        if name == "bound":
            return dataclasses.replace(step, bound=-math.inf)
        for parameter in trainer.model.encoder.parameters():  # finite, and their norm is not
            parameter.grad = torch.full_like(parameter, 3e38)
        return step

    monkeypatch.setattr(trainer, "_backward", spoiled)
    with pytest.raises(FloatingPointError, match=rf"^the {name} is -?inf$"):
        trainer.step()
    assert tiny.same(dict(trainer.model.state_dict()), before)
    assert trainer.iteration == 0


@pytest.mark.parametrize("steps", [0, 1, 5])  # none, one, and a whole epoch
def test_a_state_of_any_iteration_can_be_loaded(steps: int) -> None:
    first, second = made(persistent=True), made(persistent=True)
    for _ in range(steps):
        first.step()
    state = copy.deepcopy(first.state())
    # What it was made with is compared by those who read it.
    second.load({**state, "settings": {}, "source": {}})
    assert tiny.same(second.state(), state)


BAD: dict[str, tuple[Any, str]] = {
    "iteration as text": (lambda s: s.update(iteration="1"), r"^its iteration is '1', not int$"),
    "iteration": (lambda s: s.update(iteration=-1), "at iteration -1 and batch 1"),
    "position": (lambda s: s["order"].update(position=-1), "at iteration 1 and batch -1"),
    "end": (lambda s: s["order"].update(position=6), "at iteration 1 and batch 6"),
    "levels": (lambda s: s["window"].update(levels={"one": 1}), r"^its window\['levels'\] has"),
    "window": (lambda s: s.update(window=[]), r"^its window has list, not \["),
    "test": (lambda s: s.update(test={3: 1.0}), r"^its test has \['3'\], not \[\]$"),
    "generator": (
        lambda s: s.update(generator=torch.full_like(s["generator"], 255)),
        "a generator has no valid state",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_state_that_cannot_be_is_refused(name: str) -> None:
    change, message = BAD[name]
    first = made()
    first.step()
    state = copy.deepcopy(first.state())
    change(state)
    with pytest.raises(ValueError, match=message):
        made().load(state)
