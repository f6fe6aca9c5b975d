from __future__ import annotations

import gc
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.optimizer import Optimizer

from mlmcgrad.optim import Adagrad, AMSGrad, RandomIterate
from mlmcgrad.schedules import constant, power
from tests.optim.optim_cases import CASES, fill_gradients, parameters, run, saved_and_loaded, values

FALSE_ALARM = 1e-6


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_parameter() -> Tensor:
    """θ that counts steps when its gradient is −1/lr and the optimizer is SGD."""
    return torch.zeros(1, dtype=torch.float64)


def draws(
    make: Callable[[Tensor], Optimizer], steps: int, weight: float | None = None
) -> list[int]:
    """R of 2000 independent runs, by index."""
    rng, indices = generator(11), []
    for _ in range(2000):
        theta = one_parameter()
        theta.grad = torch.ones_like(theta)
        optimizer = make(theta)
        random_iterate = RandomIterate(optimizer, rng, weight=weight)
        for _ in range(steps):
            optimizer.step()
        indices.append(random_iterate.index)
    return indices


def consistent(indices: list[int], weights: list[float]) -> bool:
    """Chi-square test of H0: P(R = n) ∝ weights; rejects a true H0 with probability 1e-6."""
    positive = [n for n, w in enumerate(weights) if w > 0]
    if not set(indices) <= set(positive):
        return False
    expected = {n: len(indices) * weights[n] / sum(weights) for n in positive}
    assert min(expected.values()) > 20
    statistic = sum((indices.count(n) - e) ** 2 / e for n, e in expected.items())
    half = torch.tensor([(len(positive) - 1) / 2.0, statistic / 2.0], dtype=torch.float64)
    return bool(torch.special.gammaincc(*half) > FALSE_ALARM)  # P(χ² > statistic)


def test_law_with_sgd_and_its_planted_bugs() -> None:
    # λ = 1 and γ from an LR scheduler-free group: make γ_{n+1} = 1/(n+1) by hand.
    rng, indices = generator(1), []
    for _ in range(2000):
        theta = one_parameter()
        optimizer = SGD([theta], lr=1.0)
        random_iterate = RandomIterate(optimizer, rng)
        for n in range(1, 5):
            optimizer.param_groups[0]["lr"] = 1.0 / n
            theta.grad = torch.full_like(theta, -float(n))  # θ_n = n
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 1.0 / 5
        indices.append(random_iterate.index)
        assert round(random_iterate.iterate()[0].item()) == indices[-1]
    assert consistent(indices, [1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert not consistent(indices, [1.0] * 5)  # uniform weights
    assert not consistent(indices, [1.0, 1 / 2, 1 / 3, 1 / 4, 0.0])  # θ_N left out
    assert not consistent(indices, [1 / n for n in range(2, 7)])  # γ_{n+2} instead of γ_{n+1}


def test_law_with_adagrad() -> None:
    gamma, epsilon, clip = power(1.0, -0.5), power(1.0, 0.3), power(2.0, 0.5)
    eps = power(1.0, -0.3)
    indices = draws(lambda theta: Adagrad([theta], gamma, eps=eps, clip=clip), 4)
    lambdas = [epsilon(1)] + [(epsilon(n + 1) ** -2 + clip(n) ** 2) ** -0.5 for n in range(1, 5)]
    assert consistent(indices, [gamma(n + 1) * lambdas[n] for n in range(5)])
    uniform = draws(
        lambda theta: Adagrad([theta], constant(1.0), eps=eps, clip=clip), 4, weight=1.0
    )
    assert not consistent(uniform, [gamma(n + 1) * lambdas[n] for n in range(5)])


def test_law_with_amsgrad_which_never_draws_the_start() -> None:
    gamma, clip = power(1.0, -0.5), power(1.0, 0.5)
    indices = draws(
        lambda theta: AMSGrad([theta], gamma, betas=(0.5, 0.5), eps=0.1**0.5, clip=clip), 4
    )
    lambdas = [0.0] + [(0.1 + clip(n) ** 2 * (1 - 0.5**n)) ** -0.5 for n in range(1, 5)]
    assert consistent(indices, [gamma(n + 1) * lambdas[n] for n in range(5)])
    assert not consistent(indices, [0.0, 1.0, 1.0, 1.0, 1.0])
    # ε̲_{n+1} instead of ε̲_n, which also gives weight to θ_0
    shifted = [(0.1 + clip(n + 1) ** 2 * (1 - 0.5 ** (n + 1))) ** -0.5 for n in range(5)]
    assert not consistent(indices, [gamma(n + 1) * shifted[n] for n in range(5)])


def test_holds_the_iterate_it_names() -> None:
    params = parameters()
    optimizer = CASES["Adagrad"](params)
    random_iterate = RandomIterate(optimizer, generator(4))
    history = [values(params)]
    for n in range(1, 41):
        run(optimizer, params, n, n)
        history.append(values(params))
        assert values(random_iterate.iterate()) == history[random_iterate.index]


def test_reading_changes_nothing() -> None:
    results = []
    for read in (False, True):
        params = parameters()
        optimizer = CASES["RMSProp"](params)
        random_iterate = RandomIterate(optimizer, generator(5))
        for n in range(1, 31):
            run(optimizer, params, n, n)
            if read and n % 3 == 0:
                first, second = random_iterate.iterate(), random_iterate.iterate()
                assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        results.append((random_iterate.index, values(random_iterate.iterate())))
    assert results[0] == results[1]


def test_a_failed_step_offers_its_iterate_once() -> None:
    params = parameters()
    optimizer = CASES["Adagrad"](params)
    random_iterate = RandomIterate(optimizer, generator())
    run(optimizer, params, 1, 3)
    fill_gradients(params, 4)
    good = [p.grad for p in params]
    params[0].grad = torch.full_like(params[0], math.nan)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="NaN"):
            optimizer.step()
    params[0].grad = good[0]
    optimizer.step()
    _ = random_iterate.index
    expected = sum(0.1 * n**-0.5 * optimizer.preconditioner_bounds(n)[0] for n in range(1, 6))
    assert math.isclose(random_iterate.state_dict()["total"], expected, rel_tol=1e-12)


def test_round_trip_continues_bit_identically() -> None:
    params = parameters()
    optimizer, rng = CASES["AMSGrad"](params), generator(6)
    random_iterate = RandomIterate(optimizer, rng)
    run(optimizer, params, 1, 10)
    saved = saved_and_loaded(
        {
            "theta": [p.detach().clone() for p in params],
            "optimizer": optimizer.state_dict(),
            "random_iterate": random_iterate.state_dict(),
            "rng": rng.get_state(),
        }
    )
    run(optimizer, params, 11, 30)

    resumed = [t.requires_grad_() for t in saved["theta"]]
    optimizer_2, rng_2 = CASES["AMSGrad"](resumed), generator()
    random_iterate_2 = RandomIterate(optimizer_2, rng_2)
    optimizer_2.load_state_dict(saved["optimizer"])
    random_iterate_2.load_state_dict(saved["random_iterate"])
    rng_2.set_state(saved["rng"])
    run(optimizer_2, resumed, 11, 30)
    assert random_iterate_2.index == random_iterate.index
    assert values(random_iterate_2.iterate()) == values(random_iterate.iterate())
    assert random_iterate_2.state_dict()["total"] == random_iterate.state_dict()["total"]


def test_an_iterate_that_was_read_is_not_offered_again_after_loading() -> None:
    random_iterate = RandomIterate(SGD([one_parameter()], lr=0.25), generator())
    assert random_iterate.index == 0
    resumed = RandomIterate(SGD([one_parameter()], lr=0.25), generator())
    resumed.load_state_dict(saved_and_loaded(random_iterate.state_dict()))
    assert resumed.index == 0
    assert resumed.state_dict()["total"] == 0.25


def test_each_iterate_takes_one_uniform_of_double_precision() -> None:
    optimizer, rng = SGD([one_parameter()], lr=0.5), generator(3)
    random_iterate, kept = RandomIterate(optimizer, generator(3)), 0
    for n in range(20):  # of n + 1 equal weights the last wins with probability 1/(n + 1)
        kept = n if torch.rand((), dtype=torch.float64, generator=rng) * (n + 1) < 1 else kept
        assert random_iterate.index == kept
        optimizer.step()


def test_stores_one_copy() -> None:
    shape = (1237, 3)  # a size that no other test uses
    theta = torch.zeros(shape)
    optimizer = SGD([theta], lr=0.1)
    random_iterate = RandomIterate(optimizer, generator())
    for _ in range(20):
        theta.grad = torch.ones(shape)
        optimizer.step()
    _ = random_iterate.index
    theta.grad = None
    alive = [o for o in gc.get_objects() if type(o) is Tensor and o.shape == shape]
    assert len(alive) == 2  # θ and the stored iterate


def test_applied_lends_the_iterate() -> None:
    params = parameters()
    optimizer = CASES["Adagrad"](params)
    random_iterate = RandomIterate(optimizer, generator(4))
    run(optimizer, params, 1, 40)
    last, drawn = values(params), values(random_iterate.iterate())
    with random_iterate.applied() as index:
        assert index == random_iterate.index
        assert values(params) == drawn
        with pytest.raises(RuntimeError, match="no step can be taken inside"):
            optimizer.step()
    assert values(params) == last
    assert values(random_iterate.iterate()) == drawn


def test_detach_stops() -> None:
    theta = one_parameter()
    optimizer = SGD([theta], lr=0.1)
    random_iterate = RandomIterate(optimizer, generator())
    random_iterate.detach()
    theta.grad = torch.ones_like(theta)
    optimizer.step()
    assert random_iterate.state_dict()["iteration"] == 0


def test_says_when_there_is_no_iterate_to_give() -> None:
    optimizer = AMSGrad([one_parameter()], 0.1, clip=1.0)
    random_iterate = RandomIterate(optimizer, generator())
    with pytest.raises(RuntimeError, match="no iterate has a positive weight after 0 steps"):
        random_iterate.iterate()


def test_says_when_parameters_were_added_or_do_not_fit() -> None:
    optimizer = SGD([one_parameter()], 0.1)
    random_iterate = RandomIterate(optimizer, generator())
    with pytest.raises(ValueError, match=r"shapes \[\(1,\)\], got \[\(2,\)\]"):
        random_iterate.load_state_dict(random_iterate.state_dict() | {"iterate": [torch.zeros(2)]})
    optimizer.add_param_group({"params": [one_parameter()]})
    with pytest.raises(RuntimeError, match="make a new one after add_param_group"):
        _ = random_iterate.index
