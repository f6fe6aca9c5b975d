"""Simulations of a gradient: the estimate of each, and pilots of the lengths 1, 2, 4, ….

**Estimates.** `MarkovGradient` returns only the mean over its chains. With
v(u) = Σ_j u_{owner(j)} c_j loss(x_j), ∇_θ v is linear in u, and row c of the matrix (rows, d) is
its derivative in u_c. One backward pass gives ∇_θ v with its graph, and one more for each of its d
coordinates gives a column, for any number of rows. Models with more parameters than rows are
differentiated row by row.

**Pilots.** Every estimator is a random combination Σ_j a_j H^{(p_j)} of the estimates at lengths
p_j of one simulation (`lengths.py`), so for lengths that are powers of two its mean and variance
follow from means and covariances of

    D_0 = H^{(1)}   and   D_l = H^{(2^l)} − H^{(2^{l−1})}.

Simulations of length 2^j give them for all l, m ≤ j at once. All lengths together get the same
number of steps. A chain is simulated in segments of doubling length, each starting where the last
one ended, and their averages are combined; for importance sampling, a single set of draws is
weighted in groups of each size.

**Sketches.** Gradients of more than 512 parameters are projected by a count sketch, which keeps
inner products: every parameter is added, with a random sign s_i, to one of m numbers b(i),

    S x = Σ_i s_i x_i e_{b(i)},     E ⟨Sx, Sy⟩ = ⟨x, y⟩,     sd ‖Sx‖² ≤ √(2/m) ‖x‖²,

which is 6 % for m = 512. Signs and places are the same in every call, so projections can be
compared. It takes the memory of two vectors.

Reference:
    Charikar, Chen, Farach-Colton (2004), Finding frequent items in data streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.estimators import Average, Estimator
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import Importance
from mlmcgrad.kernels.base import (
    Context,
    Outcome,
    Start,
    check_call,
    check_rows,
    check_rows_apart,
    check_unchanged,
    take,
    tensors_in,
)
from mlmcgrad.kernels.importance import Blocks, block_weights, shares, usable
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure, chunk_size, chunks, ship

FEWEST = 12  # simulations of the longest length, the minimum for a variance
_OFTEN = 200  # simulations, the minimum for a kurtosis
_NUMBERS = 2**26  # in memory: half a gigabyte
_MOST = 512  # numbers of a sketch
_LARGEST = 1e75  # of a gradient: its fourth power is finite
# States differentiated at once: their graph is kept for as many passes as there are parameters.
_STATES = 2**17


@dataclass(frozen=True)
class Simulator:
    """Simulations of a gradient, one for each row of x0 and context."""

    gradient: MarkovGradient  # with `parameters`, which fix the order of the components
    x0: Start  # (rows, *shape)
    context: Context
    generator: torch.Generator

    @cached_property
    def rows(self) -> int:
        """Number of rows of x0 and context, which are checked."""
        if self.x0 is not None and not tensors_in(self.x0):
            raise TypeError(
                "x0 must be a tensor of states, or None for a kernel that draws its start, got "
                f"{type(self.x0).__name__}"
            )
        return check_call(self.gradient.kernel, self.x0, self.context, self.generator)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The gradient's parameters; an error if they are not given."""
        if self.gradient.parameters is None:
            raise ValueError(
                "gradient must have parameters=... for diagnostics: they define the components of "
                "the result"
            )
        return tuple(self.gradient.parameters)

    @property
    def dimension(self) -> int:
        """d, the number of components of all parameters."""
        return sum(p.numel() for p in self.parameters)

    @property
    def independent(self) -> bool:
        """Whether the kernel is importance sampling, which has no state to continue from."""
        return isinstance(self.gradient.kernel, Importance)

    def at(self, index: Tensor) -> Self:
        """Return the simulations of these rows."""
        (x0,) = take((self.x0,), index)
        return replace(self, x0=x0, context=take(self.context, index))

    def run(self, estimator: Estimator, n: int | None = None) -> tuple[Tensor, Outcome]:
        """Simulate lengths that an estimator draws; see `simulate`."""
        return self.simulate(estimator.draw(self.rows, n, self.generator))

    def simulate(self, lengths: Lengths) -> tuple[Tensor, Outcome]:
        """Return the estimate of each simulation, (rows, d) float64, and the outcome.

        All parameters are flattened one after another.
        """
        simulation = self.gradient.simulate(self.x0, self.context, lengths, self.generator)
        estimates = self.differentiate(simulation)
        return estimates, simulation.outcome

    @torch.enable_grad()
    def differentiate(self, measures: Iterable[Measure]) -> Tensor:
        """Return Σ_j c_j ∇loss(x_j) of the simulations of a measure, (rows, d) float64.

        Raises:
            FloatingPointError: the loss or its gradient has no finite mean or variance.
            ValueError: the loss depends on none of the parameters.
        """
        device = self.parameters[0].device
        total = torch.zeros(self.rows, self.dimension, dtype=torch.float64, device=device)
        used = []
        for measure in chunks(measures, _STATES):
            owners, position = measure.owner.unique(return_inverse=True)
            if len(owners) <= self.dimension:
                used.append(self._add_rows(total, measure, position))
            else:
                used.append(self._add_columns(total, measure, owners, position))
        if used and not any(used):
            raise self._unused()
        if not bool((total.abs() < _LARGEST).all()):
            raise FloatingPointError(
                f"the gradient of the loss is NaN, infinite or above {_LARGEST:g} at a simulated "
                "state, so it has no mean or variance; check the loss"
            )
        return total

    def _add_rows(self, total: Tensor, measure: Measure, position: Tensor) -> bool:
        # A pass over all points for each row would be quadratic in the rows.
        places, used = position.argsort(stable=True).split(position.bincount().tolist()), False
        chunk = chunk_size(self.gradient.chunk, measure.points.device)
        for part in (part for place in places for part in place.split(chunk)):
            weighted = self._weighted(measure, part).sum()
            pieces = torch.autograd.grad(weighted, self.parameters, allow_unused=True)
            filled = [
                torch.zeros_like(parameter) if piece is None else piece
                for piece, parameter in zip(pieces, self.parameters, strict=True)
            ]
            total[measure.owner[part[0]]] += torch.cat([p.flatten() for p in filled]).double()
            used = used or any(piece is not None for piece in pieces)
        return used

    def _add_columns(
        self, total: Tensor, measure: Measure, owners: Tensor, position: Tensor
    ) -> bool:
        weighted = self._weighted(measure, slice(None))
        u = torch.ones_like(weighted[: len(owners)], requires_grad=True)
        columns = torch.autograd.grad(
            (u[position] * weighted).sum(), self.parameters, create_graph=True, allow_unused=True
        )
        start = 0
        for parameter, column in zip(self.parameters, columns, strict=True):
            entries = () if column is None else column.flatten()
            for i, entry in enumerate(entries, start):
                (rows,) = torch.autograd.grad(entry, u, retain_graph=True, materialize_grads=True)
                total[owners, i] += rows.double()
            start += parameter.numel()
        return any(column is not None for column in columns)

    def _unused(self) -> ValueError:
        return ValueError(
            f"parameters: the loss depends on none of the {len(self.parameters)} tensors given, so "
            "their gradient would be exactly 0; pass the tensors that the loss computes with, and "
            "compute it without torch.no_grad() or .detach()"
        )

    def _weighted(self, measure: Measure, points: Tensor | slice) -> Tensor:
        """Return c_j loss(x_j) at some points of a measure."""
        some = measure[points]
        version = some.points._version
        values = self.gradient.loss(some.points, *take(self.context, some.owner))
        check_rows("loss", values, some.points)
        check_unchanged("loss", some.points, version)
        if not values.requires_grad:
            raise self._unused()
        check_rows_apart(values)
        if not bool(values.isfinite().all()):
            raise FloatingPointError(
                "the loss is NaN or infinite at a simulated state; check it on the states that the "
                "kernel can reach, or restrict the support of log_density"
            )
        return ship(some.coefficient.to(values.dtype), values.device) * values


@dataclass(frozen=True)
class Pilot:
    """Estimates from simulations of the lengths 1, 2, 4, …, 2^L.

    Attributes:
        groups: simulations, by length.
        evaluations: total number spent.
        nested: whether shorter lengths are groups of a longer simulation, as in importance
            sampling, and not its beginning.
        rows: number of rows of the data. If there are several, simulations come in pairs of one
            row, because differences between rows are not noise.
    """

    groups: tuple[Group, ...]
    evaluations: int
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

    def count(self, level: int) -> int:
        """Return the number of simulations of length ≥ 2^level."""
        return sum(len(group.estimates) for group in self.groups[level:])

    def covers(self, level: int) -> bool:
        """Return whether every row has simulations of length ≥ 2^level."""
        return self.count(level) >= (2 * self.rows if self.paired else 1)

    def covariance(self, level: int) -> Tensor:
        """Return Σ_i Cov(D_l, D_m)_i of simulations of length 2^level, (level + 1, level + 1)."""
        total = torch.zeros(level + 1, level + 1, dtype=torch.float64)
        freedom = 0
        for scale, h in self.alike(level):
            d, more = self.deviations(_differences(h[:, : level + 1]))
            total += torch.einsum("nld,nmd->lm", d, d) * scale
            freedom += more
        return total / freedom

    def products(self, level: int) -> Tensor:
        """Return the mean over rows of Σ_i E[D_l]_i E[D_m]_i, (level + 1, level + 1)."""
        products = torch.zeros(level + 1, level + 1, dtype=torch.float64)
        for top in range(level + 1):
            d = _differences(self._long(top))
            if self.paired:
                first, second = d[0::2], d[1::2]
                both = torch.einsum("nld,nd->l", first, second[:, top])
                both += torch.einsum("nld,nd->l", second, first[:, top])
                products[: top + 1, top] = both / len(d)
            else:
                products[: top + 1, top] = d.mean(0) @ d[:, top].mean(0)
            products[top, :top] = products[:top, top]
        return products

    def alike(self, level: int) -> list[tuple[float, Tensor]]:
        """Return the estimates that have a level, and the scales of their covariances."""
        if not self.nested:
            return [(1.0, self._long(level))]
        # A longer simulation is the mean of independent ones.
        return [(2.0**j, group.estimates) for j, group in enumerate(self.groups[level:])]

    def deviations(self, x: Tensor) -> tuple[Tensor, int]:
        """Return deviations from the mean of each row, and the degrees of freedom."""
        if self.paired:
            return (x[0::2] - x[1::2]) / math.sqrt(2.0), len(x) // 2
        return x - x.mean(0), len(x) - 1

    def mean(self, level: int) -> tuple[Tensor, float]:
        """Return δ_l = E[D_l], (d,), and the variance of this mean, summed over coordinates."""
        x = self.difference(level)
        if self.paired:
            x = (x[0::2] + x[1::2]) / 2.0
        return x.mean(0), float(x.var(0).sum()) / len(x)

    def mean_square(self, level: int) -> float:
        """Return an unbiased estimate of ‖E[H^{(2^level)}]‖², averaged over rows; may be negative.

        Products of different simulations have no noise in their mean. Pairs within a row and
        between rows are weighted by their shares in all rows² pairs, not by those of the sample.
        """
        h = self._long(level)[:, level]
        if not self.paired:
            return _crossed(h) / (len(h) * (len(h) - 1))
        first, second = h[0::2], h[1::2]
        within = float((first * second).sum()) / len(first)  # mean over the rows of ‖E[H]‖²
        drawn = [
            in_turn(j, len(group.estimates), self.rows)[0::2]
            for j, group in enumerate(self.groups[level:], level)
        ]
        often = torch.bincount(torch.cat(drawn))
        same, pairs = int((often * (often - 1)).sum()), len(first) * (len(first) - 1)
        between = (_crossed((first + second) / 2.0) - within * same) / (pairs - same)
        return within / self.rows + between * (1.0 - 1.0 / self.rows)

    def difference(self, level: int) -> Tensor:
        """Return H^{(2^l)} − H^{(2^{l−1})} of all simulations that are long enough, (n, d)."""
        return _differences(self._long(level))[:, level]

    def _long(self, level: int) -> Tensor:
        """Return H^{(1)} … H^{(2^level)} of all simulations that are long enough."""
        return torch.cat([group.estimates[:, : level + 1] for group in self.groups[level:]])

    @property
    def kurtosis(self) -> float:
        """The largest kurtosis of a difference, over coordinates and levels with enough data."""
        values = [3.0]
        for level in range(self.highest + 1):
            x = self.difference(level)
            if len(x) < _OFTEN:
                break
            centred = x - x.mean(0)
            variance = centred.square().mean(0)
            ratio = (centred**4).mean(0) / variance.square()
            values.append(float(torch.where(variance > 0.0, ratio, 3.0).max()))
        return max(values)


def run_pilot(
    source: Simulator,
    evaluations: float,
    *,
    longest: int = 2**12,
    report: Callable[[float], None] = lambda share: None,
) -> Pilot:
    """Simulate lengths 1, 2, 4, … from the rows in turn, for a number of evaluations.

    Each length up to `longest` has at least 12 simulations. A step of a kernel without a model
    counts as one evaluation. `report` is called with the completed share.
    """
    kernel = source.gradient.kernel
    if isinstance(kernel, Importance):
        cost = float(kernel.candidates)
    else:
        cost = max(1.0, _draw(source, 0, 1).evaluations)
    levels = range(longest.bit_length())
    prices = [FEWEST * (level + 1) * 2**level * cost for level in levels]
    highest = max(level for level in levels if level == 0 or prices[level] <= evaluations)
    groups: list[Group] = []
    for level in range(highest + 1):
        count = max(FEWEST, 2 * int(evaluations / cost / (highest + 1) / 2**level / 2.0))
        groups.append(_draw(source, level, count))
        report((level + 1) / (highest + 1))
    spent = sum(group.evaluations * len(group.estimates) for group in groups)
    return Pilot(tuple(groups), int(spent), source.independent, source.rows)


def _differences(h: Tensor) -> Tensor:
    """Return the differences of neighbouring lengths, after the first length itself."""
    return torch.diff(h, dim=1, prepend=torch.zeros_like(h[:, :1]))


def _crossed(x: Tensor) -> float:
    """Return Σ_{i≠j} ⟨x_i, x_j⟩."""
    return float(x.sum(0).square().sum() - x.square().sum())


@dataclass(frozen=True)
class Group:
    """Simulations of one length, 2^j."""

    estimates: Tensor  # (simulations, j + 1, d) float64: H^{(1)}, H^{(2)}, …, H^{(2^j)} of each
    evaluations: float  # of one simulation
    moved: float  # share of the steps that changed the state
    largest: float = 0.0  # share of the largest weight, for importance sampling


def _draw(source: Simulator, level: int, count: int) -> Group:
    """Draw simulations of length 2^level."""
    rows = in_turn(level, count, source.rows)
    sketch = Sketch(source.dimension)
    simulate = _importance if source.independent else _chain
    estimates, totals = [], np.zeros(3)
    for index in rows.split(max(1, _NUMBERS // (source.dimension * (level + 2)))):
        each, *sums = simulate(source.at(index), level)
        estimates.append(sketch(each))
        totals += sums
    steps = count * 2**level
    evaluations, moved, largest = totals.tolist()
    return Group(
        torch.cat(estimates), max(evaluations, steps) / count, moved / steps, largest / count
    )


def in_turn(level: int, count: int, rows: int) -> Tensor:
    """Return the row of each simulation of length 2^level, (count,), in pairs of one row.

    If there are more rows than simulations, different lengths use different rows.
    """
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(level))
    return order[torch.arange(count) // 2 % rows]


def _chain(source: Simulator, level: int) -> tuple[Tensor, float, float, float]:
    """Return (rows, level + 1, d) estimates of chains, evaluations, steps that moved, and 0."""
    averages: list[Tensor] = []
    evaluations, moved = 0, 0.0
    for end in range(level + 1):
        each, outcome = source.run(Average(2 ** max(0, end - 1)))  # 1, then 1, 2, 4, … more steps
        # Halves of equal length: the average of both is that of the whole.
        averages.append((averages[-1] + each) / 2.0 if averages else each)
        source = replace(source, x0=outcome.last)
        evaluations, moved = evaluations + outcome.evaluations, moved + outcome.accepted
    return torch.stack(averages, 1).cpu(), evaluations, moved, 0.0


def _importance(source: Simulator, level: int) -> tuple[Tensor, float, float, float]:
    """Return the same for importance sampling: all group sizes from one set of draws.

    The last number is the sum of the largest weights of the simulations.
    """
    kernel, count = source.gradient.kernel, source.rows
    assert isinstance(kernel, Importance)
    owner = torch.arange(count).repeat_interleave(2**level * kernel.candidates)
    with torch.no_grad():
        states, log_weights = kernel.fresh(source.context, owner, source.generator)
    log_w, _ = usable(torch.cat(log_weights).cpu().reshape(-1, kernel.candidates))
    log_sum, share = shares(log_w)
    z, blocks = torch.cat(states), Blocks.of(np.full(count, 2**level))
    averages = []
    for size in range(level + 1):
        weight, _ = block_weights(log_sum, blocks, beginning(2**size, 2**level, count))
        coefficient = torch.from_numpy((weight[:, None] * share).ravel())
        averages.append(source.differentiate([Measure(z, owner, coefficient)]))
    largest = float(coefficient.reshape(count, -1).max(1).values.sum())
    return torch.stack(averages, 1).cpu(), len(z), float(count * 2**level), largest


def beginning(length: int, longest: int, count: int) -> Lengths:
    """Return the lengths for H^{(length)} from simulations of another length."""
    return Lengths(
        levels=torch.zeros(count, dtype=torch.int64),
        terms=torch.tensor([[length, longest]]).expand(count, 2),
        weights=torch.tensor([[1.0 / length, 0.0]], dtype=torch.float64).expand(count, 2),
    )


@dataclass(frozen=True)
class Sketch:
    """A projection of gradients to 512 numbers; shorter gradients are not changed.

    Example:
        >>> few, many = Sketch(2), Sketch(100_000)
        >>> few(torch.ones(2, dtype=torch.float64)).tolist()
        [1.0, 1.0]
        >>> many(torch.ones(3, 100_000, dtype=torch.float64)).shape
        torch.Size([3, 512])
    """

    parameters: int  # length of a gradient

    @property
    def size(self) -> int:
        """m, the length after the projection."""
        return min(self.parameters, _MOST)

    def __call__(self, x: Tensor) -> Tensor:
        """Project (…, parameters) float64 to (…, m), on the CPU."""
        if self.parameters <= _MOST:
            return x.cpu()
        place, sign = self._places()
        sums = torch.zeros(*x.shape[:-1], _MOST, dtype=torch.float64)
        return sums.index_add(-1, place, x.cpu() * sign)

    def variances(self, variance: Tensor) -> Tensor:
        """Return the variances after projecting independent coordinates, (parameters,) → (m,)."""
        if self.parameters <= _MOST:
            return variance.cpu()
        place, _ = self._places()
        return torch.zeros(_MOST, dtype=torch.float64).index_add(0, place, variance.cpu())

    def _places(self) -> tuple[Tensor, Tensor]:
        """Return b(i) and s_i."""
        generator = torch.Generator().manual_seed(0)
        place = torch.randint(0, _MOST, (self.parameters,), generator=generator)
        sign = torch.randint(0, 2, (self.parameters,), generator=generator)
        return place, 2.0 * sign.double() - 1.0
