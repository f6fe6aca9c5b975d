"""Settings of a training run: `Config` is what a user writes, `Settings` what a run uses.

The command line is made from `Config`. Nothing here imports torch, so that `mlmcgrad train --help`
answers at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

Dataset: TypeAlias = Literal["digits", "mnist", "cifar10"]
Binarisation: TypeAlias = Literal["static", "dynamic", "none"]
Method: TypeAlias = Literal["iwae", "br", "mlmc"]
Assignment: TypeAlias = Literal["independent", "shared", "balanced"]
EncoderGradient: TypeAlias = Literal["iwae", "dreg", "stl", "wake", "mixed"]
KernelName: TypeAlias = Literal["isir", "importance", "mala", "rwmh"]
EstimatorName: TypeAlias = Literal["single", "sum"]
OptimizerName: TypeAlias = Literal["amsgrad", "adagrad", "rmsprop"]
LikelihoodName: TypeAlias = Literal["bernoulli", "discretized_logistic"]
Grid: TypeAlias = Literal["even", "geometric"]

_PICTURES = ".npz"
# What a file of pictures has is under its suffix.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "batch_size": {"digits": 50, "mnist": 100, "cifar10": 128, _PICTURES: 100},
    "lr": {"digits": 0.01, "mnist": 0.003, "cifar10": 0.001, _PICTURES: 0.001},
    "latent": {"digits": 16, "mnist": 50, "cifar10": 100, _PICTURES: 50},
    "evaluate_every": {"digits": 500, "mnist": 1000, "cifar10": 1000, _PICTURES: 1000},
    "test_images": {"digits": 297, "mnist": 100, "cifar10": 100, _PICTURES: 100},
    "chunk": {"digits": 1024, "mnist": 1024, "cifar10": 256, _PICTURES: 256},
}
# May differ when a run is resumed: none of them changes a single number of the run.
FREE = frozenset(("out", "resume", "force", "iterations", "tensorboard"))
FREE |= {"checkpoint_every", "checkpoint_seconds"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Train an importance weighted autoencoder; the same settings give the same bits on a CPU."""

    dataset: Dataset | Path = "digits"
    """Images to train on: a name, or a file NAME.npz with the uint8 arrays train and test."""
    binarisation: Binarisation | None = None
    """A pixel becomes 1 with a probability equal to its grey value: static, once; dynamic, anew in
    every batch (test images once); none, never. By default dynamic for mnist, none for others."""
    binarisation_seed: int = 0
    """Of images that are drawn once: the same in runs with different seeds, so that they compare.
    """
    method: Method = "mlmc"
    """Gradient of the decoder: one importance sampling step, a long chain, or multilevel."""
    iterations: int = 3000
    """Iterations in total; a run that is resumed may have more than it started with."""
    seed: int = 0
    """Everything random follows from it."""
    out: Path | None = None
    """Run folder; by default runs/ followed by dataset, method and seed."""
    resume: bool = False
    """Continue what is in the run folder, or start if it is empty."""
    force: bool = False
    """Move what is in the way aside, into old-1, old-2, …: an earlier run, or with --resume only
    metrics.jsonl if it is damaged. Nothing is deleted."""
    batch_size: int | None = None
    """Images per iteration; by default 50 for digits, 128 for cifar10, 100 for others."""
    candidates: int = 5
    """k, importance samples for each image and candidates of i-SIR."""
    truncation_scale: float = 1.0
    """c of the longest chain T_n = c · n^α."""
    truncation_exponent: float = 0.5
    """α of T_n = c · n^α; 0 for a constant T."""
    rao_blackwell: bool = False
    """Average out the selections of i-SIR."""
    assignment: Assignment | None = None
    """How mlmc assigns levels to the images of a batch; by default independent, in shards balanced.
    """
    base: int = 1
    """Chain length at which the levels of mlmc start."""
    encoder: EncoderGradient = "iwae"
    """Gradient of the encoder: of the bound (iwae; dreg, doubly reparameterised; stl, sticking the
    landing), of the states that train the decoder (wake), or half of each (mixed)."""
    kernel: KernelName = "isir"
    """What samples p(z | y): a Markov chain, or importance sampling with antithetic levels."""
    estimator: EstimatorName = "single"
    """Levels of mlmc: one random level, as in the paper, or all levels up to it."""
    persistent: bool = False
    """Keep the state of each image's chain, and go on from there at its next visit."""
    step_size: float = 0.01
    """Step size of the kernels mala and rwmh."""
    optimizer: OptimizerName = "amsgrad"
    """Optimizer of encoder and decoder."""
    lr: float | None = None
    """C of the learning rates C / √n; by default 0.01 for digits, 0.003 for mnist, else 0.001."""
    rho1: float = 0.9
    """AMSGrad: decay factor of the momentum."""
    rho2: float = 0.999
    """AMSGrad and RMSProp: decay factor of the squares."""
    likelihood: LikelihoodName = "bernoulli"
    """Likelihood of the pixels; discretized_logistic is a probability of grey levels."""
    latent: int | None = None
    """Dimension of z; by default 16 for digits, 100 for cifar10, 50 for others."""
    log_every: int = 10
    """Iterations summarised by one line of metrics.jsonl."""
    evaluate_every: int | None = None
    """Iterations between tests and pictures; by default 500 for digits, 1000 for others."""
    evaluate_grid: Grid = "even"
    """When to test: every evaluate_every iterations, or at its multiples 1, √2, 2, 2√2, 4, …"""
    nll_samples: int = 1000
    """Importance samples for the test likelihood of an image."""
    test_images: int | None = None
    """Test images to use, the first ones; by default all 297 for digits, 100 for others."""
    probe_images: int = 0
    """Training images on which each test also measures ‖∇V‖²; 0 measures nothing."""
    probe_length: int = 8
    """Chain length of the estimates from which ‖∇V‖² is made."""
    probe_repeats: int = 4
    """Independent estimates from which ‖∇V‖² is made."""
    checkpoint_every: int = 500
    """Iterations between checkpoints."""
    checkpoint_seconds: float = 60.0
    """Longest time between checkpoints."""
    thinning: float = 0.1
    """Drop states below this share of a step's weight at random, without bias; 0 keeps all."""
    chunk: int | None = None
    """States per decoder pass: limits memory; by default 1024 for digits and mnist, else 256."""
    threads: int = 1
    """Threads of torch; the last bits depend on it."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, …"""
    shards: int | None = None
    """Parts of each batch, which processes that torchrun starts share: results depend on the number
    of shards, not on that of processes. By default as many as processes; 0, one process alone."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too; needs the package tensorboard."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Config).items():
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                choices = ", ".join(get_args(kind))
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        for names, holds, text in _RULES:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not holds(value):
                    given = repr(str(value) if isinstance(value, Path) else value)
                    raise ValueError(f"{name} must be {text}, got {given}")
        if self.binarisation in ("static", "dynamic") and self.likelihood != "bernoulli":
            raise ValueError(
                f"likelihood must be bernoulli for binarisation {self.binarisation}, got "
                f"{self.likelihood!r}"
            )
        if 0 < self.probe_images < self.probe_repeats:
            raise ValueError(
                f"probe_images must be 0 or ≥ probe_repeats = {self.probe_repeats}, got "
                f"{self.probe_images!r}"
            )
        if self.method != "iwae" and self.kernel == "isir" and self.candidates < 2:
            raise ValueError(
                f"candidates must be ≥ 2 for method {self.method}, got {self.candidates}"
            )
        chain = self.kernel in ("mala", "rwmh") or (self.kernel == "isir" and self.candidates > 1)
        if self.persistent and not chain:
            raise ValueError(
                "persistent needs a chain to go on with: kernel mala, rwmh, or isir with "
                f"candidates ≥ 2, got kernel {self.kernel} and candidates {self.candidates}"
            )

    def settings(self) -> Settings:
        """The settings of the run, with everything decided that is left open here."""
        kind = str(self.dataset) if self.dataset in get_args(Dataset) else _PICTURES
        defaults = {name: values[kind] for name, values in _DEFAULTS.items()}
        defaults["out"] = Path("runs") / f"{Path(self.dataset).stem}-{self.method}-{self.seed}"
        defaults["assignment"] = "balanced" if self.shards else "independent"
        if kind == "mnist" and self.likelihood == "bernoulli":
            defaults["binarisation"] = "dynamic"
        chosen = {name: value for name, value in vars(self).items() if value is not None}
        return Settings(**{**defaults, **chosen})


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """A `Config` in which nothing is left open."""

    # `field()`: without it, the default None of `Config` would be inherited.
    out: Path = field()
    binarisation: Binarisation = "none"
    assignment: Assignment = "independent"
    shards: int = 0
    batch_size: int = field()
    lr: float = field()
    latent: int = field()
    evaluate_every: int = field()
    test_images: int = field()
    chunk: int = field()

    def tests_at(self, iteration: int) -> bool:
        """Whether there is a test after this iteration."""
        every = self.evaluate_every
        if self.evaluate_grid == "even" or iteration < every:
            return iteration % every == 0
        half_powers = round(2.0 * math.log2(iteration / every))
        return iteration == round(every * 2.0 ** (half_powers / 2.0))

    def tests(self) -> int:
        """How many iterations have a test after them."""
        every = self.evaluate_every
        if self.evaluate_grid == "even" or self.iterations < every:
            return self.iterations // every
        last = math.ceil(2.0 * math.log2(self.iterations / every))
        places = {round(every * 2.0 ** (half / 2.0)) for half in range(last + 1)}
        return sum(place <= self.iterations for place in places)


_MOST = 2**53  # as far as numbers count exactly in double precision
_COUNT = "an integer from 1 to 2^53"
_SHARDS = 2**16
_THREADS = 256  # thousands fail to start, which ends the process


def _integer(least: int, most: int = _MOST) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and least <= value <= most


def _single(value: float) -> bool:
    """Whether the parameters' float32 has this number; beyond it, torch has 0 or infinity."""
    return 2.0**-126 <= value < 2.0**127


def _dataset(value: str | Path) -> bool:
    return value in get_args(Dataset) or Path(value).suffix == _PICTURES


# Names of fields, the condition on their values, and its text.
_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("dataset", _dataset, f"one of {', '.join(get_args(Dataset))}, or a file NAME.npz"),
    ("binarisation", get_args(Binarisation).__contains__, "one of static, dynamic, none"),
    ("assignment", get_args(Assignment).__contains__, f"one of {', '.join(get_args(Assignment))}"),
    ("iterations batch_size candidates base latent chunk", _integer(1), _COUNT),
    ("shards", _integer(0, _SHARDS), f"an integer from 0 to {_SHARDS}"),
    ("log_every evaluate_every checkpoint_every", _integer(1), _COUNT),
    ("nll_samples test_images probe_length", _integer(1), _COUNT),
    ("probe_repeats", _integer(3), "an integer from 3 to 2^53"),
    ("probe_images", _integer(0), "an integer from 0 to 2^53"),
    ("threads", _integer(1, _THREADS), f"an integer from 1 to {_THREADS}"),
    ("seed binarisation_seed", _integer(0, 2**63 - 1), "an integer in [0, 2^63)"),
    ("step_size lr", _single, "in the range of float32, from 1.2e-38 to 1.7e38"),
    ("checkpoint_seconds", lambda v: 0.0 < v < math.inf, "finite and > 0"),
    ("thinning", lambda v: 0.0 <= v < math.inf, "finite and ≥ 0"),
    ("rho1 rho2", lambda v: 0.0 <= v < 1.0, "in [0, 1)"),
    ("truncation_scale", lambda v: 1.0 <= v < 2.0**31, "in [1, 2^31)"),
    ("truncation_exponent", lambda v: 0.0 <= v <= 1.0, "in [0, 1]"),
)
