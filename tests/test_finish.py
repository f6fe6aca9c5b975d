"""The rule that decides when to finish without bias, where everything is known.

The target is N(1, 1), the proposal N(0, 1), θ a mean: E[loss gradient] = θ − E[Z]. Self-normalised
importance sampling with k draws has a bias that quadrature gives.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.finish import Finish, PointEstimate, off_diagonal_mean

R = 2.0**-1.5
CANDIDATES = 2


def gradient(theta: Tensor, estimator: mg.estimators.Estimator) -> mg.MarkovGradient:
    def draw(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, generator=generator, dtype=torch.float64)

    return mg.MarkovGradient(
        mg.kernels.Importance(lambda z, y: z, draw, CANDIDATES),
        lambda z, y: 0.5 * (theta - z) ** 2,
        estimator,
        parameters=[theta],
    )


@cache
def biased_mean() -> float:
    """E of the self-normalised estimate of E[Z] with two draws, by quadrature."""
    x = torch.linspace(-9.0, 9.0, 2001, dtype=torch.float64)
    density = torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi) * (x[1] - x[0])
    first, second = x[:, None], x[None, :]
    estimate = torch.sigmoid(first - second) * first + torch.sigmoid(second - first) * second
    return float(density @ estimate @ density)


def trained(
    at: float, *, levels: float = 64.0, noise: float = 0.3, share: float = 0.005
) -> tuple[Finish, Tensor]:
    """Return a rule that has followed 200 steps at a fixed θ, with noisy biased gradients."""
    theta = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.0)
    finish = Finish(optimizer, gradient(theta, mg.MLMCSum(levels, R)), share=share)
    rng = torch.Generator().manual_seed(1)
    for _ in range(200):
        theta.grad = theta.detach() - biased_mean()
        theta.grad = theta.grad + noise * torch.randn((), generator=rng, dtype=torch.float64)
        optimizer.step()
    return finish, theta


def check(finish: Finish, spent: float = 1e6, seed: int = 0, rows: int = 1000) -> Any:
    y = torch.zeros(rows)
    return finish.check(None, y, spent=spent, generator=torch.Generator().manual_seed(seed))


def test_correction_is_the_bias_in_expectation() -> None:
    """H0: the mean of C is the bias of two draws; 5 standard errors, false alarm 6e-7."""
    theta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    own = gradient(theta, mg.MLMCSum(2.0**10, R))
    rng, y = torch.Generator().manual_seed(0), torch.zeros(200)
    values = []
    for _ in range(1000):
        lengths = own.draw_lengths(None, (y,), None, rng).correction()
        (piece,), _ = own.gradient(None, y, generator=rng, lengths=lengths)
        values.append(float(piece))
    sample = torch.tensor(values)
    error = float(sample.std()) / math.sqrt(len(sample))
    expected = biased_mean() - 1.0  # (θ − 1) − (θ − biased mean)
    assert abs(float(sample.mean()) - expected) < 5.0 * error
    assert abs(expected) > 20.0 * error  # a planted bug, no correction at all, is found
    # The weights sum to 0, and a simulation of the shortest length has none.
    lengths = mg.MLMCSum(64, R, base=2).draw(50, None, rng).correction()
    totals = (lengths.weights * lengths.terms).sum(1)
    torch.testing.assert_close(totals, torch.zeros_like(totals), atol=1e-12, rtol=0.0)
    assert bool((lengths.weights[lengths.longest == 2] == 0.0).all())


def test_at_convergence_of_the_biased_training_it_finishes() -> None:
    for seed in range(5):
        finish, _ = trained(biased_mean())
        found = check(finish, seed=seed)
        assert found.finish
        assert finish.finishing
        # ‖C‖² in the metric P = 1/√(mean square).
        bias = (biased_mean() - 1.0) ** 2 / 0.3
        assert found.bias.value == pytest.approx(bias, abs=6.0 * found.bias.se + 0.1 * bias)
        assert found.evaluations == finish.evaluations <= 0.005 * 1e6
        assert "finish without bias" in str(found)


def test_far_from_convergence_it_does_not() -> None:
    for seed in range(5):
        finish, _ = trained(biased_mean() - 3.0)
        found = check(finish, seed=seed)
        assert not found.finish
        assert not finish.finishing
        assert found.left > 10.0 * found.bias.value
        assert "better for now" in str(found)


def test_without_a_bias_it_does_not() -> None:
    """A truncation of one block has no levels, so C is exactly 0."""
    finish, _ = trained(biased_mean(), levels=1.0)
    assert not check(finish).finish


def test_a_clear_decision_is_cheap_and_a_close_one_is_not() -> None:
    far, _ = trained(biased_mean() - 3.0)
    close, _ = trained(biased_mean(), levels=1.0, noise=1.0)
    assert check(far).evaluations < 0.2 * 0.005 * 1e6
    assert check(close, rows=10**5).evaluations > 0.5 * 0.005 * 1e6


@pytest.mark.parametrize("gain", [1e-3, -1e-3])
def test_the_sign_of_the_gain_decides_and_its_error_how_much_is_simulated(
    gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains of 0.1 standard errors need both stages, those of 10 only the first."""
    spent = []
    for error in (10.0 * abs(gain), 0.1 * abs(gain)):
        finish, _ = trained(0.0)
        numbers = (PointEstimate(gain, error), PointEstimate(0.0, 1.0), 0.0)
        monkeypatch.setattr(finish, "_compare", lambda *_, numbers=numbers: numbers)
        found = check(finish)
        assert found.finish == finish.finishing == (gain > 0.0)
        spent.append(found.evaluations)
    assert spent[0] > 4 * spent[1]


def test_an_early_check_begins_with_the_fewest_rows() -> None:
    """Where an eighth of the share is less than 16 rows, these still come first."""
    finish, _ = trained(biased_mean() - 3.0)
    assert check(finish, spent=2e4).rows == 16


def test_all_checks_together_spend_the_share() -> None:
    """In expectation less than the share; how much one check spends is random."""
    totals = []
    for seed in range(10):
        finish, _ = trained(biased_mean() - 0.3, share=0.02, noise=3.0)
        for spent in (1e3, 1e4, 1.5e4, 1e5):
            check(finish, spent, seed)
        totals.append(finish.evaluations)
    assert 1000 < sum(totals) / 10 <= 0.02 * 1e5


def test_too_early_there_is_no_decision() -> None:
    finish, _ = trained(biased_mean())
    assert check(finish, spent=1000) is None
    assert finish.evaluations == 0
    assert not finish.finishing


def test_the_gradient_is_the_average_of_the_training() -> None:
    finish, _ = trained(biased_mean() - 1.0, noise=0.0)
    state = finish.state_dict()
    assert float(state["mean"][0]) == pytest.approx(-1.0)
    assert float(state["square"][0]) == pytest.approx(1.0)
    assert check(finish).left == pytest.approx(1.0)  # g² / √(g²)


def test_a_state_decides_the_same() -> None:
    first, _ = trained(biased_mean())
    second, _ = trained(0.0, noise=0.0)
    second._parameters[0].data.fill_(biased_mean())
    second.load_state_dict(first.state_dict())
    assert check(first) == check(second)
    assert first.state_dict().keys() == second.state_dict().keys()
    assert second.finishing
    third, _ = trained(0.0)
    third.load_state_dict(first.state_dict())
    assert third.finishing
    with pytest.raises(ValueError, match="state_dict must hold a mean for each of 1 parameters"):
        third.load_state_dict({**first.state_dict(), "mean": [torch.zeros(2)]})


def test_after_the_change_gradients_are_not_averaged() -> None:
    finish, theta = trained(biased_mean())
    assert check(finish).finish
    before = finish.state_dict()
    theta.grad = torch.tensor(100.0, dtype=torch.float64)
    finish._before_step()
    assert torch.equal(finish.state_dict()["mean"][0], before["mean"][0])
    finish.detach()


def test_chains_have_a_correction_too() -> None:
    """A Markov chain on two states, started at the wrong one: length 1 against length 16."""
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    kernel = mg.kernels.Finite(torch.tensor([[0.8, 0.2], [0.2, 0.8]], dtype=torch.float64))
    own = mg.MarkovGradient(kernel, lambda x: theta[x], mg.MLMCSum(16), parameters=[theta])
    optimizer = torch.optim.SGD([theta], lr=0.0)
    finish = Finish(optimizer, own)
    for sign in (1.0, -1.0) * 50:
        theta.grad = torch.tensor([sign, -sign], dtype=torch.float64)
        optimizer.step()
    start = torch.zeros(500, dtype=torch.int64)
    found = finish.check(start, spent=1e6, generator=torch.Generator().manual_seed(0))
    assert found is not None
    assert found.finish
    mean = 0.5 + 0.5 * sum(0.6**i for i in range(1, 17)) / 16  # of state 0
    assert found.bias.value == pytest.approx(2.0 * (0.8 - mean) ** 2, rel=0.2)


def test_errors_say_what_to_do() -> None:
    theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.1)
    own = gradient(theta, mg.MLMCSum(64, R))
    with pytest.raises(RuntimeError, match="the optimizer must have stepped before"):
        check(Finish(optimizer, own))
    with pytest.raises(ValueError, match="share must be positive, got 0"):
        Finish(optimizer, own, share=0)
    object.__setattr__(own, "parameters", None)
    with pytest.raises(ValueError, match=r"gradient must have parameters=\.\.\."):
        Finish(optimizer, own)


def test_jackknife_of_products_that_are_not_symmetric() -> None:
    """The symmetric part decides: a − aᵀ has the mean 0."""
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(6, 6, generator=rng)
    assert off_diagonal_mean(a).value == pytest.approx(off_diagonal_mean(a.T).value)
    assert off_diagonal_mean(a).se == pytest.approx(off_diagonal_mean(a.T).se)
