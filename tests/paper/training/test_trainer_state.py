"""What a trainer hands on: to shards, to the next step after a failure, to the one that resumes."""

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.distributed.world import seed_for
from mlmcgrad.paper.training.trainer import Source, Trainer, backward_in_shards
from tests.paper.training import tiny


def made(**changes: Any) -> Trainer:
    return Trainer(tiny.config(Path("unused"), **changes).settings(), tiny.source())


def test_shards_take_the_gradient_of_the_iteration() -> None:
    """By hand, with chains that go on: the same bits."""
    trainer, twin = (made(shards=3, persistent=True, truncation_exponent=0.5) for _ in range(2))
    assert twin.store is not None
    for n in range(1, 8):  # images are visited again from iteration 6 on
        trainer.step()
        rows = twin.order.next()
        y = twin.source.images(twin.source.train, rows.numpy(), twin.device)
        twin.optimizer.zero_grad()
        x0 = twin.store.start(rows)
        step = backward_in_shards(twin.objective, y, 3, 1, n=n, x0=x0)
        twin.optimizer.step()
        twin.store[rows] = step.estimate.last
        assert tiny.same(dict(trainer.model.state_dict()), dict(twin.model.state_dict()))


def test_iterating_yields_the_present_iteration_and_all_that_follow() -> None:
    trainer = made(iterations=4)
    assert list(trainer) == [0, 1, 2, 3, 4]
    assert list(trainer) == [4]


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


def test_an_interrupted_gradient_leaves_everything_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = made()
    trainer.step()
    before = copy.deepcopy(trainer.state_dict())
    backward = trainer._backward

    def interrupted(*arguments: Any) -> Any:
        backward(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "_backward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.step()
    assert tiny.same(trainer.state_dict(), before)


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
    state = copy.deepcopy(first.state_dict())
    # What it was made with is compared by those who read it.
    second.load_state_dict({**state, "settings": {}, "source": {}})
    assert tiny.same(second.state_dict(), state)


BAD: dict[str, tuple[Any, str]] = {
    "iteration": (lambda s: s.update(iteration="one"), "invalid literal"),
    "model": (lambda s: s.pop("model"), "it is no state of this run"),
    "window": (lambda s: s["window"].update(strange=1), "unexpected keyword"),
    "optimizer": (lambda s: s["optimizer"].update(param_groups=[]), "parameter group"),
    "generator": (
        lambda s: s.update(generator=torch.full_like(s["generator"], 255)),
        "it is no state of this run .*mt19937",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_state_that_cannot_be_is_refused(name: str) -> None:
    change, message = BAD[name]
    first = made()
    first.step()
    state = copy.deepcopy(first.state_dict())
    change(state)
    with pytest.raises(ValueError, match=message):
        made().load_state_dict(state)
