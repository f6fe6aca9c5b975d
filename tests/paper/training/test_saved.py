from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.paper.training import loop
from mlmcgrad.paper.training import loop as module
from mlmcgrad.paper.training.loop import read_trainer
from tests.folders import content
from tests.paper.training import tiny


@pytest.fixture(autouse=True)
def _images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load", lambda settings: tiny.source())


@pytest.mark.parametrize("changes", [{}, {"method": "br", "persistent": True}])
def test_the_model_is_that_of_the_end(changes: dict[str, Any], tmp_path: Path) -> None:
    result = tiny.run(tmp_path / "run", **changes)
    (tmp_path / "run").rename(tmp_path / "elsewhere")  # a folder may be moved
    before = content(tmp_path)
    trainer = read_trainer(tmp_path / "elsewhere")
    assert trainer.iteration == 24
    assert trainer.settings.out == tmp_path / "elsewhere"
    assert (trainer.store is not None) == bool(changes)
    for name, value in result.model.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], value)
    assert content(tmp_path) == before


def test_an_older_checkpoint_is_used_if_the_last_is_damaged(tmp_path: Path) -> None:
    tiny.run(tmp_path)
    last = sorted((tmp_path / "checkpoints").glob("*.pt"))[-1]
    last.write_bytes(last.read_bytes()[:-1])
    before = content(tmp_path)
    assert read_trainer(tmp_path).iteration == 21
    assert content(tmp_path) == before  # the training decides what becomes of it


def test_a_folder_without_a_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^run: .*checkpoints holds no checkpoint; name a folder"):
        read_trainer(tmp_path)


@pytest.mark.parametrize("settings", [None, {}, {"dataset": 3}, {"dataset": "digits"}])
def test_settings_that_cannot_be_used(settings: Any, tmp_path: Path) -> None:
    loop.save_checkpoint(tmp_path, 1, {"settings": settings})
    with pytest.raises(ValueError, match="is refused: its settings cannot be used"):
        read_trainer(tmp_path)


def test_other_images_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.run(tmp_path)
    monkeypatch.setattr(module, "load", lambda settings: tiny.source(levels=5))
    with pytest.raises(ValueError, match="levels must be 4 as"):
        read_trainer(tmp_path)
