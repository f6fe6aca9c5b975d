"""Chains as arrays, for ArviZ and for NumPy: every state with what is known of it.

    posterior      the states, (chain, draw, *shape)
    sample_stats   (chain, draw) each:
        lp               log π up to a constant, for kernels that have a density
        acceptance_rate  1 where the step moved the chain and 0 where it did not
        level            the level K of the chain; 0 where the estimator has none
        weight           c_j of the signed measure Σ_j c_j δ_{x_j}

So Σ_draw weight · loss(x) is the estimate of a chain, and its mean over the chains that of
`MarkovGradient.gradient`. Chains of different lengths make a rectangle: after its end a chain has
weight 0, no acceptance_rate (NaN), and stays where it was.
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
from mlmcgrad.estimators import Average
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import Gibbs, Kernel
from mlmcgrad.kernels.acceptance import HALF
from mlmcgrad.kernels.base import Context, Start, take
from mlmcgrad.kernels.steps import StepKernel
from mlmcgrad.plan import Plan
from mlmcgrad.ranges import whole

if TYPE_CHECKING:
    from xarray import DataTree

Arrays: TypeAlias = dict[str, dict[str, NDArray[Any]]]
Names: TypeAlias = str | Mapping[str, tuple[int, ...]]

# All states are kept at once, in a rectangle of chains × draws: 2 GiB of float64.
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

    Without `length` these are the chains of one estimate, as `gradient.gradient` runs them: from
    the same state of the generator they make the same steps (unless the gradient is thinned, which
    takes random numbers too). With it they all have this length, as R̂, effective sample sizes and
    trace plots need them.

    Args:
        gradient: its kernel must move chains step by step, as `MALA`, `RWMH`, `Gibbs`, `Finite` and
            `FromStep` do. Nothing is differentiated.
        x0: where the chains start, (chains, *shape). R̂ compares chains: it means something where
            they have the same target, so the same context, and different starts.
        context: as for `gradient.backward`.
        length: how many states of each chain are recorded; by default what the estimator plans.
        burn_in: transitions before them, which are not recorded.
        n: iteration, where the estimator has a schedule.
        generator: source of all randomness.
        names: name of the state, or names and shapes of the parts that it consists of, in order.

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
            f"burn_in must come with length, got burn_in = {burn_in} alone; the estimator "
            "decides what its chains do"
        )
    kernel = gradient.kernel
    if not isinstance(kernel, StepKernel):
        raise TypeError(
            "gradient must have a kernel that moves chains step by step, as MALA, RWMH, Gibbs, "
            f"Finite and FromStep do, got {type(kernel).__name__}"
        )
    plan = gradient.plan(x0, context, n, generator)
    parts = _parts(names, x0.shape[1:])
    states, moved = _record(kernel, x0, context, plan, generator)
    states, moved = states[:, burn_in:], moved[:, burn_in:]
    chains, draws = moved.shape
    stats = {
        "acceptance_rate": moved,
        "level": plan.levels[:, None].expand(-1, draws),
        "weight": plan.step_weights(burn_in + 1, burn_in + draws).T,
    }
    log_density = _log_density(kernel)
    if log_density is not None:
        stats["lp"] = _evaluated(log_density, states, x0.device, context, gradient.chunk)
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
    length: int | None = None,
    burn_in: int = 0,
    n: SupportsIndex | None = None,
    generator: torch.Generator,
    names: Names = "x",
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, ArrayLike] | None = None,
) -> DataTree:
    """Run the chains of a gradient and return all their states in ArviZ's layout.

    Takes the arguments of `to_dict`, and ArviZ's names of dimensions and their coordinates. It
    needs the package `arviz-base`, `pip install 'mlmcgrad[arviz]'`.

    Args:
        gradient: as for `to_dict`, and likewise the arguments up to `names`.
        x0: where the chains start.
        context: as for `gradient.backward`.
        length: how many states of each chain are recorded.
        burn_in: transitions before them.
        n: iteration, where the estimator has a schedule.
        generator: source of all randomness.
        names: name of the state, or names and shapes of its parts.
        dims: names of the dimensions of a variable after (chain, draw).
        coords: labels along a dimension.

    Returns:
        An `xarray.DataTree` with the groups `posterior` and `sample_stats`, which the functions of
        ArviZ 1.x take.
    """
    try:
        from arviz_base import from_dict
    except ModuleNotFoundError as error:
        remedy = f"to_arviz needs the package {error.name}; pip install 'mlmcgrad[arviz]'"
        raise ModuleNotFoundError(remedy, name=error.name) from error
    arrays = to_dict(
        gradient,
        x0,
        *context,
        length=length,
        burn_in=burn_in,
        n=n,
        generator=generator,
        names=names,
    )
    about = {"inference_library": "mlmcgrad", "inference_library_version": mlmcgrad.__version__}
    # Its check would warn of more chains than draws, which is usual here and not a mistake.
    return from_dict(
        arrays,
        dims=dims,
        coords=coords,
        attrs=dict.fromkeys(arrays, about),
        check_conventions=False,
    )


def _parts(names: Names, shape: torch.Size) -> dict[str, tuple[int, ...]]:
    """Name and shape of what a state of a shape consists of."""
    if isinstance(names, str):
        parts = {names: tuple(shape)}
    else:
        parts = {
            name: tuple(whole(size, f"names[{name!r}]") for size in part)
            for name, part in names.items()
        }
    total = sum(math.prod(part) for part in parts.values())
    if total != shape.numel():
        raise ValueError(
            f"names must have shapes of {shape.numel()} numbers in all, those of a state of shape "
            f"{tuple(shape)}, got {total} in {parts}"
        )
    for name in ("chain", "draw"):
        if name in parts:
            raise ValueError(f"names must not contain {name!r}, which is a dimension")
    return parts


@torch.no_grad()
def _record(
    kernel: StepKernel[Any], x0: Tensor, context: Context, plan: Plan, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """States after each step, (chains, draws, *shape), and whether it moved, (chains, draws)."""
    chains, draws = len(plan.levels), int(plan.longest.max())
    numbers = chains * draws * x0.shape[1:].numel()
    if numbers > _NUMBERS:
        raise ValueError(
            f"x0 must start fewer chains: {chains} of {draws:,} draws have {numbers:,} numbers, "
            f"beyond {_NUMBERS:,}; take some rows of it, or a smaller length"
        )
    states = torch.empty(chains, draws, *x0.shape[1:], dtype=x0.dtype)
    moved = torch.full((chains, draws), math.nan, dtype=torch.float64)
    for block in kernel.blocks(x0, context, plan.longest, generator):
        rows, columns = block.chains.cpu(), slice(block.step, block.step + len(block.moved))
        states[rows, columns] = block.path[1:].transpose(0, 1).cpu()
        moved[rows, columns] = block.moved.T.double().cpu()
    last = plan.longest.cpu()[:, None] - 1
    return states[torch.arange(chains)[:, None], torch.arange(draws).minimum(last)], moved


def _log_density(kernel: Kernel) -> Callable[..., Tensor] | None:
    """The log density that a kernel leaves invariant, if it knows one."""
    if isinstance(kernel, Gibbs):
        return kernel.loss  # −F, the log of p_θ(v) Z_θ
    return getattr(kernel, "log_density", None)


@torch.no_grad()
def _evaluated(
    function: Callable[..., Tensor],
    states: Tensor,
    device: torch.device,
    context: Context,
    chunk: int,
) -> Tensor:
    """A function of each state, (chains, draws) float64; some states at a time."""
    chains, draws = states.shape[:2]
    points = states.flatten(0, 1)
    owner = torch.arange(chains).repeat_interleave(draws)
    values = []
    for start in range(0, len(points), chunk):
        some = slice(start, start + chunk)
        values.append(function(points[some].to(device), *take(context, owner[some])))
    return torch.cat(values).double().reshape(chains, draws)
