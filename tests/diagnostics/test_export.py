"""Chains as arrays: the same steps as an estimate makes, with the weights that it gives them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics import _export, to_arviz, to_dict
from mlmcgrad.kernels import MALA, RWMH, Finite, FromStep, Gibbs
from tests.chains import rng

ESTIMATORS = [
    mg.MLMC(64),
    mg.MLMC(2),
    mg.MLMC(mg.schedules.power(4.0, 0.5), assignment="balanced", base=2),
    mg.MLMCSum(64),
    mg.MLMCSum(32, continuation=0.4),
    mg.Average(7),
    mg.Average(1500, burn_in=40),  # more than one block
]
STATS = {"acceptance_rate", "level", "weight"}


def _wander(x: Tensor, generator: torch.Generator) -> Tensor:
    return 0.7 * x + torch.randn(x.shape, dtype=x.dtype, generator=generator)


def _case(name: str) -> tuple[Any, Any, Tensor, tuple[Tensor, ...]]:
    """Kernel, loss, x0 and parameters."""
    if name == "Gibbs":
        machine = Gibbs.of_size(5, 3, scale=0.5, generator=rng(1), dtype=torch.float64)
        return machine, machine.loss, machine.random_states(6, rng(2)), machine.parameters
    if name == "Finite":
        chain = problems.finite_chain(states=5)
        return chain.kernel(), chain.loss, chain.start(6), chain.parameters
    normal = problems.gaussian(3)
    kernel: Any = {
        "MALA": MALA(normal.log_density, 0.5),
        "RWMH": RWMH(normal.log_density, 1.0),
        "FromStep": FromStep(_wander),
    }[name]
    return kernel, normal.loss, normal.start(6), normal.parameters


KERNELS = pytest.mark.parametrize("name", ["MALA", "RWMH", "Gibbs", "FromStep", "Finite"])


@KERNELS
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_weights_times_losses_are_the_estimate(name: str, estimator: Any) -> None:
    """From the same state of the generator, to rounding: the value and the gradient."""
    kernel, loss, x0, parameters = _case(name)
    gradient = mg.MarkovGradient(kernel, loss, estimator, parameters=parameters)
    arrays = to_dict(gradient, x0, n=9, generator=rng(5))
    expected, estimate = gradient.gradient(x0, n=9, generator=rng(5))

    x = torch.from_numpy(arrays["posterior"]["x"])
    weight = torch.from_numpy(arrays["sample_stats"]["weight"])
    longest = int(estimate.lengths.max())
    assert x.shape == (6, longest, *x0.shape[1:])
    assert x.dtype == x0.dtype
    assert torch.allclose(weight.sum(1), torch.ones(6, dtype=torch.float64), atol=1e-12)

    values = loss(x.flatten(0, 1)).reshape(weight.shape)
    scalar = (weight * values).sum(1).mean()
    assert scalar.item() == pytest.approx(estimate.value, rel=1e-12, abs=1e-12)
    for mine, theirs in zip(torch.autograd.grad(scalar, parameters), expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)

    stats = arrays["sample_stats"]
    assert (stats["level"] == estimate.levels.numpy()[:, None]).all()
    assert torch.equal(x[:, -1], estimate.last)
    after = np.arange(longest) >= estimate.lengths.numpy()[:, None]
    assert (stats["weight"][after] == 0.0).all()
    assert (np.isnan(stats["acceptance_rate"]) == after).all()
    assert np.nansum(stats["acceptance_rate"]) == pytest.approx(
        estimate.acceptance * estimate.transitions
    )


def test_the_twin_with_weights_of_the_next_step_is_seen() -> None:
    """The planted bug: weights that are one step late."""
    kernel, loss, x0, _ = _case("RWMH")
    gradient = mg.MarkovGradient(kernel, loss, mg.MLMCSum(64))
    arrays = to_dict(gradient, x0, generator=rng(5))
    _, estimate = gradient.gradient(x0, generator=rng(5))
    values = loss(torch.from_numpy(arrays["posterior"]["x"]).flatten(0, 1)).detach().numpy()
    late = np.roll(arrays["sample_stats"]["weight"], 1, axis=1)
    scalar = (late * values.reshape(late.shape)).sum(1).mean()
    assert abs(scalar - estimate.value) > 1e-3


@KERNELS
def test_chains_of_one_length(name: str) -> None:
    kernel, loss, x0, _ = _case(name)
    gradient = mg.MarkovGradient(kernel, loss, mg.MLMC(64))
    whole = to_dict(gradient, x0, length=40, generator=rng())
    cut = to_dict(gradient, x0, length=30, burn_in=10, generator=rng())
    x = whole["posterior"]["x"]
    assert x.shape == (6, 40, *x0.shape[1:])
    assert np.array_equal(cut["posterior"]["x"], x[:, 10:])
    stats = cut["sample_stats"]
    assert set(stats) == STATS | ({"lp"} if name in ("MALA", "RWMH", "Gibbs") else set())
    assert all(array.shape == (6, 30) for array in stats.values())
    assert (stats["weight"] == 1.0 / 30).all()
    assert (stats["level"] == 0).all()
    if name != "Gibbs":  # whose steps count as moves, wherever they lead
        before = np.concatenate([x0.numpy()[:, None], x[:, :-1]], 1)
        changed = (x != before).reshape(6, 40, -1).any(2)
        assert np.array_equal(whole["sample_stats"]["acceptance_rate"], changed)


def test_log_densities_are_those_of_the_states() -> None:
    """With a context: each chain has its own, also where chains are evaluated in chunks."""

    def log_density(x: Tensor, centre: Tensor) -> Tensor:
        return -0.5 * (x - centre).square().sum(1)

    centre = torch.arange(5.0, dtype=torch.float64)[:, None]
    x0 = torch.zeros(5, 2, dtype=torch.float64)
    gradient = mg.MarkovGradient(RWMH(log_density, 1.0), lambda x, _: x.sum(1), mg.MLMC(8), chunk=7)
    arrays = to_dict(gradient, x0, centre, length=9, generator=rng())
    x = arrays["posterior"]["x"]
    expected = -0.5 * ((x - np.arange(5.0)[:, None, None]) ** 2).sum(2)
    assert np.allclose(arrays["sample_stats"]["lp"], expected, atol=1e-14)


def test_the_log_density_of_a_machine_is_minus_its_free_energy() -> None:
    machine, loss, x0, _ = _case("Gibbs")
    arrays = to_dict(mg.MarkovGradient(machine, loss, mg.MLMC(8)), x0, length=4, generator=rng())
    x = torch.from_numpy(arrays["posterior"]["x"])
    lp = torch.from_numpy(arrays["sample_stats"]["lp"])
    assert torch.allclose(lp.flatten(), -machine.free_energy(x.flatten(0, 1)).detach())


def test_parts_of_a_state_have_names() -> None:
    kernel, loss, x0, _ = _case("MALA")
    gradient = mg.MarkovGradient(kernel, loss, mg.MLMC(8))
    whole = to_dict(gradient, x0, length=5, generator=rng(), names="z")["posterior"]["z"]
    named = {"mu": (), "beta": (2, 1)}
    parts = to_dict(gradient, x0, length=5, generator=rng(), names=named)["posterior"]
    assert list(parts) == ["mu", "beta"]
    assert np.array_equal(parts["mu"], whole[:, :, 0])
    assert np.array_equal(parts["beta"], whole[:, :, 1:, None])


def test_half_precision_becomes_single() -> None:
    kernel = RWMH(lambda x: -x.square().sum(1), 0.5)
    gradient = mg.MarkovGradient(kernel, lambda x: x.sum(1), mg.MLMC(8))
    x0 = torch.zeros(3, 1, dtype=torch.bfloat16)
    assert to_dict(gradient, x0, length=4, generator=rng())["posterior"]["x"].dtype == np.float32


def test_refuses_what_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, loss, x0, _ = _case("RWMH")
    gradient = mg.MarkovGradient(kernel, loss, mg.MLMC(8))
    with pytest.raises(ValueError, match="burn_in must be 0 without length, got 3"):
        to_dict(gradient, x0, burn_in=3, generator=rng())
    with pytest.raises(ValueError, match=r"burn_in must be an integer ≥ 0, got 2.5"):
        to_dict(gradient, x0, length=4, burn_in=2.5, generator=rng())  # type: ignore[arg-type]
    for wrong in (0, 2.5):
        with pytest.raises(ValueError, match=f"length must be an integer ≥ 1, got {wrong}"):
            to_dict(gradient, x0, length=wrong, generator=rng())  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"names must have shapes with 3 numbers in total.*got 2 in"
    ):
        to_dict(gradient, x0, length=4, generator=rng(), names={"a": (2,)})
    with pytest.raises(TypeError, match="generator must be a torch"):
        to_dict(gradient, x0, length=4, generator=None)  # type: ignore[arg-type]
    model = problems.linear_gaussian()
    other = mg.MarkovGradient(model.kernel(4), model.loss, mg.MLMC(8))
    with pytest.raises(TypeError, match=r"must have a kernel that moves chains.*got ISIR"):
        to_dict(other, None, model.data, length=4, generator=rng())
    monkeypatch.setattr(_export, "_NUMBERS", 6 * 4 * 3)
    to_dict(gradient, x0, length=4, generator=rng())
    with pytest.raises(ValueError, match=r"6 chains of 5 draws have 90 numbers, more than 72"):
        to_dict(gradient, x0, length=5, generator=rng())


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    gradient = mg.MarkovGradient(Finite(torch.eye(2)), lambda x: x.double(), mg.MLMC(8))
    remedy = r"needs the package arviz_base; pip install 'mlmcgrad\[arviz\]'"
    with pytest.raises(ModuleNotFoundError, match=remedy):
        to_arviz(gradient, torch.zeros(2, dtype=torch.int64), length=4, generator=rng())
    assert not hasattr(_export, "DataTree")  # of xarray, which may be missing too
