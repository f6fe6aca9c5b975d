"""Persistent states: what is set is what is read, and chains go on from it."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.store import Remembered
from tests.chains import rng


def test_states_are_kept_by_row() -> None:
    store = mg.Store(10, (2, 3))
    states = torch.randn(4, 2, 3, generator=rng())
    store[torch.tensor([7, 1, 9, 0])] = states
    found = store[[9, 7]]
    assert isinstance(found, Tensor)
    assert torch.equal(found, states[[2, 0]])
    assert store.known.nonzero()[:, 0].tolist() == [0, 1, 7, 9]
    found.zero_()  # a copy
    assert torch.equal(store[[9, 7]], states[[2, 0]])
    store.known.zero_()
    missing = r"no state yet for 6 of 10 rows \(2, 3, 4, 5, 6, …\); .*store\.start\(rows\)"
    with pytest.raises(LookupError, match=missing):
        store[:]
    with pytest.raises(LookupError, match=r"for 5 of 6 rows \(2, 3, 4, 5, 6\); set them"):
        store[1:7]
    some = store.start(slice(0, 3))
    assert isinstance(some, Remembered)
    assert some.known.tolist() == [True, True, False]
    assert torch.equal(some.points[1], states[1])
    assert torch.equal(some.points[2], torch.zeros(2, 3))
    store[:] = torch.ones(10, 2, 3)
    assert torch.equal(store[:], torch.ones(10, 2, 3))
    assert len(store) == 10
    assert repr(store) == "Store(10, (2, 3), torch.float32, known=10)"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_types(dtype: torch.dtype) -> None:
    store = mg.Store(3, 2, dtype=dtype)
    store[[0, 2]] = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = store[[2, 0]]
    assert isinstance(found, Tensor)
    assert found.dtype == dtype
    assert found.double().tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("value", [0.5, torch.nan, torch.inf, 2.0**70, 1.0 + 2.0j])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_states_that_the_type_cannot_hold_are_refused(dtype: torch.dtype, value: complex) -> None:
    store = mg.Store(3, 1, dtype=dtype)
    with pytest.raises(ValueError, match=f"numbers that {dtype} can hold.*the dtype of the states"):
        store[[0]] = torch.tensor([[value]])
    assert not store.known.any()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.int8, 300),
        (torch.uint8, -1),
        (torch.int32, 2**31),
        (torch.bool, 2),
        (torch.float32, 2**24 + 1),
        (torch.bfloat16, 257),
    ],
)
def test_whole_numbers_are_kept_exactly(dtype: torch.dtype, value: int) -> None:
    """An int8 made 44 of 300, and a float32 an even number of 2^24 + 1."""
    store = mg.Store(3, 1, dtype=dtype)
    with pytest.raises(ValueError, match=f"numbers that {dtype} can hold"):
        store[[0]] = torch.tensor([[value]])
    assert not store.known.any()
    store[[0]] = torch.tensor([[1]])
    assert int(store[[0]]) == 1


@pytest.mark.parametrize("value", [1.0 + 2.0j, 1.0 + 0.0j])
def test_a_store_of_real_numbers_has_no_complex_states(value: complex) -> None:
    store = mg.Store(3, 1)
    with pytest.raises(ValueError, match=r"numbers that torch.float32 can hold"):
        store[[0]] = torch.tensor([[value]])
    store = mg.Store(3, 1, dtype=torch.complex64)
    store[[0]] = torch.tensor([[value]], dtype=torch.complex128)
    store[[1]] = torch.tensor([[0.5]])
    assert store[[0, 1]].tolist() == [[value], [0.5]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_states_that_overflow_in_the_type_of_the_store_are_refused(dtype: torch.dtype) -> None:
    store, large = mg.Store(3, 1, dtype=dtype), torch.full((1, 1), 1e300, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"states must be finite in {dtype}, got NaN or infinity"):
        store[[0]] = large
    assert not store.known.any()
    store[[0]] = large / 1e299  # rounding is no loss
    assert store[[0]].isfinite().all()


def test_checkpoint() -> None:
    store, other = mg.Store(5, 2), mg.Store(5, 2)
    store[[1, 3]] = torch.ones(2, 2)
    state = store.state_dict()
    store[[0]] = torch.ones(1, 2)
    assert int(state["known"].sum()) == 2  # a copy
    other.load_state_dict(state)
    assert other.known.tolist() == [False, True, False, True, False]
    assert torch.equal(other[[1]], torch.ones(1, 2))
    for wrong in (mg.Store(4, 2), mg.Store(5, 3), mg.Store(5, 2, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"state: points must be torch.float32 of shape"):
            other.load_state_dict(wrong.state_dict())
    with pytest.raises(KeyError, match="known"):
        other.load_state_dict({"points": state["points"]})


@pytest.mark.filterwarnings("ignore:Casting complex values:UserWarning")
@pytest.mark.parametrize(
    ("rows", "states", "message"),
    [
        ([0], torch.zeros(1, 3), r"states must be a tensor of shape \(1, 2\), got \(1, 3\)"),
        ([0], torch.zeros(2, 2), r"states must be a tensor of shape \(1, 2\), got \(2, 2\)"),
        ([0], [[0.0, 0.0]], r"states must be a tensor of shape \(1, 2\), got list"),
        ([0], torch.tensor([[0.0, torch.nan]]), "states must be finite in torch.float32"),
        ([0], torch.tensor([[0.0, 1e300]]).double(), "states must be finite in torch.float32"),
        ([0], torch.tensor([[0.0, 1.0 + 1j]]), "states must be numbers that torch.float32 can"),
        ([2, 7], torch.zeros(2, 2), "index 7 is out of bounds for dimension 0 with size 5"),
        ([0.0], torch.zeros(1, 2), "rows must be a list or tensor of integers"),
        (torch.zeros(5).bool(), torch.zeros(1, 2), "rows must be a list or tensor of integers"),
    ],
)
def test_bad_rows_and_states(rows: Any, states: Any, message: str) -> None:
    store = mg.Store(5, 2)
    with pytest.raises((ValueError, IndexError), match=message):
        store[rows] = states
    assert not store.known.any()


@pytest.mark.parametrize(("size", "shape"), [(0, 2), (2, 0), (2, (1, -1))])
def test_bad_sizes(size: int, shape: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        mg.Store(size, shape)


def _kernel() -> mg.kernels.ISIR:
    def propose(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
        return y + torch.randn(rows, 1, dtype=torch.float64, generator=generator)

    return mg.kernels.ISIR(lambda z, y: 8.0 * (z - y)[:, 0] - 4.0 * z[:, 0].square(), propose, 3)


def test_joint_stochastic_approximation() -> None:
    """Chains that go on between visits come to the target; those that start anew do not.

    The target of a datum y is N(8/9 + y/9, 1/9), whatever y: null for the mean of the kept states
    after 60 visits, with a tolerance of six standard errors; 300 data.
    """
    y = torch.linspace(-2.0, 2.0, 300, dtype=torch.float64)[:, None]
    store, theta, generator = mg.Store(300, 1, dtype=torch.float64), torch.zeros(1), rng()
    theta = theta.double().requires_grad_()
    gradient = mg.MarkovGradient(_kernel(), lambda z, y: theta * z[:, 0], mg.Average(1))
    for epoch in range(60):
        for rows in torch.randperm(300, generator=generator).split(50):
            estimate = gradient.backward(store.start(rows), y[rows], generator=generator)
            store[rows] = estimate.last
        assert store.known.all() or epoch == 0
    kept = store[:]
    assert isinstance(kept, Tensor)
    error = ((kept - (8.0 + y) / 9.0).mean() / ((1.0 / 9.0) / 300) ** 0.5).abs()
    assert error < 6.0
    fresh = gradient.backward(None, y, generator=generator).last
    assert ((fresh - (8.0 + y) / 9.0).mean() / ((1.0 / 9.0) / 300) ** 0.5).abs() > 6.0


def test_first_visits_start_from_the_proposal() -> None:
    """Rows without a state have the law of x0=None: k draws; known rows start where they were."""
    store = mg.Store(4, 1, dtype=torch.float64)
    store[[2]] = torch.full((1, 1), 0.5, dtype=torch.float64)
    seen: list[Tensor] = []

    def propose(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(y.flatten())
        return y + torch.zeros(rows, 1, dtype=torch.float64)

    kernel = mg.kernels.ISIR(lambda z, y: z[:, 0], propose, 2)
    y = torch.tensor([[10.0], [20.0], [30.0], [40.0]], dtype=torch.float64)
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    gradient = mg.MarkovGradient(kernel, lambda z, y: theta * z[:, 0], mg.Average(1))
    estimate = gradient.backward(store.start([2, 3, 2, 0]), y[[2, 3, 2, 0]], generator=rng())
    assert seen[0].tolist() == [40.0, 10.0]  # the starts of unknown rows
    assert sorted(seen[1].tolist()) == [10.0, 30.0, 30.0, 40.0]  # one fresh candidate each
    assert estimate.evaluations == 8
    assert estimate.last.flatten()[1] == 40.0


def test_kernels_without_a_proposal_say_what_to_do() -> None:
    store = mg.Store(4, 2)
    kernel = mg.kernels.RWMH(lambda x: -x.square().sum(1), 1.0)
    theta = torch.zeros(2, requires_grad=True)
    gradient = mg.MarkovGradient(kernel, lambda x: (theta * x).sum(1), mg.Average(2))
    message = r"RWMH has no proposal to draw missing states from \(2 of 2 rows\).* store\[rows\]"
    with pytest.raises(ValueError, match=message):
        gradient.backward(store.start([0, 1]), generator=rng())
    store[[0, 1]] = torch.zeros(2, 2)
    gradient.backward(store[[0, 1]], generator=rng())
