"""A pilot: H^{(1)}, H^{(2)}, H^{(4)}, … of the same simulations, all that a plan needs to know.

Every estimator is a random combination Σ_j a_j H^{(p_j)} of the estimates at lengths p_j of one
simulation (`plan.py`), so for lengths that are powers of two its mean and variance follow from
means and covariances of

    D_0 = H^{(1)}   and   D_l = H^{(2^l)} − H^{(2^{l−1})},

which simulations of the length 2^j give for all l, m ≤ j at once. There are some of each length,
so that all of them together cost the same.

How they are simulated is in `prefixes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.diagnostics.prefixes import Group, Source, in_turn
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import Importance
from mlmcgrad.kernels.base import Start

FEWEST = 12  # simulations of the longest length: fewer say nothing about a variance
_OFTEN = 200  # simulations for a kurtosis


@dataclass(frozen=True)
class Pilot:
    """What was measured.

    Attributes:
        groups: simulations of the lengths 1, 2, 4, ….
        evaluations: spent in total.
        acceptance: share of the steps of the longest simulations that moved.
        nested: whether shorter lengths are groups of a longer simulation, as in importance
            sampling, and not its beginning.
        rows: of the data; if there are several, two simulations after another are of one row:
            what differs between rows is no noise.
    """

    groups: tuple[Group, ...]
    evaluations: int
    acceptance: float
    nested: bool
    rows: int = 1

    @property
    def paired(self) -> bool:
        """Whether simulations come in pairs of one row."""
        return self.rows > 1

    @property
    def highest(self) -> int:
        """L: the longest simulations have the length 2^L."""
        return len(self.groups) - 1

    @property
    def dimension(self) -> int:
        """Numbers of an estimate: parameters, or what they are projected to."""
        return self.groups[0].estimates.shape[-1]

    @property
    def step_cost(self) -> float:
        """Evaluations of a step, from the longest simulations."""
        return self.groups[-1].evaluations / 2**self.highest

    def count(self, level: int) -> int:
        """Simulations of at least the length 2^level."""
        return sum(len(group.estimates) for group in self.groups[level:])

    def covers(self, level: int) -> bool:
        """Whether there are simulations of at least the length 2^level of every row."""
        return self.count(level) >= (2 * self.rows if self.paired else 1)

    def covariance(self, level: int) -> Tensor:
        """Σ_i Cov(D_l, D_m)_i of differences of simulations of the length 2^level, D_0 = H^{(1)}.

        (level + 1, level + 1), summed over the coordinates i.
        """
        total = torch.zeros(level + 1, level + 1, dtype=torch.float64)
        freedom = 0
        for scale, h in self._alike(level):
            d, more = self._deviations(_differences(h[:, : level + 1]))
            total += torch.einsum("nld,nmd->lm", d, d) * scale
            freedom += more
        return total / freedom

    def products(self, level: int) -> Tensor:
        """Mean over the rows of Σ_i E[D_l]_i E[D_m]_i, (level + 1, level + 1)."""
        found = torch.zeros(level + 1, level + 1, dtype=torch.float64)
        for top in range(level + 1):
            d = _differences(torch.cat([g.estimates[:, : top + 1] for g in self.groups[top:]]))
            if self.paired:
                first, second = d[0::2], d[1::2]
                both = torch.einsum("nld,nd->l", first, second[:, top])
                both += torch.einsum("nld,nd->l", second, first[:, top])
                found[: top + 1, top] = both / len(d)
            else:
                found[: top + 1, top] = d.mean(0) @ d[:, top].mean(0)
            found[top, :top] = found[:top, top]
        return found

    def squares(self, level: int) -> Tensor:
        """Squared deviations of H^{(2^level)}, whose mean is about the variance."""
        every = [
            self._deviations(h[:, level])[0].square().sum(1) * scale
            for scale, h in self._alike(level)
        ]
        return torch.cat(every)

    def _alike(self, level: int) -> list[tuple[float, Tensor]]:
        """Estimates that have a level, and by how much their covariances have to be scaled."""
        if not self.nested:
            return [(1.0, torch.cat([g.estimates[:, : level + 1] for g in self.groups[level:]]))]
        # A longer simulation is the mean of independent ones.
        return [(2.0**j, group.estimates) for j, group in enumerate(self.groups[level:])]

    def _deviations(self, x: Tensor) -> tuple[Tensor, int]:
        """Deviations from the mean of a row, and degrees of freedom."""
        if self.paired:
            return (x[0::2] - x[1::2]) / math.sqrt(2.0), len(x) // 2
        return x - x.mean(0), len(x) - 1

    def mean(self, level: int) -> tuple[Tensor, float]:
        """δ_l = E[D_l], (d,), and the variance of this mean, summed over coordinates."""
        x = self.difference(level)
        if self.paired:
            x = (x[0::2] + x[1::2]) / 2.0
        return x.mean(0), float(x.var(0).sum()) / len(x)

    def mean_square(self, level: int) -> float:
        """‖E[H^{(2^level)}]‖², the mean over all rows; unbiased, so that it may be below 0.

        Products of different simulations have no noise in their mean. Couples of one row and of
        two rows count by their shares in all rows² couples, whatever they are in the sample.
        """
        h = torch.cat([group.estimates[:, level] for group in self.groups[level:]])
        if not self.paired:
            return _crossed(h) / (len(h) * (len(h) - 1))
        first, second = h[0::2], h[1::2]
        within = float((first * second).sum()) / len(first)  # mean over the rows of ‖E[H]‖²
        drawn = [
            in_turn(j, len(group.estimates), self.rows)[0::2]
            for j, group in enumerate(self.groups[level:], level)
        ]
        often = torch.bincount(torch.cat(drawn))
        same, couples = int((often * (often - 1)).sum()), len(first) * (len(first) - 1)
        between = (_crossed((first + second) / 2.0) - within * same) / (couples - same)
        return within / self.rows + between * (1.0 - 1.0 / self.rows)

    def difference(self, level: int) -> Tensor:
        """H^{(2^l)} − H^{(2^{l−1})}, of all simulations that are long enough, (simulations, d)."""
        every = [group.estimates for group in self.groups[level:]]
        return torch.cat([x[:, level] - x[:, level - 1] if level else x[:, 0] for x in every])

    @property
    def kurtosis(self) -> float:
        """The largest over levels and coordinates, of differences that are seen often enough."""
        found = [3.0]
        for level in range(self.highest + 1):
            x = self.difference(level)
            if len(x) < _OFTEN:
                break
            centred = x - x.mean(0)
            variance = centred.square().mean(0)
            ratio = (centred**4).mean(0) / variance.square()
            found.append(float(torch.where(variance > 0.0, ratio, 3.0).max()))
        return max(found)

    @property
    def largest(self) -> float:
        """Share of the largest weight of the longest simulations, on average; 0 for chains."""
        return self.groups[-1].largest


def pilot(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    evaluations: float,
    generator: torch.Generator,
    longest: int = 2**12,
    report: Callable[[float], None] = lambda share: None,
) -> Pilot:
    """Simulate lengths 1, 2, 4, … for a number of evaluations.

    Args:
        gradient: with `parameters` given; its kernel and loss are used, its estimator is not.
        x0: where simulations start, (rows, *shape); they use the rows in turn.
        context: as for `gradient.backward`.
        evaluations: to spend, all lengths together; 16 simulations of each length are made at
            least, and a step of a kernel without a model counts as one.
        generator: source of all randomness.
        longest: the longest simulation.
        report: called with the share that is done.
    """
    source = Source(gradient, x0, context, generator)
    highest, cost = 0, source.step_cost()
    while 2 ** (highest + 1) <= longest and _price(highest + 1) * cost <= evaluations:
        highest += 1
    groups, spent, moved = [], 0.0, 0.0
    for level in range(highest + 1):
        count = max(FEWEST, 2 * int(evaluations / cost / (highest + 1) / 2**level / 2.0))
        group = source.draw(level, count)
        groups.append(group)
        spent += group.evaluations * len(group.estimates)
        moved = group.moved
        report((level + 1) / (highest + 1))
    nested = isinstance(gradient.kernel, Importance)
    return Pilot(tuple(groups), int(spent), moved, nested, source.rows)


def _differences(h: Tensor) -> Tensor:
    """Of neighbouring lengths, the first as it is."""
    return torch.diff(h, dim=1, prepend=torch.zeros_like(h[:, :1]))


def _crossed(x: Tensor) -> float:
    """Σ_{i≠j} ⟨x_i, x_j⟩."""
    return float(x.sum(0).square().sum() - x.square().sum())


def _price(level: int) -> int:
    """Steps of a pilot whose longest simulations have the length 2^level."""
    return FEWEST * (level + 1) * 2**level
