"""Self-normalised importance sampling as a ladder of lengths, with antithetic differences.

Not a chain: a simulation of length L is L blocks of k independent draws z of the proposal q, with
importance weights w. Of p blocks, H^{(p)} = Σ_j w_j H(z_j) / Σ_j w_j over their p·k draws. Where
the estimator asks for a shorter length p < L, the blocks are cut into ⌊L/p⌋ disjoint groups of p,
and H^{(p)} is the mean over the groups: the same expectation, and far less variance of
H^{(L)} − H^{(p)} than with one group alone, since what is linear in the weights cancels.

With S_b the sum of the weights of block b and S_g that of a group, a measure Σ_j a_j H^{(p_j)} on
lengths gives the draw z of block b the coefficient

    c = (w_z / S_b) · Σ_j (a_j / groups_j) · (S_b / S_{g_j(b)}).

A group in which no draw has any weight is left out of its mean, so that the coefficients of a
simulation always sum to 1. All of it is arithmetic on log weights in float64, for simulations of
all lengths at once. The states of a long simulation are not kept meanwhile: they are drawn again,
with the same random numbers, when their coefficients are known.

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
from mlmcgrad.kernels.proposing import (
    MOST_CANDIDATES,
    FirstBlock,
    ProposingKernel,
    check_alive,
    count_collapsed,
    insert,
    usable,
)
from mlmcgrad.measure import Measure, starts
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
            owner = chains.repeat_interleave(plan.longest[chains])  # (blocks,)
            twice = len(chains) == 1 and len(owner) * self.candidates > _PART_DRAWS
            draws = self._draw(x0, context, owner, generator, twice=twice)
            log_w, bad = usable(draws.log_w)
            local = (owner - chains[0]).to(log_w.device)
            collapsed += count_collapsed(log_w[starts(local)])
            sums, share = log_w.logsumexp(1), log_w.softmax(1).nan_to_num(0.0)
            weight, total = block_weights(sums, local, plan.select(chains).to(log_w.device))
            check_alive(total, chains, "every draw")
            coefficient = (weight[:, None] * share).flatten()
            chosen = _choose(log_w, local, total, generator)
            whose = owner.repeat_interleave(self.candidates)
            evaluations, invalid = evaluations + log_w.numel(), invalid + bad
            begin = 0
            for z in draws.pieces:
                rows = slice(begin, begin + len(z))
                inside = (chosen >= begin) & (chosen < begin + len(z))
                if bool(inside.any()):
                    last.append(z[chosen[inside] - begin])
                measure = Measure(z, whose[rows].to(z.device), coefficient[rows])
                yield Part(measure, share.flatten()[rows])
                begin += len(z)
        transitions = float(plan.longest.sum())
        return Outcome(torch.cat(last), evaluations, transitions, invalid, collapsed)

    def _parts_of(self, lengths: Tensor) -> Iterator[Tensor]:
        """Numbers of chains that are in memory at once; a long one is alone."""
        draws = lengths * self.candidates
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
        owner: Tensor,
        generator: torch.Generator,
        *,
        twice: bool,
    ) -> _Draws:
        """All draws of these blocks; those made twice are made again when they are taken."""
        k = self.candidates
        who = owner.repeat_interleave(k)
        start, given = _given(x0, owner, k)
        if not twice:
            states, weights = self.fresh(context, who[~given], generator)
            z = insert(states, start.points, given) if start else torch.cat(states)
            pieces: Iterator[Tensor] = iter((z,))
        else:
            weights, pieces = self._twice(context, who[~given], start, generator)
        log_w = insert(weights, start.log_weight, given) if start else torch.cat(weights)
        return _Draws(log_w.reshape(-1, k), pieces)

    def _twice(
        self, context: Context, who: Tensor, start: FirstBlock | None, generator: torch.Generator
    ) -> tuple[list[Tensor], Iterator[Tensor]]:
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
                yield start.points
            replay = torch.Generator(generator.device)
            for rows, then in zip(parts, before, strict=True):
                replay.set_state(then.clone())
                yield self.draw(take(context, rows), len(rows), replay)

        return [log_w], pieces()


def _given(
    x0: FirstBlock | None, owner: Tensor, candidates: int
) -> tuple[FirstBlock | None, Tensor]:
    """The draws that the caller made, one after the other, and where they belong, (draws,) bool."""
    if x0 is None:
        return None, torch.zeros(len(owner) * candidates, dtype=torch.bool)
    first = starts(owner)
    points, log_w = (t.detach()[owner[first]].flatten(0, 1) for t in (x0.points, x0.log_weight))
    return FirstBlock(points, log_w.double()), first.repeat_interleave(candidates)


@dataclass(frozen=True)
class _Draws:
    """Draws of some blocks."""

    log_w: Tensor  # (blocks, k)
    pieces: Iterator[Tensor]  # the draws, (blocks·k, *shape)


def block_weights(log_sum: Tensor, chain: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """The weight of each block in the estimate: Σ_j (a_j / groups_j) · S_b / S_{g_j(b)}.

    Args:
        log_sum: log S_b, (blocks,) float64, block after block of each chain.
        chain: the chain of each block, (blocks,), ascending from 0.
        plan: of these chains.

    Returns:
        The weights, (blocks,), and log Σ_b S_b of each chain, (chains,).
    """
    lengths, a = plan.lengths, plan.weights * plan.lengths
    begin = plan.longest.cumsum(0) - plan.longest
    position = torch.arange(len(chain), device=chain.device) - begin[chain]
    used = a != 0.0
    used[:, -1] = True  # the whole simulation: its sum is returned
    groups = torch.where(used, plan.longest[:, None] // lengths, 0)  # (chains, terms)
    first = (groups.flatten().cumsum(0) - groups.flatten()).reshape(groups.shape)
    # One entry for each block and each term in which it has a part.
    number = position[:, None] // lengths[chain]
    block, term = (number < groups[chain]).nonzero(as_tuple=True)
    of = first[chain[block], term] + number[block, term]  # the group
    count = int(groups.sum())
    top = log_sum.new_full((count,), -torch.inf).scatter_reduce(0, of, log_sum[block], "amax")
    top = top.nan_to_num(neginf=0.0)  # −∞ − (−∞)
    part = (log_sum[block] - top[of]).exp()
    total = part.new_zeros(count).index_add(0, of, part)  # S_g / exp(top), 0 or at least 1
    alive = total > 0.0
    place = torch.arange(groups.numel(), device=of.device).repeat_interleave(groups.flatten())
    living = total.new_zeros(groups.numel()).index_add(0, place, alive.to(total.dtype))
    scale = torch.where(alive, a.flatten()[place] / living[place] / total, 0.0)
    weight = torch.zeros_like(log_sum).index_add(0, block, scale[of] * part)
    whole = first[:, -1]
    return weight, total[whole].log() + top[whole]


def _choose(log_w: Tensor, chain: Tensor, total: Tensor, generator: torch.Generator) -> Tensor:
    """One draw of each chain by its weight, as an index among all draws, (chains,)."""
    cumulative = (log_w - total[chain, None]).exp().flatten().cumsum(0)
    ends = cumulative.reshape(log_w.shape)[:, -1][starts(chain.flip(0)).flip(0)]
    begin = torch.cat([ends.new_zeros(1), ends[:-1]])
    u = torch.rand(len(total), dtype=ends.dtype, device=ends.device, generator=generator)
    # Not quite to the end of a chain, where rounding would choose the next one.
    return torch.searchsorted(
        cumulative, begin + u.clamp(max=1.0 - 1e-9) * (ends - begin), right=True
    )
