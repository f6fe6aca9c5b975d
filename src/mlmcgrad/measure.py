"""The signed measure Σ_j c_j δ_{x_j} on states of the chains, and ways to reduce its size.

Every estimator of the library evaluates such a measure in one weighted backward pass. Repeated
states are evaluated once (`merge`, `merge_runs`), states of weight 0 never (`drop`), and states of
small weight, on request, rarely (`thin`, which keeps the expectation).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Measure:
    """Points with the chain they belong to and their coefficient.

    The coefficients of one chain sum to 1 when all of its points are taken together. Chain indices
    and coefficients that were computed on the host stay there, wherever the points are.
    """

    points: Tensor  # (points, *shape)
    owner: Tensor  # (points,) int64: index of the chain
    coefficient: Tensor  # (points,) float64

    def __len__(self) -> int:
        return self.owner.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Measure:
        return Measure(*(pick(tensor, rows) for tensor in self.parts))

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Points, owners and coefficients."""
        return self.points, self.owner, self.coefficient


def pick(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    """`tensor[rows]`; for a list of numbers several times as fast on a processor."""
    if isinstance(rows, Tensor) and rows.dtype == torch.int64:
        return tensor.index_select(0, ship(rows, tensor.device))
    return tensor[rows]


def ship(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; the host does not wait for a copy that it sends."""
    if tensor.device == device:
        return tensor
    if tensor.device.type != "cpu":
        return tensor.to(device)
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


def read(*numbers: Tensor) -> list[float]:
    """Return tensors of one number as numbers of the host, by one wait if they are on a device."""
    device = next((n.device for n in numbers if n.device.type != "cpu"), None)
    if device is None:
        return [n.item() for n in numbers]
    found: list[float] = torch.stack([n.to(device, torch.float64) for n in numbers]).tolist()
    return found


def fetch(*tensors: Tensor) -> list[Tensor]:
    """Return tensors on the host, by one wait if they are on a device; integers below 2^53."""
    if tensors[0].device.type == "cpu":
        return list(tensors)
    flat = torch.cat([tensor.flatten().double() for tensor in tensors]).cpu()
    parts = flat.split([tensor.numel() for tensor in tensors])
    pairs = zip(parts, tensors, strict=True)
    return [part.reshape(tensor.shape).to(tensor.dtype) for part, tensor in pairs]


def chunk_size(chunk: int | None, device: torch.device, on_processor: int = 1024) -> int:
    """Return the rows of one pass: `chunk`, or by default as many as suit the device.

    On a processor few rows stay in its cache. Elsewhere each operation costs the time of its
    launch, so that many rows cost what few do.
    """
    if chunk is not None:
        return chunk
    return on_processor if device.type == "cpu" else 8192


def concatenate(measures: list[Measure]) -> Measure:
    """The sum of measures, their points in the order given."""
    if len(measures) == 1:
        return measures[0]
    if not measures:
        none = torch.zeros(0)
        return Measure(none, none.long(), none.double())
    return Measure(
        torch.cat([m.points for m in measures]),
        torch.cat([m.owner for m in measures]),
        torch.cat([m.coefficient for m in measures]),
    )


def chunks(measures: Iterable[Measure], chunk: int | None) -> Iterator[Measure]:
    """The same points in the same order, `chunk` at a time; the last chunk may be smaller."""
    waiting: list[Measure] = []
    count = 0
    for measure in measures:
        size = chunk_size(chunk, measure.points.device)
        # Cut, not joined first: a state is copied at most once on its way into a chunk.
        while count + len(measure) >= size:
            room = size - count
            yield concatenate([*waiting, measure[:room]])
            waiting, count, measure = [], 0, measure[room:]
        if len(measure):
            waiting.append(measure)
            count += len(measure)
    if waiting:
        yield concatenate(waiting)


def drop(measure: Measure, tolerance: float = 0.0) -> Measure:
    """Leave out the points with |c| ≤ tolerance; the default leaves out true zeros only.

    A positive tolerance changes the estimate by at most tolerance × the number of points left
    out × the largest loss gradient there. `thin` is the unbiased alternative.
    """
    kept = ~(measure.coefficient.abs() <= tolerance) if tolerance else measure.coefficient
    rows = kept.nonzero()[:, 0]  # a NaN is not hidden
    return measure if len(rows) == len(measure) else measure[rows]


def thin(measure: Measure, probability: Floats, uniform: Floats) -> tuple[Measure, Integers]:
    """Leave out points at random, without changing the expectation.

    Each point is kept with a given probability, and the coefficient of a kept point is divided by
    that probability. With `certainty` for the probability, every coefficient that is kept has at
    least the size of the threshold.

    Args:
        measure: the measure.
        probability: (points,) in [0, 1], positive wherever the coefficient is not 0.
        uniform: as for `systematic`.

    Returns:
        The thinned measure, and the numbers of the points that it kept, ascending.
    """
    owner, c = (t.cpu().numpy() for t in (measure.owner, measure.coefficient))
    keep = np.flatnonzero(systematic(probability, owner, uniform))
    kept = (torch.from_numpy(a) for a in (owner[keep], c[keep] / probability[keep]))
    return Measure(pick(measure.points, torch.from_numpy(keep)), *kept), keep


@np.errstate(all="ignore")  # a probability may underflow
def certainty(coefficient: Floats, threshold: float | Floats) -> Floats:
    """The probabilities min(1, |c|/threshold) for `thin`, and 0 for c = 0."""
    # A threshold of 0 keeps whatever has a weight: no number is smaller than `tiny`.
    threshold = np.maximum(threshold, np.finfo(np.float64).tiny)
    return np.minimum(np.abs(coefficient), threshold) / threshold


def uniforms(chains: int, generator: torch.Generator) -> Floats:
    """Draw a uniform number for each chain, on the host: what `thin` and `systematic` need."""
    u = torch.rand(chains, dtype=torch.float64, device=generator.device, generator=generator)
    return u.cpu().numpy()


def systematic(probability: Floats, owner: Integers, uniform: Floats) -> Booleans:
    """Choose points, each with its own probability, and of every chain as many as expected.

    One uniform U for each chain: its point j is kept if an integer lies in (U + P_{j−1}, U + P_j],
    with P the cumulative probabilities. Of points with the total probability s, ⌊s⌋ or ⌈s⌉ are
    kept: as the states of a chain are alike, this adds far less variance than independent choices.
    (Some thousand numbers, on the host: a call of NumPy takes half the time of one of torch.)

    Args:
        probability: (points,) in [0, 1].
        owner: index of the chain of each point, (points,).
        uniform: U of each chain, (chains,). It is replaced by the fractional part of U plus the
            probabilities of the chain, so that a chain may be processed in pieces: the points kept
            do not depend on where the pieces end.

    Returns:
        Which ones are kept, (points,).
    """
    if not len(owner):
        return np.zeros(0, dtype=bool)
    later = np.flatnonzero(owner[1:] != owner[:-1]) + 1
    first = np.concatenate([[0], later])  # of the points of each chain
    if len(first) > np.count_nonzero(np.bincount(owner)):  # the points of a chain are not together
        order = owner.argsort(kind="stable")
        keep = np.empty(len(owner), dtype=bool)
        keep[order] = systematic(probability[order], owner[order], uniform)
        return keep
    after = np.concatenate([later, [len(owner)]])
    before = probability.cumsum() - probability
    start = before + (uniform[owner[first]] - before[first]).repeat(after - first)
    end = start + probability
    uniform[owner[first]] = end[after - 1] % 1.0
    # A NaN is kept, not hidden.
    return ~(np.floor(end) <= np.floor(start))


def merge(measure: Measure) -> Measure:
    """Add up the coefficients of equal states of the same chain; points come out sorted."""
    if not len(measure):
        return measure
    state = measure.points
    state = torch.view_as_real(state) if state.is_complex() else state
    state = state.double() if state.is_floating_point() else state.long()
    # Elsewhere the host would wait for the range of the states.
    if state.dim() == 1 and state.dtype == torch.int64 and state.device.type == "cpu":
        lowest, highest = (int(end) for end in state.aminmax())
        span = highest - lowest + 1
        # One number for chain and state, where 63 bits hold it: it is sorted much faster.
        if (int(measure.owner.max()) + 1) * span < 2**63:
            return _add_up(measure, measure.owner * span + (state - lowest), dim=None)
    owner = measure.owner[:, None].to(state.dtype)
    return _add_up(measure, torch.cat([owner, state.reshape(len(measure), -1)], dim=1), dim=0)


def _add_up(measure: Measure, keys: Tensor, dim: int | None) -> Measure:
    """Add up the coefficients of points with equal keys, and sort the points by their keys."""
    unique, index = torch.unique(keys, dim=dim, return_inverse=True)
    total = measure.coefficient.new_zeros(len(unique)).index_add_(0, index, measure.coefficient)
    any_of = torch.empty_like(index[: len(unique)])  # the number of one point with each key
    any_of.scatter_(0, index, torch.arange(len(index), device=index.device))
    return Measure(measure.points[any_of], measure.owner[any_of], total)


def merge_runs(
    path: Tensor, moved: Tensor, weights: Tensor, carried: Tensor, owner: Tensor, ending: int = 0
) -> tuple[Measure, Tensor]:
    """Turn a piece of trajectory into a measure, one point for each stay in a state.

    A chain that rejects stays where it is, and all steps of a stay make one point. The stay that
    is still going on when the piece ends is not in the measure: its coefficient is handed back
    and carried into the next piece, so that a state is never split between two of them.

    Args:
        path: the state before the piece and after each of its steps, (steps + 1, chains, *shape).
        moved: whether a step changed the state, (steps, chains).
        weights: weight of each step, (steps, chains) float64.
        carried: weight that the state before the piece has gathered so far, (chains,).
        owner: index of each chain, (chains,).
        ending: number of chains, the last ones, that end with the piece, and their stays with them.

    Returns:
        The measure of the stays that ended, in which all other points of the path have the
        coefficient 0, and the weight of the states at the end, (chains,).
    """
    start = torch.zeros_like(moved[:1], dtype=torch.int64)
    stay = torch.cat([start, moved.cumsum(0)])  # (steps + 1, chains): number of the stay
    total = torch.cat([carried[None], torch.zeros_like(weights)])
    total.scatter_add_(0, stay[1:], weights)  # row s: weight of the s-th stay
    entered = torch.cat([torch.ones_like(moved[:1]), moved])
    ended = entered & (stay < stay[-1])
    coefficient = torch.where(ended, total.gather(0, stay), 0.0)
    carried = total.gather(0, stay[-1:])[0]
    first = len(owner) - ending
    coefficient[-1, first:] = carried[first:]
    owners = owner.expand(coefficient.shape).flatten()
    return Measure(path.flatten(0, 1), owners, coefficient.flatten()), carried
