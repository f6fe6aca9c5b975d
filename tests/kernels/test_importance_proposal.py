"""What `ISIR` and `Importance` have in common."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import ISIR, Importance
from mlmcgrad.kernels.importance import count_collapsed
from mlmcgrad.kernels.isir import _insert
from mlmcgrad.measure import concatenate
from tests.chains import rng


def _log_weight(z: Tensor) -> Tensor:
    return z.sum(1)


def _propose(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, 2, generator=generator)


@pytest.mark.parametrize("kernel", [ISIR, Importance])
def test_a_chunk_is_a_whole_number_and_has_a_name(kernel: type[ISIR | Importance]) -> None:
    with pytest.raises(ValueError, match="chunk must be"):
        kernel(_log_weight, _propose, 3, chunk=0)
    with pytest.raises(TypeError, match="positional"):
        kernel(_log_weight, _propose, 3, 16)  # type: ignore[call-arg]
    assert kernel(_log_weight, _propose, 3, chunk=1).chunk == 1


def test_candidates_are_put_into_their_rows() -> None:
    where = torch.tensor([True, False, False, True, False])
    drawn = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])]
    found = _insert(drawn, torch.tensor([[[-1.0]], [[-2.0]]]), where)
    assert found[:, 0].tolist() == [-1.0, 1.0, 2.0, -2.0, 3.0]
    assert torch.equal(_insert([], found[:, None], where), found)


def test_candidates_of_another_shape_or_type_are_refused() -> None:
    """The message has the look of a draw first, and then that of x0."""
    where = torch.tensor([True, False])
    with pytest.raises(
        ValueError, match=r"float32 of shape \(3,\) for each chain, got torch.float64.*\(5,\)"
    ):
        _insert([torch.zeros(1, 3)], torch.zeros(1, 1, 5, dtype=torch.float64), where)


@pytest.mark.parametrize("rao_blackwell", [None, False, True])
@pytest.mark.parametrize("bad", [0.0, -math.inf, math.nan])
def test_what_the_caller_has_told_numpy_is_no_matter(
    rao_blackwell: bool | None, bad: float
) -> None:
    """Weights that underflow, and logarithms of 0, are meant: the same numbers without an error."""

    def log_weight(z: Tensor, _: Tensor) -> Tensor:
        return torch.where(z[:, 0] > 2.0, bad, 300.0 * z[:, 0])

    kernel: ISIR | Importance = Importance(log_weight, _propose_for_each, 3)
    if rao_blackwell is not None:
        kernel = ISIR(log_weight, _propose_for_each, 3, rao_blackwell=rao_blackwell)
    gradient = mg.MarkovGradient(kernel, lambda z, _: z[:, 0], mg.MLMCSum(16), thinning=0.05)
    found, context = [], (torch.zeros(40),)
    modes: tuple[Literal["ignore", "raise"], ...] = ("ignore", "raise")
    for mode in modes:
        generator = rng(3)
        lengths = gradient.draw_lengths(None, context, None, generator)
        with np.errstate(all=mode):
            found.append(concatenate(list(gradient.simulate(None, context, lengths, generator))))
    first, second = (measure.parts for measure in found)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _propose_for_each(rows: int, _: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, 2, dtype=torch.float64, generator=generator)


def test_collapsed_blocks_are_counted() -> None:
    """One of several candidates has more than 99.9 % of the weight; a single one always has."""
    assert count_collapsed(np.array([[0.9995, 0.0005], [0.998, 0.002], [0.0, 1.0]])) == 2
    assert count_collapsed(np.array([[1.0], [1.0]])) == 0
