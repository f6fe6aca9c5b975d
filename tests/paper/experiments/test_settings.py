"""What experiments have in common is checked where they have it in common."""

import pytest
import torch

from mlmcgrad.paper.experiments.settings import JOBS, SEEDS, RatesSettings, ScalingSettings


@pytest.mark.parametrize("kind", [ScalingSettings, RatesSettings])
@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("seed", 2**64), ("seed", SEEDS + 1), ("jobs", 0), ("jobs", JOBS + 1)],
)
def test_errors_name_the_option(kind: type, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be an integer from . to .*, got {value}$"):
        kind(**{name: value})


def test_the_largest_seed_is_one_that_torch_takes() -> None:
    torch.Generator().manual_seed(1000 * ScalingSettings(seed=SEEDS).seed + 999)
