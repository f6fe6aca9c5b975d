"""How long will the runs take? A few steps are timed; the rest follows from what steps cost.

Seconds of a step = a + b · evaluations, with a and b from steps of short and of long chains; the
expected evaluations of iteration n are batch · (1 + (k−1) · E[chain length]), or batch · k ·
E[blocks] for importance sampling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import torch

from mlmcgrad.estimators import MLMC, Average, MLMCSum
from mlmcgrad.experiments.reproduce.gather import method_name
from mlmcgrad.iwae.evaluate import negative_log_likelihood
from mlmcgrad.runs.folder import as_record
from mlmcgrad.runs.pool import one_thread
from mlmcgrad.training.config import Settings
from mlmcgrad.training.data import load
from mlmcgrad.training.trainer import Trainer

# Chains are T_n = √n long: 1 and 16.
_SHORT, _LONG = 1, 256
_REPEATS = 3
# Steps of an untrained model are slower: more of its states carry weight.
_WARM_UP = 16
_PLACES = 200


def forecast(runs: Iterable[Settings]) -> float:
    """Seconds that the runs take one after another, with one thread each."""
    by_method: dict[str, float] = {}
    total = 0.0
    with one_thread():
        for settings in runs:
            name = method_name(as_record(settings))
            if name not in by_method:  # runs of one method differ only by seed and optimizer
                by_method[name] = _one_run(settings)
            total += by_method[name]
    return total


def _one_run(settings: Settings) -> float:
    trainer = Trainer(settings, load(settings))
    for n in range(1, _WARM_UP + 1):
        _step(trainer, n)
    points = [_step(trainer, n) for n in (_SHORT, _LONG) for _ in range(_REPEATS)]
    evaluations, seconds = np.array(points[_REPEATS:]).T
    few, quick = np.median(np.array(points[:_REPEATS]), axis=0)
    slope = max(0.0, float(np.median((seconds - quick) / np.maximum(evaluations - few, 1.0))))
    if settings.method == "iwae":  # its steps are all alike
        slope = 0.0
    places = np.unique(np.geomspace(1, settings.iterations, _PLACES).round())
    per_step = [quick + slope * (_evaluations(trainer, int(n)) - few) for n in places]
    return float(np.trapezoid(per_step, places)) + quick + _tests(trainer, slope)


def _evaluations(trainer: Trainer, n: int) -> float:
    """Expected decoder evaluations of iteration n."""
    settings, estimator = trainer.settings, trainer.objective.lengths
    assert isinstance(estimator, (Average, MLMC, MLMCSum))
    length = estimator.expected_length(n)
    if settings.kernel == "importance":
        return settings.batch_size * settings.candidates * length
    return settings.batch_size * (1.0 + (settings.candidates - 1) * length)


def _step(trainer: Trainer, n: int) -> tuple[float, float]:
    """Evaluations and seconds of one iteration n."""
    trainer.iteration, before = n - 1, trainer.spent["evaluations"]
    seconds = _seconds(trainer.step)
    return float(trainer.spent["evaluations"] - before), seconds


def _tests(trainer: Trainer, slope: float) -> float:
    """Seconds of all tests of a run."""
    settings = trainer.settings
    images = trainer.source.images(trainer.source.test, slice(2), trainer.device)
    generator = torch.Generator(trainer.device).manual_seed(0)
    samples = min(settings.nll_samples, 500)
    seconds = _seconds(
        lambda: negative_log_likelihood(trainer.model, images, generator=generator, samples=samples)
    )
    weigh = seconds / (len(images) * samples)
    test = weigh * settings.test_images * settings.nll_samples
    whole = settings.probe_images >= len(trainer.source.train)
    probes = len(trainer.source.train) * settings.probe_repeats if whole else settings.probe_images
    steps = 1 + (settings.candidates - 1) * settings.probe_length
    return settings.tests() * (test + max(slope, weigh) * probes * steps)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
