"""Unbiased contrastive divergence: two Gibbs chains, one a step behind, that meet.

    Ĥ = H(v_1) + Σ_{t≥1} {H(v_{t+1}) − H(ṽ_t)},     ṽ_0 = v_0,   until v_{t+1} = ṽ_t.

Both chains have the law of block Gibbs, so E[H(ṽ_t)] = E[H(v_t)] and the sum telescopes to the
limit. Both layers are drawn from maximal couplings, h and h̃ given v and ṽ, then v and ṽ given h and
h̃, by rejection: where the chains do not meet, both are drawn again and again, each kept with the
probability that a maximal coupling asks for. As in the published code, a pair stops after `longest`
steps and a rejection after `tries`: both leave a small bias.

A few pairs take long to meet, so most of the calls are for a handful of rows: they are made in
NumPy, which takes half of torch's time there.

Reference:
    Qiu, Zhang, Wang (2020), Unbiased contrastive divergence algorithm for training energy-based
    latent variable models, ICLR; after Jacob, O'Leary, Atchadé (2020), Unbiased Markov chain Monte
    Carlo methods with couplings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from mlmcgrad.kernels import Gibbs, Outcome
from mlmcgrad.kernels.base import Context, Pieces, Start, count_states
from mlmcgrad.measure import Measure
from mlmcgrad.plan import Plan

Array: TypeAlias = NDArray[Any]

_ENOUGH = 4096  # points of a measure, so that handing it over costs little


@final
@dataclass(frozen=True)
class Coupled:
    """Coupled chains of a machine as a kernel, to be used with `Average(1)`; on the CPU.

    Args:
        machine: whose chains.
        longest: steps after which a pair stops that has not met.
        tries: proposals of a rejection; the last one is taken.

    `Estimate.evaluations` counts the Gibbs steps of both chains.
    """

    machine: Gibbs
    longest: int = 100
    tries: int = 10

    def chains(self, x0: Start, context: Context) -> int:
        """One pair for each row of x0."""
        return count_states(x0, "Coupled")

    def run(self, x0: Start, context: Context, plan: Plan, generator: torch.Generator) -> Pieces:
        """Run every pair until it has met."""
        if int(plan.longest.max()) != 1:
            raise ValueError("estimator must be Average(1) with Coupled, whose lengths are its own")
        machine = self.machine
        with torch.no_grad():
            state, _ = machine.start(x0, context)
            (walk,) = machine.walk(state, machine.noise(1, x0, generator), context)
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
            if sum(len(points) for points, _, _ in pieces) >= _ENOUGH:
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
        tries: proposals for rows that are not equal; the last one is taken.
        rng: source of the randomness.

    Returns:
        A draw of P and a draw of Q for each row.
    """
    pair = _Pair.of(first, second)
    x = (_uniforms(first, rng) < pair.p).astype(first.dtype)
    # P(x)/Q(x) is small enough: x may be the draw of both.
    apart = rng.standard_exponential(len(x)) < pair.log_ratio(x)
    y, todo = x.copy(), (apart, apart)
    for _ in range(tries):
        rows = (todo[0] | todo[1]).nonzero()[0]
        if not len(rows):
            break
        # Common uniforms keep chains that have not met close to each other.
        u, some, left = _uniforms(first[rows], rng), pair.select(rows), []
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

    @classmethod
    def of(cls, first: Array, second: Array) -> _Pair:
        """For logits."""
        constant = (np.logaddexp(0.0, first) - np.logaddexp(0.0, second)).sum(1)
        p, q = (1.0 / (1.0 + np.exp(-logits)) for logits in (first, second))
        return cls(p, q, first - second, constant)

    def log_ratio(self, x: Array) -> Array:
        """The log-ratio of rows, (rows,)."""
        ratio: Array = (x * self.difference).sum(1) - self.constant
        return ratio

    def select(self, rows: Array) -> _Pair:
        """Some of the rows."""
        return _Pair(*(field[rows] for field in self))


def _uniforms(like: Array, rng: np.random.Generator) -> Array:
    # In the precision of the logits, as those of `Gibbs` are.
    uniforms: Array = rng.random(like.shape, dtype=like.dtype)
    return uniforms


def _measure(pieces: list[tuple[Array, Array, float]]) -> Measure:
    points, owner = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
    signs = np.concatenate([np.full(len(of), sign) for _, of, sign in pieces])
    return Measure(torch.from_numpy(points), torch.from_numpy(owner), torch.from_numpy(signs))
