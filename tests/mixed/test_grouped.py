"""Scores, information and log-likelihood, against quadrature written without the library."""

import math
from collections.abc import Iterable
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mlmcgrad import Average, MLMCSum, mixed
from mlmcgrad.estimators import Estimator
from mlmcgrad.mixed import grouped
from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.grouped import Bucket, Grouped, buckets, lattice, quantile
from mlmcgrad.mixed.parameters import scaled
from tests.chains import rng
from tests.mixed.quadrature import Model, simulate
from tests.statistics import mean_is

CASES = {
    "bernoulli": (simulate("bernoulli", 1, 2, groups=15, rows=5), [-0.3, 0.6, 3.0]),
    "poisson": (simulate("poisson", 1, 2, groups=15, rows=5, sd=(1.0, 0.0)), [-0.4, 0.7, 0.8]),
    "two effects": (
        simulate("bernoulli", 2, 2, groups=15, rows=5, sd=(2.0, 1.0)),
        [-0.3, 0.6, 1.8, 0.4, 0.9],
    ),
}


def likelihood(model: Model, estimator: Estimator | None = None, candidates: int = 8) -> Grouped:
    """Return a likelihood that is sampled."""
    design = build(model.formula, model.data)
    found = Grouped(design, family(model.family), estimator, candidates, rng())
    found.exact = False
    return found


def by_quadrature(model: Model) -> Grouped:
    found = likelihood(model)
    found.exact = True
    return found


def exact_score(model: Model, theta: list[float]) -> Tensor:
    at, found = np.array(theta), []
    for i in range(len(theta)):
        step = np.zeros(len(theta))
        step[i] = 1e-4
        ends = [model.log_likelihood(at + sign * step, at) for sign in (1.0, -1.0)]
        found.append((ends[0] - ends[1]) / 2e-4)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_unbiased(case: str) -> None:
    """Null: their mean is the exact score; false alarm 1e-5. Four candidates have a bias."""
    model, theta = CASES[case]
    exact, at = exact_score(model, theta), torch.tensor(theta, dtype=torch.float64)
    whole = likelihood(model, MLMCSum(math.inf, 2**-1.5, assignment="balanced"), candidates=4)
    assert mean_is(whole.scores(at, 400), exact)
    # Planted bug: no levels.
    short = likelihood(model, Average(1), candidates=4)
    assert not mean_is(short.scores(at, 2500), exact)


@pytest.mark.parametrize("case", CASES)
def test_quadrature_is_exact(case: str) -> None:
    """Value, score, curvature and moments; planted bug: too few nodes."""
    model, theta = CASES[case]
    at = torch.tensor(theta, dtype=torch.float64)
    whole = by_quadrature(model)
    assert whole.settle(at)
    assert not whole.settle(at)
    value, score = whole.value_and_score(at)
    exact = model.log_likelihood(np.array(theta), np.array(theta))
    assert value == pytest.approx(exact, abs=2e-6)
    assert torch.allclose(score, exact_score(model, theta), atol=1e-4)
    found = whole.log_likelihood(at, rng())
    assert found.total == pytest.approx(value, abs=2e-6)
    assert found.error == 0.0
    assert _off_the_curvature(whole.information(at)[0], case) < 1e-3
    ((mean, covariance),), ((near, spread),) = whole.effects(at), likelihood(model).effects(at)
    assert np.allclose(mean, near, atol=0.02)
    assert np.allclose(covariance, spread, atol=0.05)
    whole._nodes = 2
    assert abs(whole.value_and_score(at)[0] - exact) > 1e-2


@pytest.mark.parametrize("case", CASES)
def test_the_information_is_the_curvature(case: str) -> None:
    whole, at = likelihood(CASES[case][0]), torch.tensor(CASES[case][1], dtype=torch.float64)
    found = torch.cat([whole.information(at) for _ in range(20)]).mean(0)
    assert _off_the_curvature(found, case) < 0.02


def _off_the_curvature(found: Tensor, case: str) -> float:
    """Return the largest difference from the differences of exact scores, in standard errors."""
    model, theta = CASES[case]
    columns = []
    for i in range(len(theta)):
        moved = [[t + sign * 1e-3 * (i == j) for j, t in enumerate(theta)] for sign in (1, -1)]
        ends = [exact_score(model, point) for point in moved]
        columns.append((ends[1] - ends[0]) / 2e-3)
    exact = torch.stack(columns)
    size = exact.diagonal().sqrt()
    return float(((found - exact) / size / size[:, None]).abs().max())


def test_a_normal_response_has_a_closed_form() -> None:
    """Three effects per group, against the density of the multivariate normal law."""
    model = simulate("gaussian", 1, 2, groups=6, rows=5)
    data = model.data.assign(z=np.linspace(-1.0, 1.0, 30) ** 2)
    design = build("y ~ x + (x + z | g)", data)
    whole = Grouped(design, family("gaussian"), None, 8, rng())
    at = torch.tensor([0.2, -0.3, 0.9, 0.4, 0.7, -0.2, 0.3, 0.5, 0.1], dtype=torch.float64)
    (effects,), value = design.effects, 0.0
    columns = (effects.columns @ whole.layout.factor(at)).numpy()
    mean = (design.fixed @ whole.layout.beta(at)).numpy()
    variance = math.exp(2.0 * float(at[-1]))
    for g in range(6):
        rows = effects.index.numpy() == g
        law = stats.multivariate_normal(
            mean[rows], columns[rows] @ columns[rows].T + variance * np.eye(rows.sum())
        )
        value += law.logpdf(design.y.numpy()[rows])
    assert whole.exact
    assert whole.method == "in closed form"
    assert not whole.settle(at)
    assert whole.value_and_score(at)[0] == pytest.approx(value, abs=1e-8)


def test_without_enough_nodes_the_integrals_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "_MOST_NODES", 16)
    model, _ = CASES["bernoulli"]
    fit = mixed.fit(model.formula, model.data, "bernoulli", tolerance=0.1)
    assert fit.method == "by levels of importance sampling"
    assert fit.converged
    assert fit.llf_se > 0.0


@pytest.mark.parametrize("case", CASES)
def test_the_log_likelihood_is_within_its_error(case: str) -> None:
    model, theta = CASES[case]
    at = torch.tensor(theta, dtype=torch.float64)
    found = likelihood(model).log_likelihood(at, rng())
    exact = model.log_likelihood(np.array(theta), np.array(theta))
    assert abs(found.total - exact) < 5.0 * found.error
    assert found.error < 0.05
    assert len(found.value) == 15


def test_random_effects_have_their_posterior_moments() -> None:
    model, theta = CASES["two effects"]
    at = torch.tensor(theta, dtype=torch.float64)
    ((mean, covariance),) = likelihood(model).effects(at)
    u, root = model._posterior(np.array(theta))
    factor = likelihood(model).layout.factor(at).numpy()
    assert np.allclose(mean, u @ factor.T, atol=0.05)
    exact = factor @ root @ root.transpose(0, 2, 1) @ factor.T
    assert np.allclose(covariance, exact, atol=0.15)


def test_the_quantile_is_student_s() -> None:
    p = torch.tensor([1e-15, 1e-9, 1e-3, 0.2, 0.5, 0.7, 0.999, 1.0 - 1e-9], dtype=torch.float64)
    assert np.allclose(quantile(p), stats.t(4).ppf(p.numpy()), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_a_lattice_is_spread_evenly(dimension: int) -> None:
    points = lattice(64, dimension)
    assert points.shape == (64, dimension)
    assert bool(((points >= 0.0) & (points < 1.0)).all())
    for column in points.T:
        assert int(torch.histc(column, 16, 0.0, 1.0).min()) >= 2
    if dimension > 1:  # and in the plane: Planted bug: twice the same coordinate
        cells = (points[:, :2] * 4).floor() @ torch.tensor([4.0, 1.0], dtype=torch.float64)
        assert len(cells.unique()) == 16


def test_draws_have_the_density_that_they_say() -> None:
    """Null: the mean of p/q is 1 for a normal p around the mode; false alarm 1e-5."""
    model, theta = CASES["two effects"]
    at = torch.tensor(theta, dtype=torch.float64)
    (proposal,) = likelihood(model).proposals(at)
    u, log_q = proposal.draw(torch.arange(15).repeat_interleave(4000), 4, rng())
    u, log_q = u.reshape(15, 16000, 2), log_q.reshape(15, 16000)
    covariance = proposal.root @ proposal.root.mT
    law = torch.distributions.MultivariateNormal(proposal.mode[:, None], covariance[:, None])
    ratio = (law.log_prob(u) - log_q).exp().reshape(15, 4000, 4).mean(2).T
    assert mean_is(ratio, torch.ones(15, dtype=torch.float64))
    assert not mean_is(1.01 * ratio, torch.ones(15, dtype=torch.float64))


def _buckets(group: Tensor) -> list[Bucket]:
    """The buckets of groups; response and offset are the numbers of the rows."""
    rows = np.arange(len(group))
    data = {"y": rows, "o": rows, "g": group.numpy()}
    return buckets(build("y ~ 1 + offset(o) + (1 | g)", data))


def test_buckets_hold_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlmcgrad.mixed.grouped._PRICE", 2)
    group = torch.tensor([2, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3])
    found = _buckets(group)
    for bucket in found:
        here = bucket.present.bool()
        where = bucket.y.long()
        assert torch.equal(group[where][here], bucket.groups[:, None].expand_as(here)[here])
        assert torch.equal(bucket.offset[here], bucket.y[here])
    seen = torch.cat([bucket.y[bucket.present.bool()] for bucket in found])
    assert seen.sort().values.tolist() == list(range(11))


@pytest.mark.parametrize("price", [0, 1, 3, 10, 1000])
def test_no_other_buckets_are_cheaper(price: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlmcgrad.mixed.grouped._PRICE", price)
    sizes = [1, 1, 1, 2, 3, 3, 7, 8, 8, 20]
    found = _buckets(torch.arange(10).repeat_interleave(torch.tensor(sizes)))

    def cost(ends: Iterable[int]) -> int:
        """Of buckets that end before these groups."""
        cuts = [0, *ends, 10]
        return sum(price + (b - a) * sizes[b - 1] for a, b in pairwise(cuts) if b > a)

    cheapest = min(cost(ends) for n in range(10) for ends in combinations(range(1, 10), n))
    assert sum(price + bucket.y.numel() for bucket in found) == cheapest


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_units_do_not_change_the_likelihood(kind: str) -> None:
    model, _ = CASES["two effects"]
    data = model.data.assign(x=50.0 + 7.0 * model.data["x"])
    if kind == "gaussian":
        data["y"] = 1000.0 + 30.0 * data["y"] + data["x"]
    design, law = build(model.formula, data), family(kind)
    units, scale = scaled(design, law)
    theta = torch.tensor([0.1, -0.02, 0.3, 0.01, 0.02], dtype=torch.float64)
    if kind == "gaussian":
        theta = torch.cat([theta * 30.0, torch.tensor([3.0], dtype=torch.float64)])
    own = Grouped(design, law, None, 32, rng()).log_likelihood(theta, rng())
    other = Grouped(units, law, None, 32, rng()).log_likelihood(scale.back(theta), rng())
    assert other.total + scale.log_volume == pytest.approx(own.total, rel=1e-8)
    assert torch.allclose(scale.point(scale.back(theta)), theta)


def test_scores_at_once_are_independent_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Null: their mean is the score, and that of pairs varies half as much; false alarm 1e-5."""
    monkeypatch.setattr("mlmcgrad.mixed.grouped._COPIES", 15 * 300)
    monkeypatch.setattr("mlmcgrad.mixed.grouped._PART", 2**12)
    model, theta = CASES["poisson"]
    at = torch.tensor(theta, dtype=torch.float64)
    found = likelihood(model).scores(at, 2000)
    assert mean_is(found, exact_score(model, theta))
    moved = found - found.mean(0)
    nothing = torch.zeros(len(theta), dtype=torch.float64)
    assert mean_is(moved[::2] * moved[1::2], nothing)
    assert not mean_is(moved[::2] * moved[::2], nothing)


def test_length_is_that_of_the_group_that_moves_most() -> None:
    """Of all buckets: small groups and large ones are apart."""
    g, x = [0] * 2 + [1] * 2 + [2] * 4000, [1.0, -3.0, 0.5, 0.2] + [0.1] * 4000
    design = build("y ~ x + (1 + x | g)", {"y": [0.0, 1.0] * 2002, "x": x, "g": g})
    small = Grouped(design, family("bernoulli"), None, 8, rng())
    assert len(buckets(design)) > 1
    step = torch.tensor([0.5, 1.0, 0.0, 0.2, 0.1], dtype=torch.float64)
    assert small.length(step) == pytest.approx(2.5 + 2.0 * (0.6**2 + 0.3**2) ** 0.5)


def test_some_groups_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Null: the mean of the score of six groups is 6/15 of that of all; false alarm 1e-5."""
    monkeypatch.setattr("mlmcgrad.mixed.grouped._BATCH", 6)
    model, theta = CASES["poisson"]
    at = torch.tensor(theta, dtype=torch.float64)
    whole = likelihood(model)
    found = [whole.adaptive(at) for _ in range(400)]
    assert mean_is(torch.stack([score for score, _ in found]), 0.4 * exact_score(model, theta))
    outer = torch.stack([matrix for _, matrix in found]).mean(0)
    assert torch.linalg.eigvalsh(outer).min() > 0.0


def test_a_group_without_any_likelihood_is_named() -> None:
    model, _ = CASES["poisson"]
    impossible = torch.tensor([-0.4, torch.nan, 0.8], dtype=torch.float64)
    possible = likelihood(model).proposals(torch.tensor([-0.4, 0.7, 0.8], dtype=torch.float64))
    with pytest.raises(FloatingPointError, match=r"15 groups \(number 0 is one of them\).*nan"):
        likelihood(model)._scores(impossible, possible)
