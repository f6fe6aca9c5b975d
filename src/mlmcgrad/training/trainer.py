"""A model in training: one iteration at a time, and everything that the next one depends on.

Iteration n: y, a batch of the data order; gradients of the objective at n with T_n = c n^α; one
step of the optimizer with γ_n = C n^{-1/2}. One generator serves the parameters' start and all
draws of the chains; the data order has its own, so that it does not depend on the method.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch

from mlmcgrad import optim
from mlmcgrad.iwae.likelihoods import Bernoulli, DiscretizedLogistic, Likelihood
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.iwae.objective import Objective
from mlmcgrad.optim._base import AdaptiveOptimizer
from mlmcgrad.schedules import power
from mlmcgrad.training.config import Config
from mlmcgrad.training.order import Order
from mlmcgrad.training.source import Source
from mlmcgrad.training.window import Window


class Trainer:
    """Model, optimizer, generators, data order and counters.

    Args:
        config: settings, resolved.
        source: the images.
    """

    def __init__(self, config: Config, source: Source) -> None:
        assert config.batch_size is not None
        self.config, self.source = config, source
        self.device = _device(config.device)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        likelihood: Likelihood = (
            Bernoulli() if config.likelihood == "bernoulli" else DiscretizedLogistic(source.levels)
        )
        self.model = LatentModel(source.sizes, likelihood, self.generator)
        self.objective = _objective(config, self.model)
        self.optimizer = _optimizer(config, self.model)
        self.order = Order(len(source.train), config.batch_size, seed_for(config.seed, "order"))
        self.iteration = 0
        self.spent = {"evaluations": 0, "transitions": 0, "loss_evaluations": 0}
        self.window = Window()
        self.test: dict[str, float] | None = None  # the last evaluation
        self.attempt: dict[str, Any] = {}  # what a dump of a failed iteration needs

    @property
    def epoch(self) -> float:
        """Passes over the data so far."""
        return self.iteration / self.order.per_epoch

    def step(self) -> None:
        """One iteration.

        Raises:
            ValueError, FloatingPointError: no gradient, or one that is not finite; the parameters
                are as before.
        """
        n = self.iteration + 1
        rows = self.order.next()
        self.attempt = {"iteration": n, "rows": rows, "generator": self.generator.get_state()}
        y = self.source.images(self.source.train, rows.numpy(), self.device)
        self.optimizer.zero_grad()
        step = self.objective.backward(y, n=n, generator=self.generator)
        if not math.isfinite(step.bound):
            raise FloatingPointError(f"the bound is {step.bound}")
        theta, phi = _norm(self.model.decoder), _norm(self.model.encoder)
        self.optimizer.step()
        self.iteration = n
        self.spent["evaluations"] += step.evaluations
        self.spent["transitions"] += step.estimate.transitions
        self.spent["loss_evaluations"] += step.estimate.loss_evaluations
        self.window.add(step, math.hypot(theta, phi), theta * theta)

    def where(self) -> dict[str, Any]:
        """Iteration, epoch and what was spent: the beginning of every line of the metrics."""
        return {"iteration": self.iteration, "epoch": round(self.epoch, 6), **self.spent}

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "settings": self.config.settings(),
            "source": self.source.about(),
            "iteration": self.iteration,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "order": self.order.state(),
            "spent": dict(self.spent),
            "window": self.window.state(),
            "test": self.test,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state of a run with the same settings and images."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.order.load(state["order"])
        self.window.load(state["window"])
        self.iteration, self.spent = state["iteration"], dict(state["spent"])
        self.test = state["test"]


def seed_for(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose, the same everywhere."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8], "big") >> 1


def _objective(config: Config, model: LatentModel) -> Objective:
    assert config.chunk is not None
    return Objective(
        model,
        config.method,
        candidates=config.candidates,
        truncation=power(config.truncation_scale, config.truncation_exponent),
        rao_blackwell=config.rao_blackwell,
        assignment=config.assignment,
        base=config.base,
        encoder=config.encoder,
        kernel=config.kernel,
        step_size=config.step_size,
        thinning=config.thinning,
        chunk=config.chunk,
    )


def _optimizer(config: Config, model: LatentModel) -> AdaptiveOptimizer:
    assert config.learning_rate is not None
    rate = power(config.learning_rate, -0.5)
    named = list(model.named_parameters())
    if config.optimizer == "adagrad":
        return optim.Adagrad(named, rate)
    if config.optimizer == "rmsprop":
        return optim.RMSProp(named, rate, rho=config.rho2)
    return optim.AMSGrad(named, rate, rho1=config.rho1, rho2=config.rho2)


def _norm(module: torch.nn.Module) -> float:
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used here: {error}") from error
    return device


__all__ = ["Trainer", "seed_for"]
