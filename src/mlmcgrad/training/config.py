"""Settings of a training run, as a dataclass that the command line is made from.

Nothing here imports torch, so that `mlmcgrad train --help` answers at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

Dataset: TypeAlias = Literal["digits", "cifar10"]
Method: TypeAlias = Literal["iwae", "br", "mlmc"]
Assignment: TypeAlias = Literal["independent", "shared", "balanced"]
EncoderGradient: TypeAlias = Literal["iwae", "dreg"]
KernelName: TypeAlias = Literal["isir", "mala", "rwmh"]
OptimizerName: TypeAlias = Literal["amsgrad", "adagrad", "rmsprop"]
LikelihoodName: TypeAlias = Literal["bernoulli", "discretized_logistic"]
Grid: TypeAlias = Literal["even", "geometric"]

_CHOICES: dict[str, Any] = {
    "dataset": Dataset,
    "method": Method,
    "assignment": Assignment,
    "encoder": EncoderGradient,
    "kernel": KernelName,
    "optimizer": OptimizerName,
    "likelihood": LikelihoodName,
    "evaluate_grid": Grid,
}
_COUNTS = (
    "iterations",
    "batch_size",
    "candidates",
    "base",
    "latent",
    "chunk",
    "log_every",
    "evaluate_every",
    "checkpoint_every",
    "nll_samples",
    "test_images",
    "probe_length",
    "threads",
)
_POSITIVE = ("step_size", "learning_rate", "checkpoint_seconds")
_BY_DATASET: dict[str, dict[str, Any]] = {
    "digits": {
        "batch_size": 50,
        "learning_rate": 0.01,
        "latent": 16,
        "evaluate_every": 500,
        "test_images": 297,
        "chunk": 1024,
    },
    "cifar10": {
        "batch_size": 128,
        "learning_rate": 0.001,
        "latent": 100,
        "evaluate_every": 1000,
        "test_images": 100,
        "chunk": 256,
    },
}
# What may differ on resuming: none of it changes a single number of the run.
_FREE = {"out", "iterations", "resume", "checkpoint_every", "checkpoint_seconds", "tensorboard"}


@dataclass(frozen=True)
class Config:
    """Train an importance weighted autoencoder; the same settings give the same bits on a CPU."""

    dataset: Dataset = "digits"
    """Images to train on."""
    method: Method = "mlmc"
    """Gradient of the decoder: one importance sampling step, a long chain, or multilevel."""
    iterations: int = 3000
    """Iterations in all; a run that is resumed may have more than it started with."""
    seed: int = 0
    """Everything random follows from it."""
    out: Path | None = None
    """Run folder; by default runs/ followed by dataset, method and seed."""
    resume: bool = False
    """Continue from the last checkpoint in the run folder, or start if there is none."""
    batch_size: int | None = None
    """Images in an iteration; by default 50 for digits, 128 for cifar10."""
    candidates: int = 5
    """k, importance samples for each image and candidates of i-SIR."""
    truncation_scale: float = 1.0
    """c of the longest chain T_n = c · n^α."""
    truncation_exponent: float = 0.5
    """α of T_n = c · n^α; 0 for a constant T."""
    rao_blackwell: bool = False
    """Average the selections of i-SIR out."""
    assignment: Assignment = "independent"
    """How the levels of mlmc are given to the images of a batch."""
    base: int = 1
    """Chain length at which the levels of mlmc start."""
    encoder: EncoderGradient = "iwae"
    """Gradient of the encoder: the ordinary one or the doubly reparameterised one."""
    kernel: KernelName = "isir"
    """What samples p(z | y)."""
    step_size: float = 0.01
    """Of the kernels mala and rwmh."""
    optimizer: OptimizerName = "amsgrad"
    """How the gradients are used."""
    learning_rate: float | None = None
    """C of the step sizes C / √n; by default 0.01 for digits, 0.001 for cifar10."""
    rho1: float = 0.9
    """AMSGrad: memory of the momentum."""
    rho2: float = 0.999
    """AMSGrad and RMSProp: memory of the squares."""
    likelihood: LikelihoodName = "bernoulli"
    """Of the pixels; discretized_logistic is a probability of grey levels."""
    latent: int | None = None
    """Dimension of z; by default 16 for digits, 100 for cifar10."""
    log_every: int = 10
    """Iterations that one line of metrics.jsonl sums up."""
    evaluate_every: int | None = None
    """Iterations between test likelihoods and pictures; by default 500 (digits), 1000 (cifar10)."""
    evaluate_grid: Grid = "even"
    """When to test: every evaluate_every iterations, or at its multiples 1, √2, 2, 2√2, 4, …"""
    nll_samples: int = 1000
    """Importance samples for the test likelihood of an image."""
    test_images: int | None = None
    """Test images to evaluate on, the first ones; by default all 297 (digits), 100 (cifar10)."""
    probe_images: int = 0
    """Training images on which each test also measures ‖∇V‖²; 0 measures nothing."""
    probe_length: int = 8
    """Chain length of the estimates from which ‖∇V‖² is made."""
    probe_repeats: int = 4
    """Independent estimates from which ‖∇V‖² is made."""
    checkpoint_every: int = 500
    """Iterations between checkpoints."""
    checkpoint_seconds: float = 60.0
    """A checkpoint is written after this many seconds in any case."""
    thinning: float = 0.1
    """States below this part of a step's weight are left out at random, without bias; 0: none."""
    chunk: int | None = None
    """States in one pass of the decoder: bounds the memory; 1024 (digits) or 256 if not given."""
    threads: int = 1
    """Threads of torch; the last bits depend on it."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, …"""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too; needs the package tensorboard."""

    def __post_init__(self) -> None:
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                choices = ", ".join(get_args(kind))
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be an integer from 1 on, got {value!r}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
        if not 0.0 <= self.thinning < math.inf:
            raise ValueError(f"thinning must be a finite number from 0 on, got {self.thinning!r}")
        for name in ("rho1", "rho2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)!r}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be an integer in [0, 2^63), got {self.seed!r}")
        if not 1.0 <= self.truncation_scale < 2.0**31:
            raise ValueError(
                f"truncation_scale must be from 1 on and below 2^31, got {self.truncation_scale!r}"
            )
        if not 0.0 <= self.truncation_exponent <= 1.0:
            raise ValueError(
                f"truncation_exponent must be in [0, 1], got {self.truncation_exponent!r}"
            )
        if not isinstance(self.probe_repeats, int) or self.probe_repeats < 3:
            raise ValueError(
                f"probe_repeats must be an integer from 3 on, got {self.probe_repeats!r}"
            )
        if not isinstance(self.probe_images, int) or not (
            self.probe_images == 0 or self.probe_images >= self.probe_repeats
        ):
            raise ValueError(
                f"probe_images must be 0, or at least probe_repeats = {self.probe_repeats}, got "
                f"{self.probe_images!r}"
            )
        if self.method != "iwae" and self.kernel == "isir" and self.candidates < 2:
            raise ValueError(
                f"candidates must be at least 2 for method {self.method}, got {self.candidates}"
            )

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or Path("runs") / f"{self.dataset}-{self.method}-{self.seed}"

    def resolved(self) -> Config:
        """The same settings, with what the dataset decides filled in."""
        missing = {k: v for k, v in _BY_DATASET[self.dataset].items() if getattr(self, k) is None}
        return dataclasses.replace(self, out=self.folder, **missing)

    def tests_at(self, iteration: int) -> bool:
        """Whether there is a test after this iteration."""
        every = self.resolved().evaluate_every
        assert every is not None
        if self.evaluate_grid == "even" or iteration < every:
            return iteration % every == 0
        half_powers = round(2.0 * math.log2(iteration / every))
        return iteration == round(every * 2.0 ** (half_powers / 2.0))

    def settings(self) -> dict[str, Any]:
        """All settings, with what the dataset decides filled in, as JSON has them."""
        fields = dataclasses.asdict(self.resolved())
        return {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}


def check_same(now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Refuse to resume with settings that would have made another run.

    Args:
        now: `Config.settings()` of the run to continue.
        before: those in its checkpoint.
    """
    for name, value in now.items():
        if name not in _FREE and before.get(name) != value:
            raise ValueError(
                f"{name} must be {before.get(name)!r} as in the run that is resumed, got "
                f"{value!r}; resume with the same settings (only iterations may grow), or start "
                "another run with another --out"
            )


__all__ = [
    "Assignment",
    "Config",
    "Dataset",
    "EncoderGradient",
    "Grid",
    "KernelName",
    "LikelihoodName",
    "Method",
    "OptimizerName",
    "check_same",
]
