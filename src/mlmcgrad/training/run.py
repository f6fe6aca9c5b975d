"""What a run leaves in its folder while it goes on: lines, tests, pictures, checkpoints, a summary.

Tests draw from generators of their own, made of the seed and the iteration: they do not disturb
the training.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mlmcgrad.iwae.evaluate import negative_log_likelihood, squared_gradient_norm
from mlmcgrad.iwae.likelihoods import bits_per_dimension
from mlmcgrad.runs import checkpoint
from mlmcgrad.runs.atomic import write_atomically
from mlmcgrad.runs.metrics import Metrics
from mlmcgrad.training import images
from mlmcgrad.training.config import Config
from mlmcgrad.training.errors import DivergedError
from mlmcgrad.training.stopwatch import Stopwatch
from mlmcgrad.training.trainer import Trainer, seed_for

SUMMARY = "summary.json"


class Run:
    """A trainer and its run folder.

    Args:
        config: settings, resolved.
        trainer: the model in training.
        seconds: spent before, by the processes that this one continues; None in a new run.
    """

    def __init__(self, config: Config, trainer: Trainer, seconds: float | None) -> None:
        self.config, self.trainer, self.folder = config, trainer, config.folder
        self._earlier, self._watch = seconds or 0.0, Stopwatch()
        self._saved = -1 if seconds is None else trainer.iteration
        self._saved_at = time.perf_counter()
        test = slice(None, config.test_images)
        self._test = trainer.source.images(trainer.source.test, test, trainer.device)
        self._probe = self._probe_images()
        self.metrics = Metrics(self.folder, trainer.iteration, config.tensorboard)

    def finish(self) -> dict[str, Any]:
        """Lines for what came after the last regular ones, and the summary."""
        config, trainer = self.config, self.trainer
        if trainer.window.count:
            self.line(final=True)
        if not config.tests_at(trainer.iteration):
            self.evaluate(final=True)
        self.metrics.sync()
        summary = {**self._where(), **(trainer.test or {})}
        write_json(self.folder / SUMMARY, summary)
        return summary

    def line(self, **extra: Any) -> None:
        """Write a line that sums up the iterations since the last one."""
        self.metrics.add({**self._where(), **self.trainer.window.summary(), **extra})

    def evaluate(self, **extra: Any) -> None:
        """Test likelihood, size of the gradient if wanted, and pictures."""
        with self._watch.paused():
            self._evaluate(**extra)

    def _evaluate(self, **extra: Any) -> None:
        config, trainer = self.config, self.trainer
        n, device = trainer.iteration, trainer.device
        own = torch.Generator(device).manual_seed(seed_for(config.seed, f"test {n}"))
        with self.guarded():
            nll = negative_log_likelihood(
                trainer.model, self._test, generator=own, samples=config.nll_samples
            )
        trainer.test = {"nll": nll.value, "nll_se": nll.se}
        if config.likelihood == "discretized_logistic":
            bits = bits_per_dimension(nll.value, trainer.source.sizes.shape)
            trainer.test["bits_per_dimension"] = bits
        if self._probe is not None:
            trainer.test |= self._gradient_norm()
        self.metrics.add({**self._where(), **trainer.test, **extra})
        # The same z in every picture, so that one sees what training does to them.
        same = torch.Generator(device).manual_seed(seed_for(config.seed, "pictures"))
        images.draw(trainer.model, self._test, same, self.folder, n)

    def save(self) -> None:
        """Write a checkpoint, unless that of this iteration is written already."""
        if self._saved == self.trainer.iteration:
            return
        with self._watch.paused():
            self.metrics.sync()
            state = {**self.trainer.state(), "seconds": self._where()["seconds"]}
            checkpoint.save(self.folder, self.trainer.iteration, state)
        self._saved, self._saved_at = self.trainer.iteration, time.perf_counter()

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        elapsed = time.perf_counter() - self._saved_at
        regular = self.trainer.iteration % self.config.checkpoint_every == 0
        return regular or elapsed >= self.config.checkpoint_seconds

    def elapsed(self) -> float:
        """Seconds that this process has trained; tests and checkpoints do not count."""
        return self._watch.seconds

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """What goes wrong inside because numbers are not finite is dumped and explained."""
        try:
            yield
        except (ValueError, FloatingPointError) as error:
            raise _diverged(error, self.trainer, self.folder) from error

    def _gradient_norm(self) -> dict[str, float]:
        """‖∇V‖² with its standard error; the same draws for the same seed and iteration."""
        config, trainer = self.config, self.trainer
        own = torch.Generator(trainer.device).manual_seed(
            seed_for(config.seed, f"probe {trainer.iteration}")
        )
        assert self._probe is not None
        assert config.chunk is not None
        with self.guarded():
            norm = squared_gradient_norm(
                trainer.model,
                self._probe,
                generator=own,
                candidates=max(config.candidates, 2),
                length=config.probe_length,
                chunk=config.chunk,
            )
        return {"gradient": norm.value, "gradient_se": norm.se}

    def _probe_images(self) -> list[torch.Tensor] | None:
        """For each estimate of ∇V its images: all of them, or random ones that no other has."""
        config, source = self.config, self.trainer.source
        count, repeats = config.probe_images, config.probe_repeats
        if not count:
            return None
        if count >= len(source.train):
            everything = source.images(source.train, slice(None), self.trainer.device)
            return [everything] * repeats
        own = torch.Generator().manual_seed(seed_for(config.seed, "probe"))
        rows = torch.randperm(len(source.train), generator=own)[:count].tensor_split(repeats)
        return [source.images(source.train, r.numpy(), self.trainer.device) for r in rows]

    def _where(self) -> dict[str, Any]:
        return {**self.trainer.where(), "seconds": round(self._earlier + self.elapsed(), 3)}


def _diverged(error: Exception, trainer: Trainer, folder: Path) -> DivergedError:
    n = int(trainer.attempt.get("iteration", trainer.iteration))
    dump = folder / f"dump-{n:06d}.pt"
    buffer = io.BytesIO()
    torch.save({**trainer.attempt, "model": dict(trainer.model.state_dict())}, buffer)
    write_atomically(dump, buffer.getvalue())
    rate = trainer.config.learning_rate or math.nan
    return DivergedError(
        f"iteration {n} is not finite: {error}. The batch, the generator and the parameters are in "
        f"{dump}. Start another run with a lower learning_rate (it is {rate:g}; try {rate / 10:g}) "
        f"or with more candidates (now {trainer.config.candidates})",
        dump,
    )


def write_json(path: Path, record: Any) -> None:
    """Write a JSON file atomically."""
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, text.encode())


__all__ = ["SUMMARY", "Run", "write_json"]
