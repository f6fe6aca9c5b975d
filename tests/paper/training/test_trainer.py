"""One iteration of training, and what it counts."""

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad import optim, schedules
from mlmcgrad.distributed.world import seed_for
from mlmcgrad.iwae.networks import (
    BernoulliLikelihood,
    DiscretizedLogisticLikelihood,
    PixelLikelihood,
)
from mlmcgrad.paper.training.trainer import Trainer
from tests.paper.training import tiny


@pytest.mark.parametrize(
    ("changes", "per_transition", "per_chain"),
    [
        # The first k = 3 draws are those of the encoder; each further step has k − 1 new ones.
        ({"kernel": "isir"}, 2, 1),
        # One evaluation a step and one for the start; the encoder's draws are not shared.
        ({"kernel": "rwmh"}, 1, 1 + 3),
        ({"method": "iwae", "candidates": 1}, 1, 0),
        # Blocks of k draws, the first of which are those of the encoder.
        ({"kernel": "importance", "estimator": "sum"}, 3, 0),
        ({"kernel": "isir", "persistent": True, "encoder": "wake"}, 2, 1),
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
        "estimator": "sum",
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
    settings["multilevel"] = settings.pop("estimator")
    for name in sorted(set(settings) - {"truncation_scale", "truncation_exponent"}):
        assert getattr(objective, name) == settings[name], name


@pytest.mark.parametrize(
    ("optimizer", "kind", "rhos"),
    [
        ("adagrad", optim.Adagrad, {}),
        ("rmsprop", optim.RMSProp, {"alpha": 0.75}),
        ("amsgrad", optim.AMSGrad, {"betas": (0.5, 0.75)}),
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
    norms, squares = 0.0, 0.0
    spent = {"evaluations": 0, "transitions": 0, "loss_evaluations": 0}
    for n in (1, 2, 3):
        trainer.step()
        rows = twin.order.next()
        y = twin.source.images(twin.source.train, rows.numpy(), twin.device)
        twin.optimizer.zero_grad()
        step = twin.objective.backward(y, n=n, generator=twin.generator)
        theta, phi = (
            sum(float(p.grad.square().sum()) for p in net.parameters() if p.grad is not None)
            for net in (twin.model.decoder, twin.model.encoder)
        )
        norms, squares = norms + math.sqrt(theta + phi), squares + theta
        spent["evaluations"] += step.evaluations
        spent["transitions"] += step.estimate.transitions
        spent["loss_evaluations"] += step.estimate.loss_evaluations
        twin.optimizer.step()
        assert tiny.same(dict(trainer.model.state_dict()), dict(twin.model.state_dict()))
        assert trainer.attempt["iteration"] == n
        assert trainer.where() == {"iteration": n, "epoch": n / 5, **spent}  # 44 images, by 8
        assert trainer.window.sums["gradient_norm"] == pytest.approx(norms)
        assert trainer.window.sums["theta_squared"] == pytest.approx(squares)
    assert step.estimate.lengths.max() <= 3.0 * 3**0.5


def test_a_state_has_all_that_the_rest_depends_on() -> None:
    """Stopped after 7 steps, in the second epoch, and continued by another trainer: same bits."""
    settings = tiny.config(Path("unused")).settings()
    whole, first, second = (Trainer(settings, tiny.source()) for _ in range(3))
    whole.test = first.test = {"nll": 3.5}
    for _ in range(7):
        whole.step()
        first.step()
    state = copy.deepcopy(first.state_dict())
    second.load_state_dict(state)
    assert tiny.same(second.state_dict(), state)
    assert set(state) == {
        "settings", "source", "iteration", "seconds", "model", "optimizer",
        "generator", "order", "spent", "window", "test", "averaged", "checks",
    }  # fmt: skip
    for _ in range(4):
        whole.step()
        second.step()
    assert second.seconds > state["seconds"] > 0.0
    whole.seconds = second.seconds
    assert tiny.same(second.state_dict(), whole.state_dict())


def test_chains_go_on_from_the_last_visit_of_an_image() -> None:
    changes = {"persistent": True, "method": "iwae", "encoder": "wake"}
    trainer = Trainer(tiny.config(Path("unused"), **changes).settings(), tiny.source())
    given: list[Any] = []
    backward = type(trainer.objective).backward

    def listening(*arguments: Any, **options: Any) -> Any:
        given.append(options["x0"])
        return backward(*arguments, **options)

    trainer.objective.__dict__["backward"] = partial(listening, trainer.objective)
    assert trainer.store is not None
    kept: dict[int, Any] = {}
    for _ in range(2 * trainer.order.per_epoch):
        trainer.step()
        rows = trainer.attempt["rows"].tolist()
        known = getattr(given[-1], "known", torch.ones(len(rows), dtype=torch.bool))
        points = getattr(given[-1], "points", given[-1])
        assert known.tolist() == [row in kept for row in rows]
        for row, point in zip(rows, points, strict=True):
            assert row not in kept or torch.equal(point, kept[row])
        now: Any = trainer.store[rows]
        kept.update({row: now[i] for i, row in enumerate(rows)})
    assert int(trainer.store.known.sum()) == len(kept) >= 8 * trainer.order.per_epoch


def test_epochs_have_six_decimals() -> None:
    trainer = Trainer(tiny.config(Path("unused"), batch_size=6).settings(), tiny.source())
    trainer.iteration = 1
    assert trainer.where()["epoch"] == 0.142857  # 44 images in batches of 6


def test_the_likelihood_is_the_one_asked_for() -> None:
    wanted: dict[str, PixelLikelihood] = {
        "bernoulli": BernoulliLikelihood(),
        "discretized_logistic": DiscretizedLogisticLikelihood(4),  # grey levels of the images
    }
    for name, likelihood in wanted.items():
        settings = tiny.config(Path("unused"), likelihood=name).settings()
        assert Trainer(settings, tiny.source()).model.likelihood == likelihood


def test_a_gradient_that_is_not_finite_ends_the_step_before_the_parameters_change() -> None:
    trainer = Trainer(tiny.config(Path("unused")).settings(), tiny.source())
    before = copy.deepcopy(dict(trainer.model.state_dict()))
    for parameter in trainer.model.encoder.parameters():
        parameter.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(FloatingPointError, match="entries that are NaN or infinite"):
        trainer.step()
    assert tiny.same(dict(trainer.model.state_dict()), before)
    assert trainer.iteration == 0


def test_a_device_that_is_not_there_is_named() -> None:
    trainer = Trainer(tiny.config(Path("unused"), device="cpu").settings(), tiny.source())
    assert trainer.device == torch.device("cpu")
    missing = ["nonsense"] if torch.cuda.is_available() else ["nonsense", "cuda"]
    for name in missing:
        with pytest.raises(ValueError, match=name):
            Trainer(tiny.config(Path("unused"), device=name).settings(), tiny.source())


def test_seeds_of_a_purpose_never_change() -> None:
    """Runs of earlier versions are resumed with them."""
    assert seed_for(0, "order") == 2600076910476490116
    assert seed_for(1, "order") == 6280271818441852225
    settings = tiny.config(Path("unused"), seed=1).settings()
    order = Trainer(settings, tiny.source()).order
    expected = torch.randperm(44, generator=torch.Generator().manual_seed(6280271818441852225))
    assert torch.equal(order.next(), expected[:8])
