import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.levels import Assignment, Geometric, LevelLaw, Tabulated, check_truncation
from tests.chains import rng
from tests.statistics import mean_is

ASSIGNMENTS: tuple[Assignment, ...] = ("independent", "shared", "balanced")


def tables() -> st.SearchStrategy[Tabulated]:
    """Non-increasing probability vectors."""

    def make(raw: list[float]) -> Tabulated:
        total = math.fsum(raw)
        return Tabulated(sorted((r / total for r in raw), reverse=True))

    return st.lists(st.floats(0.05, 1.0), min_size=1, max_size=8).map(make)


laws = st.one_of(st.floats(0.05, 0.7).map(Geometric), tables())


def _step_weights(law: LevelLaw, k: int, base: int = 1) -> torch.Tensor:
    """Weight of each step of a chain at level k."""
    plan = law.lengths(torch.tensor([k]), k, base)
    return plan.step_weights(1, law.length(k, base))[:, 0]


def test_the_paper_s_law() -> None:
    law = Geometric()
    assert [law.length(k) for k in range(6)] == [1, 2, 4, 8, 16, 32]
    assert _step_weights(law, 1).tolist() == [0.0, 1.0]
    assert _step_weights(law, 2).tolist() == [0.0, -1.0, 1.0, 1.0]
    assert _step_weights(law, 0).tolist() == [1.0]
    for truncation, kappa in ((1, 0), (1.9, 0), (2, 1), (3.99, 1), (4, 2), (64, 6), (2**40, 40)):
        assert law.truncation_level(truncation) == kappa
        assert law.expected_length(truncation) == kappa + 2.0**-kappa


def test_small_first_probability_needs_a_longer_base_term() -> None:
    """Erratum 7: with μ(1) ≤ 1/4 the first term averages ⌊τ(0)⌋ > 1 states."""
    law = Geometric(0.2)
    assert law.tau(0) == 2.5
    assert [law.length(k) for k in range(4)] == [2, 5, 6, 7]
    assert _step_weights(law, 0).tolist() == [0.5, 0.5]


@given(laws, st.integers(1, 4), st.integers(0, 6))
def test_step_weights_are_the_formula(law: LevelLaw, base: int, k: int) -> None:
    k = int(min(k, law.highest))
    tau, start, long = law.tau(k), law.length(0, base), law.length(k, base)
    short = law.length(max(k - 1, 0), base)
    assert start <= short <= long
    expected = []
    for i in range(1, long + 1):
        weight = (i <= start) / start
        if k > 0:
            weight += tau * (1.0 / long - (i <= short) / short)
        expected.append(weight)
    weights = _step_weights(law, k, base)
    assert weights.tolist() == pytest.approx(expected, abs=1e-10)
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-9)


@given(laws, st.floats(0.5, 1000.0), st.integers(1, 3))
def test_truncation_and_expected_length(law: LevelLaw, truncation: float, base: int) -> None:
    kappa = law.truncation_level(truncation, base)
    assert kappa == 0 or law.length(kappa, base) <= truncation
    assert kappa == law.highest or law.length(kappa + 1, base) > truncation
    rest = 1.0 - sum(law.pmf(k) for k in range(1, kappa + 1))
    mean = sum(law.pmf(k) * law.length(k, base) for k in range(1, kappa + 1))
    mean += rest * law.length(0, base)
    assert law.expected_length(truncation, base) == pytest.approx(mean, rel=1e-9)
    assert law.survival(kappa) == pytest.approx(rest, abs=1e-12)


@given(laws, st.floats(0.0, 1.0, exclude_max=True))
def test_quantile_inverts_the_cumulative_sums(law: LevelLaw, u: float) -> None:
    k = int(law.quantile(torch.tensor([u], dtype=torch.float64)))
    assert 1.0 - law.survival(k - 1) <= u + 1e-12
    assert u <= 1.0 - law.survival(k) + 1e-12
    assert 1 <= k <= law.highest


def _frequencies(law: LevelLaw, assignment: Assignment, calls: int, chains: int) -> torch.Tensor:
    """Of one chain, over calls: its level as indicators of 1, 2, 3, 4 and more, (calls, 4)."""
    generator = torch.Generator().manual_seed(3)
    draws = torch.stack([law.sample(chains, generator, assignment)[-1] for _ in range(calls)])
    return torch.stack([draws == 1, draws == 2, draws == 3, draws >= 4], 1).double()


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize("law", [Geometric(), Geometric(0.2), Tabulated([0.4, 0.3, 0.2, 0.1])])
def test_every_chain_has_the_law(law: LevelLaw, assignment: Assignment) -> None:
    """Null: the level of one fixed chain has law μ; false alarm 1e-5 a case."""
    seen = _frequencies(law, assignment, calls=4000, chains=7)
    expected = torch.tensor([law.pmf(1), law.pmf(2), law.pmf(3), law.survival(3)])
    assert mean_is(seen, expected.double())


def test_planted_bug_balanced_without_permutation() -> None:
    """The last chain would always get the longest levels."""
    law, generator = Geometric(), torch.Generator().manual_seed(3)
    u = torch.rand(4000, 7, dtype=torch.float64, generator=generator)
    draws = law.quantile((torch.arange(7) + u) / 7)[:, -1]
    assert not mean_is((draws == 1).double()[:, None], torch.tensor([0.5]))


def test_balanced_has_the_exact_share_of_each_level() -> None:
    levels = Geometric().sample(64, torch.Generator().manual_seed(0), "balanced")
    counts = [int((levels == k).sum()) for k in range(1, 6)]
    assert counts == [32, 16, 8, 4, 2]


def test_shared_is_shared() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [Geometric().sample(5, generator, "shared") for _ in range(20)]
    assert all(len(d.unique()) == 1 for d in draws)
    assert len({int(d[0]) for d in draws}) > 1


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        ([0.2, 0.8], r"non-increasing, .*, got \(0.2, 0.8\); .*, sort the others"),
        ([0.5, 0.4], r"with sum 1, got \(0.5, 0.4\); .*divide them by their sum"),
        ([0.5, 0.5, 0.0], r"got \(0.5, 0.5, 0.0\); leave out levels that are never drawn"),
        ([1.5, -0.5], "positive"),
        ([math.nan], "positive"),
        ([0.5, math.nan, 0.5], "positive"),
        ([], r"positive and non-increasing.*got \(\)"),
    ],
)
def test_bad_tables(probabilities: Sequence[float], message: str) -> None:
    with pytest.raises(ValueError, match=f"probabilities must be .*{message}"):
        Tabulated(probabilities)


@pytest.mark.parametrize("success", [0.0, 1.0, -0.1, math.nan])
def test_bad_success(success: float) -> None:
    with pytest.raises(ValueError, match="success must lie strictly between 0 and 1"):
        Geometric(success)


@pytest.mark.parametrize("truncation", [0.0, -3.0, math.nan, math.inf])
def test_bad_truncation(truncation: float) -> None:
    with pytest.raises(ValueError, match="truncation must be a positive number"):
        Geometric().truncation_level(truncation)


def test_bad_assignment_and_level() -> None:
    with pytest.raises(ValueError, match="assignment must be one of"):
        Geometric().sample(3, torch.Generator(), "stratified")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be a level between 0 and 2, got 3"):
        Tabulated([0.5, 0.5]).length(3)


def test_the_last_number_below_one_still_has_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """u = 1 − 2^{−53} in the last of three slices: (2 + u)/3 rounds to 1, which has no level."""
    highest = 1.0 - 2.0**-53
    assert (2.0 + highest) / 3.0 == 1.0
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.full((n,), highest).double())
    levels = Geometric().sample(3, rng(), "balanced")
    assert sorted(levels.tolist()) == [1, 2, 54]  # u = 1/3 and 2/3, and P(K > 53) = 2^{−53}


def test_terms_by_hand() -> None:
    """Level 3 of the paper: H^{(1)} + 8 (H^{(8)} − H^{(4)}) as weights a step."""
    assert Geometric().terms(3) == ((1, 4, 8), (1.0, -2.0, 1.0))
    assert Geometric().terms(3, base=2) == ((2, 8, 16), (0.5, -1.0, 0.5))
    assert Geometric().terms(0) == ((1, 1, 1), (1.0, 0.0, 0.0))


def test_the_longest_chain_that_can_be_asked_for() -> None:
    below = math.nextafter(2.0**62, 0.0)
    assert check_truncation(below) == below
    with pytest.raises(ValueError, match=r"truncation must be a positive number below 2\^62"):
        check_truncation(2.0**62)


def test_a_table_is_a_value() -> None:
    """It does not change with the list that it was made of, and may be a key."""
    values = [0.5, 0.3, 0.2]
    law = Tabulated(values)
    values[0] = 0.0
    assert law == Tabulated((0.5, 0.3, 0.2))
    assert len({law, Tabulated([0.5, 0.3, 0.2])}) == 1


def test_outside_the_support_there_is_no_probability() -> None:
    assert Geometric().pmf(0) == Geometric().pmf(-1) == 0.0
    law = Tabulated([0.5, 0.5])
    assert law.pmf(0) == law.pmf(-1) == law.pmf(3) == 0.0


@pytest.mark.parametrize(
    ("probabilities", "u", "level"),
    [
        ([0.5, 0.5], 0.5, 2),  # the smallest k with P(K ≤ k) > u
        ([0.5, 0.5], math.nextafter(0.5, 0.0), 1),
        ([0.7, 0.3], 0.69999999, 1),  # 0.7 is less than that in single precision
        ([0.1] * 10, 1.0 - 2.0**-53, 10),  # ten tenths are less than 1
    ],
)
def test_quantiles_of_a_table_at_its_steps(
    probabilities: list[float], u: float, level: int
) -> None:
    found = Tabulated(probabilities).quantile(torch.tensor([u], dtype=torch.float64))
    assert found.tolist() == [level]
