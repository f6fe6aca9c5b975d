"""A Metropolis step leaves the right law as it is, and no other: exact draws of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mlmcgrad import problems
from mlmcgrad.diagnostics._checks import Law, Mean, _flip, _stationary, increments, law_of, walks
from mlmcgrad.kernels import ISIR, MALA, RWMH, Finite, FromStep, Gibbs, Importance
from mlmcgrad.measure import Measure
from tests.chains import random_matrix, rng

COUNT, TIMES = 200, 20


def significance(law: Law | None, points: Tensor, context: tuple[Any, ...] = ()) -> float:
    """P-value of the hypothesis that independent points have this law."""
    assert law is not None
    owner = torch.arange(COUNT).repeat(len(points) // COUNT)
    share = torch.full((len(points),), COUNT / len(points), dtype=torch.float64)
    moved, size, evaluations = increments(
        law, Measure(points, owner, share), context, COUNT, rng(1)
    )
    assert evaluations == 5 * len(points)
    assert bool((size >= moved.abs() - 1e-12).all())
    return Mean.of(moved, torch.zeros(COUNT, dtype=torch.int64)).significance()


def _normal() -> tuple[Law | None, Tensor, Tensor]:
    problem = problems.gaussian(3)
    x = problem.sample(COUNT * TIMES, rng())
    return law_of(RWMH(problem.log_density, 1.0), None), x, problem.mean + 1.1 * (x - problem.mean)


def _skewed() -> tuple[Law | None, Tensor, Tensor]:
    problem = problems.skewed(2)
    x = problem.sample(COUNT * TIMES, rng())
    return law_of(MALA(problem.log_density, 1.0), None), x, x + 0.15


def _edge() -> tuple[Law | None, Tensor, Tensor]:
    """Exponential: E[∇log π] = −1 and not 0, for the density has an edge."""

    def log_density(x: Tensor) -> Tensor:
        return torch.where(x > 0.0, -x, -torch.inf).sum(1)

    u = torch.rand(COUNT * TIMES, 2, dtype=torch.float64, generator=rng())
    x = -torch.log1p(-u)
    return law_of(FromStep(lambda x, generator: x), log_density), x, 1.15 * x


def _machine() -> tuple[Law | None, Tensor, Tensor]:
    problem = problems.boltzmann()
    other = Gibbs(0.7 * problem.weight, problem.visible, problem.hidden)
    wrong = (-other.free_energy(problem.states())).softmax(0).detach()
    picks = torch.multinomial(wrong, COUNT * TIMES, True, generator=rng())
    right = problem.sample(COUNT * TIMES, rng())
    return law_of(problem.kernel(), None), right, problem.states()[picks]


def _finite() -> tuple[Law | None, Tensor, Tensor]:
    problem = problems.finite_chain(states=6, seed=1)
    wrong = torch.full((6,), 1.0 / 6.0)
    picks = torch.multinomial(wrong, COUNT * TIMES, True, generator=rng())
    return law_of(problem.kernel(), None), problem.sample(COUNT * TIMES, rng()), picks


def _weighed() -> tuple[Law | None, Tensor, Tensor]:
    """Target N(0, 1), proposal N(0.5, 1.5²)."""

    def log_weight(z: Tensor) -> Tensor:
        return 0.5 * (((z - 0.5) / 1.5).square() - z.square()).sum(1)

    def propose(rows: int, generator: torch.Generator) -> Tensor:
        return 0.5 + 1.5 * torch.randn(rows, 1, dtype=torch.float64, generator=generator)

    x = torch.randn(COUNT * TIMES, 1, dtype=torch.float64, generator=rng())
    return law_of(ISIR(log_weight, propose, 4), None), x, 1.15 * x


@pytest.mark.parametrize("case", [_normal, _skewed, _edge, _machine, _finite, _weighed])
def test_the_right_law_stays_and_a_wrong_one_moves(
    case: Callable[[], tuple[Law | None, Tensor, Tensor]],
) -> None:
    """Null hypothesis: all means of steps are 0; false-alarm rate 1e-5."""
    law, right, wrong = case()
    assert significance(law, right) > 1e-5
    assert significance(law, wrong) < 1e-5


def test_each_row_has_its_own_law() -> None:
    """N(y, 1) for each chain's y; with the rows of another it is wrong."""
    y = torch.arange(COUNT, dtype=torch.float64) % 7.0
    noise = torch.randn(TIMES, COUNT, 1, dtype=torch.float64, generator=rng())
    points = (y[:, None] + noise).flatten(0, 1)
    law = law_of(None, lambda x, y: -0.5 * (x[:, 0] - y).square())
    assert significance(law, points, (y,)) > 1e-5
    assert significance(law, points, (y + 0.15,)) < 1e-5


def test_signed_weights_count_with_their_signs() -> None:
    """2·(a draw) − (the same draw): the increments of one, of twice the size."""
    law, x, _ = _normal()
    assert law is not None
    x, owner, one = x[:COUNT], torch.arange(COUNT), torch.ones(COUNT, dtype=torch.float64)
    twice = Measure(torch.cat([x, x]), owner.repeat(2), torch.cat([2.0 * one, -one]))
    moved, size, _ = increments(law, twice, (), COUNT, rng())
    assert bool((size.sum(0) > 2.0 * moved.sum(0).abs()).all())
    assert Mean.of(moved, torch.zeros_like(owner)).significance() > 1e-5


def test_many_coordinates_are_looked_at_through_projections() -> None:
    x = torch.randn(COUNT * TIMES, 100, dtype=torch.float64, generator=rng())
    law = law_of(None, lambda x: -0.5 * x.square().sum(1))
    assert significance(law, x) > 1e-5
    assert significance(law, 1.1 * x) < 1e-5


def test_where_there_is_no_density() -> None:
    """A state outside the support is left at once, and a NaN is outside."""
    law = law_of(None, lambda x: torch.where(x[:, 0] > 0.0, -x[:, 0], torch.nan))
    assert law is not None
    points = torch.full((COUNT, 1), -1.0, dtype=torch.float64)
    points[::2] = 1.0
    assert significance(law, points) < 1e-5


def test_what_is_known_of_a_kernel() -> None:
    def draw(rows: int, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, generator=generator)

    assert law_of(FromStep(lambda x, generator: x), None) is None
    assert law_of(Importance(lambda z: z, draw, 2), None) is not None
    assert law_of(Finite(torch.eye(2).expand(3, 2, 2)), None) is None
    given = law_of(RWMH(lambda x: -x[:, 0], 1.0), lambda x: x[:, 0])
    assert given is not None
    assert given.energy(torch.ones(1, 1), ()).item() == 1.0  # what is given comes first


def test_states_that_a_walk_can_move() -> None:
    assert walks(torch.tensor([[0.3]]))
    assert walks(torch.tensor([[0, 1]]))
    assert not walks(torch.tensor([[0, 2]]))


def test_one_unit_is_flipped() -> None:
    x = torch.randint(0, 2, (50, 3, 2), generator=rng()).double()
    for y in _flip(x, (), rng(1)):
        assert y.shape == x.shape
        assert ((y - x).abs().flatten(1).sum(1) == 1.0).all()
        assert ((y == 0.0) | (y == 1.0)).all()


def test_the_stationary_law() -> None:
    both = torch.stack([random_matrix(5, 0), random_matrix(5, 1)])
    laws = _stationary(both)
    for matrix, law in zip(both, laws, strict=True):
        torch.testing.assert_close(law @ matrix, law)
        assert law.sum().item() == pytest.approx(1.0)
        torch.testing.assert_close(_stationary(matrix), law)


def test_the_stationary_law_has_the_same_bits_wherever_it_is_in_memory() -> None:
    """The planted bug, least squares by LAPACK, has about 20 solutions here."""
    matrix, elsewhere, laws = random_matrix(6, 0), [], set()
    for size in torch.randint(1, 200, (200,), generator=rng()).tolist():
        elsewhere.append(torch.empty(size, dtype=torch.float64))
        laws.add(tuple(_stationary(matrix.clone()).tolist()))
    assert len(laws) == 1
