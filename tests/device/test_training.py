"""A training on the stand-in, with tests, checkpoints and a resumption: the bits of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.paper.training import trainer
from tests.device.place import CPU, DEVICE, same
from tests.paper.training import tiny


@pytest.mark.parametrize("changes", [{}, {"method": "br", "persistent": True}])
def test_a_training_and_its_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    found = []
    for name, device in (("cpu", CPU), ("gpu", DEVICE)):
        monkeypatch.setattr(trainer, "usable", lambda _, device=device: device)
        folder = tmp_path / name
        tiny.run(folder, iterations=5, **changes)
        result = tiny.run(folder, iterations=9, resume=True, **changes)
        assert {p.device for p in result.model.parameters()} == {device}
        parameters = [p.tolist() for p in result.model.parameters()]
        found.append((parameters, tiny.metrics(folder)))
    assert same(found[0], found[1])
