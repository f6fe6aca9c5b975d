"""A `Store` on either device, with states and rows of either device."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from mlmcgrad.store import Store
from tests.device.place import CPU, DEVICE, recorded

places = pytest.mark.parametrize(("kept", "states"), list(product((CPU, DEVICE), repeat=2)))


@places
@pytest.mark.parametrize("rows", [[4, 1], torch.tensor([4, 1])])
def test_states_move_to_the_store(
    kept: torch.device, states: torch.device, rows: list[int] | torch.Tensor
) -> None:
    store = Store(6, 2, device=kept)
    store[rows] = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(states)
    assert store[rows].device == kept
    assert store[[1, 4]].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert store.known.tolist() == [False, True, False, False, True, False]


@places
def test_rows_may_be_of_the_device(kept: torch.device, states: torch.device) -> None:
    store = Store(6, (), dtype=torch.int64, device=kept)
    rows = torch.tensor([0, 5]).to(states)
    store[rows] = torch.tensor([7, 8], device=states)
    assert store[rows].tolist() == [7, 8]


@places
def test_a_state_dict_moves(kept: torch.device, states: torch.device) -> None:
    first, second = Store(3, 1, device=kept), Store(3, 1, device=states)
    first[[0, 2]] = torch.tensor([[1.0], [2.0]], device=kept)
    second.load_state_dict(first.state_dict())
    assert second[[0, 2]].tolist() == [[1.0], [2.0]]
    assert second[[0]].device == states


def test_waits() -> None:
    """Checks of rows and states, and the rows themselves."""
    store = Store(6, 2, device=DEVICE)
    states = torch.ones(2, 2, device=DEVICE)
    with recorded() as setting:
        store[[0, 1]] = states
    with recorded() as reading:
        store[[0, 1]]
    assert setting.waits <= 4, setting.where()
    assert reading.waits <= 5, reading.where()
    with recorded() as slicing:
        states = store[:2]
    assert states.device == DEVICE
    assert slicing.waits <= 2, slicing.where()  # whether all of them are known
