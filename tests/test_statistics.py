import torch

from tests.statistics import mean_is, same_mean


def test_accepts_the_true_mean_and_rejects_a_wrong_one() -> None:
    draws = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert mean_is(draws, torch.zeros(3))
    assert not mean_is(draws, torch.tensor([0.0, 0.0, 0.1]))
    assert same_mean(draws[:2500], draws[2500:])
    assert not same_mean(draws[:2500], draws[2500:] + 0.2)


def test_a_constant_must_be_exact() -> None:
    assert mean_is(torch.ones(10, 1), torch.ones(1))
    assert not mean_is(torch.ones(10, 1), torch.full((1,), 1.001))
