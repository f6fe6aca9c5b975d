"""`MarkovGradient`: what lands in `.grad`, what it costs, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.levels import Assignment
from tests.chains import Counter, average_law, random_matrix, rng, unit
from tests.statistics import deviations, mean_is, same_mean


def coin(theta: Tensor, estimator: Any = None, **options: Any) -> mg.MarkovGradient:
    """A two-state chain with loss θ[x]: the gradient is the signed occupation measure."""
    matrix = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    return mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: theta[x], estimator or mg.MLMC(16), **options
    )


def weights(states: int = 2) -> Tensor:
    return torch.zeros(states, dtype=torch.float64, requires_grad=True)


def grad(leaf: Tensor) -> Tensor:
    """What landed in `.grad`."""
    assert leaf.grad is not None
    return leaf.grad


def zeros(chains: int) -> Tensor:
    return torch.zeros(chains, dtype=torch.int64)


# --- the three ways to get a gradient ---------------------------------------------------------


def test_backward_gradient_and_surrogate_agree() -> None:
    theta = weights()
    gradient = coin(theta)
    (direct,), estimate = gradient.gradient(zeros(50), n=1, generator=rng())
    assert theta.grad is None
    assert estimate.parameters == (theta,)
    gradient.backward(zeros(50), n=1, generator=rng())
    assert torch.equal(grad(theta), direct)
    gradient.backward(zeros(50), n=1, generator=rng())
    assert torch.equal(grad(theta), 2.0 * direct)  # it accumulates
    theta.grad = None
    scalar = gradient.surrogate(zeros(50), n=1, generator=rng())
    (2.0 * scalar + theta.sum()).backward()
    assert torch.allclose(grad(theta), 2.0 * direct + 1.0, atol=1e-14)
    spent = scalar.estimate  # type: ignore[attr-defined]
    assert spent.loss_evaluations == estimate.loss_evaluations
    assert spent.transitions == estimate.transitions


def test_surrogate_in_chunks_recomputes_but_agrees() -> None:
    theta = weights()
    (direct,), _ = coin(theta).gradient(zeros(50), n=1, generator=rng())
    coin(theta, chunk=7).surrogate(zeros(50), n=1, generator=rng()).backward()
    assert theta.grad is not None
    assert torch.allclose(theta.grad, direct, atol=1e-14)


def test_value_is_the_weighted_loss() -> None:
    theta = torch.tensor([2.0, 5.0], dtype=torch.float64, requires_grad=True)
    (g,), estimate = coin(theta).gradient(zeros(50), n=1, generator=rng())
    assert estimate.value == pytest.approx(float(g @ theta.detach()), abs=1e-12)


def test_all_leaves_are_found_and_get_gradients_of_their_own() -> None:
    """Two leaves whose sum is taken get the same tensor from autograd: it must not be shared."""
    a, b, unused = weights(), weights(), weights()
    matrix = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    (single,), _ = coin(weights()).gradient(zeros(20), n=1, generator=rng())
    for chunk in (3, 1024):
        a.grad = b.grad = None
        gradient = mg.MarkovGradient(
            mg.kernels.Finite(matrix), lambda x: (a + b)[x], mg.MLMC(16), chunk=chunk
        )
        estimate = gradient.backward(zeros(20), n=1, generator=rng())
        assert {id(p) for p in estimate.parameters} == {id(a), id(b)}
        assert torch.allclose(grad(a), single, atol=1e-14)
        grad(a).zero_()  # as an optimizer would
        assert torch.allclose(grad(b), single, atol=1e-14)
    assert unused.grad is None


def test_a_hook_acts_once() -> None:
    theta = weights()
    (single,), _ = coin(theta).gradient(zeros(20), n=1, generator=rng())
    theta.register_hook(lambda g: 2.0 * g)
    coin(theta, chunk=3).backward(zeros(20), n=1, generator=rng())
    assert theta.grad is not None
    assert torch.allclose(theta.grad, 2.0 * single, atol=1e-14)


def test_parameters_can_be_chosen() -> None:
    a, b, unused = weights(), weights(), weights()
    matrix = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: (a * 2 + b)[x], mg.MLMC(16), parameters=[unused, b]
    )
    estimate = gradient.backward(zeros(20), n=1, generator=rng())
    assert a.grad is None
    assert b.grad is not None
    assert b.grad.sum().item() == pytest.approx(1.0)
    assert unused.grad is not None
    assert (unused.grad == 0.0).all()
    assert estimate.parameters == (unused, b)


def test_context_may_carry_a_gradient_through_chunks() -> None:
    """A context computed from a parameter shares its graph between the chunks."""
    scale = torch.tensor(3.0, requires_grad=True)
    rows = torch.arange(8.0)
    gradient = mg.MarkovGradient(
        mg.kernels.FromStep(lambda x, c, generator: x + 1.0), lambda x, c: c, mg.Average(4), chunk=5
    )
    gradient.backward(torch.zeros(8), scale * rows, n=1, generator=rng())
    assert scale.grad is not None
    assert scale.grad.item() == pytest.approx(rows.mean().item())


def test_module_and_any_torch_optimizer() -> None:
    """Fit the mean of a Gaussian by minimising ½‖x − θ‖²: a torch module, torch's SGD."""
    target, model = problems.gaussian(), torch.nn.Linear(1, 2, bias=False, dtype=torch.float64)
    one = torch.ones(64, 1, dtype=torch.float64)
    gradient = mg.MarkovGradient(
        mg.kernels.MALA(lambda x, _: target.log_density(x), 0.5),
        lambda x, context: 0.5 * (x - model(context)).square().sum(1),
        mg.MLMC(mg.schedules.power(1.0, 0.5), assignment="balanced"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator, x = rng(), target.start(64)
    tail = []
    for n in range(1, 401):
        optimizer.zero_grad()
        x = gradient.backward(x, one, n=n, generator=generator).last
        optimizer.step()
        if n > 200:
            tail.append(model.weight.detach()[:, 0].clone())
    assert (torch.stack(tail).mean(0) - target.mean).abs().max() < 0.1


# --- expectation ------------------------------------------------------------------------------


@pytest.mark.parametrize("assignment", ["independent", "shared", "balanced"])
@pytest.mark.parametrize("states", [2, 3, 4, 5, 6])
def test_signed_occupation_measure(states: int, assignment: Assignment) -> None:
    """Null: its mean is the average of P^1 … P^{2^κ} from x0; 4.5 standard errors of the calls."""
    matrix, theta = random_matrix(states, seed=states), weights(states)
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: theta[x], mg.MLMC(20, assignment=assignment)
    )
    generator = rng(states)
    calls = [
        gradient.gradient(zeros(100), n=1, generator=generator)[0][0] for _ in range(400)
    ]  # independent over calls, whatever the assignment
    exact = average_law(matrix, unit(states), 16)
    assert (deviations(torch.stack(calls), exact) < 4.5).all()
    wrong = average_law(matrix, unit(states), 1)  # planted bug: only the base term
    assert not (deviations(torch.stack(calls), wrong) < 4.5).all()


def test_boltzmann_gradient_has_the_bias_of_the_long_chain() -> None:
    """Null: from the data, MLMC at T = 8 has the mean of 8 Gibbs steps; false alarm 1e-5."""
    model = problems.boltzmann()
    gradient = mg.MarkovGradient(model.kernel(), model.loss, mg.MLMC(8))
    generator, start = rng(2), model.start(120)
    rows = [
        torch.cat([g.flatten() for g in _ordered(gradient, model, start, generator)])
        for _ in range(300)
    ]
    weight = 2.0 ** torch.arange(4, dtype=torch.float64)
    law = torch.eye(16, dtype=torch.float64)[(model.data @ weight).long()].mean(0)
    exact = average_law(model.transition(), law, 8)
    per_state = [
        torch.cat(
            [g.flatten() for g in torch.autograd.grad(model.loss(v[None]).sum(), model.parameters)]
        )
        for v in model.states()
    ]
    assert mean_is(torch.stack(rows), exact @ torch.stack(per_state))
    short = average_law(model.transition(), law, 1)
    assert not mean_is(torch.stack(rows), short @ torch.stack(per_state))


def _ordered(
    gradient: mg.MarkovGradient, model: problems.Boltzmann, x0: Tensor, generator: torch.Generator
) -> list[Tensor]:
    tensors, estimate = gradient.gradient(x0, n=1, generator=generator)
    by_id = {id(p): g for p, g in zip(estimate.parameters, tensors, strict=True)}
    return [by_id[id(p)] for p in model.parameters]


def test_thinning_keeps_the_mean_and_saves_work() -> None:
    """Null: with and without thinning the gradient has the exact mean; false alarm 1e-5 each."""
    matrix = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    exact, spent = average_law(matrix, unit(2), 8), []
    for thinning in (0.0, 0.4):
        gradient, generator = coin(weights(), mg.Average(8), thinning=thinning), rng(4)
        calls, evaluations = [], 0
        for _ in range(400):
            (g,), estimate = gradient.gradient(zeros(20), n=1, generator=generator)
            calls.append(g)
            evaluations += estimate.loss_evaluations
        assert mean_is(torch.stack(calls), exact)
        spent.append(evaluations)
    assert spent[1] < 0.85 * spent[0]


def test_thinning_may_leave_nothing() -> None:
    theta = weights()
    gradient = coin(theta, mg.Average(8), thinning=1e12)
    (estimate, scalar) = (
        gradient.backward(zeros(2), n=1, generator=rng()),
        gradient.surrogate(zeros(2), n=1, generator=rng()),
    )
    assert estimate.loss_evaluations == 0
    assert theta.grad is None
    scalar.backward()
    chosen = coin(theta, mg.Average(8), thinning=1e12, parameters=[theta])
    chosen.backward(zeros(2), n=1, generator=rng())
    assert (grad(theta) == 0.0).all()


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
        rao_blackwell,
    )
    gradient = mg.MarkovGradient(kernel, loss, mg.MLMC(64), parameters=[w, b], chunk=50_000)
    tensors, _ = gradient.gradient(None, y, w, b, n=1, generator=rng(seed))
    return torch.cat([chains * t.detach().flatten(1) for t in tensors], 1)


def test_rao_blackwell_reduces_the_variance() -> None:
    """Log-weight spread 5 to 6, k = 5, T = 64: at most 0.65 of the variance, the same mean."""
    model = problems.linear_gaussian()
    assert 5.0 <= model.weight_spread(20_000, rng()) <= 6.0
    sampled = _latent_gradients(False, 40_000, seed=1)
    averaged = _latent_gradients(True, 40_000, seed=2)
    ratio = float(averaged.var(0).sum() / sampled.var(0).sum())
    assert ratio <= 0.65
    assert same_mean(sampled, averaged)  # null: equal means; false alarm 1e-5


# --- reproducibility --------------------------------------------------------------------------


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
        "Finite": (chain.kernel(), chain.loss, chain.start(24), ()),
        "FromStep": (machine.kernel(), machine.loss, machine.start(24), ()),
    }


ESTIMATORS: dict[str, mg.estimators.Estimator] = {
    "Average": mg.Average(9, burn_in=2),
    "MLMC": mg.MLMC(32),
    "MLMC, balanced": mg.MLMC(32, assignment="balanced", base=2),
    "MLMC, shared": mg.MLMC(32, assignment="shared"),
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
