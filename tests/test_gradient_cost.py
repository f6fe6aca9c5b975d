"""What a gradient costs, and that the same generator gives the same gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from tests.chains import Counter, rng, weight_spread
from tests.statistics import mean_is, same_mean
from tests.test_gradient import coin, weights, zeros

# --- cost -------------------------------------------------------------------------------------


def test_transitions_are_logarithmic() -> None:
    """Null: transitions per chain have the mean κ + 2^{−κ}; false alarm 1e-5."""
    gradient, generator = coin(weights(), mg.MLMC(64)), rng(9)
    estimates = [gradient.gradient(zeros(50), n=1, generator=generator)[1] for _ in range(200)]
    per_chain = torch.tensor([[e.transitions / 50] for e in estimates], dtype=torch.float64)
    assert mean_is(per_chain, torch.tensor([6.0 + 2.0**-6], dtype=torch.float64))
    assert max(int(e.lengths.max()) for e in estimates) == 64
    assert all(e.transitions == int(e.lengths.sum()) for e in estimates)
    assert not mean_is(2.0 * per_chain, torch.tensor([6.0 + 2.0**-6], dtype=torch.float64))


@pytest.mark.parametrize("chunk", [3, 1024])
def test_loss_is_evaluated_once_for_each_accepted_move(chunk: int) -> None:
    target = problems.gaussian()
    loss = Counter(target.loss)
    gradient = mg.MarkovGradient(
        mg.kernels.RWMH(target.log_density, 4.0), loss, mg.MLMC(64), chunk=chunk
    )
    for seed in range(20):
        loss.calls.clear()
        estimate = gradient.backward(target.start(10), n=1, generator=rng(seed))
        accepted = round(estimate.acceptance * estimate.transitions)
        assert loss.rows == estimate.loss_evaluations <= accepted + 10
        assert all(len(c) <= chunk for c in loss.calls)
        assert estimate.evaluations == 10 + estimate.transitions


def test_loss_never_sees_a_state_without_weight() -> None:
    """A kernel that counts up: X_i = i. For t ≥ 2 the loss sees 2 … t and never 1."""
    theta = torch.ones((), requires_grad=True)
    loss = Counter(lambda x: theta * x)
    gradient = mg.MarkovGradient(
        mg.kernels.FromStep(lambda x, generator: x + 1.0), loss, mg.MLMC(32)
    )
    longest = 0
    for seed in range(60):
        loss.calls.clear()
        estimate = gradient.backward(torch.zeros(1), n=1, generator=rng(seed))
        t = estimate.transitions
        seen = sorted(torch.cat(loss.calls).tolist())
        assert seen == ([1.0] if t == 1 else [float(i) for i in range(2, t + 1)])
        longest = max(longest, t)
    assert longest == 32


def test_burn_in_is_never_differentiated() -> None:
    theta = torch.ones((), requires_grad=True)
    loss = Counter(lambda x: theta * x)
    gradient = mg.MarkovGradient(
        mg.kernels.FromStep(lambda x, generator: x + 1.0), loss, mg.Average(3, burn_in=5)
    )
    gradient.backward(torch.zeros(1), n=1, generator=rng())
    assert torch.cat(loss.calls).tolist() == [6.0, 7.0, 8.0]


# --- i-SIR: Rao-Blackwell ---------------------------------------------------------------------


def _latent_gradients(rao_blackwell: bool, chains: int, seed: int) -> Tensor:
    """Each chain's own gradient in W and b, (chains, p(q+1)), for one y and k = 5, T = 64."""
    model = problems.linear_gaussian()
    y = model.data[:1].expand(chains, -1)
    shape = model.weight.shape
    w = model.weight.detach().expand(chains, *shape).clone().requires_grad_()
    b = model.bias.detach().expand(chains, -1).clone().requires_grad_()

    def loss(z: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
        residual = y - (w @ z[:, :, None])[:, :, 0] - b
        return 0.5 * residual.square().sum(1) / model.noise**2

    inner = model.kernel(5, rao_blackwell)
    kernel = mg.kernels.ISIR(
        lambda z, y, w, b: inner.log_weight(z, y),
        lambda rows, y, w, b, generator: inner.propose(rows, y, generator),
        5,
        rao_blackwell=rao_blackwell,
    )
    gradient = mg.MarkovGradient(kernel, loss, mg.MLMC(64), parameters=[w, b], chunk=50_000)
    tensors, _ = gradient.gradient(None, y, w, b, n=1, generator=rng(seed))
    return torch.cat([chains * t.detach().flatten(1) for t in tensors], 1)


def test_rao_blackwell_reduces_the_variance() -> None:
    """Log-weight spread 5 to 6, k = 5, T = 64: at most 0.65 of the variance, the same mean."""
    model = problems.linear_gaussian()
    assert 5.0 <= weight_spread(model, 20_000, rng()) <= 6.0
    sampled = _latent_gradients(False, 40_000, seed=1)
    averaged = _latent_gradients(True, 40_000, seed=2)
    ratio = float(averaged.var(0).sum() / sampled.var(0).sum())
    assert ratio <= 0.65
    assert same_mean(sampled, averaged)  # null: equal means; false alarm 1e-5


# --- reproducibility --------------------------------------------------------------------------


def _halfway(x: Tensor, generator: torch.Generator) -> Tensor:
    return 0.5 * x + torch.randn(x.shape, dtype=x.dtype, generator=generator)


def _kernels() -> dict[str, tuple[Any, Any, Any, tuple[Any, ...]]]:
    """Name → kernel, loss, x0, context."""
    normal, chain, machine = problems.gaussian(), problems.finite_chain(), problems.boltzmann()
    latent = problems.linear_gaussian()
    y = latent.data.repeat(3, 1)
    return {
        "RWMH": (mg.kernels.RWMH(normal.log_density, 1.0), normal.loss, normal.start(24), ()),
        "MALA": (mg.kernels.MALA(normal.log_density, 0.5), normal.loss, normal.start(24), ()),
        "ISIR": (latent.kernel(), latent.loss, None, (y,)),
        "ISIR, Rao-Blackwell": (latent.kernel(5, True), latent.loss, None, (y,)),
        "Importance": (
            mg.kernels.Importance(latent.log_weight, latent.propose, 5),
            latent.loss,
            None,
            (y,),
        ),
        "Finite": (chain.kernel(), chain.loss, chain.start(24), ()),
        "FromStep": (mg.kernels.FromStep(_halfway), normal.loss, normal.start(24), ()),
        "Gibbs": (machine.kernel(), machine.loss, machine.start(24), ()),
    }


ESTIMATORS: dict[str, mg.estimators.Estimator] = {
    "Average": mg.Average(9, burn_in=2),
    "MLMC": mg.MLMC(32),
    "MLMC, balanced": mg.MLMC(32, assignment="balanced", base=2),
    "MLMC, shared": mg.MLMC(32, assignment="shared"),
    "MLMCSum": mg.MLMCSum(32, assignment="balanced"),
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kernel", _kernels())
def test_same_generator_same_gradient(kernel: str, estimator: str) -> None:
    made, loss, x0, context = _kernels()[kernel]

    def once(generator: torch.Generator, chunk: int) -> tuple[tuple[Tensor, ...], mg.Estimate]:
        gradient = mg.MarkovGradient(made, loss, ESTIMATORS[estimator], chunk=chunk)
        return gradient.gradient(x0, *context, n=3, generator=generator)

    generator = rng(6)
    state = generator.get_state()
    first, spent = once(generator, 1024)
    after = generator.get_state()
    second, _ = once(torch.Generator().set_state(state), 1024)
    small, spent_small = once(generator.set_state(state), 5)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(
        torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(first, small, strict=True)
    )
    assert torch.equal(generator.get_state(), after)  # the chunk changes no draw
    assert spent.loss_evaluations == spent_small.loss_evaluations
    assert torch.equal(spent.last, spent_small.last)
    other, _ = once(rng(7), 1024)
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
