"""The decision to accept, and the noise it is made from, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mlmcgrad.kernels.base import judged
from mlmcgrad.kernels.metropolis import Noise, decide, probability, proposal_noise
from tests.chains import rng


def test_a_proposal_is_accepted_where_log_u_is_below_a_finite_ratio() -> None:
    """At equality not: of the n equidistant values of u, 0 among them, n p are below p."""
    ratio = torch.tensor([-1.0, -1.0, -1.0, 0.0, -math.inf, math.inf, math.nan])
    log_u = torch.tensor([-1.1, -1.0, -0.9, -0.1, -9.0, -9.0, -9.0])
    assert decide(ratio, log_u).tolist() == [True, False, False, True, False, False, False]


def test_the_chance_of_being_accepted() -> None:
    ratio = torch.tensor([-1.0, 0.0, 3.0, -math.inf, math.inf, math.nan])
    expected = torch.tensor([math.exp(-1.0), 1.0, 1.0, 0.0, 0.0, 0.0])
    assert torch.allclose(probability(ratio), expected)


@pytest.mark.parametrize(
    ("dtype", "precise", "bits"),
    [
        (torch.float64, torch.float64, 53),
        (torch.float32, torch.float32, 24),
        (torch.bfloat16, torch.float32, 24),
    ],
)
def test_uniforms_are_precise_and_never_0(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, precise: torch.dtype, bits: int
) -> None:
    """They are multiples of 2^-bits; half of that stands for 0, whose log would be −∞."""
    x = torch.zeros(5, 2, dtype=dtype)
    noise = proposal_noise(3, x, 0.5, rng())
    assert (noise.jump.dtype, noise.jump.shape) == (dtype, (3, 5, 2))
    assert (noise.log_uniform.dtype, noise.log_uniform.shape) == (precise, (3, 5))
    expected = torch.full((3, 5), -(bits + 1) * math.log(2.0), dtype=precise)

    def worst(*size: int, **options: Any) -> torch.Tensor:
        return torch.zeros(size, dtype=options["dtype"])

    monkeypatch.setattr(torch, "rand", worst)
    assert torch.allclose(proposal_noise(3, x, 0.5, rng()).log_uniform, expected)


def test_a_part_of_the_noise_begins_where_its_memory_does() -> None:
    noise = Noise(torch.arange(12.0).reshape(6, 2, 1), torch.arange(12.0).reshape(6, 2))
    for begin, steps in ((0, 2), (1, 3), (4, 2)):
        part = noise.part(begin, steps)
        assert part.jump[:, :, 0].tolist() == part.log_uniform.tolist()
        assert part.log_uniform[:, 0].tolist() == [2.0 * i for i in range(begin, begin + steps)]
        assert [field.storage_offset() for field in part] == [0, 0]


def test_only_half_precision_is_raised_for_a_decision() -> None:
    for dtype, expected in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        values = torch.tensor([0.5, -3.0], dtype=dtype)
        assert judged(values).dtype == expected
        assert torch.equal(judged(values).double(), values.double())
