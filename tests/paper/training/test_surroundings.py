"""A training takes nothing from what its process has chosen for numbers of its own."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlmcgrad.paper.training import Config, train
from mlmcgrad.paper.training.trainer import Trainer, usual_numbers
from tests.paper.training import tiny


def test_defaults_of_torch_and_numpy_change_no_bit(tmp_path: Path) -> None:
    """Weights of images underflow, and so they should."""
    values = {"iterations": 3, "nll_samples": 2, "test_images": 3}
    plain = train(Config.from_flat(out=tmp_path / "plain", **values)).model.state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        with np.errstate(all="raise"):
            there = train(Config.from_flat(out=tmp_path / "there", **values)).model.state_dict()
            assert np.geterr()["under"] == "raise"
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert tiny.same(dict(plain), dict(there))


def test_they_are_restored_after_an_error() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with suppress(RuntimeError), usual_numbers():
            assert torch.get_default_dtype() == torch.float32
            raise RuntimeError
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


SAID = r"^truncation_scale, truncation_exponent or iterations must be smaller, got .* 1e\+09 tr"


@pytest.mark.parametrize(
    "changes",
    [
        {"truncation_scale": 1e9},
        {"method": "br", "truncation_scale": 1e6, "iterations": 10**6},
        {"truncation_exponent": 1.0, "iterations": 10**10},
    ],
)
def test_chains_without_end_are_refused(changes: dict[str, Any]) -> None:
    settings = tiny.config(Path("unused"), **changes).settings()
    with pytest.raises(ValueError, match=SAID):
        Trainer(settings, tiny.source())


def test_they_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """It was the second iteration that failed, with a remedy that is no option."""
    with pytest.raises(ValueError, match=SAID):
        tiny.run(tmp_path, truncation_scale=1e9)
    assert not list(tmp_path.iterdir())


def test_a_long_run_of_short_chains_is_fine() -> None:
    settings = tiny.config(Path("unused"), iterations=2**53, truncation_scale=1.0).settings()
    Trainer(settings, tiny.source())


def test_a_file_of_the_user_called_lock_stays(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("mine")
    tiny.run(tmp_path, iterations=1)
    assert (tmp_path / "lock").read_text() == "mine"
