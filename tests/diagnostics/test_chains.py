import math

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics import diagnose, effective_sample_size, weights
from tests.chains import rng


def _autoregressive(rho: float, chains: int, steps: int) -> Tensor:
    """x_t = ρ x_{t−1} + √(1−ρ²) z, stationary: autocorrelation time (1+ρ)/(1−ρ)."""
    generator = rng(1)
    x = torch.randn(chains, dtype=torch.float64, generator=generator)
    rows = []
    for _ in range(steps):
        noise = torch.randn(chains, dtype=torch.float64, generator=generator)
        x = rho * x + (1.0 - rho**2) ** 0.5 * noise
        rows.append(x)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.5])
def test_effective_sample_size_of_an_autoregression(rho: float) -> None:
    x = _autoregressive(rho, chains=8, steps=4000)
    expected = 8 * 4000 * (1.0 - rho) / (1.0 + rho)
    assert effective_sample_size(x) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("steps", [4, 5, 12, 13])
def test_effective_sample_size_by_the_definition(steps: int) -> None:
    """Two short chains, autocovariances by their sums, pairs until the first that is not > 0."""
    x = _autoregressive(0.3, chains=2, steps=steps)
    centred = x - x.mean(1, keepdim=True)
    lagged = [
        float((centred[:, : steps - t] * centred[:, t:]).sum(1).mean()) / steps
        for t in range(steps)
    ]
    within = lagged[0] * steps / (steps - 1)
    total = lagged[0] + float(x.mean(1).var())
    rho = [1.0, *(1.0 - (within - lagged[t]) / total for t in range(1, steps))]
    time, smallest = -1.0, math.inf
    for t in range(0, steps - 1, 2):
        if rho[t] + rho[t + 1] <= 0.0:
            break
        smallest = min(smallest, rho[t] + rho[t + 1])
        time += 2.0 * smallest
    assert effective_sample_size(x) == pytest.approx(2 * steps / max(time, 0.5 / steps))


def test_chains_that_disagree_have_few_effective_draws() -> None:
    x = _autoregressive(0.0, chains=4, steps=500)
    assert effective_sample_size(x + 10.0 * torch.arange(4)[:, None]) < 40
    assert effective_sample_size(torch.ones(2, 10)) == 20.0
    with pytest.raises(ValueError, match="at least 4 steps"):
        effective_sample_size(torch.zeros(2, 3))


def test_weights() -> None:
    even = weights(torch.zeros(3, 10))
    assert even.effective == pytest.approx(10.0)
    assert even.largest == pytest.approx(0.1)
    one = torch.zeros(3, 10)
    one[:, 0] = 1000.0
    assert weights(one).effective == pytest.approx(1.0)
    assert weights(one).largest == pytest.approx(1.0)


def test_diagnose_a_lazy_chain() -> None:
    """Stays with probability ρ, else draws anew: autocorrelation time (1+ρ)/(1−ρ) = 9."""
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    matrix = 0.8 * torch.eye(2, dtype=torch.float64) + 0.1
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: theta[x], mg.MLMC(2), parameters=[theta]
    )
    start = torch.zeros(4000, dtype=torch.int64)
    health = diagnose(gradient, start, length=600, generator=rng())
    assert health.autocorrelation_time == pytest.approx(9.0, rel=0.15)
    assert health.effective == pytest.approx(300.0 / 9.0, rel=0.15)
    assert health.acceptance == pytest.approx(0.1, abs=0.01)
    assert health.weights is None
    with pytest.raises(ValueError, match="length must be an integer ≥ 4, got 2"):
        diagnose(gradient, start, length=2, generator=rng())


def test_diagnose_looks_at_the_weights_of_isir() -> None:
    model = problems.linear_gaussian()
    gradient = mg.MarkovGradient(
        model.kernel(), model.loss, mg.MLMC(2), parameters=model.parameters
    )
    y = model.data.repeat(40, 1)
    health = diagnose(gradient, None, y, length=20, generator=rng())
    assert health.weights is not None
    assert health.weights.spread == pytest.approx(model.weight_spread(2000, rng()), rel=0.1)
    assert 1.0 < health.weights.effective < 100.0
    assert health.weights.draws == 256
    assert health.invalid == 0


def test_effective_size_of_one_short_chain_by_hand() -> None:
    """Of 0, 0, 1, 1: ρ_1 = −1/12, and the next pair is negative; time −1 + 2 (1 − 1/12) = 5/6."""
    assert effective_sample_size(torch.tensor([[0.0, 0.0, 1.0, 1.0]])) == pytest.approx(4.8)
    # With ρ_1 below −1 there is no pair to add.
    assert effective_sample_size(torch.tensor([[1.0, -1.0] * 4])) == pytest.approx(8.0)


def test_the_time_is_that_of_the_worst_coordinate() -> None:
    """One coordinate is drawn afresh at each step, one never moves: 1, and the averaged half."""
    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def gradient(which: list[int]) -> mg.MarkovGradient:
        def step(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            fresh = torch.randn(len(x), dtype=x.dtype, generator=generator)
            return torch.stack([x[:, 0], fresh], 1)

        return mg.MarkovGradient(
            mg.kernels.FromStep(step),
            lambda x: (theta * x)[:, which].sum(1),
            mg.Average(1),
            parameters=[theta],
        )

    x0 = torch.randn(4000, 2, dtype=torch.float64, generator=rng())
    both = diagnose(gradient([0, 1]), x0, length=20, generator=rng(1))
    assert both.autocorrelation_time == pytest.approx(10.0)
    # Null: the ratio of two variances of 4000 values is 1; 5 standard errors of 0.03.
    fresh = diagnose(gradient([1]), x0, length=20, generator=rng(1))
    assert 1.0 <= fresh.autocorrelation_time < 1.16
