"""Export chains as arrays, for ArviZ and NumPy.

    posterior      the states, (chain, draw, *shape)
    sample_stats   (chain, draw) each:
        lp               log π up to a constant, for kernels that have a density
        acceptance_rate  1 where the step moved the chain and 0 where it did not
        level            the level K of the chain; 0 where the estimator has none
        weight           c_j of the signed measure Σ_j c_j δ_{x_j}

So Σ_draw weight · loss(x) is the estimate of a chain, and its mean over the chains that of
`MarkovGradient.gradient`. Arrays are rectangular: after its end a shorter chain repeats its last
state with weight 0 and acceptance_rate NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

import mlmcgrad
from mlmcgrad._checks import whole
from mlmcgrad.estimators import Average
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import Gibbs
from mlmcgrad.kernels.base import HALF, Context, Start, StepKernel, take
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import chunk_size

if TYPE_CHECKING:
    from xarray import DataTree

Arrays: TypeAlias = dict[str, dict[str, NDArray[Any]]]
Names: TypeAlias = str | Mapping[str, tuple[int, ...]]

# All states are in memory at once, as chains × draws: 2 GiB of float64.
_NUMBERS = 2**28


def to_dict(
    gradient: MarkovGradient,
    x0: Start,
    *context: Any,
    length: int | None = None,
    burn_in: int = 0,
    n: SupportsIndex | None = None,
    generator: torch.Generator,
    names: Names = "x",
) -> Arrays:
    """Run the chains of a gradient and return all their states as NumPy arrays.

    Without `length` these are the chains of one estimate: with the same state of the generator,
    `gradient.gradient` makes the same steps (unless the gradient is thinned, which uses random
    numbers too). With `length` all chains have this length, as R̂, effective sample sizes and trace
    plots require.

    Args:
        gradient: its kernel must move chains step by step, as `MALA`, `RWMH`, `Gibbs`, `Finite` and
            `FromStep` do. Nothing is differentiated.
        x0: where the chains start, (chains, *shape). R̂ is meaningful for chains with the same
            target, that is the same context, and different starts.
        context: as for `gradient.backward`.
        length: number of states to record per chain; by default the estimator draws the lengths.
        burn_in: transitions before them, which are not recorded; 0 by default.
        n: iteration, if the estimator has a schedule.
        generator: source of all randomness.
        names: name of the state, or names and shapes of its parts, in order.

    Returns:
        The groups `posterior` and `sample_stats`, with arrays (chain, draw, …).

    Example:
        >>> import mlmcgrad as mg
        >>> problem = mg.problems.gaussian(3)
        >>> kernel = mg.kernels.RWMH(problem.log_density, 1.0)
        >>> gradient = mg.MarkovGradient(kernel, problem.loss, mg.MLMC(64))
        >>> arrays = to_dict(
        ...     gradient,
        ...     problem.start(4),
        ...     length=10,
        ...     generator=torch.Generator().manual_seed(0),
        ...     names={"mu": (), "beta": (2,)},
        ... )
        >>> {name: array.shape for name, array in arrays["posterior"].items()}
        {'mu': (4, 10), 'beta': (4, 10, 2)}
    """
    whole(burn_in, "burn_in", 0)
    if length is not None:
        estimator = Average(whole(length, "length"), burn_in)
        gradient = dataclasses.replace(gradient, estimator=estimator)
    elif burn_in:
        raise ValueError(
            f"burn_in must be 0 without length, got {burn_in}; the estimator draws the lengths"
        )
    kernel = gradient.kernel
    if not isinstance(kernel, StepKernel):
        raise TypeError(
            "gradient must have a kernel that moves chains step by step, as MALA, RWMH, Gibbs, "
            f"Finite and FromStep do, got {type(kernel).__name__}"
        )
    lengths = gradient.draw_lengths(x0, context, n, generator)
    parts = _parts(names, x0.shape[1:])
    states, moved = _record(kernel, x0, context, lengths, generator)
    states, moved = states[:, burn_in:], moved[:, burn_in:]
    chains, draws = moved.shape
    stats = {
        "acceptance_rate": moved,
        "level": lengths.levels[:, None].expand(-1, draws),
        "weight": lengths.step_weights(burn_in + 1, burn_in + draws).T,
    }
    # −F of a Boltzmann machine is the log of p_θ(v) Z_θ.
    log_density = kernel.loss if isinstance(kernel, Gibbs) else getattr(kernel, "log_density", None)
    if log_density is not None:
        chunk = chunk_size(gradient.chunk, x0.device)
        stats["lp"] = _evaluated(log_density, states, x0.device, context, chunk)
    if states.dtype in HALF:
        states = states.float()  # NumPy has no bfloat16
    sizes = [math.prod(shape) for shape in parts.values()]
    pieces = states.reshape(chains * draws, -1).split(sizes, 1)
    return {
        "posterior": {
            name: piece.reshape(chains, draws, *shape).numpy()
            for (name, shape), piece in zip(parts.items(), pieces, strict=True)
        },
        "sample_stats": {name: stats[name].cpu().contiguous().numpy() for name in sorted(stats)},
    }


def to_arviz(
    gradient: MarkovGradient,
    x0: Start,
    *context: Any,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, ArrayLike] | None = None,
    **options: Any,
) -> DataTree:
    """Run the chains of a gradient and return all their states in ArviZ's layout.

    Needs the package `arviz-base`: `pip install 'mlmcgrad[arviz]'`.

    Args:
        gradient: as for `to_dict`, like x0 and context.
        x0: where the chains start.
        context: as for `gradient.backward`.
        dims: names of the dimensions of a variable after (chain, draw).
        coords: labels along a dimension.
        options: the keyword arguments of `to_dict`: generator, length, burn_in, n and names.

    Returns:
        An `xarray.DataTree` with the groups `posterior` and `sample_stats`, which the functions of
        ArviZ 1.x take.
    """
    try:
        from arviz_base import from_dict
    except ModuleNotFoundError as error:
        remedy = f"to_arviz needs the package {error.name}; pip install 'mlmcgrad[arviz]'"
        raise ModuleNotFoundError(remedy, name=error.name) from error
    arrays = to_dict(gradient, x0, *context, **options)
    about = {"inference_library": "mlmcgrad", "inference_library_version": mlmcgrad.__version__}
    # Its check would warn of more chains than draws, which is usual here.
    attrs = dict.fromkeys(arrays, about)
    return from_dict(arrays, dims=dims, coords=coords, attrs=attrs, check_conventions=False)


def _parts(names: Names, shape: torch.Size) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each part of a state."""
    named = {names: shape} if isinstance(names, str) else names
    parts = {name: tuple(part) for name, part in named.items()}
    total = sum(math.prod(part) for part in parts.values())
    if total != shape.numel():
        raise ValueError(
            f"names must have shapes with {shape.numel()} numbers in total, as a state of shape "
            f"{tuple(shape)} has, got {total} in {parts}"
        )
    return parts


@torch.no_grad()
def _record(
    kernel: StepKernel[Any],
    x0: Tensor,
    context: Context,
    lengths: Lengths,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return the states, (chains, draws, *shape), and which steps moved, (chains, draws)."""
    chains, draws = len(lengths.levels), int(lengths.longest.max())
    numbers = chains * draws * x0.shape[1:].numel()
    if numbers > _NUMBERS:
        raise ValueError(
            f"x0 must have fewer rows: {chains} chains of {draws:,} draws have {numbers:,} "
            f"numbers, more than {_NUMBERS:,}; use some of the rows, or a smaller length"
        )
    states = torch.empty(chains, draws, *x0.shape[1:], dtype=x0.dtype)
    moved = torch.full((chains, draws), math.nan, dtype=torch.float64)
    for block in kernel.blocks(x0, context, lengths.longest, generator):
        rows, columns = block.chains.cpu(), slice(block.step, block.step + len(block.moved))
        states[rows, columns] = block.path[1:].transpose(0, 1).cpu()
        moved[rows, columns] = block.moved.T.double().cpu()
    last = lengths.longest.cpu()[:, None] - 1
    return states[torch.arange(chains)[:, None], torch.arange(draws).minimum(last)], moved


@torch.no_grad()
def _evaluated(
    function: Callable[..., Tensor],
    states: Tensor,
    device: torch.device,
    context: Context,
    chunk: int,
) -> Tensor:
    """Evaluate a function at each state in chunks, (chains, draws) float64."""
    chains, draws = states.shape[:2]
    owner = torch.arange(chains).repeat_interleave(draws)
    values = [
        function(points.to(device), *take(context, rows))
        for points, rows in zip(states.flatten(0, 1).split(chunk), owner.split(chunk), strict=True)
    ]
    return torch.cat(values).double().reshape(chains, draws)
