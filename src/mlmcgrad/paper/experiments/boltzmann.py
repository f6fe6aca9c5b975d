"""Boltzmann machines trained by contrastive divergence and by methods that remove its bias.

Stochastic gradient descent on −mean log p_θ(data), with step size 0.1. The data's part of the
gradient is exact; methods differ in how they estimate ∇log Z. With 16 hidden units the likelihood
is known exactly, so it can be compared against Gibbs steps and against processor seconds, for the
last iterate and for an average of the iterates

    θ̄_n = θ̄_{n−1} + (η + 1)/(n + η) (θ_n − θ̄_{n−1}),     η = 3,

which gives the last tenth of the iterates a third of the weight (Shamir, Zhang 2013).

Log-likelihoods are totals over the 32 rows of bars and stripes, as in the published benchmark, and
means over rows for digits. Runs with the same seed start at the same machine, so differences
between methods are taken seed by seed: `iterations` compares the ends of two curves, `steps` both
curves where the one with fewer Gibbs steps ends.

**The likelihood.** With few hidden units everything is known by enumeration of the 2^q hidden
states:

    log Z = log Σ_h exp(c·h + Σ_i log(1 + e^{(Wh + a)_i})).

h is split into two halves: Wh is a sum of two tables, so only additions are needed for all h.

**Unbiased contrastive divergence** (UCD). Two Gibbs chains, one a step behind, that meet:

    Ĥ = H(v_1) + Σ_{t≥1} {H(v_{t+1}) − H(ṽ_t)},     ṽ_0 = v_0,   until v_{t+1} = ṽ_t.

Both chains have the law of block Gibbs, so E[H(ṽ_t)] = E[H(v_t)] and the sum telescopes to the
limit. Both layers are drawn from maximal couplings, h and h̃ given v and ṽ, then v and ṽ given h and
h̃, by rejection: where the chains do not meet, both are redrawn until each is accepted with the
probability that a maximal coupling requires. As in the published code, a pair stops after `longest`
steps and a rejection after `tries`: both leave a small bias.

A few pairs take long to meet, so most calls are for a handful of rows: they use NumPy, which takes
half of torch's time there.

Reference:
    Qiu, Zhang, Wang (2020), Unbiased contrastive divergence algorithm for training energy-based
    latent variable models, ICLR; after Jacob, O'Leary, Atchadé (2020), Unbiased Markov chain Monte
    Carlo methods with couplings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from mlmcgrad._files import write_atomically
from mlmcgrad.backward import accumulate
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import Gibbs, Outcome
from mlmcgrad.kernels.base import Context, Pieces, Start, check, count_states
from mlmcgrad.kernels.gibbs import binary_states
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure
from mlmcgrad.optim import Averaged
from mlmcgrad.paper.datasets import digits
from mlmcgrad.paper.experiments.folder import Findings, simulated
from mlmcgrad.paper.experiments.plots import COLOURS, CYCLE, log_axes, panels, print_path, table
from mlmcgrad.paper.experiments.reproduce.claims import student_interval
from mlmcgrad.paper.experiments.settings import BoltzmannSettings, Pictures, Preset
from mlmcgrad.paper.runs.pool import Report

Array: TypeAlias = NDArray[Any]

# The published benchmark (Qiu, Zhang, Wang 2020): 4×4 pictures, 16 hidden units, step size 0.1,
# normal starts with standard deviation 0.1, 1000 chains.
HIDDEN, STEP_SIZE, SCALE, CHAINS = 16, 0.1, 0.1, 1000
STEPS = 7  # Gibbs steps per chain and iteration, for the comparison
TRUNCATION = 128  # MLMC with T = 128 makes 7 of them on average
CONTINUATION = 0.56774  # so does the sum form with this; with 1/2 it would make 4.5
_SEVEN = Average(1, burn_in=STEPS - 1)
_MLMC = MLMC(TRUNCATION, assignment="balanced")
METHODS: dict[str, tuple[str, Estimator | None]] = {
    "cd-1": ("CD-1", Average(1)),
    "cd-7": ("CD-7", _SEVEN),
    "pcd-1": ("PCD-1", Average(1)),
    "pcd-7": ("PCD-7", _SEVEN),
    "ucd": ("UCD", Average(1)),
    "mlmc": ("MLMC", _MLMC),
    "mlmc-sum": ("MLMCSum", MLMCSum(TRUNCATION, CONTINUATION, assignment="balanced")),
    "mlmc-persistent": ("PCD + MLMC", _MLMC),
    "average": ("average-128", Average(TRUNCATION)),
    "exact": ("exact", None),
}
"""Label and estimator of each method, in the order in which they are shown."""
LABELS = {name: label for name, (label, _) in METHODS.items()}

_CURVE = 50  # points
_SAMPLES = 16
_LATE = 3.0  # η of the averaged iterate
_STREAMS = 1000  # seeds of generators are this many times the seed of the run, and a few more
_CHUNK = 2**13  # states are small
_POINTS = 4096  # in a measure of coupled chains, so that the overhead of passing it on is small

_SLOW = ("mlmc-sum", "mlmc-persistent", "exact")  # and not part of the published benchmark
_SLOWEST = "average"  # has one seed
_REFERENCES = (_SLOWEST, "exact")  # not part of the comparison
_ITERATES = ("last", "averaged")


@dataclass(frozen=True)
class BoltzmannEffort:
    """How much a preset computes for one data set."""

    iterations: int
    seeds: int
    few: int  # seeds of the slow methods
    chains: int = CHAINS


EFFORT: dict[Preset, dict[Pictures, BoltzmannEffort]] = {
    "smoke": {"bars": BoltzmannEffort(12, 2, 1, 40), "digits": BoltzmannEffort(6, 2, 2, 40)},
    "quick": {"bars": BoltzmannEffort(1_500, 3, 3), "digits": BoltzmannEffort(200, 2, 2)},
    "full": {"bars": BoltzmannEffort(10_000, 10, 5), "digits": BoltzmannEffort(2_000, 5, 5)},
}


def run(settings: BoltzmannSettings, console: Console) -> dict[str, Any]:
    """Train in the run folder, compare, draw and print; returns the summary."""
    arguments = {}
    for data in settings.data:
        effort = EFFORT[settings.preset][data]
        seeds = {_SLOWEST: 1, **dict.fromkeys(_SLOW, effort.few)}
        for seed in range(effort.seeds):
            for method in LABELS:
                if seed < seeds.get(method, effort.seeds):
                    arguments[f"{data} {method} {seed}"] = {
                        "data": data,
                        "method": method,
                        "iterations": effort.iterations,
                        "chains": effort.chains,
                        "seed": settings.seed + seed,
                    }
    with simulated(settings, train, arguments, summarise, console) as findings:
        write_atomically(settings.out / "table.md", markdown(findings.summary).encode())
        _show(findings.summary, console)
        _draw_samples(settings.out, findings)
        print_path(draw(settings.out, findings), console)
    return findings.summary


def summarise(parts: dict[str, Any]) -> Findings:
    """Return one row per point of a curve; the summary has one entry per data set."""
    rows = [
        {"data": part["data"], "method": part["method"], "seed": part["seed"], **point}
        for part in parts.values()
        for point in part["curve"]
    ]
    names = list(dict.fromkeys(part["data"] for part in parts.values()))
    return Findings(rows, {"data": {name: _summary(name, parts) for name in names}})


def _summary(name: Pictures, parts: dict[str, Any]) -> dict[str, Any]:
    data = pictures(name)
    unit = len(data) if name == "bars" else 1
    runs = {
        method: {
            part["seed"]: part
            for part in parts.values()
            if (part["data"], part["method"]) == (name, method)
        }
        for method in LABELS
    }
    return {
        "unit": unit,
        "ceiling": unit * ceiling(data),
        "iterations": next(iter(runs["mlmc"].values()))["curve"][-1]["iteration"],
        "side": round(data.shape[1] ** 0.5),
        "methods": {method: _method(of, unit) for method, of in runs.items()},
        "differences": {
            method: _differences(runs["mlmc"], of, unit)
            for method, of in runs.items()
            if method != "mlmc"
        },
        "samples": {method: next(iter(of.values()))["samples"] for method, of in runs.items()},
    }


def _method(runs: dict[int, Any], unit: int) -> dict[str, Any]:
    """Return final likelihoods with intervals, and the cost of an iteration."""
    ends = [part["curve"][-1] for part in runs.values()]
    numbers: dict[str, Any] = {"seeds": len(ends)}
    for name in ("steps", "seconds"):
        numbers[f"{name}_an_iteration"] = float(np.mean([e[name] / e["iteration"] for e in ends]))
    for iterate in _ITERATES:
        values = [unit * end[iterate] for end in ends]
        numbers[iterate] = {**_interval(values), "values": values}
    return numbers


def _differences(ours: dict[int, Any], others: dict[int, Any], unit: int) -> dict[str, Any]:
    """Return MLMC minus another method, seed by seed."""
    seeds = sorted(set(ours) & set(others))
    differences: dict[str, Any] = {}
    for iterate in _ITERATES:
        pairs = [(ours[seed]["curve"], others[seed]["curve"]) for seed in seeds]
        ends = [unit * (a[-1][iterate] - b[-1][iterate]) for a, b in pairs]
        differences[iterate] = {"iterations": _interval(ends)}
        if all(b[-1]["steps"] for _, b in pairs):
            equal = [unit * _at_equal_steps(a, b, iterate) for a, b in pairs]
            differences[iterate]["steps"] = _interval(equal)
    return differences


def _at_equal_steps(a: list[dict[str, Any]], b: list[dict[str, Any]], iterate: str) -> float:
    where = min(a[-1]["steps"], b[-1]["steps"])
    values = [
        np.interp(where, [p["steps"] for p in curve], [p[iterate] for p in curve])
        for curve in (a, b)
    ]
    return float(values[0] - values[1])


def _interval(values: list[float]) -> dict[str, Any]:
    mean, low, high = student_interval(values)
    return {"mean": mean, "interval": [low, high]}


def pictures(name: Pictures) -> Tensor:
    """Return rows of 0 and 1, float32: (32, 16) bars and stripes, or (1500, 64) digits."""
    if name == "bars":
        return bars_and_stripes(4)
    return torch.from_numpy(digits().train.copy()).flatten(1).ge(8).float()


def bars_and_stripes(side: int) -> Tensor:
    """Return all 2^{side+1} pictures, two of them twice, with rows or columns of one colour.

    Reference: Hinton, Sejnowski (1986); as in Schulz, Müller, Behnke (2010).
    """
    colours = binary_states(side)
    stripes = colours[:, :, None].expand(-1, side, side)
    return torch.cat([stripes, stripes.transpose(1, 2)]).flatten(1)


def ceiling(data: Tensor) -> float:
    """Return the largest mean log-likelihood of any model: that of the empirical distribution."""
    _, counts = data.unique(dim=0, return_counts=True)
    share = counts.double() / len(data)
    return float((share * share.log()).sum())


class Hidden:
    """All hidden states of a machine with their probabilities, as (2^r, 2^{q−r}) tables."""

    def __init__(self, machine: Gibbs, dtype: torch.dtype = torch.float64) -> None:
        weight, visible, hidden = (p.detach().to(dtype) for p in machine.parameters)
        cut = len(hidden) // 2
        self.left, self.right = (binary_states(n, dtype) for n in (cut, len(hidden) - cut))
        inside = self.left @ weight[:, :cut].T + visible  # (2^r, p)
        self.inside = inside[:, None] + (self.right @ weight[:, cut:].T)[None]  # Wh + a
        bias = (self.left @ hidden[:cut])[:, None] + self.right @ hidden[cut:]
        log_weights = bias + torch.nn.functional.softplus(self.inside).sum(2)
        self.log_partition = log_weights.flatten().logsumexp(0)
        self.law = (log_weights - self.log_partition).exp()

    def gradient(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ∇log Z in W, a and c."""
        means = self.inside.sigmoid() * self.law[..., None]  # P(h) E[v | h]
        left, right = means.sum(1), means.sum(0)  # (states, p) of a half, summed over the other
        weight = torch.cat([left.T @ self.left, right.T @ self.right], 1)
        hidden = torch.cat([self.law.sum(1) @ self.left, self.law.sum(0) @ self.right])
        return weight, left.sum(0), hidden

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw independent v, (count, p)."""
        chosen = torch.multinomial(self.law.flatten(), count, True, generator=generator)
        means = self.inside.flatten(0, 1)[chosen].sigmoid()
        return (torch.rand(means.shape, dtype=means.dtype, generator=generator) < means).to(means)


def log_likelihood(machine: Gibbs, data: Tensor) -> float:
    """Return the mean log p(v) of rows of data, in double precision."""
    double = Gibbs(*(parameter.detach().double() for parameter in machine.parameters))
    return float(-double.free_energy(data.double()).mean() - Hidden(double).log_partition)


def train(
    report: Report, *, data: Pictures, method: str, iterations: int, chains: int, seed: int
) -> dict[str, Any]:
    """Train one machine.

    Args:
        report: called with the fraction of the work done.
        data: name of the pictures.
        method: name of the method, of `METHODS`.
        iterations: steps of the optimizer.
        chains: number of chains per estimate.
        seed: of the machine's start, the same for all methods, and of its chains.

    Returns:
        `data`, `method`, `seed`; `curve`: for some iterations, the Gibbs steps per chain and the
        processor seconds so far, and the mean log-likelihood of the last and of the averaged
        iterate; `samples`: exact draws of the last machine.
    """
    rows = pictures(data)
    number = list(METHODS).index(method)
    start = torch.Generator().manual_seed(_STREAMS * seed)
    generator = torch.Generator().manual_seed(_STREAMS * seed + 1 + number)
    machine = Gibbs.of_size(rows.shape[1], HIDDEN, scale=SCALE, generator=start)
    estimate = PartitionGradient(method, machine, rows, chains, generator)
    optimizer = torch.optim.SGD(machine.parameters, lr=STEP_SIZE)
    averaged = Averaged(optimizer, eta=_LATE)
    every = max(1, iterations // _CURVE)
    curve, steps, seconds = [], 0, 0.0
    for n in range(1, iterations + 1):
        begin = time.process_time()
        optimizer.zero_grad()
        machine.free_energy(rows).mean().backward()
        steps += estimate.backward()
        optimizer.step()
        seconds += time.process_time() - begin
        if n % every == 0 or n == iterations:
            point = {"iteration": n, "steps": steps / chains, "seconds": seconds}
            point["last"] = log_likelihood(machine, rows)
            with averaged.applied():
                curve.append({**point, "averaged": log_likelihood(machine, rows)})
            report(n / iterations)
    samples = Hidden(machine).sample(_SAMPLES, generator).long().tolist()
    return {"data": data, "method": method, "seed": seed, "curve": curve, "samples": samples}


class PartitionGradient:
    """An estimate of ∇log Z, added to `.grad` of a machine's parameters.

    Args:
        method: name of the method, of `METHODS`. CD, UCD and MLMC start new chains at random rows
            of the data for every estimate; persistent chains (PCD) continue from their last states.
        machine: the machine that is trained.
        data: rows at which chains start.
        chains: number of chains.
        generator: source of all randomness.
    """

    def __init__(
        self, method: str, machine: Gibbs, data: Tensor, chains: int, generator: torch.Generator
    ) -> None:
        self.machine, self.data, self.chains, self.generator = machine, data, chains, generator
        self.persistent = method.startswith("pcd") or method == "mlmc-persistent"
        self.states: Tensor | None = None  # of persistent chains
        self.gradient: MarkovGradient | None = None  # None: exact
        if (estimator := METHODS[method][1]) is not None:
            self.gradient = MarkovGradient(
                Coupled(machine) if method == "ucd" else machine,
                machine.loss,
                estimator,
                parameters=machine.parameters,
                chunk=_CHUNK,
            )

    def backward(self) -> int:
        """Add an estimate; return the Gibbs steps that it took, over all chains."""
        if self.gradient is None:
            gradients = Hidden(self.machine, self.machine.weight.dtype).gradient()
            accumulate(self.machine.parameters, gradients)
            return 0
        start = self.states
        if start is None:
            size = (self.chains,)
            start = self.data[torch.randint(len(self.data), size, generator=self.generator)]
        estimate = self.gradient.backward(start, generator=self.generator)
        if self.persistent:
            self.states = estimate.last
        return estimate.evaluations


@final
@dataclass(frozen=True)
class Coupled:
    """Coupled chains of a machine as a kernel, for use with `Average(1)` on the CPU.

    Args:
        machine: the machine to simulate.
        longest: number of steps after which a pair stops even if it has not met.
        tries: maximum number of proposals of a rejection; the last one is accepted.

    `Estimate.evaluations` counts the Gibbs steps of both chains.
    """

    machine: Gibbs
    longest: int = 100
    tries: int = 10

    def chains(self, x0: Start, context: Context) -> int:
        """Return one pair per row of x0."""
        return count_states(x0, "Coupled")

    def run(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Pieces:
        """Run every pair until it has met."""
        if int(lengths.longest.max()) != 1:
            raise ValueError("estimator must be Average(1) with Coupled, whose lengths are its own")
        machine = self.machine
        with torch.no_grad():
            state, _ = machine.start(x0, context)
            check(machine.fault(state))
            walk = machine.walk(state, machine.noise(1, x0, generator), context)
        weight, visible, hidden = (p.detach().numpy() for p in machine.parameters)
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        v, behind, owner = walk.state.x.numpy(), x0.numpy(), np.arange(len(x0))
        last, steps = v.copy(), len(x0)
        pieces = [(v, owner, 1.0)]
        for _ in range(self.longest):
            apart = (v != behind).any(1)
            v, behind, owner = v[apart], behind[apart], owner[apart]
            if not len(owner):
                break
            h, h_behind = maximally_coupled(
                v @ weight + hidden, behind @ weight + hidden, self.tries, rng
            )
            v, behind = maximally_coupled(
                h @ weight.T + visible, h_behind @ weight.T + visible, self.tries, rng
            )
            last[owner] = v
            steps += 2 * len(owner)
            pieces += [(v, owner, 1.0), (behind, owner, -1.0)]
            if sum(len(points) for points, _, _ in pieces) >= _POINTS:
                yield _measure(pieces)
                pieces = []
        if pieces:
            yield _measure(pieces)
        return Outcome(torch.from_numpy(last), steps, accepted=len(x0), invalid=0)


def maximally_coupled(
    first: Array, second: Array, tries: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw binary rows from products of Bernoulli laws P and Q, equal as often as possible.

    Args:
        first: logits of P, (rows, units).
        second: logits of Q.
        tries: maximum number of proposals for unequal rows; the last one is accepted.
        rng: source of the randomness.

    Returns:
        A draw of P and a draw of Q for each row.
    """
    p, q = (1.0 / (1.0 + np.exp(-logits)) for logits in (first, second))
    constant = (np.logaddexp(0.0, first) - np.logaddexp(0.0, second)).sum(1)
    pair = _Pair(p, q, first - second, constant)
    # Uniforms in the precision of the logits, as those of `Gibbs` are.
    x = (rng.random(first.shape, dtype=first.dtype) < pair.p).astype(first.dtype)
    # P(x)/Q(x) is small enough: x may be the draw of both.
    apart = rng.standard_exponential(len(x)) < pair.log_ratio(x)
    y, todo = x.copy(), (apart, apart)
    for _ in range(tries):
        rows = (todo[0] | todo[1]).nonzero()[0]
        if not len(rows):
            break
        # Common uniforms keep chains that have not met close to each other.
        u = rng.random(first[rows].shape, dtype=first.dtype)
        some, left = _Pair(*(field[rows] for field in pair)), []
        for out, law, sign, mine in ((x, some.p, 1.0, todo[0]), (y, some.q, -1.0, todo[1])):
            drawn = (u < law).astype(first.dtype)
            refused = rng.standard_exponential(len(rows)) >= sign * some.log_ratio(drawn)
            out[rows] = np.where(mine[rows, None], drawn, out[rows])
            left.append(mine.copy())
            left[-1][rows] &= refused
        todo = left[0], left[1]
    return x, y


class _Pair(NamedTuple):
    """Probabilities of P and Q, and log P(x)/Q(x) = x·difference − constant."""

    p: Array  # (rows, units)
    q: Array  # (rows, units)
    difference: Array  # (rows, units)
    constant: Array  # (rows,)

    def log_ratio(self, x: Array) -> Array:
        """Return the log-ratios of x, (rows,)."""
        ratio: Array = (x * self.difference).sum(1) - self.constant
        return ratio


def _measure(pieces: list[tuple[Array, Array, float]]) -> Measure:
    points, owner = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
    signs = np.concatenate([np.full(len(of), sign) for _, of, sign in pieces])
    return Measure(torch.from_numpy(points), torch.from_numpy(owner), torch.from_numpy(signs))


_NAMES = {"bars": "bars and stripes", "digits": "digits"}
_LOOKS: dict[str, tuple[str, str]] = {
    "cd-1": ("#bbbbbb", ":"),
    "cd-7": (COLOURS["short"], "-"),
    "pcd-1": (CYCLE[4], ":"),
    "pcd-7": (CYCLE[4], "-"),
    "ucd": (CYCLE[3], "-"),
    "mlmc": (COLOURS["mlmc"], "-"),
    "mlmc-sum": (CYCLE[2], "-"),
    "mlmc-persistent": (CYCLE[5], "-"),
    "average": (COLOURS["average"], "--"),
    "exact": (COLOURS["theory"], "--"),
}


def draw(folder: Path, findings: Findings) -> Path:
    """Draw log-likelihood against Gibbs steps and seconds, one row of panels per data set."""
    summary = findings.summary["data"]
    with panels(2 * len(summary), folder / "boltzmann", rows=len(summary)) as (_, axes):
        for row, (name, numbers) in enumerate(summary.items()):
            steps, seconds = axes[2 * row : 2 * row + 2]
            top = numbers["ceiling"]
            room = top - min(each["last"]["mean"] for each in numbers["methods"].values())
            for method in LABELS:
                mine = [r for r in findings.rows if (r["data"], r["method"]) == (name, method)]
                seeds = dict.fromkeys(row["seed"] for row in mine)
                runs = [[row for row in mine if row["seed"] == seed] for seed in seeds]
                _curve(seconds, runs, "seconds", method, numbers["unit"])
                if method == "exact":
                    end = numbers["methods"][method]["last"]["mean"]
                    colour, style = _LOOKS[method]
                    steps.axhline(end, color=colour, ls=style, lw=1.2, label=LABELS[method])
                else:
                    _curve(steps, runs, "steps", method, numbers["unit"])
            for panel, label in ((steps, "Gibbs steps per chain"), (seconds, "processor seconds")):
                panel.axhline(top, color=COLOURS["theory"], lw=0.8)
                panel.set(xlabel=label, ylim=(top - 1.35 * room, top + 0.05 * room))
                log_axes(panel, "x")
            per = "of all rows" if numbers["unit"] > 1 else "of a row"
            steps.set_ylabel(f"exact log-likelihood {per}")
            steps.set_title(f"{_NAMES[name]}: mean over seeds, and range")
            seconds.set_title("thin line: upper bound of any model")
            if row == 0:  # beside the panels, which have no free corner
                seconds.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1.02, 1.0))
    return folder / "boltzmann.png"


def _draw_samples(folder: Path, findings: Findings) -> None:
    """Show exact draws of the machine of the first seed, one line per method."""
    summary = findings.summary["data"]
    with panels(len(summary), folder / "samples") as (figure, axes):
        figure.set_size_inches(7.0 * len(summary), 4.0)
        for panel, (name, numbers) in zip(axes, summary.items(), strict=True):
            side, height = numbers["side"], numbers["side"] + 1
            samples = np.array([numbers["samples"][method] for method in LABELS])
            tiles = samples.reshape(*samples.shape[:2], side, side)
            tiles = np.pad(tiles, ((0, 0), (0, 0), (1, 0), (1, 0)))  # white lines between them
            picture = tiles.swapaxes(1, 2).reshape(len(LABELS) * height, -1)
            panel.imshow(picture, cmap="Greys", vmin=0.0, vmax=1.0, aspect="equal")
            panel.set_yticks(height * (np.arange(len(LABELS)) + 0.5), list(LABELS.values()))
            panel.set(title=f"{_NAMES[name]}: draws of the trained machines", xticks=[])
            panel.grid(visible=False)


def _curve(axes: Axes, runs: list[list[dict[str, Any]]], work: str, method: str, unit: int) -> None:
    """Draw the mean over seeds at each iteration, at the mean work so far."""
    colour, style = _LOOKS[method]
    x = np.mean([[row[work] for row in run] for run in runs], axis=0)
    y = unit * np.array([[row["last"] for row in run] for run in runs])
    axes.plot(x, y.mean(0), ls=style, color=colour, lw=1.6, label=LABELS[method])
    axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, lw=0)


_TITLES = {
    "bars": "Bars and stripes: log-likelihood of 32 rows",
    "digits": "Digits: log-likelihood of a row",
}
_COLUMNS = ("method", "steps", "last", "averaged", "MLMC − it", "equal steps")
_WIDE = (*_COLUMNS, "equal steps, averaged", "ms")
_NOTE = (
    "Mean over seeds ± half of its 95 % interval. steps: Gibbs steps per chain and iteration, for "
    "UCD those of both chains. averaged: of the averaged iterate. MLMC − it: paired difference of "
    "the last iterates after the same number of iterations; equal steps: after the same number of "
    "Gibbs steps. The average of 128 steps and the exact gradient are references: they show what "
    "more work, or no error at all, would give."
)
_MORE = (
    "equal steps, averaged: the same for the averaged iterates. ms: processor time per iteration."
)


def _show(summary: dict[str, Any], console: Console) -> None:
    """Print one table per data set, within 80 columns."""
    last = [label for method, label in LABELS.items() if method not in _REFERENCES][-1]
    for name, numbers in summary["data"].items():
        shown = table(_title(name, numbers), *_COLUMNS)
        for cells in _rows(numbers):
            shown.add_row(*cells[: len(_COLUMNS)], end_section=cells[0] == last)
        console.print(shown)
    console.print(_NOTE)


def markdown(summary: dict[str, Any]) -> str:
    """Return the same tables in Markdown, with two more columns."""
    lines = []
    for name, numbers in summary["data"].items():
        lines += [f"**{_title(name, numbers)}**", "", f"| {' | '.join(_WIDE)} |"]
        lines.append(f"|---|{'---:|' * (len(_WIDE) - 1)}")
        lines += [*(f"| {' | '.join(cells)} |" for cells in _rows(numbers)), ""]
    return "\n".join([*lines, f"{_NOTE} {_MORE}", ""])


def _title(name: str, numbers: dict[str, Any]) -> str:
    return f"{_TITLES[name]}, {numbers['iterations']} iterations, at most {numbers['ceiling']:.1f}"


def _rows(numbers: dict[str, Any]) -> Iterator[list[str]]:
    for method, label in LABELS.items():
        own = numbers["methods"][method]
        differences = numbers["differences"].get(method, {})
        last, averaged = (differences.get(iterate, {}) for iterate in _ITERATES)
        digits = 1 if numbers["unit"] > 1 else 2
        yield [
            label,
            f"{own['steps_an_iteration']:.1f}" if method != "exact" else "–",
            _value(own["last"], digits),
            _value(own["averaged"], digits),
            _value(last.get("iterations"), digits),
            _value(last.get("steps"), digits),
            _value(averaged.get("steps"), digits),
            f"{1e3 * own['seconds_an_iteration']:.1f}",
        ]


def _value(number: dict[str, Any] | None, digits: int) -> str:
    """Format a mean and half of its interval."""
    if number is None:
        return "–"
    low, high = number["interval"]
    mean = f"{number['mean']:.{digits}f}"
    return mean if low is None else f"{mean}±{(high - low) / 2.0:.{digits}f}"
