"""One iteration of training, and what it counts."""

from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.training.trainer import Trainer
from tests.training import tiny


@pytest.mark.parametrize(
    ("changes", "per_transition", "per_chain"),
    [
        # The first k = 3 draws are those of the encoder; each further step has k − 1 new ones.
        ({"kernel": "isir"}, 2, 1),
        # One evaluation a step and one for the start; the encoder's draws are not shared.
        ({"kernel": "rwmh"}, 1, 1 + 3),
        ({"method": "iwae", "candidates": 1}, 1, 0),
    ],
)
def test_all_decoder_evaluations_are_counted(
    changes: dict[str, Any], per_transition: int, per_chain: int
) -> None:
    trainer = Trainer(tiny.config(Path("unused"), **changes).settings(), tiny.source())
    for _ in range(3):
        trainer.step()
    transitions, chains = trainer.spent["transitions"], 3 * 8
    assert trainer.spent["evaluations"] == per_transition * transitions + per_chain * chains
