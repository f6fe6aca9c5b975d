"""A model in training: one iteration at a time, and everything that the next one depends on.

Iteration n: y, a batch of the data order; gradients of the objective at n with T_n = c n^α; one
step of the optimizer with γ_n = C n^{-1/2}. Persistent chains go on from their state at the last
visit of an image. One generator serves the initial parameters and
all draws of the chains; the data order has its own, so that it does not depend on the method. In
shards (`sharded.py`) the chains draw from generators that the iteration seeds.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from mlmcgrad import optim
from mlmcgrad.iwae.likelihoods import Bernoulli, DiscretizedLogistic, Likelihood
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.iwae.objective import Objective, Step
from mlmcgrad.runs.folder import as_record
from mlmcgrad.runs.structure import check_structure
from mlmcgrad.schedules import power
from mlmcgrad.seeds import seed_for
from mlmcgrad.store import Remembered, Store
from mlmcgrad.training.config import Settings
from mlmcgrad.training.counters import Window
from mlmcgrad.training.data import Order, Source
from mlmcgrad.training.device import usable
from mlmcgrad.training.sharded import ShardedObjective


class Trainer:
    """Model, optimizer, generators, data order and counters.

    Args:
        settings: of the run.
        source: the images.
    """

    def __init__(self, settings: Settings, source: Source) -> None:
        self.settings, self.source = settings, source
        self.device = usable(settings.device)
        self.generator = torch.Generator(self.device).manual_seed(settings.seed)
        likelihood: Likelihood = (
            Bernoulli()
            if settings.likelihood == "bernoulli"
            else DiscretizedLogistic(source.levels)
        )
        self.model = LatentModel(source.sizes, likelihood, self.generator)
        self.objective = _objective(settings, self.model)
        self.sharded: ShardedObjective | None = None
        if settings.shards:
            self.sharded = ShardedObjective(self.objective, settings.shards, settings.seed)
        self.store: Store | None = None  # of the chains' states, one for each image
        if settings.persistent:
            self.store = Store(len(source.train), settings.latent, device=self.device)
        self.optimizer = _optimizer(settings, self.model)
        seed = seed_for(settings.seed, "order")
        self.order = Order(len(source.train), settings.batch_size, seed)
        self.iteration = 0
        self.spent = {"evaluations": 0, "transitions": 0, "loss_evaluations": 0}
        self.window = Window()
        self.test: dict[str, float] | None = None  # the last evaluation
        self.recorded = True  # whether the lines that this iteration leaves are written
        self.attempt: dict[str, Any] = {}  # enough to repeat the present iteration

    @property
    def epoch(self) -> float:
        """Passes over the data so far."""
        return self.iteration / self.order.per_epoch

    def step(self, at_once: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """One iteration.

        Args:
            at_once: entered while the gradient is computed. A KeyboardInterrupt there leaves
                everything as if the iteration had not begun.

        Raises:
            FloatingPointError: something is not finite; the parameters are as before.
        """
        n = self.iteration + 1
        order = self.order.state()
        rows = self.order.next()
        self.attempt = {"iteration": n, "rows": rows, "generator": self.generator.get_state()}
        try:
            with at_once():
                # Seeded by the iteration: there is no state that a checkpoint would have to keep.
                noise = torch.Generator().manual_seed(seed_for(self.settings.seed, f"pixels {n}"))
                y = self.source.batch(rows.numpy(), self.device, noise)
                self.optimizer.zero_grad()
                x0 = None if self.store is None else self.store[rows]
                step = self._backward(y, x0, n)
        except KeyboardInterrupt:
            self.order.load(order)
            self.generator.set_state(self.attempt["generator"])
            raise
        theta, phi = _norm(self.model.decoder), _norm(self.model.encoder)
        norm = math.hypot(theta, phi)
        for name, value in (("bound", step.bound), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                raise FloatingPointError(f"the {name} is {value}")
        self.optimizer.step()
        if self.store is not None:
            self.store[rows] = step.estimate.last
        self.iteration, self.recorded = n, False
        self.spent["evaluations"] += step.evaluations
        self.spent["transitions"] += step.estimate.transitions
        self.spent["loss_evaluations"] += step.estimate.loss_evaluations
        self.window.add(step, norm, theta * theta)

    def _backward(self, y: Tensor, x0: Tensor | Remembered | None, n: int) -> Step:
        if self.sharded is not None:
            return self.sharded.backward(y, n=n, x0=x0)
        return self.objective.backward(y, n=n, x0=x0, generator=self.generator)

    def where(self) -> dict[str, Any]:
        """Iteration, epoch and what was spent: the beginning of every line of the metrics."""
        return {"iteration": self.iteration, "epoch": round(self.epoch, 6), **self.spent}

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "settings": as_record(self.settings),
            "source": self.source.about(),
            "iteration": self.iteration,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "order": self.order.state(),
            "spent": dict(self.spent),
            "window": dataclasses.asdict(self.window),
            "test": self.test,
            "recorded": self.recorded,
            **({} if self.store is None else {"store": self.store.state_dict()}),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state of a run with the same settings and images.

        Raises:
            ValueError: it has another structure.
        """
        self._check(state)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        try:
            self.generator.set_state(state["generator"])
            self.order.load(state["order"])
        except RuntimeError as error:
            raise ValueError(f"a generator has no valid state: {error}") from error
        if self.store is not None:
            self.store.load_state_dict(state["store"])
        self.window = Window(**state["window"])
        self.iteration, self.spent = state["iteration"], dict(state["spent"])
        self.test, self.recorded = state["test"], state["recorded"]

    def _check(self, state: dict[str, Any]) -> None:
        """Refuse a state that is not one of a trainer with these settings."""
        expected = self.state()
        if state.get("iteration") != 0:
            expected["optimizer"] = _after_a_step(self.optimizer)
        # Which levels were drawn, and what was tested, is not known beforehand.
        window, test = state.get("window"), state.get("test")
        levels = window.get("levels") if isinstance(window, dict) else None
        if isinstance(levels, dict):
            expected["window"]["levels"] = dict.fromkeys((k for k in levels if type(k) is int), 0)
        if isinstance(test, dict):
            expected["test"] = dict.fromkeys((k for k in test if isinstance(k, str)), 0.0)
        compared = [name for name in expected if name not in ("settings", "source")]
        for name in compared:
            check_structure(state.get(name), expected[name], f"its {name}")
        if state["iteration"] < 0 or not 0 <= state["order"]["position"] <= self.order.per_epoch:
            raise ValueError(
                f"it is at iteration {state['iteration']} and batch {state['order']['position']}"
            )


def _objective(settings: Settings, model: LatentModel) -> Objective:
    return Objective(
        model,
        settings.method,
        candidates=settings.candidates,
        truncation=power(settings.truncation_scale, settings.truncation_exponent),
        rao_blackwell=settings.rao_blackwell,
        assignment=settings.assignment,
        base=settings.base,
        estimator=settings.estimator,
        encoder=settings.encoder,
        kernel=settings.kernel,
        step_size=settings.step_size,
        thinning=settings.thinning,
        chunk=settings.chunk,
    )


def _optimizer(settings: Settings, model: LatentModel) -> torch.optim.Optimizer:
    rate = power(settings.lr, -0.5)
    named = list(model.named_parameters())
    if settings.optimizer == "adagrad":
        return optim.Adagrad(named, rate)
    if settings.optimizer == "rmsprop":
        return optim.RMSProp(named, rate, rho=settings.rho2)
    return optim.AMSGrad(named, rate, rho1=settings.rho1, rho2=settings.rho2)


def _after_a_step(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What `state_dict` holds once every parameter has had a gradient."""
    probe = copy.deepcopy(optimizer)
    for group in probe.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    probe.step()
    return probe.state_dict()


def _norm(module: torch.nn.Module) -> float:
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))
