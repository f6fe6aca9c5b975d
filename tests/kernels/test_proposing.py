"""What `ISIR` and `Importance` have in common."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mlmcgrad.kernels import ISIR, Importance
from mlmcgrad.kernels.proposing import count_collapsed, insert


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
    found = insert(drawn, torch.tensor([[-1.0], [-2.0]]), where)
    assert found[:, 0].tolist() == [-1.0, 1.0, 2.0, -2.0, 3.0]
    assert insert([], found, where) is found


def test_candidates_of_another_shape_or_type_are_refused() -> None:
    """The message has the look of a draw first, and then that of x0."""
    where = torch.tensor([True, False])
    with pytest.raises(
        ValueError, match=r"float32 of shape \(chains, 3\), got torch.float64.*\(5,\)"
    ):
        insert([torch.zeros(1, 3)], torch.zeros(1, 5, dtype=torch.float64), where)


def test_collapsed_blocks_are_counted() -> None:
    """One of several candidates has more than 99.9 % of the weight; a single one always has."""
    assert count_collapsed(np.array([[0.9995, 0.0005], [0.998, 0.002], [0.0, 1.0]])) == 2
    assert count_collapsed(np.array([[1.0], [1.0]])) == 0
