"""Settings of a training run: `Config` is what a user writes, `Settings` what a run uses.

The command line is made from `Config`, whose groups are the panels of `mlmcgrad train --help`.
Nothing here imports torch, so that the help is quick.

Example:
    >>> config = Config(dataset="digits", gradient=Gradient(method="br"), seed=3)
    >>> config.settings().lr, config.settings().method
    (0.01, 'br')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

Dataset: TypeAlias = Literal["digits", "mnist", "cifar10"]
Binarisation: TypeAlias = Literal["static", "dynamic", "none"]
Method: TypeAlias = Literal["iwae", "br", "mlmc"]
Assignment: TypeAlias = Literal["independent", "shared", "balanced"]
EncoderGradient: TypeAlias = Literal["iwae", "dreg", "stl", "wake", "mixed"]
KernelName: TypeAlias = Literal["isir", "importance", "mala", "rwmh"]
EstimatorName: TypeAlias = Literal["single", "sum"]
OptimizerName: TypeAlias = Literal["amsgrad", "adagrad", "rmsprop", "adam"]
ScheduleName: TypeAlias = Literal["sqrt", "constant_linear", "cosine"]
FinishName: TypeAlias = Literal["none", "auto", "mlmc", "jsa"]
LikelihoodName: TypeAlias = Literal["bernoulli", "discretized_logistic"]
Grid: TypeAlias = Literal["even", "geometric"]

_PICTURES = ".npz"
# Values for a file of pictures are under its suffix.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "batch_size": {"digits": 50, "mnist": 100, "cifar10": 128, _PICTURES: 100},
    "lr": {"digits": 0.01, "mnist": 0.003, "cifar10": 0.001, _PICTURES: 0.001},
    "latent": {"digits": 16, "mnist": 50, "cifar10": 100, _PICTURES: 50},
    "evaluate_every": {"digits": 500, "mnist": 1000, "cifar10": 1000, _PICTURES: 1000},
    "test_images": {"digits": 297, "mnist": 100, "cifar10": 100, _PICTURES: 100},
    "chunk": {"digits": 1024, "mnist": 1024, "cifar10": 256, _PICTURES: 256},
}
# May differ when a run is resumed: none of them changes a number of the run.
FREE = frozenset(("out", "resume", "force", "iterations", "tensorboard"))
FREE |= {"checkpoint_every", "checkpoint_seconds"}


@dataclass(frozen=True, kw_only=True)
class Basics:
    """What to train on, for how long, and where to write it."""

    dataset: Dataset | Path = "digits"
    """A name, or NAME.npz with uint8 arrays train and test."""
    iterations: int = 3000
    """Iterations in total; a run can be resumed with more."""
    seed: int = 0
    """Seed of everything random."""
    out: Path | None = None
    """Run folder; None: runs/DATASET-METHOD-SEED."""
    resume: bool = False
    """Continue the run in the folder, or start if there is none."""
    force: bool = False
    """Move an earlier run to old-1, old-2, …; with --resume, only a damaged metrics.jsonl."""


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """How gradients are estimated."""

    method: Method = "mlmc"
    """One importance sampling step, a long chain, or multilevel."""
    candidates: int = 5
    """k, importance samples per image and candidates of i-SIR."""
    truncation_scale: float = 1.0
    """c of the longest chain T_n = c · n^α."""
    truncation_exponent: float = 0.5
    """α of T_n = c · n^α; 0 for a constant T."""
    kernel: KernelName = "isir"
    """Sampler of p(z | y); importance has antithetic levels."""
    estimator: EstimatorName = "single"
    """mlmc: one random level (paper), or all levels up to it."""
    encoder: EncoderGradient = "iwae"
    """Gradient of the bound (iwae, dreg, stl), of the chain (wake), half each (mixed)."""
    rao_blackwell: bool = False
    """Average over the selections of i-SIR."""
    assignment: Assignment | None = None
    """How mlmc assigns levels; None: independent, in shards balanced."""
    base: int = 1
    """Chain length of the first level of mlmc."""
    persistent: bool = False
    """Start each image's chain from its last state."""
    step_size: float = 0.01
    """Step size of mala and rwmh."""
    thinning: float = 0.1
    """Drop states below this share of a step's weight at random, without bias; 0 keeps all."""
    finish: FinishName = "none"
    """Last part: unbiased gradients (mlmc), persistent chains (jsa), or mlmc if it pays (auto)."""


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How parameters are updated."""

    lr: float | None = None
    """Step size, or C of C/√n; None: a value for the dataset and the optimizer."""
    optimizer: OptimizerName = "amsgrad"
    """Optimizer of encoder and decoder."""
    schedule: ScheduleName = "sqrt"
    """Step sizes: C/√n (paper), constant and in the last third a line to 0, or a cosine."""
    average: bool = False
    """Test the average of the last tenth of the iterates, not the last one."""
    batch_size: int | None = None
    """Images per iteration; None: 50 (digits), 128 (cifar10), 100."""
    rho1: float = 0.9
    """AMSGrad: decay factor of the momentum."""
    rho2: float = 0.999
    """AMSGrad and RMSProp: decay factor of the squares."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Networks, pixels and their likelihood."""

    latent: int | None = None
    """Dimension of z; None: 16 (digits), 100 (cifar10), 50."""
    likelihood: LikelihoodName = "bernoulli"
    """Of pixels; discretized_logistic is for grey levels."""
    binarisation: Binarisation | None = None
    """Pixels made black or white once (static) or per batch (dynamic, for mnist)."""
    binarisation_seed: int = 0
    """Seed of static and of test images, for runs of all seeds."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is measured on the way."""

    log_every: int = 10
    """Iterations per line of metrics.jsonl."""
    evaluate_every: int | None = None
    """Iterations between tests; None: 500 (digits), 1000."""
    evaluate_grid: Grid = "even"
    """Tests at multiples of evaluate_every: all, or 1, √2, 2, …"""
    nll_samples: int = 1000
    """Importance samples per test image."""
    test_images: int | None = None
    """Number of test images; None: 297 (digits), 100."""
    probe_images: int = 0
    """Training images on which tests measure ‖∇V‖²; 0 omits it."""
    probe_length: int = 8
    """Chain length of the estimates of ∇V."""
    probe_repeats: int = 4
    """Number of independent estimates of ∇V."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where and how the run is computed."""

    device: str = "cpu"
    """Where to compute: cpu or cuda."""
    threads: int = 1
    """Threads of torch; the last bits depend on it."""
    shards: int | None = None
    """Parts of a batch; results depend on it. None: one per process of torchrun; 0: no parts."""
    chunk: int | None = None
    """States per decoder pass, which limits memory; None: 1024 (digits, mnist), 256."""
    checkpoint_every: int = 500
    """Iterations between checkpoints."""
    checkpoint_seconds: float = 60.0
    """Longest time between checkpoints."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too."""


@dataclass(frozen=True, kw_only=True)
class Config(Basics):
    """Train an importance weighted autoencoder; the same settings give the same bits on a CPU."""

    gradient: Gradient = Gradient()
    optimizer: Optimizer = Optimizer()
    model: Model = Model()
    evaluation: Evaluation = Evaluation()
    run: Execution = Execution()

    def __post_init__(self) -> None:
        _check(self.flat())

    @classmethod
    def from_flat(cls, **values: Any) -> Config:
        """Build a config from settings by name, whichever group they belong to."""
        groups = {}
        for group in _GROUPS:
            kind = type(getattr(cls, group))
            names = [f.name for f in fields(kind) if f.name in values]
            groups[group] = kind(**{name: values.pop(name) for name in names})
        return cls(**values, **groups)

    def flat(self) -> dict[str, Any]:
        """Return all settings by name, without groups."""
        flat = {name: value for name, value in vars(self).items() if name not in _GROUPS}
        for group in _GROUPS:
            flat |= vars(getattr(self, group))
        return flat

    def settings(self) -> Settings:
        """Return the settings of the run, with the defaults of its dataset."""
        flat = self.flat()
        kind = str(self.dataset) if self.dataset in get_args(Dataset) else _PICTURES
        defaults = {name: values[kind] for name, values in _DEFAULTS.items()}
        if self.optimizer.optimizer == "adam":  # its first steps are not shorter than later ones
            defaults["lr"] = min(defaults["lr"], 0.003)
        name = f"{Path(self.dataset).stem}-{self.gradient.method}-{self.seed}"
        defaults["out"] = Path("runs") / name
        defaults["assignment"] = "balanced" if self.run.shards else "independent"
        if kind == "mnist" and self.model.likelihood == "bernoulli":
            defaults["binarisation"] = "dynamic"
        chosen = {name: value for name, value in flat.items() if value is not None}
        return Settings(**{**defaults, **chosen})


_GROUPS = ("gradient", "optimizer", "model", "evaluation", "run")


@dataclass(frozen=True, kw_only=True)
class Settings(Execution, Evaluation, Model, Optimizer, Gradient, Basics):
    """All settings of a run by name, each with a value."""

    # `field()`: without it, the default None of the group would be inherited.
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

    def __post_init__(self) -> None:
        _check(vars(self))

    def tests_at(self, iteration: int) -> bool:
        """Return whether there is a test after this iteration."""
        every = self.evaluate_every
        if self.evaluate_grid == "even" or iteration < every:
            return iteration % every == 0
        half_powers = round(2.0 * math.log2(iteration / every))
        return iteration == round(every * 2.0 ** (half_powers / 2.0))


_MOST = 2**53  # as far as numbers count exactly in double precision
_COUNT = "an integer from 1 to 2^53"
_SHARDS = 2**16
_THREADS = 256  # thousands fail to start, which ends the process


def _integer(least: int, most: int = _MOST) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and least <= value <= most


# Names of settings, the condition on their values, and its text.
_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "dataset",
        lambda v: v in get_args(Dataset) or Path(v).suffix == _PICTURES,
        f"one of {', '.join(get_args(Dataset))}, or a file NAME.npz",
    ),
    ("iterations batch_size candidates base latent chunk", _integer(1), _COUNT),
    ("shards", _integer(0, _SHARDS), f"an integer from 0 to {_SHARDS}"),
    ("log_every evaluate_every checkpoint_every", _integer(1), _COUNT),
    ("nll_samples test_images probe_length", _integer(1), _COUNT),
    ("probe_repeats", _integer(3), "an integer from 3 to 2^53"),
    ("probe_images", _integer(0), "an integer from 0 to 2^53"),
    ("threads", _integer(1, _THREADS), f"an integer from 1 to {_THREADS}"),
    ("seed binarisation_seed", _integer(0, 2**63 - 1), "an integer in [0, 2^63)"),
    # Not 0 and not infinite in float32, which parameters have.
    (
        "step_size lr",
        lambda v: 2.0**-126 <= v < 2.0**127,
        "in the range of float32, from 1.2e-38 to 1.7e38",
    ),
    ("checkpoint_seconds", lambda v: 0.0 < v < math.inf, "finite and > 0"),
    ("thinning", lambda v: 0.0 <= v < math.inf, "finite and ≥ 0"),
    ("rho1 rho2", lambda v: 0.0 <= v < 1.0, "in [0, 1)"),
    ("truncation_scale", lambda v: 1.0 <= v < 2.0**31, "in [1, 2^31)"),
    ("truncation_exponent", lambda v: 0.0 <= v <= 1.0, "in [0, 1]"),
)


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """Return the words that settings can be, for those that are no number, path or dataset."""
    hints = get_type_hints(Settings).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


def _check(flat: Mapping[str, Any]) -> None:
    """Raise a ValueError that names a setting with a wrong value."""
    words = _choices().items()
    rules = [(name, all_.__contains__, f"one of {', '.join(all_)}") for name, all_ in words]
    for names, holds, text in (*rules, *_RULES):
        for name in names.split():
            value = flat[name]
            if value is not None and not holds(value):
                given = repr(str(value) if isinstance(value, Path) else value)
                raise ValueError(f"{name} must be {text}, got {given}")
    binarisation, likelihood = flat["binarisation"], flat["likelihood"]
    if binarisation in ("static", "dynamic") and likelihood != "bernoulli":
        raise ValueError(
            f"likelihood must be bernoulli for binarisation {binarisation}, got {likelihood!r}"
        )
    if 0 < flat["probe_images"] < flat["probe_repeats"]:
        raise ValueError(
            f"probe_images must be 0 or ≥ probe_repeats = {flat['probe_repeats']}, got "
            f"{flat['probe_images']!r}"
        )
    method, kernel, candidates = flat["method"], flat["kernel"], flat["candidates"]
    if method != "iwae" and kernel == "isir" and candidates < 2:
        raise ValueError(f"candidates must be ≥ 2 for method {method}, got {candidates}")
    chain = kernel in ("mala", "rwmh") or (kernel == "isir" and candidates > 1)
    if flat["finish"] != "none" and flat["schedule"] == "sqrt":
        raise ValueError(
            f"schedule must be constant_linear or cosine for finish {flat['finish']}, which begins "
            "when the step size falls, got 'sqrt'"
        )
    if flat["persistent"] and not chain:
        raise ValueError(
            "persistent needs a chain to continue: kernel mala, rwmh, or isir with "
            f"candidates ≥ 2, got kernel {kernel} and candidates {candidates}"
        )
