"""What kernels refuse of a context."""

from __future__ import annotations

import pytest
import torch

from mlmcgrad.kernels.base import check_context


def test_a_list_is_refused_for_any_number_in_it() -> None:
    for context in ([1.0, 2.0], [torch.zeros(2), 3]):
        with pytest.raises(TypeError, match=r"context\[0\] must be a tensor .* got list"):
            check_context((context,))
    check_context(([], [torch.zeros(2)], 3.0))
