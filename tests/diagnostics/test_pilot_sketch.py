import torch

from mlmcgrad.diagnostics._pilot import Sketch
from tests.chains import rng
from tests.statistics import mean_is


def test_few_parameters_stay_as_they_are() -> None:
    x = torch.randn(3, 512, dtype=torch.float64, generator=rng())
    assert Sketch(512)(x) is x
    assert Sketch(512).size == 512


def test_inner_products_are_kept() -> None:
    """Null hypothesis: their mean over random vectors is that before the projection."""
    sketch = Sketch(5000)
    x, y = torch.randn(2, 400, 5000, dtype=torch.float64, generator=rng())
    y = y + x
    assert sketch(x).shape == (400, 512)
    kept = (sketch(x) * sketch(y)).sum(1) - (x * y).sum(1)
    assert mean_is(kept[:, None], torch.zeros(1, dtype=torch.float64))
    # A projection that loses a coordinate in ten would be seen.
    lost = sketch(x)
    lost[:, ::10] = 0.0
    bad = (lost * sketch(y)).sum(1) - (x * y).sum(1)
    assert not mean_is(bad[:, None], torch.zeros(1, dtype=torch.float64))
    relative = sketch(x).square().sum(1) / x.square().sum(1)
    assert float(relative.std()) < 0.08  # √(2/512) = 6 %


def test_it_is_linear_and_always_the_same() -> None:
    x, y = torch.randn(2, 3, 1000, dtype=torch.float64, generator=rng())
    together = Sketch(1000)(x) + 2.0 * Sketch(1000)(y)
    assert torch.allclose(Sketch(1000)(x + 2.0 * y), together, atol=1e-12)
    assert Sketch(1000)(x[0]).shape == (512,)


def test_variances_add_up() -> None:
    """Those of a projection of independent coordinates are on its diagonal."""
    sketch, variance = Sketch(1000), torch.rand(1000, dtype=torch.float64, generator=rng())
    matrix = sketch(torch.eye(1000, dtype=torch.float64))
    covariance = matrix.T @ torch.diag(variance) @ matrix
    assert torch.allclose(covariance, torch.diag(sketch.variances(variance)), atol=1e-12)
    assert torch.equal(Sketch(5).variances(variance[:5]), variance[:5])
