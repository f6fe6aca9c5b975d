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
from typing import NamedTuple, final

import torch
from torch import Tensor

from mlmcgrad.kernels.base import Context, Outcome, Pieces, Simulation, Start, take
from mlmcgrad.kernels.groups import Blocks, block_weights, choose, shares, uniforms
from mlmcgrad.kernels.proposing import (
    MOST_CANDIDATES,
    FirstBlock,
    ProposingKernel,
    check_alive,
    count_collapsed,
    insert,
    usable,
)
from mlmcgrad.measure import Measure, pick
from mlmcgrad.plan import Plan

# Draws that are in memory at once. Where one simulation alone has more, only weights are kept.
_PART_DRAWS = 2**16


class Part(NamedTuple):
    """Some of the simulations: their measure, and the weight of each draw within its block."""

    measure: Measure  # chain by chain, block by block
    share: Tensor  # (draws,) float64: w / S_b


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
        """What `run` yields, with the weights within blocks; returns the outcome."""
        if x0 is not None:
            if not isinstance(x0, FirstBlock):
                raise ValueError(
                    f"x0 must be None or a FirstBlock, since importance sampling has no state to "
                    f"go on from, got {type(x0).__name__}"
                )
            self.check_block(x0)
        most = int(plan.longest.max()) * self.candidates
        if most > MOST_CANDIDATES:
            raise ValueError(
                f"candidates × length must be at most {MOST_CANDIDATES:,}, whose weights are in "
                f"memory at once, got {most:,}; lower the truncation or the candidates"
            )
        last, evaluations, invalid, collapsed = [], 0, 0, 0
        for chains in self._parts_of(plan.longest):
            part = plan if len(chains) == len(plan.levels) else plan.select(chains)
            blocks = Blocks.of(part.longest.numpy())
            draws = self._draw(x0, context, chains, blocks, generator)
            log_w, bad = usable(draws.log_w)
            log_sum, share = shares(log_w)
            weight, total = block_weights(log_sum, blocks, part)
            check_alive(total, chains.numpy(), "every draw")
            u = uniforms(generator, len(chains)).numpy()
            chosen = choose(log_w, blocks, total, u)
            evaluations, invalid = evaluations + log_w.size, invalid + bad
            collapsed += count_collapsed(share[blocks.first])
            coefficient = torch.from_numpy((weight[:, None] * share).ravel())
            flat, begin = torch.from_numpy(share.ravel()), 0
            for z in draws.pieces:
                rows, end = slice(begin, begin + len(z)), begin + len(z)
                here = chosen[(chosen >= begin) & (chosen < end)] - begin
                if len(here):
                    last.append(pick(z, torch.from_numpy(here)))
                owner, c, within = (t[rows].to(z.device) for t in (draws.owner, coefficient, flat))
                yield Part(Measure(z, owner, c), within)
                begin = end
        transitions = float(plan.longest.sum())
        return Outcome(torch.cat(last), evaluations, transitions, invalid, collapsed)

    def _parts_of(self, lengths: Tensor) -> Iterator[Tensor]:
        """Numbers of chains that are in memory at once; a long one is alone."""
        draws = lengths * self.candidates
        if int(draws.sum()) <= _PART_DRAWS:
            yield torch.arange(len(lengths))
            return
        long = (draws > _PART_DRAWS).long()
        after = long.roll(1)
        after[0] = 0
        part = (draws.cumsum(0) - 1) // _PART_DRAWS + (long + after).cumsum(0)
        sizes = part.unique_consecutive(return_counts=True)[1]
        yield from torch.arange(len(lengths)).split(sizes.tolist())

    def _draw(
        self,
        x0: FirstBlock | None,
        context: Context,
        chains: Tensor,
        blocks: Blocks,
        generator: torch.Generator,
    ) -> _Draws:
        """All draws of these chains; those of a long one are made again when they are taken."""
        k = self.candidates
        owner = pick(chains, torch.from_numpy(blocks.chain.repeat(k)))
        start, who = None, owner
        if x0 is not None:
            start = _first(x0, chains)
            who = pick(chains, torch.from_numpy(blocks.chain[blocks.position > 0].repeat(k)))
        if len(chains) == 1 and len(owner) > _PART_DRAWS:
            weights, pieces = self._twice(context, who, start, generator)
            log_w = torch.cat([start.log_weight[0], weights]) if start else weights
            return _Draws(log_w.reshape(-1, k), pieces, owner)
        states, log_weights = self.fresh(context, who, generator)
        if start is None:
            z, log_w = torch.cat(states), torch.cat(log_weights).reshape(-1, k)
        else:
            given = torch.from_numpy((blocks.position == 0).repeat(k))
            z = insert(states, start.points.flatten(0, 1), given)
            log_w = insert(log_weights, start.log_weight.flatten(), given).reshape(-1, k)
        return _Draws(log_w, iter((z,)), owner)

    def _twice(
        self, context: Context, who: Tensor, start: FirstBlock | None, generator: torch.Generator
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """Weights of one long simulation, and its draws, made again when they are taken."""
        size = max(1, _PART_DRAWS // self.chunk) * self.chunk
        parts, state = who.split(size), generator.get_state()
        # One piece of memory each: small ones between large ones would leave holes.
        log_w = torch.empty(len(who), dtype=torch.float64, device=generator.device)
        before = state.new_empty(len(parts), len(state))
        for rows, out, then in zip(parts, log_w.split(size), before, strict=True):
            then.copy_(generator.get_state())
            torch.cat(self.fresh(context, rows, generator)[1], out=out)

        def pieces() -> Iterator[Tensor]:
            if start is not None:
                yield start.points[0]
            replay = torch.Generator(generator.device)
            for part, then in zip(parts, before, strict=True):
                replay.set_state(then.clone())
                for rows in part.split(self.chunk):
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
