"""Restricted Boltzmann machines for `boltzmann`: data, likelihood, training, gradients of log Z.

With few hidden units everything is known by enumeration of the 2^q hidden states:

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
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
from mlmcgrad.paper.experiments.settings import Pictures
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
_LATE = 3.0  # η of the averaged iterate, see `boltzmann.py`
_STREAMS = 1000  # seeds of generators are this many times the seed of the run, and a few more
_CHUNK = 2**13  # states are small
_POINTS = 4096  # in a measure of coupled chains, so that the overhead of passing it on is small


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
