"""Network models: the sampler against enumeration, the fits against a reference of their own."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path

import networkx
import pytest
import torch
from benchmarks.ergm_reference import LARGEST_ERROR, PATH, observed, reference
from examples.ergm_florentine import (
    FAMILIES,
    MARRIAGES,
    TERMS,
    Fit,
    Graphs,
    certify,
    fit,
    florence,
    main,
    rounds,
)
from torch import Tensor

from tests.chains import rng
from tests.faults import times
from tests.statistics import mean_is

REFERENCE = json.loads(PATH.read_text(encoding="utf-8"))
LARGEST = 7.79
# Strong dependence between ties, so that a wrong sampler shows.
THETA = {"triangles": (-1.0, 0.9), "two-stars": (-1.5, 0.4)}


def small(nodes: int, term: str) -> Graphs:
    """A triangle and one more tie, among this number of nodes."""
    network = torch.zeros(nodes, nodes)
    for i, j in ((0, 1), (1, 2), (0, 2), (2, 3)):
        network[i, j] = network[j, i] = 1.0
    return Graphs(network, [term])


def joint(graphs: Graphs) -> Graphs:
    """A bug: all pairs in one round, also those that share a node."""
    sides = torch.cat([sides for _, sides in graphs.rounds], dim=1)
    graphs.rounds = [(slice(0, len(graphs.observed)), sides)]
    return graphs


def law(graphs: Graphs, theta: Tensor) -> tuple[Tensor, Tensor]:
    """All networks, and their probabilities."""
    pairs = len(graphs.observed)
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * pairs)
    return states, (graphs.statistics(states) @ theta).softmax(0)


def moments(graphs: Graphs, x: Tensor) -> Tensor:
    """Statistics, their products, and the ties themselves, (rows, quantities)."""
    s = graphs.statistics(x)
    return torch.cat([s, s.square(), s[:, :1] * s[:, 1:], x.double()], dim=1)


def test_the_network_is_that_of_the_16_families() -> None:
    network = florence()
    assert len(FAMILIES) == 16
    assert len(set(map(frozenset, MARRIAGES))) == 20
    assert torch.equal(network, network.T)
    degree = dict(zip(FAMILIES, network.sum(0).tolist(), strict=True))
    assert degree["Medici"] == max(degree.values()) == 6
    assert [name for name, d in degree.items() if d == 0] == ["Pucci"]
    theirs = networkx.florentine_families_graph()  # with 15 of the families
    assert set(map(frozenset, theirs.edges)) == set(map(frozenset, MARRIAGES))
    for term in TERMS:
        assert Graphs(network, [term]).target.tolist() == observed(term).tolist()


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 9, 16])
def test_every_pair_plays_once_and_nobody_twice_in_a_round(nodes: int) -> None:
    games = rounds(nodes)
    assert len(games) == nodes - 1 + nodes % 2
    assert sorted(p for game in games for p in game) == list(combinations(range(nodes), 2))
    for game in games:
        players = [player for pair in game for player in pair]
        assert len(players) == len(set(players)) == nodes - nodes % 2


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("nodes", [5, 16])
def test_a_change_is_what_a_tie_adds(nodes: int, term: str) -> None:
    graphs = small(nodes, term)
    x = (torch.rand(50, len(graphs.observed), generator=rng()) < 0.4).float()
    seen = []
    for pairs, (left, right) in graphs.rounds:
        change = TERMS[term][0](x.T[left], x.T[right])
        for k, pair in enumerate(range(pairs.start, pairs.stop)):
            seen.append(pair)
            without, with_tie = x.clone(), x.clone()
            without[:, pair], with_tie[:, pair] = 0.0, 1.0
            added = graphs.statistics(with_tie) - graphs.statistics(without)
            assert torch.equal(added[:, 0], torch.ones(50, dtype=torch.float64))
            assert torch.equal(added[:, 1], change[k].double())
    assert seen == list(range(len(graphs.observed)))


@pytest.mark.parametrize("bug", [False, True])
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("nodes", [4, 5])
def test_a_sweep_leaves_the_exact_law_as_it_is(nodes: int, term: str, bug: bool) -> None:
    """H0: after a sweep from the law, 2^6 or 2^10 networks, moments are those of the law."""
    graphs, theta = small(nodes, term), torch.tensor(THETA[term], dtype=torch.float64)
    states, probability = law(graphs, theta)
    expected = probability @ moments(graphs, states)
    if bug:
        graphs = joint(graphs)
    start = states[probability.multinomial(60_000, replacement=True, generator=rng())]
    assert mean_is(moments(graphs, start), expected)
    after = graphs.sweep(start, theta, rng(1))
    assert mean_is(moments(graphs, after), expected) is not bug


@pytest.mark.parametrize("bug", [False, True])
@pytest.mark.parametrize("term", TERMS)
def test_chains_reach_the_exact_law(term: str, bug: bool) -> None:
    """H0: after 40 sweeps from the empty network the moments are those of the law."""
    graphs, theta = small(5, term), torch.tensor(THETA[term], dtype=torch.float64)
    states, probability = law(graphs, theta)
    expected = probability @ moments(graphs, states)
    if bug:
        graphs = joint(graphs)
    x, generator = torch.zeros(20_000, len(graphs.observed)), rng()
    for _ in range(40):
        x = graphs.sweep(x, theta, generator)
    assert mean_is(moments(graphs, x), expected) is not bug


def test_a_sweep_does_not_change_what_it_is_given() -> None:
    graphs, theta = small(5, "triangles"), torch.tensor([1.0, 0.0])
    x = torch.zeros(1, len(graphs.observed))  # one row: its transpose is contiguous
    assert graphs.sweep(x, theta, rng()).sum() > 0.0
    assert x.sum() == 0.0


def _away(found: Fit, term: str) -> tuple[Tensor, Tensor]:
    """Distances of the estimates from the reference, and the same in standard errors."""
    expected = torch.tensor(REFERENCE[term]["estimates"], dtype=torch.float64)
    errors = torch.tensor(REFERENCE[term]["monte_carlo_errors"], dtype=torch.float64)
    away = found.estimates - expected
    return away.abs(), away.abs() / (found.monte_carlo_errors.square() + errors.square()).sqrt()


@pytest.mark.parametrize("term", TERMS)
def test_all_seeds_agree_with_the_reference(term: str) -> None:
    """H0: estimates differ from the reference by their Monte Carlo errors.

    Errors have 19 degrees of freedom, those of 20 batches: one of 40 distances exceeds LARGEST with
    probability 1e-5.
    """
    standard = torch.tensor(REFERENCE[term]["standard_errors"], dtype=torch.float64)
    graphs, chains = Graphs(florence(), [term]), times(150, 600)
    fits = [fit(graphs, seed, chains=chains, batch=1) for seed in range(times(5, 10))]
    distances, scores = map(torch.stack, zip(*(_away(found, term) for found in fits), strict=True))
    assert scores.max() < LARGEST
    # Sweeps are almost independent, and then an iteration of MLMCSum(16, base=8) is worth 8 draws.
    predicted = standard / math.sqrt(8 * chains * 20)
    claimed = torch.stack([found.monte_carlo_errors for found in fits])
    assert torch.allclose(claimed.median(0).values, predicted, rtol=0.3)
    for found in fits:
        assert found.certificate.holds
        assert torch.allclose(found.standard_errors, standard, rtol=0.05)
    if len(fits) == 10:  # as docs/tutorials/network-models.md says
        assert distances.max() < 0.01
        # The sum of 10 squares of Student's law is in this range but for a probability of 1e-5:
        # errors three times too small would leave it.
        squares = scores.square().sum(0)
        assert ((squares > 0.3) & (squares < 75.0)).all()


def test_a_wrong_sampler_would_not_agree() -> None:
    """The twin of the test before: updating ties that share a family at the same time."""
    found = fit(joint(Graphs(florence(), ["triangles"])), chains=200, batch=1)
    distances, scores = _away(found, "triangles")
    assert distances.max() > 0.01
    assert scores.max() > LARGEST


def test_a_certificate_refuses_what_is_not_the_maximum() -> None:
    graphs, none = Graphs(florence(), ["triangles"]), torch.zeros(2, 2, dtype=torch.float64)
    theta = torch.tensor(REFERENCE["triangles"]["estimates"], dtype=torch.float64)
    assert certify(graphs, theta, rng(), none, chains=300).holds
    # The maximum pseudolikelihood estimate is 0.1 standard errors away.
    pseudo = certify(graphs, torch.tensor([-1.7009, 0.2208]).double(), rng(), none, chains=300)
    assert not pseudo.holds
    assert "does NOT hold" in str(pseudo)
    # With few chains the interval is too wide to say anything.
    assert not certify(graphs, theta, rng(), none, chains=2).holds


def test_a_degenerate_model_is_not_certified() -> None:
    """Sparse and nearly complete networks are both modes: chains stay where they start."""
    graphs, none = Graphs(florence(), ["triangles"]), torch.zeros(2, 2, dtype=torch.float64)
    certificate = certify(graphs, torch.tensor([-3.0, 0.5]).double(), rng(), none, chains=50)
    assert not certificate.holds
    assert str(certificate).startswith("NOT certified")


def test_a_network_without_triangles_has_no_estimate() -> None:
    star = torch.zeros(5, 5)
    star[0, 1:] = star[1:, 0] = 1.0
    with pytest.raises(ValueError, match=r"network must have some .*'triangles': 0\.0"):
        Graphs(star, ["triangles"])
    with pytest.raises(ValueError, match="network must have some"):
        Graphs(1.0 - torch.eye(5), ["two-stars"])


@pytest.mark.parametrize("term", TERMS)
def test_the_reference_can_be_made_again(term: str) -> None:
    """A short run of the reference, with another seed, within 5 of its own errors."""
    committed = REFERENCE[term]
    assert max(committed["monte_carlo_errors"]) < LARGEST_ERROR
    estimates, errors, _ = reference(term, chains=512, sweeps=40, seed=2)
    for short, error, long in zip(estimates, errors, committed["estimates"], strict=True):
        assert error < 0.02
        assert math.isclose(short, long, abs_tol=5.0 * error)


def test_the_example_prints_both_tables_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(tmp_path / "a.png", chains=100)
    words = [line.split()[:1] for line in capsys.readouterr().out.splitlines()]
    table = [["edges"], ["edges"], ["triangles"], ["Certificate"], ["the"]]
    assert words == [*table, [], *table[:2], ["two-stars"], *table[3:]]
    assert (tmp_path / "a.png").stat().st_size > 10_000
