"""Self-normalised importance sampling as a ladder of lengths, with antithetic differences.

Not a chain: a simulation of length L is L blocks of k independent draws z of the proposal q, with
importance weights w. Of p blocks, H^{(p)} = Σ_j w_j H(z_j) / Σ_j w_j over their p·k draws. Where
the estimator asks for a shorter length p < L, the blocks are cut into ⌊L/p⌋ disjoint groups of p,
and H^{(p)} is the mean over the groups: the same expectation, and far less variance of
H^{(L)} − H^{(p)} than with one group alone, since what is linear in the weights cancels.

With S_b the sum of the weights of block b, the draw z of block b has the coefficient
c = (w_z / S_b) · (weight of block b), see `groups.py`: arithmetic on log weights in float64, for
simulations of all lengths at once. A group in which no draw has any weight is left out of its mean,
so that the coefficients of a simulation always sum to 1. The states of a long simulation are not
kept meanwhile: they are drawn again, with the same random numbers, when their coefficients are
known.

`Average(1)` makes it IWAE's gradient; `MLMC` and `MLMCSum` remove its bias, and `MLMCSum` with an
infinite truncation all of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.kernels.base import Context, Outcome, Pieces, Simulation, Start, take
from mlmcgrad.kernels.groups import Blocks, block_weights, choose, shares, uniforms
from mlmcgrad.kernels.proposing import (
    MOST_CANDIDATES,
    FirstBlock,
    FirstWeights,
    Part,
    ProposingKernel,
    check_alive,
    count_collapsed,
    insert,
    usable,
)
from mlmcgrad.measure import Integers, Measure, pick
from mlmcgrad.plan import Plan

# Draws that are in memory at once. Where one simulation alone has more, only weights are kept.
_PART_DRAWS = 2**16


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
        chunk: rows that are drawn and weighed in one call: it bounds the memory.

    Nothing is carried from block to block, so there is no state to start from: x0 is None, or a
    `FirstBlock`. `Estimate.last` is one draw of each simulation, chosen by its weight, and the
    acceptance is 1.

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

    def run(self, x0: Start, context: Context, plan: Plan, generator: torch.Generator) -> Pieces:
        """Simulate; the measure has every draw, chain by chain, those of weight 0 too."""
        simulation = Simulation(self.parts(x0, context, plan, generator))
        for part in simulation:
            yield part.measure
        return simulation.outcome

    @torch.no_grad()
    def parts(
        self, x0: Start, context: Context, plan: Plan, generator: torch.Generator
    ) -> Generator[Part, None, Outcome]:
        """What `run` yields, with the weights within blocks, all of them; returns the outcome."""
        if x0 is not None:
            if not isinstance(x0, FirstBlock):
                raise ValueError(
                    f"x0 must be None or a FirstBlock, since importance sampling has no state to "
                    f"go on from, got {type(x0).__name__}"
                )
            self.check_block(x0)
        lengths = plan.longest.numpy()
        most = int(lengths.max()) * self.candidates
        if most > MOST_CANDIDATES:
            raise ValueError(
                f"candidates × length must be at most {MOST_CANDIDATES:,}, whose weights are in "
                f"memory at once, got {most:,}; lower the truncation or the candidates"
            )
        last, evaluations, invalid, collapsed = [], 0, 0, 0
        for chains in self._parts_of(lengths):
            part = plan if len(chains) == len(lengths) else plan.select(torch.from_numpy(chains))
            blocks = Blocks.of(lengths[chains])
            draws = self._draw(x0, context, chains, blocks, generator)
            log_w, bad = usable(draws.log_w)
            log_sum, share = shares(log_w)
            weight, total = block_weights(log_sum, blocks, part)
            check_alive(total, chains, "every draw")
            u = uniforms(generator, len(chains)).numpy()
            chosen = choose(log_sum, share, blocks, total, u)
            evaluations, invalid = evaluations + log_w.size, invalid + bad
            first = FirstWeights(log_sum[blocks.first], share[blocks.first])
            collapsed += count_collapsed(first.share)
            coefficient = torch.from_numpy((weight[:, None] * share).ravel())
            flat, begin = torch.from_numpy(share.ravel()), 0
            for z in draws.pieces:
                end = begin + len(z)
                here = chosen[(chosen >= begin) & (chosen < end)] - begin
                if len(here):
                    last.append(pick(z, torch.from_numpy(here)))
                owner, c, within = (
                    t[begin:end].to(z.device) for t in (draws.owner, coefficient, flat)
                )
                yield Part(Measure(z, owner, c), within, first)
                begin, first = end, FirstWeights(first.log_sum[:0], first.share[:0])
        return Outcome(torch.cat(last), evaluations, float(lengths.sum()), invalid, collapsed)

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
        self,
        x0: FirstBlock | None,
        context: Context,
        chains: Integers,
        blocks: Blocks,
        generator: torch.Generator,
    ) -> _Draws:
        """All draws of these chains; those of a long one are made again when they are taken."""
        k = self.candidates
        owner = torch.from_numpy(chains.repeat(k * (blocks.end - blocks.first)))
        start, who = None, owner
        if x0 is not None:
            start = _first(x0, torch.from_numpy(chains))
            given = np.zeros(len(blocks.chain), dtype=bool)
            given[blocks.first] = True
            given = given.repeat(k)
            who = owner[torch.from_numpy(~given)]
        if len(chains) == 1 and len(owner) > _PART_DRAWS:
            weights, pieces = self._twice(context, who, start, generator)
            log_w = torch.cat([start.log_weight[0], weights]) if start else weights
            return _Draws(log_w.reshape(-1, k), pieces, owner)
        states, log_weights = self.fresh(context, who, generator)
        if start is None:
            z, log_w = torch.cat(states), torch.cat(log_weights).reshape(-1, k)
        else:
            where = torch.from_numpy(given)
            z = insert(states, start.points.flatten(0, 1), where)
            log_w = insert(log_weights, start.log_weight.flatten(), where).reshape(-1, k)
        return _Draws(log_w, iter((z,)), owner)

    def _twice(
        self, context: Context, who: Tensor, start: FirstBlock | None, generator: torch.Generator
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """Weights of one long simulation, and its draws, made again when they are taken."""
        parts, state = who.split(self.chunk), generator.get_state()
        # One piece of memory each: small ones between large ones would leave holes.
        log_w = torch.empty(len(who), dtype=torch.float64, device=generator.device)
        before = state.new_empty(len(parts), len(state))
        for rows, out, then in zip(parts, log_w.split(self.chunk), before, strict=True):
            then.copy_(generator.get_state())
            out.copy_(self.fresh(context, rows, generator)[1][0])

        def pieces() -> Iterator[Tensor]:
            if start is not None:
                yield start.points[0]
            replay = torch.Generator(generator.device)
            for rows, then in zip(parts, before, strict=True):
                replay.set_state(then.clone())
                yield self.draw(take(context, rows), len(rows), replay)

        return log_w, pieces()


@dataclass(frozen=True)
class _Draws:
    """Draws of some chains, block after block."""

    log_w: Tensor  # (blocks, k) float64
    pieces: Iterator[Tensor]  # the draws, (blocks·k, *shape)
    owner: Tensor  # (blocks·k,): the chain of each


def _first(x0: FirstBlock, chains: Tensor) -> FirstBlock:
    """What the caller drew for these chains."""
    points, log_w = (pick(t.detach(), chains) for t in (x0.points, x0.log_weight))
    return FirstBlock(points, log_w.double())
