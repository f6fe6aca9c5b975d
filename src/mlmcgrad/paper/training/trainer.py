"""A model in training: an iterator over iterations, and the state that the next one depends on.

Iteration n: y, a batch of the data order; gradients of the objective at n with T_n = c n^α; one
step of the optimizer with γ_n = C n^{-1/2}, or another schedule. When the step size begins to fall,
another objective may finish the training; `mlmcgrad.finish` decides it where that is left to a
rule. Persistent chains start from their state at the last
visit of an image. One generator serves the initial parameters and all draws of the chains; the data
order has its own, so that it does not depend on the method. In shards (`backward_in_shards`) the
chains draw from generators that the iteration seeds.

Tests measure the likelihood and the size of the gradient, and draw pictures as PNG grids. They draw
from generators of their own, seeded by the run and the iteration: they do not disturb the training.

What a run is trained on: images (`Source`), the sizes of the networks that fit them, and the order
of the batches.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from mlmcgrad import optim
from mlmcgrad._files import write_atomically
from mlmcgrad.backward import accumulate
from mlmcgrad.distributed.shards import (
    ShardGradient,
    Shards,
    lengths_generator,
    select_rows,
    shard_generator,
)
from mlmcgrad.distributed.world import current, seed_for
from mlmcgrad.estimators import MAX_TRANSITIONS, check_budget
from mlmcgrad.finish import Finish
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.iwae.evaluate import negative_log_likelihood, squared_gradient_norm
from mlmcgrad.iwae.networks import (
    CIFAR10,
    DIGITS,
    MNIST,
    BernoulliLikelihood,
    DiscretizedLogisticLikelihood,
    LatentModel,
    PixelLikelihood,
    Sizes,
    bits_per_dimension,
)
from mlmcgrad.iwae.objective import Objective, ObjectiveInfo
from mlmcgrad.kernels import Importance
from mlmcgrad.measure import read, ship
from mlmcgrad.paper import datasets
from mlmcgrad.paper.datasets.dataset import sha256
from mlmcgrad.paper.runs.folder import as_record
from mlmcgrad.paper.runs.process import interruptible
from mlmcgrad.paper.training.config import Settings
from mlmcgrad.schedules import ConstantThenDecay, Schedule, constant_then_linear, cosine, power
from mlmcgrad.store import Remembered, Store

# theta_squared: ‖Ĥ‖² of the decoder, the second moment of one gradient estimate.
_MEANS = ("bound", "loss", "gradient_norm", "theta_squared", "effective", "largest")


@dataclass(frozen=True, eq=False)
class Source:
    """Images as integers 0, …, levels − 1, (N, channels, h, w)."""

    train: NDArray[np.uint8]
    test: NDArray[np.uint8]
    levels: int
    sizes: Sizes
    dynamic: bool = False
    """Whether training images are made black and white each time that they are taken."""
    sha256: str = ""
    """Of the images, where nothing else says which they are."""

    def batch(self, rows: Any, device: torch.device, generator: torch.Generator) -> Tensor:
        """Some training images, as `images` gives them.

        Args:
            rows: indices.
            device: where they are used.
            generator: of the CPU, the same on every device; read only where `dynamic`.
        """
        if not self.dynamic:
            return self.images(self.train, rows, device)
        grey = self.images(self.train, rows, torch.device("cpu"))
        return ship(torch.bernoulli(grey, generator=generator), device)

    def images(self, which: NDArray[np.uint8], rows: Any, device: torch.device) -> Tensor:
        """Some rows as float32 in [0, 1], channels last in memory as the networks have them."""
        values = np.asarray(which[rows]).astype(np.float32) / np.float32(self.levels - 1)
        return ship(torch.from_numpy(values).to(memory_format=torch.channels_last), device)

    def about(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        about = {
            "train": list(self.train.shape),
            "test": list(self.test.shape),
            "levels": self.levels,
            "latent": self.sizes.latent,
            "channels": list(self.sizes.channels),
        }
        return {**about, "dataset_sha256": self.sha256} if self.sha256 else about


def load(settings: Settings) -> Source:
    """Return the images of the dataset, and networks with the wanted dimension of z."""
    digest = ""
    if settings.dataset == "digits":
        data, sizes = datasets.digits(), DIGITS
    elif settings.dataset == "mnist":
        data, sizes = datasets.mnist(), MNIST
    elif settings.dataset == "cifar10":
        data, sizes = datasets.cifar10(), CIFAR10
    else:
        data = datasets.pictures(settings.dataset)
        channels, height, width = data.train.shape[1:]
        sizes = sizes_for((channels, height, width))
        digest = f"{sha256(data.train)} {sha256(data.test)}"
    train, test = data.train, data.test
    if settings.binarisation != "none":
        test = datasets.binarised(test, data.levels, settings.binarisation_seed, "test")
    if settings.binarisation == "static":
        train = datasets.binarised(train, data.levels, settings.binarisation_seed, "train")
    sizes = dataclasses.replace(sizes, latent=settings.latent)
    return Source(train, test, data.levels, sizes, settings.binarisation == "dynamic", digest)


def sizes_for(shape: tuple[int, int, int]) -> Sizes:
    """Return networks for images of any size: those of the dataset with the most similar images.

    Grey pictures have dense layers, as digits up to 16×16 pixels and as mnist up to 32×32. Colour
    and larger ones have the convolutions of cifar10, as many as halve height and width without a
    remainder; where one of them is odd, dense layers.

    Args:
        shape: channels, height, width.

    Returns:
        The sizes; the dimension of z is mnist's.

    Example:
        >>> [sizes_for((3, side, side)).channels for side in (64, 36, 50)]
        [(32, 64, 128), (32, 64), (32,)]
    """
    channels, height, width = shape
    halvings = min((side & -side).bit_length() - 1 for side in (height, width))
    dense = DIGITS.hidden if height * width <= 16 * 16 else MNIST.hidden
    if halvings == 0 or (channels == 1 and height * width <= 32 * 32):
        return Sizes(shape, MNIST.latent, hidden=dense)
    return Sizes(shape, MNIST.latent, channels=CIFAR10.channels[:halvings])


class Order:
    """Batches of indices without end: every epoch is a fresh permutation of the images.

    Images left over at the end of an epoch that do not fill a batch are not used in that epoch.

    Args:
        count: images.
        batch_size: indices in a batch.
        seed: of the permutations.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        if batch_size > count:
            raise ValueError(
                f"batch_size must be ≤ {count}, the number of images, got {batch_size}"
            )
        self.count, self.batch_size = count, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self._begin_epoch()

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.count // self.batch_size

    def next(self) -> Tensor:
        """The next batch of indices."""
        if self._position == self.per_epoch:
            self._begin_epoch()
        begin = self._position * self.batch_size
        self._position += 1
        return self._permutation[begin : begin + self.batch_size]

    def state(self) -> dict[str, Any]:
        """Where it is: the generator before this epoch's permutation, and the batches used."""
        return {"before": self._before, "position": self._position}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.generator.set_state(state["before"])
        self._begin_epoch()
        self._position = state["position"]

    def _begin_epoch(self) -> None:
        self._before = self.generator.get_state()
        self._permutation = torch.randperm(self.count, generator=self.generator)
        self._position = 0


@dataclass
class Window:
    """Sums over the iterations since the last line of metrics.jsonl."""

    count: int = 0
    transitions: int = 0
    moves: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_MEANS, 0.0))
    levels: dict[int, int] = field(default_factory=dict)

    def add(self, step: ObjectiveInfo, gradient_norm: float, theta_squared: float) -> None:
        """Count one iteration."""
        estimate = step.estimate
        self.count += 1
        self.transitions += estimate.transitions
        self.moves += estimate.acceptance * estimate.transitions
        numbers = (step.bound, estimate.value, gradient_norm, theta_squared)
        for name, value in zip(_MEANS, (*numbers, step.effective, step.largest), strict=True):
            self.sums[name] += value
        levels, counts = estimate.levels.unique(return_counts=True)
        for level, count in zip(levels.tolist(), counts.tolist(), strict=True):
            self.levels[level] = self.levels.get(level, 0) + count

    def summary(self) -> dict[str, Any]:
        """Return means, the acceptance rate and the histogram of the levels."""
        means = {name: total / self.count for name, total in self.sums.items()}
        levels = {str(level): self.levels[level] for level in sorted(self.levels)}
        return {**means, "acceptance": self.moves / self.transitions, "levels": levels}


class Trainer:
    """Model, optimizer, generators, data order and counters.

    Iterating yields the number of iterations done: the present one, then one after each iteration.

    Args:
        settings: of the run.
        source: the images.

    Attributes:
        seconds: time of all iterations, without tests and checkpoints.
        attempt: what the last iteration that began needs to be repeated.
        window: sums since the last line of metrics.jsonl.
        test: result of the last test.
        averaged: averages of the parameters, which tests use where the settings say so.
    """

    def __init__(self, settings: Settings, source: Source) -> None:
        self.settings, self.source = settings, source
        self.device = usable(settings.device)
        self.generator = torch.Generator(self.device).manual_seed(settings.seed)
        likelihood: PixelLikelihood = (
            BernoulliLikelihood()
            if settings.likelihood == "bernoulli"
            else DiscretizedLogisticLikelihood(source.levels)
        )
        self.model = LatentModel(source.sizes, likelihood, self.generator)
        self.objective = _objective(settings, self.model)
        self.store: Store | None = None  # of the chains' states, one for each image
        if settings.persistent or settings.finish == "jsa":
            self.store = Store(len(source.train), settings.latent, device=self.device)
        self.rate = _rate(settings)
        self.optimizer = _optimizer(settings, self.model, self.rate)
        self.averaged = optim.Averaged(self.optimizer)
        self.finisher = _finisher(self.model, settings)
        self.finish: Finish | None = None
        if settings.finish == "auto":
            self.finish = Finish(self.optimizer, _decoder_gradient(self.finisher))
        self.checks: list[dict[str, Any]] = []  # what the rule measured
        seed = seed_for(settings.seed, "order")
        self.order = Order(len(source.train), settings.batch_size, seed)
        self.iteration, self.seconds = 0, 0.0
        self.spent = {"evaluations": 0, "transitions": 0, "loss_evaluations": 0}
        self.window = Window()
        self.test: dict[str, float] | None = None
        self.attempt: dict[str, Any] = {}

    def __iter__(self) -> Iterator[int]:
        yield self.iteration
        while self.iteration < self.settings.iterations:
            self.step()
            yield self.iteration

    @property
    def epoch(self) -> float:
        """Passes over the data so far."""
        return self.iteration / self.order.per_epoch

    def step(self) -> None:
        """Do one iteration.

        Raises:
            FloatingPointError: something is not finite; the parameters are as before.
            KeyboardInterrupt: a signal; everything is as if the iteration had not begun.
        """
        begin, n = time.perf_counter(), self.iteration + 1
        if self.finish is not None and n in self._check_at and not self.finish.finishing:
            self._check(self.finish, n)
        objective, persistent = self._current(n)
        order = self.order.state()
        rows = self.order.next()
        self.attempt = {"iteration": n, "rows": rows, "generator": self.generator.get_state()}
        try:
            # A process that others wait for does not leave an iteration.
            with interruptible() if current().size == 1 else nullcontext():
                # Seeded by the iteration: there is no state that a checkpoint would have to keep.
                noise = torch.Generator().manual_seed(seed_for(self.settings.seed, f"pixels {n}"))
                y = self.source.batch(rows.numpy(), self.device, noise)
                self.optimizer.zero_grad()
                x0 = self.store.start(rows) if self.store is not None and persistent else None
                step = self._backward(objective, y, x0, n)
        except KeyboardInterrupt:
            self.order.load(order)
            self.generator.set_state(self.attempt["generator"])
            raise
        theta, phi = read(_norm(self.model.decoder), _norm(self.model.encoder))
        norm = math.hypot(theta, phi)
        for name, value in (("bound", step.bound), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                raise FloatingPointError(f"the {name} is {value}")
        if not isinstance(self.optimizer, optim.AdaptiveOptimizer):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(n)
        self.optimizer.step()
        if self.store is not None and persistent:
            self.store[rows] = step.estimate.last
        self.iteration = n
        self.spent["evaluations"] += step.evaluations
        self.spent["transitions"] += step.estimate.transitions
        self.spent["loss_evaluations"] += step.estimate.loss_evaluations
        self.window.add(step, norm, theta * theta)
        self.seconds += time.perf_counter() - begin

    def _backward(
        self, objective: Objective, y: Tensor, x0: Tensor | Remembered | None, n: int
    ) -> ObjectiveInfo:
        if shards := self.settings.shards:
            return backward_in_shards(objective, y, shards, self.settings.seed, n=n, x0=x0)
        return objective.backward(y, n=n, x0=x0, generator=self.generator)

    def _current(self, n: int) -> tuple[Objective, bool]:
        """Return the objective of an iteration, and whether its chains resume from the store."""
        if self.finish is not None:
            finishing = self.finish.finishing
        else:
            finishing = self.settings.finish != "none" and n > _begin_of_decay(self.rate)
        if finishing:
            return self.finisher, self.settings.finish == "jsa"
        return self.objective, self.settings.persistent

    @cached_property
    def _check_at(self) -> tuple[int, int]:
        """The iterations before which the rule decides: the first of the decay, and halfway."""
        begin = _begin_of_decay(self.rate)
        return begin + 1, begin + 1 + (self.settings.iterations - begin) // 2

    def _check(self, finish: Finish, n: int) -> None:
        """Let the rule decide at the averaged parameters, once in an iteration.

        Every process of a training does this with the same numbers.
        """
        if self.checks and self.checks[-1]["iteration"] == n:  # an interrupted iteration
            return
        settings, before = self.settings, finish.state_dict()
        seed = seed_for(settings.seed, f"finish {n}")
        generator, host = (torch.Generator(d).manual_seed(seed) for d in (self.device, "cpu"))
        # No image costs less than the k draws of its shortest simulation.
        most = int(finish.share * self.spent["evaluations"] / settings.candidates)
        rows = torch.randperm(len(self.source.train), generator=host)[: max(1, most)]
        try:
            with interruptible() if current().size == 1 else nullcontext():
                y = self.source.batch(rows.numpy(), self.device, host)
                with self.averaged.applied():
                    with torch.no_grad():
                        q = self.model.encoder(y)
                    spent = self.spent["evaluations"]
                    check = finish.check(None, y, *q, spent=spent, generator=generator)
        except KeyboardInterrupt:
            finish.load_state_dict(before)
            raise
        self.spent["evaluations"] += finish.evaluations - before["evaluations"]
        self.checks.append({"iteration": n, **({} if check is None else check.record())})

    def tested(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the parameters that tests use."""
        return self.averaged.applied() if self.settings.average else nullcontext()

    def where(self) -> dict[str, Any]:
        """Return iteration, epoch and effort: the beginning of every line of the metrics."""
        return {"iteration": self.iteration, "epoch": round(self.epoch, 6), **self.spent}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on."""
        return {
            "settings": as_record(self.settings),
            "source": self.source.about(),
            "iteration": self.iteration,
            "seconds": self.seconds,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "averaged": self.averaged.state_dict(),
            "checks": copy.deepcopy(self.checks),
            "generator": self.generator.get_state(),
            "order": self.order.state(),
            "spent": dict(self.spent),
            "window": dataclasses.asdict(self.window),
            "test": self.test,
            **({} if self.store is None else {"store": self.store.state_dict()}),
            **({} if self.finish is None else {"finish": self.finish.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of a run with the same settings and images.

        Raises:
            ValueError: it has another structure; what is loaded cannot be used.
        """
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.generator.set_state(state["generator"])
            self.order.load(state["order"])
            self.averaged.load_state_dict(state["averaged"])
            self.checks = copy.deepcopy(state["checks"])
            if self.store is not None:
                self.store.load_state_dict(state["store"])
            if self.finish is not None:
                self.finish.load_state_dict(state["finish"])
            self.window = Window(**state["window"])
            self.iteration, self.seconds = int(state["iteration"]), float(state["seconds"])
            self.spent, self.test = dict(state["spent"]), state["test"]
        except (AttributeError, LookupError, RuntimeError, TypeError) as error:
            raise ValueError(f"it is no state of this run ({error!r})") from error


def backward_in_shards(
    objective: Objective,
    y: Tensor,
    count: int,
    seed: int,
    *,
    n: int,
    x0: Tensor | Remembered | None,
) -> ObjectiveInfo:
    """Add the gradients of a batch to `.grad`; each process computes a part of the shards.

    Every process passes the whole batch and ends with the same gradients. No digit depends on the
    number of processes (`mlmcgrad.distributed.shards`).

    Args:
        objective: computes the gradients of a shard.
        y: images, the same batch in every process.
        count: number of shards.
        seed: seed of all randomness, together with the iteration.
        n: iteration.
        x0: previous states of persistent chains; with None, no last states are returned.
    """
    lengths = objective.draw_lengths(len(y), n, lengths_generator(seed, n))
    shards = Shards.of(lengths, count, f"seed {seed} n {n}")

    def gradient_of(shard: int) -> ShardGradient:
        rows = shards.rows[shard]
        gradients, info = objective.gradient(
            select_rows(y, rows),
            n=n,
            x0=select_rows(x0, rows),
            generator=shard_generator(seed, n, shard, y.device),
            lengths=shards.lengths[shard],
        )
        extra = (info.evaluations, info.bound, info.effective, info.largest)
        return gradients, info.estimate, extra

    parameters, last = objective.parameters, x0 is not None
    gradients, estimate, extra = shards.compute(gradient_of, parameters, extra=4, last=last)
    accumulate(parameters, gradients)
    evaluations, *means = extra
    bound, effective, largest = map(shards.mean, means)
    return ObjectiveInfo(bound, estimate, int(sum(evaluations)), effective, largest)


def usable(name: str) -> torch.device:
    """Return the device of this name, if torch can train on it here.

    Raises:
        ValueError: it cannot; the message says which it can use.
    """
    # Not mps: weights are kept in float64, which it does not have.
    count = torch.cuda.device_count()
    found = ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if name not in found:
        raise ValueError(
            f"device must be {' or '.join(found)}, where torch can compute in float64 here, got "
            f"{name!r}"
        )
    return torch.device(name)


@contextmanager
def usual_numbers() -> Iterator[None]:
    """Compute as a new process would, whatever the caller has set.

    The default dtype is float32, NumPy warns of nothing but what is not finite, and subnormal
    numbers, below 1e-38 in float32, are 0 on this thread: most draws of an importance sampler have
    such weights, and processors compute with them ten times as slowly as with others.
    """
    dtype, before = torch.get_default_dtype(), flushing()
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(True)
    try:
        with np.errstate(all="warn", under="ignore"):
            yield
    finally:
        torch.set_flush_denormal(before)
        torch.set_default_dtype(dtype)


def flushing() -> bool:
    """Return whether this thread treats subnormal numbers as 0."""
    return bool(torch.full((), torch.finfo(torch.float32).tiny, dtype=torch.float32) / 2 == 0.0)


def _objective(settings: Settings, model: LatentModel) -> Objective:
    truncation = power(settings.truncation_scale, settings.truncation_exponent)
    own: dict[str, Any] = {"model": model, "truncation": truncation}
    own |= {"multilevel": settings.estimator, "continuation": 0.5}
    names = [field.name for field in dataclasses.fields(Objective) if field.name not in own]
    objective = Objective(**own, **{name: getattr(settings, name) for name in names})
    n, c, alpha = settings.iterations, settings.truncation_scale, settings.truncation_exponent
    try:
        check_budget(objective.estimator, settings.batch_size, n)
    except ValueError:
        raise ValueError(
            f"truncation_scale, truncation_exponent or iterations must be smaller, got {c:g}, "
            f"{alpha:g} and {n}: in the last iteration T_n = {c * n**alpha:.3g}, and one chain, or "
            f"a batch on average, may not take more than {MAX_TRANSITIONS:.0e} transitions"
        ) from None
    return objective


# Levels of the multilevel finish: its truncation is 2^6 blocks of k draws.
_FINISH_TRUNCATION = 64.0
_FINISH_CONTINUATION = 2.0**-1.5


def _finisher(model: LatentModel, settings: Settings) -> Objective:
    """Return the objective that finishes a training."""
    common: dict[str, Any] = {"thinning": settings.thinning, "encoder": settings.encoder}
    common |= {"candidates": settings.candidates, "chunk": settings.chunk}
    if settings.finish == "jsa":
        return Objective(model, "iwae", rao_blackwell=True, **common)
    return Objective(
        model,
        "mlmc",
        kernel="importance",
        multilevel="sum",
        truncation=_FINISH_TRUNCATION,
        continuation=_FINISH_CONTINUATION,
        assignment="balanced",
        **common,
    )


def _decoder_gradient(objective: Objective) -> MarkovGradient:
    """Return the decoder's gradient by importance sampling and the objective's estimator."""
    model, chunk = objective.model, objective.chunk
    return MarkovGradient(
        Importance(model.log_weight, model.propose, objective.candidates, chunk=chunk),
        lambda z, y, *_: -model.log_joint(z, y),
        objective.estimator,
        parameters=tuple(model.decoder.parameters()),
        chunk=chunk,
    )


def _rate(settings: Settings) -> Schedule:
    """Return the step sizes."""
    if settings.schedule == "constant_linear":
        return constant_then_linear(settings.lr, settings.iterations)
    if settings.schedule == "cosine":
        return cosine(settings.lr, settings.iterations)
    return power(settings.lr, -0.5)


def _begin_of_decay(rate: Schedule) -> int:
    """Return the number of iterations before a finish: none of a cosine, which falls at once."""
    assert isinstance(rate, ConstantThenDecay)
    return rate.begin or round((1.0 - 1.0 / 3.0) * rate.total)


def _optimizer(settings: Settings, model: LatentModel, rate: Schedule) -> torch.optim.Optimizer:
    named = list(model.named_parameters())
    if settings.optimizer == "adam":
        return torch.optim.Adam(named, settings.lr)
    if settings.optimizer == "adagrad":
        return optim.Adagrad(named, rate)
    if settings.optimizer == "rmsprop":
        return optim.RMSProp(named, rate, alpha=settings.rho2)
    return optim.AMSGrad(named, rate, betas=(settings.rho1, settings.rho2))


def _norm(module: torch.nn.Module) -> Tensor:
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


_COLUMNS = 8
_LEAST_SIDE = 32  # pixels of an image in a grid: smaller ones are enlarged
_GAP = 2


class Evaluator:
    """The images that tests use."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        rows = slice(None, trainer.settings.test_images)
        self.test = trainer.source.images(trainer.source.test, rows, trainer.device)
        self.probe = self._probe_images()

    def measure(self) -> dict[str, float]:
        """Return the test likelihood and, if wanted, ‖∇V‖², with standard errors."""
        trainer, settings, n = self.trainer, self.trainer.settings, self.trainer.iteration
        nll = negative_log_likelihood(
            trainer.model,
            self.test,
            generator=self._generator(f"test {n}"),
            samples=settings.nll_samples,
        )
        test = {"nll": nll.value, "nll_se": nll.se}
        if settings.likelihood == "discretized_logistic":
            test["bits_per_dimension"] = bits_per_dimension(nll.value, trainer.source.sizes.shape)
        if self.probe:
            norm = squared_gradient_norm(
                trainer.model,
                self.probe,
                generator=self._generator(f"probe {n}"),
                candidates=max(settings.candidates, 2),
                length=settings.probe_length,
                chunk=settings.chunk,
            )
            test |= {"gradient": norm.value, "gradient_se": norm.se}
        return test

    @torch.no_grad()
    def draw(self, folder: Path) -> None:
        """Write `samples-ITERATION.png` and `reconstructions-ITERATION.png` for fixed z.

        Below each row of test images are their reconstructions.
        """
        model, n = self.trainer.model, self.trainer.iteration
        generator = self._generator("pictures")
        shape = (_COLUMNS**2, model.sizes.latent)
        z = torch.randn(shape, generator=generator, device=generator.device)
        save_grid(model.likelihood.mean(model.decoder(z)), folder / f"samples-{n:06d}.png")
        columns = min(_COLUMNS, len(self.test))
        y = self.test[: min(_COLUMNS**2 // 2, len(self.test) // columns * columns)]
        decoded = model.likelihood.mean(model.decoder(model.encoder(y)[0]))
        rows = torch.stack([images.unflatten(0, (-1, columns)) for images in (y, decoded)], dim=1)
        save_grid(rows.flatten(0, 2), folder / f"reconstructions-{n:06d}.png", columns)

    def _generator(self, purpose: str) -> torch.Generator:
        seed = seed_for(self.trainer.settings.seed, purpose)
        return torch.Generator(self.trainer.device).manual_seed(seed)

    def _probe_images(self) -> list[Tensor]:
        """Return the images of each estimate of ∇V: all, or random ones that no other has."""
        settings, source, device = self.trainer.settings, self.trainer.source, self.trainer.device
        count, repeats = settings.probe_images, settings.probe_repeats
        if not count:
            return []
        # On the CPU wherever the model is: the same images on every device.
        generator = torch.Generator().manual_seed(seed_for(settings.seed, "probe"))
        if count < len(source.train):
            order = torch.randperm(len(source.train), generator=generator)[:count]
            rows = [part.numpy() for part in order.tensor_split(repeats)]
            return [source.batch(part, device, generator) for part in rows]
        if not source.dynamic:
            return [source.batch(slice(None), device, generator)] * repeats
        return [source.batch(slice(None), device, generator) for _ in range(repeats)]


def save_grid(images: Tensor, path: Path, columns: int = _COLUMNS) -> None:
    """Write images in [0, 1], (count, 1 or 3, h, w), as a grid, row by row."""
    scale = -(-_LEAST_SIDE // max(images.shape[-2:]))
    pixels = images.detach().cpu().clamp(0.0, 1.0).mul(255.0).round().to(torch.uint8)
    pixels = pixels.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    empty = pixels.new_full((-len(pixels) % columns, *pixels.shape[1:]), 255)
    # White below and to the right of each image, and at last above and to the left of the grid.
    framed = pad(torch.cat([pixels, empty]), (0, _GAP, 0, _GAP), value=255)
    lines = framed.unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2)
    grid = pad(lines.flatten(2, 3).flatten(0, 1), (0, 0, _GAP, 0, _GAP, 0), value=255)
    picture = Image.fromarray(grid.squeeze(2).numpy())
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    write_atomically(path, buffer.getvalue())
