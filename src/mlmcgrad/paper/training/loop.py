"""Training that resumes: a killed run loses at most the time since its last checkpoint.

The run folder:

    config.json                settings, images and versions
    metrics.jsonl              lines with `bound` summarise the iterations since the line before,
                               lines with `nll` are tests
    checkpoints/               the last two: what `torch.save` writes, and its SHA-256 in 64
                               hexadecimal digits; read with `weights_only=True`
    samples-*.png, reconstructions-*.png
    dump-*.pt                  the iteration at which numbers stopped being finite
    summary.json               when the run is complete

On a CPU the same settings give the same bits, whether or not the run was killed and resumed. A run
resumes from its newest intact checkpoint. Everything in the run folder is read and checked before
the first file is changed.

`torchrun` starts several processes. The first one decides the settings, holds the run folder and
writes everything; the others get its state, compute their shards of every batch and write nothing.
All of them have the whole state (parameters, optimizer, order, states of the chains), so that a
checkpoint is that of a single process, and any number of processes can resume it. If a process is
killed, the next exchange fails in the others and they end. torchrun starts all of them again if it
may (`--max-restarts`), and they resume from the checkpoint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console

from mlmcgrad._files import write_atomically
from mlmcgrad.distributed.world import broadcast, current, gather, launch, restarted
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.paper.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    SUMMARY,
    Metrics,
    Owner,
    as_record,
    aside,
    check_same,
    held,
    intact,
    read_json,
    write_config,
    write_json,
)
from mlmcgrad.paper.runs.process import RESUME, Signals, Stopped, bars, interruptible, threads
from mlmcgrad.paper.training.config import FREE, Config, Dataset, Settings
from mlmcgrad.paper.training.trainer import Evaluator, Source, Trainer, Window, load, usual_numbers

_PICTURES = ("samples-[0-9]*.png", "reconstructions-[0-9]*.png")
OWNER = Owner("train", (CHECKPOINTS, *_PICTURES, "dump-[0-9]*.pt", "tensorboard"))
_LOG = logging.getLogger(__name__)
_KEPT = 2  # checkpoints
_DIGITS = 64  # of a SHA-256


@dataclass(frozen=True)
class Result:
    """A run that is complete."""

    model: LatentModel
    folder: Path
    summary: dict[str, Any]  # of summary.json; without tests in a process that follows


class DivergedError(FloatingPointError):
    """The loss, the weights or the gradient are no longer finite.

    The message names a file with the batch, the generator before the iteration and the parameters.
    """


def train(
    config: Config | Settings,
    console: Console | None = None,
    *,
    report: Callable[[float, str], None] | None = None,
    _source: Source | None = None,
) -> Result:
    """Train a model, or resume a previous run.

    Args:
        config: the settings.
        console: where to show the progress; None shows nothing.
        report: called after each iteration with the share of iterations that are done and a text,
            the iteration and the last test NLL.

    Returns:
        The trained model and the numbers of `summary.json`.

    Raises:
        ValueError: a setting cannot be used, or differs from that of the run to resume; or a file
            of that run is missing or damaged.
        OSError: a file cannot be written; the last checkpoint is intact.
        Stopped: SIGINT, SIGTERM or SIGHUP; everything is saved.
        LostError: another process of the same training has ended; the last checkpoint is intact.
        DivergedError: the loss, the weights or the gradient are not finite.
    """
    settings = decided(config)
    if settings.tensorboard:
        import torch.utils.tensorboard  # noqa: F401, before anything is written
    source = _source or load(settings)
    with threads(settings.threads), usual_numbers():
        trainer = Trainer(settings, source)
        if current().rank:  # the first process writes, the others compute with it
            return _follow(trainer, report)
        with held(settings.out, OWNER, resume=settings.resume, force=settings.force) as before:
            folder = TrainingFolder(trainer, before)
            with closing(folder.metrics), Signals() as signals:
                same_state(trainer)
                try:
                    with _bar(console, trainer) as show:
                        for n in trainer:
                            with suppress(Stopped):  # a test was abandoned: `agree` raises
                                folder.log(n)
                                if folder.due(n):
                                    folder.save(trainer.state_dict())
                            agree(signals.number)
                            show()
                            if report is not None:
                                report(n / settings.iterations, _status(trainer))
                    return Result(trainer.model, settings.out, folder.finish())
                except Stopped as stopped:
                    folder.save(trainer.state_dict())
                    status = f"stopped after iteration {trainer.iteration}, all saved in"
                    raise Stopped(stopped.number, f"{status} {settings.out}; {RESUME}") from None
                except FloatingPointError as error:
                    raise _diverged(error, trainer) from error


def _status(trainer: Trainer) -> str:
    nll = f", NLL {trainer.test['nll']:.2f}" if trainer.test is not None else ""
    return f"iteration {trainer.iteration}/{trainer.settings.iterations}{nll}"


def _follow(trainer: Trainer, report: Callable[[float, str], None] | None) -> Result:
    """Compute with the first process, and write nothing."""
    with Signals() as signals:
        same_state(trainer)
        for n in trainer:
            agree(signals.number, f"rank {current().rank} stopped after iteration {n}")
            if report is not None:
                report(n / trainer.settings.iterations, _status(trainer))
    return Result(trainer.model, trainer.settings.out, trainer.where())


def decided(config: Config | Settings) -> Settings:
    """Return the settings of all processes: those of the first, with the number of shards.

    Raises:
        ValueError: there are fewer shards than processes, or more than images in a batch.
    """
    size = current().size
    if isinstance(config, Config):
        before = {}
        with suppress(OSError, ValueError):  # `TrainingFolder` says what is wrong with it
            before = read_json(config.settings().out / CONFIG)
        if restarted() and before.get("launch") == launch():
            config = dataclasses.replace(config, resume=True, force=config.force and config.resume)
        if config.run.shards is None:
            shards = 0 if size == 1 else size
            earlier = before.get("settings")
            if config.resume and isinstance(earlier, dict):
                shards = earlier.get("shards", shards)
            run = dataclasses.replace(config.run, shards=shards)
            config = dataclasses.replace(config, run=run)
        config = config.settings()
    settings = broadcast(config)
    shards, batch = settings.shards, settings.batch_size
    if not size <= max(shards, 1) <= batch:
        few, many = "start fewer processes, or another run with more shards", "use fewer shards"
        raise ValueError(
            f"shards must be from {size}, the number of processes, to {batch}, the batch_size, got "
            f"{shards}; {many if shards > batch else few}"
        )
    return settings


def same_state(trainer: Trainer) -> None:
    """Copy the state of the first process to all others."""
    if current().size > 1:
        state = broadcast(trainer.state_dict() if current().rank == 0 else {})
        if current().rank:
            trainer.load_state_dict(state)


def agree(number: int | None, status: str = "") -> None:
    """Raise `Stopped` in all processes if one of them has the number of a signal."""
    if asked := max(gather(number or 0)):
        raise Stopped(asked, status)


@contextmanager
def _bar(console: Console | None, trainer: Trainer) -> Iterator[Callable[[], None]]:
    """Yield a function that shows the present state.

    It updates a live bar on a terminal; elsewhere it prints one line per test.
    """
    first, tested = trainer.iteration, trainer.test
    progress = bars(console, "{task.fields[text]}")
    task = progress.add_task("", total=trainer.settings.iterations, text="")

    def show() -> None:
        nonlocal tested
        n, window, test = trainer.iteration, trainer.window, trainer.test
        effort = f"{trainer.spent['evaluations']:,} evaluations"
        speed = (n - first) / (progress.tasks[0].elapsed or 1.0)
        numbers = [f"{n}/{trainer.settings.iterations}", f"{speed:.1f} it/s"]
        numbers += [f"bound {window.sums['bound'] / window.count:.2f}"] if window.count else []
        numbers += [f"test NLL {test['nll']:.2f}"] if test is not None else []
        epoch = f"epoch {trainer.epoch:.1f}"
        text = "  ".join([*numbers, effort])
        progress.update(task, description=epoch, completed=n, text=text)
        if test is not None and test is not tested:
            tested = test
            if console is not None and not console.is_terminal:
                nll = f"test NLL {test['nll']:.2f} ± {test['nll_se']:.2f}"
                console.print(f"iteration {n}, {epoch}: {nll}, {effort}", highlight=False)

    progress.start()
    try:
        yield show
    finally:
        with suppress(OSError):  # the terminal was closed
            progress.stop()


def _diverged(error: FloatingPointError, trainer: Trainer) -> DivergedError:
    """Dump an iteration whose numbers are not finite, and explain the error."""
    settings = trainer.settings
    n = int(trainer.attempt.get("iteration", trainer.iteration))
    dump = settings.out / f"dump-{n:06d}.pt"
    buffer = io.BytesIO()
    torch.save({**trainer.attempt, "model": dict(trainer.model.state_dict())}, buffer)
    write_atomically(dump, buffer.getvalue())
    return DivergedError(
        f"iteration {n} is not finite: {error}. The batch, the generator and the parameters are in "
        f"{dump}. Start another run with a lower lr (it is {settings.lr:g}; try "
        f"{settings.lr / 10:g}) or with more candidates (now {settings.candidates})"
    )


class TrainingFolder:
    """The files of a run: lines, tests, pictures, checkpoints, a summary.

    Args:
        trainer: a new one; the newest checkpoint of the folder is loaded into it.
        before: the content of config.json of the run to resume, see `runs.folder.held`.

    Raises:
        ValueError: the run is another one, or something of it is missing or damaged.
    """

    def __init__(self, trainer: Trainer, before: dict[str, Any]) -> None:
        self.trainer, self.settings, self.path = trainer, trainer.settings, trainer.settings.out
        settings, about, launched = self.settings, trainer.source.about(), launch()
        if before:
            check_same(self.path / CONFIG, _both(before), settings, _free(settings), **about)
        state = latest_checkpoint(self.path, lambda path, state: _restore(trainer, path, state))
        self._logged = 0  # the last iteration whose lines are written
        self._saved: tuple[int, int] | None = None  # iteration and `_logged` of the checkpoint
        lines: list[bytes] = []
        if state is None:
            self._check_unbegun()
        else:
            n = trainer.iteration
            if n > settings.iterations:
                raise ValueError(
                    f"iterations must be ≥ {n}, where the run in {self.path} already is, got "
                    f"{settings.iterations}"
                )
            self._logged = state["logged"]
            lines, whole = self._intact_lines(state["lines"])
            self._saved = (n, self._logged) if whole else None
        by = {"launch": launched} if launched else {}
        write_config(self.path, OWNER, settings=as_record(settings), source=about, **by)
        (self.path / SUMMARY).unlink(missing_ok=True)  # it is written when the run is complete
        self._saved_at = time.monotonic()
        self._evaluator = Evaluator(trainer)
        self.metrics = Metrics(self.path, lines, settings.tensorboard)
        self._lines = self.metrics.count  # up to the iteration `_logged`

    def log(self, n: int) -> None:
        """Write the lines of an iteration: a summary of those since the last one, a test."""
        if n == self._logged:
            return
        line = n % self.settings.log_every == 0
        if line:
            self._line()
        if self.settings.tests_at(n):
            self._evaluate()
        if line:
            self.trainer.window = Window()
        self._logged, self._lines = n, self.metrics.count

    def due(self, n: int) -> bool:
        """Return whether it is time for a checkpoint."""
        elapsed = time.monotonic() - self._saved_at
        regular = n % self.settings.checkpoint_every == 0 or n == self.settings.iterations
        return regular or self._saved is None or elapsed >= self.settings.checkpoint_seconds

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint, unless the same is written already."""
        now = (state["iteration"], self._logged)
        if self._saved == now:
            return
        self.metrics.sync()
        about = {"lines": self._lines, "logged": self._logged}
        save_checkpoint(self.path, state["iteration"], {**state, **about})
        self._saved, self._saved_at = now, time.monotonic()

    def finish(self) -> dict[str, Any]:
        """Write lines for what came after the last regular ones, and the summary."""
        trainer = self.trainer
        if trainer.window.count:
            self._line(final=True)
        if not self.settings.tests_at(trainer.iteration):
            self._evaluate(final=True)
        self.metrics.sync()
        checks = {"checks": trainer.checks} if trainer.finish is not None else {}
        summary = {**self._where(), **(trainer.test or {}), **checks}
        write_json(self.path / SUMMARY, summary)
        return summary

    def _line(self, **extra: Any) -> None:
        """Write a line that summarises the iterations since the last one."""
        self.metrics.add({**self._where(), **self.trainer.window.summary(), **extra})

    def _evaluate(self, **extra: Any) -> None:
        """Test the model and draw pictures."""
        with self.trainer.tested():
            with interruptible():
                self.trainer.test = self._evaluator.measure()
            self.metrics.add({**self._where(), **self.trainer.test, **extra})
            self._evaluator.draw(self.path)

    def _where(self) -> dict[str, Any]:
        return {**self.trainer.where(), "seconds": round(self.trainer.seconds, 3)}

    def _check_unbegun(self) -> None:
        """Raise if a run without a checkpoint has computed something."""
        for path in (self.path / METRICS, self.path / SUMMARY):
            if path.exists() and path.stat().st_size:
                raise ValueError(
                    f"{self.path / CHECKPOINTS} holds no checkpoint, but {path} is of a run that "
                    "had some; put them back, or start over with --force instead of --resume, "
                    "which moves the rest aside"
                )

    def _intact_lines(self, count: int) -> tuple[list[bytes], bool]:
        """Return the lines of metrics.jsonl up to the checkpoint, and whether none is missing.

        A damaged file is refused, or moved aside with --force.
        """
        n = self.trainer.iteration
        kept, wrong = intact(self.path, n, count)
        if wrong and not self.settings.force:
            raise ValueError(
                f"{wrong}; the checkpoint of iteration {n} is intact: put the file back, or "
                "continue with --resume --force, which moves it aside and keeps the "
                f"{len(kept)} lines that are intact"
            )
        if wrong and (self.path / METRICS).exists():
            aside(self.path, [METRICS])
        return kept, not wrong


def read_trainer(folder: Path) -> Trainer:
    """Return a training as its newest intact checkpoint left it, and change nothing.

    Args:
        folder: that `train` has written, also while it is still training.

    Raises:
        ValueError: it holds no training, or something of it is missing or damaged.
    """
    trainers: list[Trainer] = []

    def use(path: Path, state: dict[str, Any]) -> None:
        settings = _settings(state.get("settings"), folder)
        with usual_numbers():
            trainers.append(Trainer(settings, load(settings)))
        _restore(trainers[-1], path, state)

    if latest_checkpoint(folder, use, rename=False) is None:
        raise ValueError(
            f"run: {folder / CHECKPOINTS} holds no checkpoint; name a folder that `mlmcgrad train` "
            "has written"
        )
    return trainers[-1]


def _settings(record: Any, folder: Path) -> Settings:
    """Return the settings of a checkpoint; those that it lacks have the default value."""
    names = {field.name for field in dataclasses.fields(Settings)}
    try:
        values = {name: value for name, value in record.items() if name in names}
        if values["dataset"] not in get_args(Dataset):
            values["dataset"] = Path(values["dataset"])
        return Settings(**{**values, "out": folder})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its settings cannot be used ({error!r})") from error


def _free(settings: Settings) -> frozenset[str]:
    """Return the settings that may differ when a run is resumed."""
    return FREE if settings.schedule == "sqrt" else FREE - {"iterations"}


def _restore(trainer: Trainer, path: Path, state: dict[str, Any]) -> None:
    """Load a checkpoint, or raise a ValueError that says why it cannot be used."""
    settings = trainer.settings
    check_same(path, _both(state), settings, _free(settings), **trainer.source.about())
    if missing := {"lines", "logged"} - state.keys():
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    trainer.load_state_dict(state)


def _both(record: dict[str, Any]) -> dict[str, Any] | None:
    settings, source = record.get("settings"), record.get("source")
    if isinstance(settings, dict) and isinstance(source, dict):
        return {**settings, **source}
    return None


def save_checkpoint(folder: Path, iteration: int, state: dict[str, Any]) -> None:
    """Write the checkpoint of an iteration, then remove all but the last two.

    If it cannot be written, the earlier checkpoints are intact.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    content = payload + hashlib.sha256(payload).hexdigest().encode()
    try:
        write_atomically(folder / CHECKPOINTS / f"iteration-{iteration:09d}.pt", content)
    except OSError as error:
        older = _paths(folder)
        hint = f"; {older[-1].name} is intact, continue from it with --resume" if older else ""
        raise OSError(error.errno, f"{error.strerror}{hint}") from error
    for old in [path for path in _paths(folder) if path.is_file()][:-_KEPT]:
        old.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        ValueError: the file is damaged, or cannot be read; the message continues a sentence.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from error
    payload, digits = content[:-_DIGITS], content[-_DIGITS:]
    if hashlib.sha256(payload).hexdigest().encode() != digits:
        raise ValueError(
            f"its {len(content)} bytes do not match their checksum, so it was cut short or altered"
        )
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        return dict(state)
    except Exception as error:  # a file of another kind makes torch raise nearly anything
        raise ValueError("it holds more, or else, than tensors, numbers and text") from error


def latest_checkpoint(
    folder: Path, use: Callable[[Path, dict[str, Any]], None] | None = None, *, rename: bool = True
) -> dict[str, Any] | None:
    """Return the newest checkpoint that is intact; None if the run folder has no checkpoint.

    Args:
        folder: run folder.
        use: called with a checkpoint, newest first; its ValueError refuses the checkpoint.
        rename: rename refused checkpoints, so that they never count among the two that are kept.

    Raises:
        ValueError: there are checkpoints, and all of them are refused.
    """
    refused: dict[Path, str] = {}
    for path in reversed(_paths(folder)):
        try:
            state = load_checkpoint(path)
            if use is not None:
                use(path, state)
        except ValueError as error:
            refused[path] = f"checkpoint {path.name} in {path.parent} is refused: {error}"
            continue
        for damaged, reason in refused.items():
            if rename:
                damaged.replace(damaged.with_name(damaged.name + ".refused"))
            _LOG.warning("%s; %s is used instead", reason, path.name)
        return state
    if refused:
        raise ValueError(
            f"{'; '.join(refused.values())}. No checkpoint is left: put an intact one back, or "
            f"move {folder} away and start again"
        )
    return None


def _paths(folder: Path) -> list[Path]:
    return sorted((folder / CHECKPOINTS).glob("iteration-*.pt"))
