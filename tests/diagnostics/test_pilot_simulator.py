import pytest
import torch

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics._pilot import Simulator
from tests.chains import rng


@pytest.mark.parametrize("chains", [2, 40])  # fewer chains than parameters: rows; more: columns
def test_rows_are_the_chains_own_gradients(chains: int) -> None:
    """Each row against a gradient with one chain's loss switched on, from the same noise."""
    model = problems.linear_gaussian()
    y = model.data[torch.arange(chains) % len(model.data)]
    estimator = mg.MLMC(16)
    kernel = model.kernel()
    gradient = mg.MarkovGradient(
        mg.kernels.ISIR(
            lambda z, y, _: kernel.log_weight(z, y),
            lambda rows, y, _, generator: kernel.propose(rows, y, generator),
            5,
        ),
        lambda z, y, on: on * model.loss(z, y),
        estimator,
        parameters=model.parameters,
    )
    plan = estimator.draw(chains, 1, rng(1))
    everyone = torch.ones(chains, dtype=torch.float64)
    each, _ = Simulator(gradient, None, (y, everyone), rng(2)).simulate(plan)
    assert each.shape == (chains, model.weight.numel() + model.bias.numel())
    for chain in (0, chains - 1):
        on = torch.zeros(chains, dtype=torch.float64)
        on[chain] = 1.0
        alone, _ = Simulator(gradient, None, (y, on), rng(2)).simulate(plan)
        assert torch.allclose(alone[chain], each[chain], atol=1e-10)
        assert (alone[torch.arange(chains) != chain] == 0.0).all()

    class Planned:
        def draw(
            self, chains: int, n: int | None, generator: torch.Generator
        ) -> mg.lengths.Lengths:
            return plan

        def longest(self, n: int | None = None) -> int:
            return int(plan.longest.max())

        def expected_length(self, n: int | None = None) -> float:
            return float(plan.longest.double().mean())

    whole = mg.MarkovGradient(
        gradient.kernel, gradient.loss, Planned(), parameters=model.parameters
    )
    tensors, _ = whole.gradient(None, y, everyone, n=1, generator=rng(2))
    assert torch.allclose(each.mean(0), torch.cat([t.flatten() for t in tensors]), atol=1e-10)


@pytest.mark.parametrize("chains", [3, 10])  # by rows, by columns
def test_a_parameter_that_is_not_used_has_zero_columns(chains: int) -> None:
    theta, other = (torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(torch.tensor([[0.5, 0.5], [0.5, 0.5]])),
        lambda x: theta[x],
        mg.Average(4),
        parameters=[other, theta],
    )
    plan = mg.Average(4).draw(chains, 1, rng())
    start = torch.zeros(chains, dtype=torch.int64)
    each, _ = Simulator(gradient, start, (), rng()).simulate(plan)
    assert (each[:, :2] == 0.0).all()
    assert torch.allclose(each[:, 2:].sum(1), torch.ones(chains, dtype=torch.float64))


def test_parameters_are_needed() -> None:
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(torch.eye(2)), lambda x: x.double(), mg.Average(1)
    )
    with pytest.raises(ValueError, match="must have parameters="):
        Simulator(gradient, torch.zeros(1, dtype=torch.int64), (), rng()).run(mg.Average(1))
