"""Every kernel leaves its target invariant, and starts at X_1 after one transition from x0.

One row a kernel. Chains start from exact independent draws of the target and run for a few steps.
Null hypothesis: the states at the end, and the measure along the way, still have the target's
moments; they are independent over chains. False-alarm rate 1e-5 a row (Bonferroni over its test
functions). Every row has a twin with a planted bug that must fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.kernels import ISIR, MALA, RWMH, Finite, FromStep, Gibbs, Kernel
from mlmcgrad.kernels.base import Context, Pieces, Simulation
from mlmcgrad.lengths import Lengths
from tests.chains import random_matrix, rng, run
from tests.statistics import mean_is

CHAINS = 20_000
STEPS = 6


@dataclass(frozen=True)
class Row:
    """A kernel with exact draws of its target, and functions of the state with known means."""

    kernel: Kernel
    bug: Kernel
    draw: Callable[[torch.Generator], Tensor]
    functions: Callable[[Tensor], Tensor]  # (rows, *shape) -> (rows, quantities)
    expected: Tensor
    context: Context = ()


def _moments(x: Tensor) -> Tensor:
    """Coordinates, their products, and cubes."""
    products = (x[:, :, None] * x[:, None, :]).flatten(1)
    return torch.cat([x, products, x**3], 1)


def _gaussian_moments(mean: Tensor, covariance: Tensor) -> Tensor:
    second = covariance + torch.outer(mean, mean)
    third = mean**3 + 3.0 * mean * covariance.diagonal()
    return torch.cat([mean, second.flatten(), third])


def gaussian_row(kernel: Kernel, bug: Kernel, target: problems.GaussianTarget) -> Row:
    expected = _gaussian_moments(target.mean, target.covariance)
    return Row(kernel, bug, lambda g: target.sample(CHAINS, g), _moments, expected)


def skewed_row(kernel: Kernel, bug: Kernel, target: problems.Skewed) -> Row:
    mean, variance, third = target.mean, target.variance, target.third_moment
    second = torch.outer(mean, mean) + torch.diag(variance)
    cubes = third + 3.0 * mean * variance + mean**3
    expected = torch.cat([mean, second.flatten(), cubes])
    return Row(kernel, bug, lambda g: target.sample(CHAINS, g), _moments, expected)


def always_accepting(scale: float) -> FromStep:
    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + scale * torch.randn(x.shape, dtype=x.dtype, generator=generator)

    return FromStep(step)


def without_proposal_ratio(log_density: Callable[[Tensor], Tensor], h: float) -> FromStep:
    """Erratum 3: MALA's proposal with the acceptance of a symmetric one."""

    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(log_density(leaf).sum(), leaf)
        z = torch.randn(x.shape, dtype=x.dtype, generator=generator)
        y = x + h * slope + (2.0 * h) ** 0.5 * z
        u = torch.rand(len(x), dtype=x.dtype, generator=generator)
        accepted = u.log() < log_density(y) - log_density(x)
        return torch.where(accepted[:, None], y, x)

    return FromStep(step)


def half_row(
    dtype: torch.dtype, kernel: type[RWMH | MALA], size: float, bug: Callable[..., FromStep]
) -> Row:
    """The standard normal law in the plane, with states and density in half precision."""

    def log_density(x: Tensor) -> Tensor:
        return -0.5 * x.square().sum(1)

    def draw(generator: torch.Generator) -> Tensor:
        return torch.randn(CHAINS, 2, dtype=torch.float64, generator=generator).to(dtype)

    expected = _gaussian_moments(torch.zeros(2).double(), torch.eye(2).double())
    planted = bug(log_density, size)
    return Row(kernel(log_density, size), planted, draw, lambda x: _moments(x.double()), expected)


def deciding_in_half_precision(log_density: Callable[[Tensor], Tensor], h: float) -> FromStep:
    """A uniform in half precision is often exactly 0, and then accepts anything."""

    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        y = x + h * torch.randn(x.shape, dtype=x.dtype, generator=generator)
        u = torch.rand(len(x), dtype=x.dtype, generator=generator)
        return torch.where((u.log() < log_density(y) - log_density(x))[:, None], y, x)

    return FromStep(step)


def dropping_the_kept_state(model: problems.LinearGaussian, fresh: int) -> FromStep:
    """Plain self-normalised importance resampling: no candidate is carried over."""

    def step(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        rows = y.repeat_interleave(fresh, 0)
        z = model.propose(len(rows), rows, generator)
        log_w = model.log_weight(z, rows).reshape(-1, fresh)
        pick = torch.multinomial(log_w.softmax(1), 1, generator=generator)[:, 0]
        return z.reshape(-1, fresh, x.shape[1])[torch.arange(len(x)), pick]

    return FromStep(step)


def isir_row(rao_blackwell: bool) -> Row:
    model = problems.linear_gaussian()
    y = model.data[torch.arange(CHAINS) % len(model.data)].detach()
    mean, covariance = model.posterior(model.data)
    expected = torch.stack([_gaussian_moments(m, covariance) for m in mean]).mean(0)
    with torch.no_grad():
        return Row(
            model.kernel(5, rao_blackwell),
            _Detached(dropping_the_kept_state(model, 4)),
            lambda g: model.sample(y, g),
            _moments,
            expected,
            (y,),
        )


@dataclass(frozen=True)
class _Detached:
    """Runs a kernel without recording gradients."""

    kernel: Kernel

    def chains(self, x0: Tensor, context: Context) -> int:
        return self.kernel.chains(x0, context)

    def run(
        self, x0: Tensor, context: Context, plan: Lengths, generator: torch.Generator
    ) -> Pieces:
        simulation = Simulation(self.kernel.run(x0, context, plan, generator))
        with torch.no_grad():
            pieces = list(simulation)
        yield from pieces
        return simulation.outcome


def finite_row() -> Row:
    matrix = random_matrix(4, seed=2)
    law = torch.linalg.matrix_power(matrix, 10_000)[0]

    def draw(generator: torch.Generator) -> Tensor:
        return torch.multinomial(law, CHAINS, True, generator=generator)

    transposed = matrix.T / matrix.T.sum(1, keepdim=True)
    return Row(Finite(matrix), Finite(transposed), draw, lambda x: torch.eye(4).double()[x], law)


def boltzmann_row(*, written_out: bool) -> Row:
    model = problems.boltzmann()
    states, law = model.states(), model.law()
    weights = 2.0 ** torch.arange(4, dtype=torch.float64)

    def one_hot(v: Tensor) -> Tensor:
        return torch.eye(16, dtype=torch.float64)[(v @ weights).long()]

    def step(v: Tensor, generator: torch.Generator, hidden: Tensor = model.hidden) -> Tensor:
        down = torch.sigmoid(v @ model.weight + hidden)
        h = (torch.rand(down.shape, dtype=v.dtype, generator=generator) < down).to(v.dtype)
        up = torch.sigmoid(h @ model.weight.T + model.visible)
        return (torch.rand(up.shape, dtype=v.dtype, generator=generator) < up).to(v.dtype)

    assert torch.equal(one_hot(states).argmax(1), torch.arange(16))
    without = torch.zeros_like(model.hidden)  # the bug: the hidden bias is forgotten
    kernel: Kernel = FromStep(step) if written_out else model.kernel()
    bug: Kernel = (
        FromStep(lambda v, generator: step(v, generator, without))
        if written_out
        else Gibbs(model.weight, model.visible, without)
    )
    return Row(kernel, bug, lambda g: model.sample(CHAINS, g), one_hot, law)


@cache
def table() -> dict[str, Row]:
    normal, skew = problems.gaussian(), problems.skewed()
    return {
        "RWMH": gaussian_row(RWMH(normal.log_density, 1.5), always_accepting(1.5), normal),
        "RWMH, skewed": skewed_row(RWMH(skew.log_density, 1.0), always_accepting(1.0), skew),
        "MALA": gaussian_row(
            MALA(normal.log_density, 0.5), without_proposal_ratio(normal.log_density, 0.5), normal
        ),
        "MALA, skewed": skewed_row(
            MALA(skew.log_density, 0.5), without_proposal_ratio(skew.log_density, 0.5), skew
        ),
        "RWMH, bfloat16": half_row(torch.bfloat16, RWMH, 8.0, deciding_in_half_precision),
        "RWMH, float16": half_row(torch.float16, RWMH, 1.5, lambda _, h: always_accepting(h)),
        "MALA, bfloat16": half_row(torch.bfloat16, MALA, 0.5, without_proposal_ratio),
        "MALA, float16": half_row(torch.float16, MALA, 0.5, without_proposal_ratio),
        "ISIR": isir_row(rao_blackwell=False),
        "ISIR, Rao-Blackwell": isir_row(rao_blackwell=True),
        "Finite": finite_row(),
        "FromStep, block Gibbs": boltzmann_row(written_out=True),
        "Gibbs": boltzmann_row(written_out=False),
    }


NAMES = [
    "RWMH",
    "RWMH, skewed",
    "MALA",
    "MALA, skewed",
    "RWMH, bfloat16",
    "RWMH, float16",
    "MALA, bfloat16",
    "MALA, float16",
    "ISIR",
    "ISIR, Rao-Blackwell",
    "Finite",
    "FromStep, block Gibbs",
    "Gibbs",
]


def _keeps_the_target(row: Row, kernel: Kernel) -> bool:
    """Look at the states at the end and at each chain's average along the way."""
    generator = rng(11)
    x0 = row.draw(generator)
    plan = mg.Average(STEPS).draw(CHAINS, 1, generator)
    measure, outcome = run(kernel, x0, plan, row.context, generator)
    values = row.functions(measure.points) * measure.coefficient[:, None]
    along = torch.zeros(CHAINS, values.shape[1], dtype=torch.float64)
    along.index_add_(0, measure.owner, values)
    both = torch.cat([row.functions(outcome.last), along], 1)
    return mean_is(both, torch.cat([row.expected, row.expected]))


@pytest.mark.parametrize("name", NAMES)
def test_target_is_invariant(name: str) -> None:
    row = table()[name]
    assert _keeps_the_target(row, row.kernel)


@pytest.mark.parametrize("name", NAMES)
def test_planted_bug_is_seen(name: str) -> None:
    row = table()[name]
    assert not _keeps_the_target(row, row.bug)


def test_the_table_is_complete() -> None:
    assert set(NAMES) == set(table())
    tested = {type(row.kernel) for row in table().values()}
    assert tested == {RWMH, MALA, ISIR, Finite, FromStep, Gibbs}
