"""What a run writes to its folder: lines, tests, pictures, checkpoints, a summary.

In metrics.jsonl a line with `bound` summarises the iterations since the line before it, and one
with `nll` is a test. Tests draw from generators of their own, seeded by the run and the iteration:
they do not disturb the training.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from mlmcgrad.distributed.worlds import current
from mlmcgrad.iwae.evaluate import negative_log_likelihood, squared_gradient_norm
from mlmcgrad.iwae.likelihoods import bits_per_dimension
from mlmcgrad.runs import checkpoint
from mlmcgrad.runs.atomic import write_atomically
from mlmcgrad.runs.folder import SUMMARY, write_json
from mlmcgrad.runs.metrics import Metrics
from mlmcgrad.runs.signals import Signals
from mlmcgrad.seeds import seed_for
from mlmcgrad.training import images
from mlmcgrad.training.counters import Stopwatch, Window
from mlmcgrad.training.resume import Begin
from mlmcgrad.training.trainer import Trainer


class DivergedError(FloatingPointError):
    """The loss, the weights or the gradient are no longer finite.

    Attributes:
        dump: file with the batch, the generator before the iteration and the parameters.
    """

    def __init__(self, message: str, dump: Path) -> None:
        super().__init__(message)
        self.dump = dump

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.dump)  # so that it can be sent between processes


class Run:
    """A trainer and its run folder.

    Args:
        trainer: the model in training.
        start: what the run has behind it.
        signals: end a gradient or a test at once; it is made again when the run is resumed.
        claim: called before anything is written; it raises if the run is not ours any more.
    """

    def __init__(
        self, trainer: Trainer, start: Begin, signals: Signals, claim: Callable[[], None]
    ) -> None:
        self.trainer, self.settings, self.folder = trainer, trainer.settings, trainer.settings.out
        self._signals, self._claim = signals, claim
        self._earlier, self._watch = start.seconds, Stopwatch()
        self._saved = (trainer.iteration, trainer.recorded) if start.saved else None
        self._saved_at = time.perf_counter()
        test = slice(None, self.settings.test_images)
        self._test = trainer.source.images(trainer.source.test, test, trainer.device)
        self._probe = self._probe_images()
        before = trainer.iteration if trainer.recorded else trainer.iteration - 1
        self.metrics = Metrics(self.folder, start.lines, before, self.settings.tensorboard)
        self._lines = self.metrics.count  # of the iterations that are recorded

    def step(self) -> None:
        """One iteration."""
        # Processes that others wait for do not leave an iteration.
        leave = self._signals.at_once if current().size == 1 else nullcontext
        with self.guarded():
            self.trainer.step(leave)

    def record(self) -> None:
        """Write the lines of this iteration: a summary of those since the last one, a test."""
        trainer = self.trainer
        line = trainer.iteration % self.settings.log_every == 0
        if line:
            self._line()
        if self.tests():
            self._evaluate()
        if line:
            trainer.window = Window()
        trainer.recorded, self._lines = True, self.metrics.count

    def tests(self) -> bool:
        """Whether there is a test after this iteration."""
        return self.settings.tests_at(self.trainer.iteration)

    def finish(self) -> dict[str, Any]:
        """Write lines for what came after the last regular ones, and the summary."""
        trainer = self.trainer
        if trainer.window.count:
            self._line(final=True)
        if not self.tests():
            self._evaluate(final=True)
        self._claim()
        self.metrics.sync()
        summary = {**self._where(), **(trainer.test or {})}
        write_json(self.folder / SUMMARY, summary)
        return summary

    def save(self) -> None:
        """Write a checkpoint, unless the same is written already."""
        now = (self.trainer.iteration, self.trainer.recorded)
        if self._saved == now:
            return
        self._claim()
        with self._watch.paused():
            self.metrics.sync()
            about = {"seconds": self._where()["seconds"], "lines": self._lines}
            state = {**self.trainer.state(), **about}
            checkpoint.save(self.folder, self.trainer.iteration, state)
        self._saved, self._saved_at = now, time.perf_counter()

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        elapsed = time.perf_counter() - self._saved_at
        regular = self.trainer.iteration % self.settings.checkpoint_every == 0
        return regular or elapsed >= self.settings.checkpoint_seconds

    def elapsed(self) -> float:
        """Seconds that this process has trained; tests and checkpoints do not count."""
        return self._watch.seconds

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Dump and explain what goes wrong inside because numbers are not finite."""
        try:
            yield
        except FloatingPointError as error:
            raise _diverged(error, self.trainer) from error

    def _line(self, **extra: Any) -> None:
        """Write a line that summarises the iterations since the last one."""
        self._claim()
        self.metrics.add({**self._where(), **self.trainer.window.summary(), **extra})

    def _evaluate(self, **extra: Any) -> None:
        """Test likelihood, size of the gradient if wanted, and pictures."""
        trainer = self.trainer
        with self._watch.paused(), self.guarded():
            with self._signals.at_once():
                test = self._measure()
            self._claim()
            trainer.test = test
            self.metrics.add({**self._where(), **test, **extra})
            # The same z in every picture, so that the pictures can be compared.
            generator = self._generator("pictures")
            images.draw(trainer.model, self._test, generator, self.folder, trainer.iteration)

    def _measure(self) -> dict[str, float]:
        settings, trainer, n = self.settings, self.trainer, self.trainer.iteration
        nll = negative_log_likelihood(
            trainer.model,
            self._test,
            generator=self._generator(f"test {n}"),
            samples=settings.nll_samples,
        )
        test = {"nll": nll.value, "nll_se": nll.se}
        if settings.likelihood == "discretized_logistic":
            test["bits_per_dimension"] = bits_per_dimension(nll.value, trainer.source.sizes.shape)
        if self._probe:
            norm = squared_gradient_norm(
                trainer.model,
                self._probe,
                generator=self._generator(f"probe {n}"),
                candidates=max(settings.candidates, 2),
                length=settings.probe_length,
                chunk=settings.chunk,
            )
            test |= {"gradient": norm.value, "gradient_se": norm.se}
        return test

    def _generator(self, purpose: str) -> torch.Generator:
        seed = seed_for(self.settings.seed, purpose)
        return torch.Generator(self.trainer.device).manual_seed(seed)

    def _probe_images(self) -> list[torch.Tensor]:
        """For each estimate of ∇V its images: all of them, or random ones that no other has."""
        settings, source, device = self.settings, self.trainer.source, self.trainer.device
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

    def _where(self) -> dict[str, Any]:
        return {**self.trainer.where(), "seconds": round(self._earlier + self.elapsed(), 3)}


def _diverged(error: FloatingPointError, trainer: Trainer) -> DivergedError:
    settings = trainer.settings
    n = int(trainer.attempt.get("iteration", trainer.iteration))
    dump = settings.out / f"dump-{n:06d}.pt"
    buffer = io.BytesIO()
    torch.save({**trainer.attempt, "model": dict(trainer.model.state_dict())}, buffer)
    write_atomically(dump, buffer.getvalue())
    return DivergedError(
        f"iteration {n} is not finite: {error}. The batch, the generator and the parameters are in "
        f"{dump}. Start another run with a lower lr (it is {settings.lr:g}; try "
        f"{settings.lr / 10:g}) or with more candidates (now {settings.candidates})",
        dump,
    )
