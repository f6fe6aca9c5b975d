"""The units of the search, and its start."""

import math

import torch

from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import Gaussian, Poisson
from mlmcgrad.mixed.parameters import Layout, scaled, start
from tests.mixed.tables import table


def test_units_are_converted_in_double_precision() -> None:
    """The logarithm of the unit of a gaussian response was that of single precision."""
    data = table().assign(z=lambda t: 37.0 * t["z"])
    design = build("z ~ x + a + (1 + x | g)", data)
    units, scale = scaled(design, Gaussian())
    unit = float(design.y.std())
    assert float(scale.shift[-1]) == math.log(unit)
    assert scale.log_volume == -60.0 * math.log(unit)
    theta = torch.randn(scale.shift.shape, dtype=torch.float64)
    torch.testing.assert_close(scale.back(scale.point(theta)), theta, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(units.fixed.T @ units.fixed / 60.0, torch.eye(4).double())


def test_the_search_starts_without_random_effects_at_the_maximum() -> None:
    design, family = build("n ~ x + a + (1 | g)", table()), Poisson()
    units, scale = scaled(design, family)
    beta = scale.point(start(units, family, Layout.of(design, family)))[:4]
    slope = design.y - torch.exp(design.fixed @ beta)
    torch.testing.assert_close(design.fixed.T @ slope, torch.zeros(4).double(), atol=1e-5, rtol=0.0)
