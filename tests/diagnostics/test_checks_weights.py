import pytest
import torch

from mlmcgrad import problems
from mlmcgrad.diagnostics._checks import evenness
from tests.chains import rng, weight_spread


def test_weights() -> None:
    assert evenness(torch.zeros(3, 10)) == pytest.approx((10.0, 0.1))
    one = torch.zeros(3, 10)
    one[:, 0] = 1000.0
    assert evenness(one) == pytest.approx((1.0, 1.0))


def test_weights_of_a_proposal() -> None:
    """The spread of the log weights of a model, 256 draws for each of 40 copies of the data."""
    model = problems.linear_gaussian()
    kernel, y = model.kernel(), model.data.repeat_interleave(40, 0)
    rows = torch.arange(len(y)).repeat_interleave(256)
    z = kernel.propose(len(rows), y[rows], generator=rng())
    log_w = kernel.log_weight(z, y[rows]).detach().double().reshape(len(y), 256)
    spread = float(log_w.std(1).mean())
    assert spread == pytest.approx(weight_spread(model, 2000, rng()), rel=0.1)
    assert 1.0 < evenness(log_w)[0] < 100.0
