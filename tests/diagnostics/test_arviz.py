"""What ArviZ makes of exported chains; skipped where its packages are not installed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics import to_arviz, to_dict
from tests.chains import rng

pytest.importorskip("arviz_base")


def _gradient() -> tuple[mg.MarkovGradient, problems.GaussianTarget]:
    problem = problems.gaussian(3)
    kernel = mg.kernels.MALA(problem.log_density, 0.4)
    return mg.MarkovGradient(kernel, problem.loss, mg.MLMC(64)), problem


def test_the_tree_has_the_arrays_with_their_dimensions() -> None:
    gradient, problem = _gradient()
    options: Any = {"length": 20, "burn_in": 5, "names": {"mu": (), "beta": (2,)}}
    tree: Any = to_arviz(
        gradient,
        problem.start(4),
        generator=rng(),
        dims={"beta": ["effect"]},
        coords={"effect": ["slope", "curve"]},
        **options,
    )
    arrays = to_dict(gradient, problem.start(4), generator=rng(), **options)
    assert set(tree.children) == {"posterior", "sample_stats"}
    for group, variables in arrays.items():
        assert set(tree[group].data_vars) == set(variables)
        assert tree[group].attrs["inference_library"] == "mlmcgrad"
        assert tree[group].attrs["inference_library_version"] == mg.__version__
        for name, array in variables.items():
            assert tree[group][name].dims[:2] == ("chain", "draw")
            assert np.array_equal(tree[group][name].values, array)
    beta = tree["posterior"]["beta"]
    assert beta.dims == ("chain", "draw", "effect")
    assert np.array_equal(beta.sel(effect="curve").values, arrays["posterior"]["beta"][:, :, 1])


def test_the_estimate_of_an_exported_plan() -> None:
    """More chains than draws and chains of all lengths; nothing warns."""
    gradient, problem = _gradient()
    gradient = dataclasses.replace(gradient, estimator=mg.MLMC(mg.schedules.power(4.0, 0.5)))
    tree: Any = to_arviz(gradient, problem.start(200), n=50, generator=rng())
    _, estimate = gradient.gradient(problem.start(200), n=50, generator=rng())
    x, weight = tree["posterior"]["x"], tree["sample_stats"]["weight"]
    loss = 0.5 * ((x - problem.theta.detach().numpy()) ** 2).sum("x_dim_0")
    value = float((weight * loss).sum("draw").mean("chain"))
    assert value == pytest.approx(estimate.value, rel=1e-12)


def test_arviz_has_effective_sample_sizes_and_r_hat() -> None:
    """An autoregression x_t = ρ x_{t−1} + √(1−ρ²) z has T (1−ρ)/(1+ρ) effective draws of T."""
    stats = pytest.importorskip("arviz_stats")
    pytest.importorskip("xarray_einstats")

    def step(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return 0.5 * x + 0.75**0.5 * torch.randn(x.shape, dtype=x.dtype, generator=generator)

    gradient = mg.MarkovGradient(mg.kernels.FromStep(step), lambda x: x.sum(1), mg.MLMC(64))
    x0 = torch.randn(8, 2, dtype=torch.float64, generator=rng(1))
    tree: Any = to_arviz(gradient, x0, length=4000, burn_in=50, generator=rng())
    effective = stats.ess(tree, method="identity")["x"].values
    assert effective.tolist() == pytest.approx([8 * 4000 / 3.0] * 2, rel=0.15)
    assert float(stats.rhat(tree)["x"].max()) < 1.02
