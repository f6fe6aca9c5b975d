"""Self-normalised importance sampling as a ladder of lengths, with antithetic differences.

A simulation of length L is not a chain but L blocks of k independent draws z of the proposal q,
with importance weights w. Of p blocks, H^{(p)} = Σ_j w_j H(z_j) / Σ_j w_j over their p·k draws.
For a shorter length p < L, the blocks are divided into ⌊L/p⌋ disjoint groups of p, and H^{(p)} is
the mean over the groups. This has the same expectation as a single group and far less variance of
H^{(L)} − H^{(p)}, since terms linear in the weights cancel.

With S_b the sum of the weights of block b and S_g that of a group of blocks, the measure
Σ_j a_j H^{(p_j)} on lengths gives the draw z of block b the coefficient

    c = (w_z / S_b) · Σ_j (a_j / groups_j) · S_b / S_{g_j(b)},

where g_j(b) is the group of p_j blocks that contains b, and groups_j is the number of groups with
non-zero weight. A group with zero weight is left out of the mean, so the coefficients of a
simulation always sum to 1. The states of a long simulation are not stored: they are drawn again,
with the same random numbers, once their coefficients are known.

The weights of blocks are only some thousand numbers, so the overhead of calls dominates: NumPy on
the host takes a third of the time of torch. Simulations of all lengths are stored in one flat list,
block by block.

With `Average(1)` this is the IWAE gradient; `MLMC` and `MLMCSum` reduce its bias, and `MLMCSum`
with an infinite truncation removes it.

`ProposingKernel` is what this kernel and `ISIR` share: draws of a proposal q and their weights
w = π/q.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from mlmcgrad._checks import whole
from mlmcgrad.kernels.base import (
    MEMORY,
    Context,
    Outcome,
    Pieces,
    Start,
    check_rows,
    check_unchanged,
    count_states,
    described,
    take,
    tensors_in,
    transform,
)
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Floats, Integers, Measure, chunk_size, fetch, pick
from mlmcgrad.store import Remembered

# Draws that are in memory at once. Where one simulation alone has more, only weights are kept.
_PART_DRAWS = 2**16
# The candidates of one step of all chains are in memory at once.
MOST_CANDIDATES = 10**8
_NEARLY_ALL = 0.999
# Logarithms of 0 and weights that underflow are meant, whatever the caller has told NumPy.
QUIET = np.errstate(all="ignore")


class FirstWeights(NamedTuple):
    """The weights of the first block of some chains: independent draws of q, k for each."""

    log_sum: Floats  # (chains,): log Σ w
    share: Floats  # (chains, k): w / Σ w


class WeightedPiece(NamedTuple):
    """A piece of a simulation: its measure, and the weights of draws within their block."""

    measure: Measure
    share: Tensor  # (points,) float64: w / Σ w over the block; 0 outside of the blocks that count
    first: FirstWeights  # of the chains that begin in this piece


@dataclass(frozen=True)
class ProposingKernel(ABC):
    """Draws of q in blocks, with their weights; see `ISIR` for the arguments."""

    log_weight: Callable[..., Tensor]
    propose: Callable[..., Tensor]
    candidates: int
    chunk: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        whole(self.candidates, "candidates")
        if self.chunk is not None:
            whole(self.chunk, "chunk")

    def chains(self, x0: Start, context: Context) -> int:
        """Return one for each row of x0, or for x0=None of the first tensor in the context."""
        chains = self._count(x0, context)
        if chains * self.candidates > MOST_CANDIDATES:
            raise ValueError(
                f"candidates × chains must be at most {MOST_CANDIDATES:,}, which are in memory at "
                f"once, got {self.candidates:,} × {chains:,}; use fewer of them, and longer chains"
            )
        return chains

    @abstractmethod
    def parts(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Generator[WeightedPiece, None, Outcome]:
        """Yield what `run` yields, with the weights within blocks; return the outcome."""

    @final
    def run(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Pieces:
        """Simulate; the measure has every draw, chain by chain, those of weight 0 too."""
        parts = self.parts(x0, context, lengths, generator)
        return transform(parts, lambda part: (part.measure,))

    def _count(self, x0: Start, context: Context) -> int:
        if isinstance(x0, Remembered):
            return len(x0.points)
        if x0 is not None:
            return count_states(x0, type(self).__name__)
        tensors = [tensor for tensor in tensors_in(context) if tensor.dim()]
        if not tensors:
            raise ValueError(
                "x0=None needs a context tensor with one row per chain, which says how many "
                "chains there are; got none"
            )
        return len(tensors[0])

    def fresh(
        self, context: Context, owner: Tensor, generator: torch.Generator
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Make draws for these rows, and weight them, chunk by chunk."""
        states, log_weights = [], []
        size = chunk_size(self.chunk, generator.device)
        for who in owner.split(size) if len(owner) else ():
            rows = take(context, who)
            states.append(self.draw(rows, len(who), generator))
            log_weights.append(self.weigh(states[-1], rows))
        return states, log_weights

    def weigh(self, z: Tensor, context: Context) -> Tensor:
        """Return log weights in float64, (rows,); by halves where the memory does not suffice."""
        version = z._version
        try:
            log_w = self.log_weight(z, *context)
        except torch.OutOfMemoryError:
            if len(z) == 1:
                raise
            log_w = None
        if log_w is None:  # after the exception has let go of the memory
            warnings.warn(MEMORY, RuntimeWarning, stacklevel=2)
            middle = len(z) // 2
            parts = slice(None, middle), slice(middle, None)
            return torch.cat([self.weigh(z[part], take(context, part)) for part in parts])
        check_rows("log_weight", log_w, z)
        check_unchanged("log_weight", z, version)
        return log_w.double()

    def draw(self, context: Context, rows: int, generator: torch.Generator) -> Tensor:
        """Draw from q once for each row."""
        z = self.propose(rows, *context, generator=generator)
        if not isinstance(z, Tensor) or z.dim() == 0 or z.shape[0] != rows:
            raise ValueError(
                f"propose(rows, *context, generator) must return one draw per row, here "
                f"({rows}, …), got {described(z)}"
            )
        return z


@QUIET
def usable(log_w: Tensor) -> tuple[Floats, int]:
    """Log weights with −∞ for those that are NaN or +∞, and how many these are."""
    values: Floats = log_w.numpy()
    if values.max() < np.inf:  # which a NaN is not
        return values, 0
    bad = ~(values < np.inf)
    return np.where(bad, -np.inf, values), int(np.count_nonzero(bad))


def check_alive(log_w: Floats, chains: Integers, what: str) -> None:
    """Refuse chains without any weight.

    Args:
        log_w: the largest log weight of each chain, (chains,).
        chains: their numbers.
        what: what has no weight.
    """
    dead = log_w == -np.inf
    if dead.any():
        raise FloatingPointError(
            f"log_weight is −inf (or NaN) for {what} of {dead.sum()} chains (chain "
            f"{chains[dead.argmax()]} is one of them), so there is nothing to select; "
            "use a proposal that covers the target, or more candidates"
        )


def count_collapsed(share: Floats) -> int:
    """In how many blocks one of several candidates has nearly all of the weight.

    Args:
        share: normalised weights, (chains, k).
    """
    return int((share > _NEARLY_ALL).sum()) if share.shape[1] > 1 else 0


@QUIET
def shares(log_w: Floats) -> tuple[Floats, Floats]:
    """Return block sums log S_b, (blocks,), and shares w / S_b, (blocks, k), 0 where S_b = 0."""
    columns = np.ascontiguousarray(log_w.T)  # k is small: sums over a short last axis are slow
    top = columns.max(0)
    top[top == -np.inf] = 0.0  # −∞ − (−∞)
    w = np.exp(columns - top)
    total = w.sum(0)
    log_sum: Floats = np.log(total) + top
    total[total == 0.0] = 1.0
    return log_sum, np.ascontiguousarray((w / total).T)


def uniforms(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw uniforms in double precision."""
    return torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator)


@final
@dataclass(frozen=True)
class Importance(ProposingKernel):
    """Importance sampling whose lengths are numbers of blocks of k draws.

    Args:
        log_weight: log w = log π − log q up to a constant for each row,
            `log_weight(z, *context) -> (rows,)`.
        propose: `propose(rows, *context, generator=generator) -> z` makes one draw of q for each
            of `rows` rows; tensors in the context have that many rows, one for each draw.
        candidates: k ≥ 1, the draws of a block.
        chunk: rows that are drawn and weighted in one call: it bounds the memory. By default 1024
            on a processor and 8192 on other devices.

    Blocks are independent, so there is no initial state: x0 is None. `Estimate.last` is one draw of
    each simulation, chosen by its weight, and the acceptance is 1.

    Example:
        >>> import mlmcgrad as mg
        >>> theta = torch.zeros((), requires_grad=True)  # target N(1, 1), proposal N(0, 1)
        >>> draw = lambda rows, y, generator: torch.randn(rows, generator=generator)
        >>> kernel = Importance(lambda z, y: z * 1.0, draw, candidates=8)
        >>> gradient = mg.MarkovGradient(kernel, lambda z, y: theta * z, mg.MLMCSum(64))
        >>> rng = torch.Generator().manual_seed(0)
        >>> estimate = gradient.backward(None, torch.zeros(4000), generator=rng)
        >>> abs(theta.grad.item() - 1.0) < 0.1
        True

    Reference:
        Blanchet, Glynn (2015), "Unbiased Monte Carlo for optimization and functions of
        expectations via multi-level randomization".
    """

    @torch.no_grad()
    def parts(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Generator[WeightedPiece, None, Outcome]:
        """Simulate, with the weights within all blocks; see `ProposingKernel.parts`."""
        if x0 is not None:
            raise ValueError(
                "x0 must be None, since importance sampling has no state to resume from, got "
                f"{described(x0)}"
            )
        longest = lengths.longest.numpy()
        most = int(longest.max()) * self.candidates
        if most > MOST_CANDIDATES:
            raise ValueError(
                f"candidates × length must be at most {MOST_CANDIDATES:,}, whose weights are in "
                f"memory at once, got {most:,}; lower the truncation or the candidates"
            )
        last, evaluations, invalid, collapsed = [], 0, 0, 0
        for chains in self._parts_of(longest):
            blocks = Blocks.of(longest[chains])
            owner = torch.from_numpy(chains.repeat(self.candidates * longest[chains]))
            weights, pieces = self._draw(context, owner, generator)
            weights, uniform = fetch(weights, uniforms(generator, len(chains)))
            log_w, bad = usable(weights.reshape(-1, self.candidates))
            log_sum, share = shares(log_w)
            part = lengths.select(torch.from_numpy(chains))
            weight, total = block_weights(log_sum, blocks, part)
            check_alive(total, chains, "every draw")
            chosen = choose(log_sum, share, blocks, total, uniform.numpy())
            evaluations, invalid = evaluations + log_w.size, invalid + bad
            first = FirstWeights(log_sum[blocks.first], share[blocks.first])
            collapsed += count_collapsed(first.share)
            coefficient = (torch.from_numpy(weight)[:, None] * torch.from_numpy(share)).flatten()
            flat, begin = torch.from_numpy(share.ravel()), 0
            for z in pieces:
                end = begin + len(z)
                here = chosen[(chosen >= begin) & (chosen < end)] - begin
                if len(here):
                    last.append(pick(z, torch.from_numpy(here)))
                who, c, within = (t[begin:end] for t in (owner, coefficient, flat))
                yield WeightedPiece(Measure(z, who, c), within, first)
                begin, first = end, FirstWeights(first.log_sum[:0], first.share[:0])
        return Outcome(torch.cat(last), evaluations, float(longest.sum()), invalid, collapsed)

    def _parts_of(self, lengths: Integers) -> list[Integers]:
        """Numbers of chains that are in memory at once; a long one is alone."""
        numbers, draws = np.arange(len(lengths)), lengths * self.candidates
        if draws.sum() <= _PART_DRAWS:
            return [numbers]
        long = draws > _PART_DRAWS
        after = np.append(False, long[:-1])
        part = (draws.cumsum() - 1) // _PART_DRAWS + long.cumsum() + after.cumsum()
        return np.split(numbers, np.flatnonzero(np.diff(part)) + 1)

    def _draw(
        self, context: Context, owner: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Iterable[Tensor]]:
        """Return log weights, (draws,), and draws; those of a long simulation are made twice."""
        if len(owner) <= _PART_DRAWS or owner[0] != owner[-1]:
            states, log_weights = self.fresh(context, owner, generator)
            return torch.cat(log_weights), (torch.cat(states),)
        replay = torch.Generator(generator.device)
        replay.set_state(generator.get_state())
        size = chunk_size(self.chunk, generator.device)
        parts = owner.split(size)
        # One piece of memory: small ones between large ones would leave holes.
        log_w = torch.empty(len(owner), dtype=torch.float64, device=generator.device)
        for rows, out in zip(parts, log_w.split(size), strict=True):
            out.copy_(self.fresh(context, rows, generator)[1][0])
        return log_w, (self.draw(take(context, rows), len(rows), replay) for rows in parts)


class Blocks(NamedTuple):
    """The positions of the blocks of some chains."""

    chain: Integers  # (blocks,): which of these chains, from 0
    first: Integers  # (chains,): the first block of each chain
    end: Integers  # (chains,): one more than the last

    @classmethod
    def of(cls, lengths: Integers) -> Blocks:
        """The blocks of chains of these lengths."""
        end = lengths.cumsum()
        return cls(np.arange(len(lengths)).repeat(lengths), end - lengths, end)


@QUIET
def block_weights(log_sum: Floats, blocks: Blocks, lengths: Lengths) -> tuple[Floats, Floats]:
    """The weight of each block in the estimate.

    Args:
        log_sum: log S_b, (blocks,).
        blocks: where they are.
        lengths: of these chains.

    Returns:
        The weights, (blocks,), and log Σ_b S_b of each chain, (chains,).
    """
    terms, weights = lengths.terms.numpy(), lengths.weights.numpy()
    used = weights != 0.0
    used[:, -1] = True  # the whole simulation: its sum is returned
    groups = np.where(used, terms[:, -1:] // terms, 0)  # (chains, terms)
    count, inside, length = groups.ravel(), (groups * terms).ravel(), terms.ravel()
    # One entry for each block and each term in which it has a part; those of a group follow
    # each other.
    begin = blocks.first.repeat(terms.shape[1]) - (inside.cumsum() - inside)
    block = begin.repeat(inside)
    block += np.arange(len(block))
    size = length.repeat(count)  # of each group
    start = size.cumsum() - size
    log_part = log_sum[block]
    top = np.maximum.reduceat(log_part, start)
    top[top == -np.inf] = 0.0  # −∞ − (−∞)
    part = np.exp(log_part - top.repeat(size))
    total = np.add.reduceat(part, start)  # S_g / exp(top), 0 or at least 1
    whole = (count.cumsum() - count).reshape(groups.shape)[:, -1]
    of_chain = np.log(total[whole]) + top[whole]
    living = count
    if not total.all():
        term = np.arange(len(count)).repeat(count)
        living = np.bincount(term, total > 0.0, len(count))
        total[total == 0.0] = 1.0
    share = (weights.ravel() * length / np.maximum(living, 1)).repeat(count) / total
    weight: Floats = np.bincount(block, share.repeat(size) * part, len(log_sum)).astype(float)
    return weight, of_chain


@QUIET
def choose(log_sum: Floats, share: Floats, blocks: Blocks, total: Floats, u: Floats) -> Integers:
    """One draw of each chain by its weight, as an index among all draws, (chains,).

    Args:
        log_sum: log S_b, (blocks,).
        share: w / S_b, (blocks, k).
        blocks: where they are.
        total: log Σ w of each chain, (chains,).
        u: a uniform for each chain, (chains,).
    """
    cumulative = (np.exp(log_sum - total[blocks.chain])[:, None] * share).ravel().cumsum()
    ends = cumulative[blocks.end * share.shape[1] - 1]
    begin = np.concatenate([[0.0], ends[:-1]])
    # Not quite to the end of a chain, where rounding would choose the next one.
    u = np.minimum(u, 1.0 - 1e-9)
    return np.searchsorted(cumulative, begin + u * (ends - begin), side="right")
