"""One iteration of training, and what it counts."""

import math
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad import optim, schedules
from mlmcgrad.training.trainer import Trainer
from tests.training import tiny


@pytest.mark.parametrize(
    ("changes", "per_transition", "per_chain"),
    [
        # The first k = 3 draws are those of the encoder; each further step has k − 1 new ones.
        ({"kernel": "isir"}, 2, 1),
        # One evaluation a step and one for the start; the encoder's draws are not shared.
        ({"kernel": "rwmh"}, 1, 1 + 3),
        ({"method": "iwae", "candidates": 1}, 1, 0),
    ],
)
def test_all_decoder_evaluations_are_counted(
    changes: dict[str, Any], per_transition: int, per_chain: int
) -> None:
    trainer = Trainer(tiny.config(Path("unused"), **changes).settings(), tiny.source())
    for _ in range(3):
        trainer.step()
    transitions, chains = trainer.spent["transitions"], 3 * 8
    assert trainer.spent["evaluations"] == per_transition * transitions + per_chain * chains


def test_settings_reach_the_objective() -> None:
    settings = {
        "method": "mlmc",
        "candidates": 7,
        "truncation_scale": 3.0,
        "truncation_exponent": 0.25,
        "rao_blackwell": True,
        "assignment": "balanced",
        "base": 2,
        "encoder": "dreg",
        "kernel": "mala",
        "step_size": 0.3,
        "thinning": 0.2,
        "chunk": 11,
    }
    trainer = Trainer(tiny.config(Path("unused"), **settings).settings(), tiny.source())
    objective = trainer.objective
    assert objective.model is trainer.model
    truncation = schedules.as_schedule(objective.truncation, "truncation")
    assert [truncation(n) for n in (1, 16, 81)] == [3.0, 6.0, 9.0]
    for name in sorted(set(settings) - {"truncation_scale", "truncation_exponent"}):
        assert getattr(objective, name) == settings[name], name


@pytest.mark.parametrize(
    ("optimizer", "kind", "rhos"),
    [
        ("adagrad", optim.Adagrad, {}),
        ("rmsprop", optim.RMSProp, {"rho": 0.75}),
        ("amsgrad", optim.AMSGrad, {"rho1": 0.5, "rho2": 0.75}),
    ],
)
def test_settings_reach_the_optimizer(
    optimizer: str, kind: type[Any], rhos: dict[str, float]
) -> None:
    """γ_n = C n^{−1/2}, and each ρ in its place; one group holds all parameters, by name."""
    changes = {"optimizer": optimizer, "lr": 0.3, "rho1": 0.5, "rho2": 0.75}
    trainer = Trainer(tiny.config(Path("unused"), **changes).settings(), tiny.source())
    made = trainer.optimizer
    assert isinstance(made, kind)
    assert [made.lr_at(n) for n in (1, 4, 100)] == pytest.approx([0.3, 0.15, 0.03])
    (group,) = made.param_groups
    assert {name: group[name] for name in rhos} == rhos
    assert group["param_names"] == [name for name, _ in trainer.model.named_parameters()]


def test_an_iteration_is_one_gradient_and_one_step() -> None:
    """By hand: the same draws, images and schedules give the same parameters, to the last bit."""
    settings = tiny.config(Path("unused"), truncation_exponent=0.5).settings()
    trainer, twin = (Trainer(settings, tiny.source()) for _ in range(2))
    total = 0.0
    for n in (1, 2, 3):
        trainer.step()
        rows = twin.order.next()
        y = twin.source.images(twin.source.train, rows.numpy(), twin.device)
        twin.optimizer.zero_grad()
        step = twin.objective.backward(y, n=n, generator=twin.generator)
        squares = [
            float(p.grad.square().sum()) for p in twin.model.parameters() if p.grad is not None
        ]
        total += math.sqrt(sum(squares))
        twin.optimizer.step()
        assert tiny.same(dict(trainer.model.state_dict()), dict(twin.model.state_dict()))
        assert trainer.iteration == n
        assert trainer.attempt["iteration"] == n
        assert trainer.epoch == n / 5  # 44 images in batches of 8
        assert trainer.window.sums["gradient_norm"] == pytest.approx(total)
    assert step.estimate.lengths.max() <= 3.0 * 3**0.5
