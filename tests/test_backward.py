"""What the weighted backward pass does with odd losses and parameters."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mlmcgrad as mg
from mlmcgrad import backward
from mlmcgrad.backward import WeightedBackward, check_gradients, leaves
from mlmcgrad.measure import Measure
from tests.chains import random_matrix, rng

KERNEL = mg.kernels.Finite(random_matrix(3, 0))
START = torch.zeros(5, dtype=torch.int64)


def _made(loss: Callable[..., Tensor], **options: Any) -> mg.MarkovGradient:
    return mg.MarkovGradient(KERNEL, loss, mg.Average(20), **options)


def _leaf(seed: int = 0) -> Tensor:
    return torch.randn(3, dtype=torch.float64, generator=rng(seed)).requires_grad_()


@pytest.mark.parametrize("method", ["backward", "surrogate"])
def test_a_parameter_that_is_named_twice_has_one_gradient(method: str) -> None:
    p, other = _leaf(), _leaf(1)
    once = _made(lambda x: p[x] ** 2 + other[x], parameters=[p, other])
    (expected, _), _ = once.gradient(START, generator=rng())
    twice = _made(lambda x: p[x] ** 2 + other[x], parameters=[p, other, p])
    if method == "backward":
        estimate = twice.backward(START, generator=rng())
    else:
        scalar, estimate = twice.surrogate(START, generator=rng())
        scalar.backward()
    assert p.grad is not None
    assert torch.allclose(p.grad, expected, rtol=1e-12)
    assert [id(q) for q in estimate.parameters] == [id(p), id(other)]


def test_tied_layers_have_one_gradient() -> None:
    first = nn.Linear(3, 3, bias=False, dtype=torch.float64)
    second = nn.Linear(3, 3, bias=False, dtype=torch.float64)
    second.weight = first.weight
    eye = torch.eye(3, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return second(first(eye[x])).sum(1)

    (found,), _ = _made(loss).gradient(START, generator=rng())
    both = [*first.parameters(), *second.parameters()]
    _made(loss, parameters=both).backward(START, generator=rng())
    again = first.weight.grad
    assert again is not None
    assert torch.equal(again, found)


@pytest.mark.parametrize("chunk", [1, 2, 1024])
@pytest.mark.parametrize("named", [False, True])
def test_a_graph_that_was_made_outside_the_loss(chunk: int, named: bool) -> None:
    """`q = p.exp()` once for all chunks: the same gradient for any number of them."""
    p = _leaf()
    options = {"parameters": [p]} if named else {}
    (expected,), _ = _made(lambda x: p.exp()[x], **options).gradient(START, generator=rng())
    q = p.exp()
    gradient = _made(lambda x: q[x], chunk=chunk, **options)
    gradient.backward(START, generator=rng())
    assert p.grad is not None
    assert torch.allclose(p.grad, expected, rtol=1e-12)
    # Its graph is spent then, as after any backward pass: q is out of date once p moves.
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        gradient.backward(START, generator=rng())


def test_parameters_that_the_loss_does_not_touch() -> None:
    p, other = _leaf(), _leaf(1)
    gradient = _made(lambda x: p[x], parameters=[other])
    for method in (gradient.backward, gradient.gradient, gradient.surrogate):
        with pytest.raises(ValueError, match="the loss depends on none of the 1 tensors given"):
            method(START, generator=rng())
    assert other.grad is None
    (_, zero), _ = _made(lambda x: p[x], parameters=[p, other]).gradient(START, generator=rng())
    assert (zero == 0.0).all()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.arange(3.0))

    def loss(self, x: Tensor) -> Tensor:
        return self.table[x].square()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_a_copy_differentiates_its_own_parameters(copied: Callable[[Any], Any]) -> None:
    model = Model()
    original = _made(model.loss, parameters=model.parameters())
    duplicate = copied(original)
    estimate = duplicate.backward(START, generator=rng())
    assert model.table.grad is None
    (expected,), _ = original.gradient(START, generator=rng())
    assert estimate.parameters[0] is not model.table
    assert torch.equal(estimate.parameters[0].grad, expected)


def test_a_copy_whose_loss_was_not_copied_says_so() -> None:
    p = _leaf()
    duplicate = copy.deepcopy(_made(lambda x: p[x], parameters=[p]))
    with pytest.raises(ValueError, match="A copy of a MarkovGradient has copies of its parameters"):
        duplicate.backward(START, generator=rng())


def test_a_finite_loss_with_a_gradient_that_is_not() -> None:
    p = torch.zeros(3, requires_grad=True)
    p.grad = torch.full_like(p, 7.0)
    for chunk in (2, 1024):
        gradient = _made(lambda x: p.square().sum().sqrt() + p[x], chunk=chunk)
        with pytest.raises(FloatingPointError, match=r"gradient of parameter 0 has 3 entries.*NaN"):
            gradient.backward(START, generator=rng())
        assert (p.grad == 7.0).all()


def test_large_finite_gradients_are_fine() -> None:
    """Their sum overflows, they do not."""
    p = torch.zeros(3, requires_grad=True)
    gradient = _made(lambda x: 3e38 * p.sum() + 0.0 * p[x])
    gradient.backward(START, generator=rng())
    assert p.grad is not None
    assert p.grad.isfinite().all()


def _spoil(x: Tensor) -> Tensor:
    return x.mul_(0.5)


@pytest.mark.parametrize("name", ["log_density", "step", "log_weight", "loss"])
def test_a_function_that_changes_the_states_in_place(name: str) -> None:
    theta = torch.zeros(2, requires_grad=True)
    spoilt = {name: _spoil}

    def state(where: str, x: Tensor) -> Tensor:
        return spoilt.get(where, torch.clone)(x)

    normal = mg.kernels.RWMH(lambda x: -state("log_density", x).square().sum(1), 1.0)
    step = mg.kernels.FromStep(lambda x, generator: state("step", x) + 1.0)
    isir = mg.kernels.ISIR(
        lambda z: state("log_weight", z).sum(1),
        lambda rows, generator: torch.randn(rows, 2, generator=generator),
        3,
    )
    kernels: dict[str, mg.kernels.Kernel] = {"step": step, "log_weight": isir}
    kernel = kernels.get(name, normal)
    gradient = mg.MarkovGradient(
        kernel, lambda x: ((state("loss", x) - theta) ** 2).sum(1), mg.Average(5)
    )
    with pytest.raises(ValueError, match=f"{name} changed its first argument in place.*x.clone()"):
        gradient.backward(torch.ones(4, 2), generator=rng())
    spoilt.clear()
    gradient.backward(torch.ones(4, 2), generator=rng())


def test_slopes_are_those_of_the_weighted_loss() -> None:
    p = _leaf()
    points = torch.randn(4, 3, dtype=torch.float64, generator=rng(1))
    measure = Measure(points, torch.tensor([0, 0, 1, 1]), torch.tensor([0.5, -2.0, 3.0, 0.0]))
    scale = torch.tensor([2.0, 5.0], dtype=torch.float64)

    def loss(x: Tensor, scale: Tensor) -> Tensor:
        return scale * (p * x**2).sum(1)

    total = WeightedBackward(loss, (scale,), divisor=4, parameters=(p,))
    slopes = total.add_with_slopes(measure)
    weight = torch.tensor([0.5 * 2, -2.0 * 2, 3.0 * 5, 0.0], dtype=torch.float64)[:, None] / 4
    assert torch.allclose(slopes, weight * 2 * p.detach() * points, rtol=1e-12)
    (gradient,) = total.gradients()
    assert torch.allclose(gradient, (weight * points**2).sum(0), rtol=1e-12)
    assert (total.count, total.parameters) == (4, (p,))
    assert not points.requires_grad
    # A loss that does not depend on the states has slopes of 0.
    flat = WeightedBackward(lambda x: p.sum().expand(len(x)), (), divisor=1, parameters=(p,))
    assert torch.equal(flat.add_with_slopes(measure), torch.zeros_like(points))


def _normalised(layer: nn.Module) -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
    torch.manual_seed(0)
    table = nn.Embedding(3, 4, dtype=torch.float64)
    layer = layer.double()
    return lambda x: layer(table(x)[:, :, None]).square()[:, 1].sum(1), [table.weight]


@pytest.mark.parametrize("method", ["backward", "surrogate"])
def test_a_loss_that_mixes_its_rows_is_refused(method: str) -> None:
    loss, parameters = _normalised(nn.BatchNorm1d(4))
    gradient = _made(loss, parameters=parameters)
    with pytest.raises(ValueError, match=r"loss normalises over its rows.*call eval\(\)"):
        getattr(gradient, method)(START, generator=rng())
    assert parameters[0].grad is None
    few = WeightedBackward(loss, (), divisor=2, parameters=tuple(parameters))
    owner, half = torch.arange(2), torch.full((2,), 0.5, dtype=torch.float64)
    with pytest.raises(ValueError, match="loss normalises over its rows"):
        few.add_all([Measure(torch.tensor([0, 1]), owner, half)])
    # Without the check the gradient would depend on the chunk.
    x = torch.tensor([0, 1, 2, 2])
    whole, parts = loss(x).sum(), loss(x[:2]).sum() + loss(x[2:]).sum()
    assert abs((whole - parts).item()) > 0.01


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(4).eval(), nn.InstanceNorm1d(4), nn.GroupNorm(2, 4), nn.LayerNorm(1)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_loss_that_normalises_each_row_does_not_depend_on_the_chunk(layer: nn.Module) -> None:
    layer = layer if not isinstance(layer, nn.InstanceNorm1d) else nn.Sequential(Pairs(), layer)
    loss, parameters = _normalised(layer)
    found = []
    for chunk in (1, 3, 1024):
        (gradient,), _ = _made(loss, parameters=parameters, chunk=chunk).gradient(
            START, generator=rng()
        )
        found.append(gradient)
    assert torch.allclose(found[0], found[1], atol=1e-12)
    assert torch.allclose(found[0], found[2], atol=1e-12)


class Pairs(nn.Module):
    """Two numbers for each channel, as InstanceNorm needs several."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.square()], 2)


def test_normalised_rows_that_are_not_those_of_the_loss_are_fine() -> None:
    """A network that reads a fixed batch, by BatchNorm in training mode, makes a parameter."""
    torch.manual_seed(0)
    network, batch = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), torch.randn(7, 2)
    found = []
    for chunk in (4, 1024):
        made = _made(lambda x: network(batch)[0][x].square(), chunk=chunk)
        found.append(made.gradient(START, generator=rng())[0])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


HALF = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("of_parameters", [*HALF, torch.float32, torch.float64])
def test_a_loss_in_half_precision_is_summed_in_single_precision(
    dtype: torch.dtype, of_parameters: torch.dtype
) -> None:
    """1024 chunks of a mean over 2^26 chains: c / chains is 0 in float16, and bfloat16 stalls."""
    p = torch.ones(3, dtype=of_parameters, requires_grad=True)
    slope = torch.tensor([1.0, 64.0, 2.0**10], dtype=dtype)

    def loss(x: Tensor) -> Tensor:
        return (p.to(dtype) * slope * x).sum(1)

    ones = torch.ones(16, 1, dtype=dtype)
    measure = Measure(ones, torch.zeros(16).long(), torch.full((16,), 0.25).double())
    total = WeightedBackward(loss, (), divisor=2**26, parameters=(p,))
    total.add_all(measure for _ in range(1024))
    (gradient,) = total.gradients()
    assert gradient.dtype == of_parameters
    share = 1024 * 16 * 0.25 / 2**26
    assert gradient.tolist() == [share, 64.0 * share, 2.0**10 * share]
    assert total.value == pytest.approx(share * float(slope.sum()), rel=2.0**-7)
    # The planted bug: divided before and summed in half precision.
    summed = torch.zeros((), dtype=dtype)
    for _ in range(1024):
        summed += 16 * torch.tensor(0.25 / 2**26, dtype=dtype)
    assert float(summed) != share


def test_a_mean_in_half_precision_is_that_of_double_precision() -> None:
    """A network in float16 and 4000 chains; a bias is off by the rounding of the loss alone."""
    network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    found = []
    for dtype in (torch.float16, torch.float64):
        made = copy.deepcopy(network).to(dtype)
        eye = torch.arange(3.0, dtype=dtype)[:, None]
        gradient = _made(lambda x, f=made, eye=eye: f(eye[x])[:, 0], parameters=made.parameters())
        tensors, _ = gradient.gradient(torch.zeros(4000).long(), generator=rng())
        found.append(torch.cat([t.flatten().double() for t in tensors]))
    assert torch.allclose(found[0], found[1], rtol=0.01, atol=0.01)
    assert float(found[0][-1]) == 1.0  # Σ_j c_j


@pytest.mark.parametrize("named", [True, False])
def test_what_does_not_fit_into_memory_is_differentiated_in_parts(named: bool) -> None:
    p, sizes = _leaf(), []

    def loss(x: Tensor) -> Tensor:
        sizes.append(len(x))
        if len(x) > room:
            raise torch.OutOfMemoryError
        return p[x] ** 2

    made = _made(loss, parameters=[p] if named else None)
    room = 10**9
    made.backward(START, generator=rng())
    assert p.grad is not None
    (whole,), expected = sizes, p.grad.clone()
    p.grad, sizes, room = None, [], whole // 3
    with pytest.warns(RuntimeWarning, match="halves are computed one by one.*lower chunk"):
        made.backward(START, generator=rng())
    torch.testing.assert_close(p.grad, expected, rtol=1e-12, atol=0.0)
    assert sum(size for size in sizes if size <= room) == whole
    p.grad, room = None, 0
    with pytest.raises(torch.OutOfMemoryError), pytest.warns(RuntimeWarning, match="halves"):
        made.backward(START, generator=rng())
    assert p.grad is None


def test_leaves_of_a_graph_with_many_paths_are_found_at_once() -> None:
    p = _leaf()
    x = p
    for _ in range(60):  # 2^60 paths
        x = x + x
    assert [id(leaf) for leaf in leaves(x.sum())] == [id(p)]
    assert [id(leaf) for leaf in leaves(p)] == [id(p)]  # itself
    assert leaves(p.detach()) == ()


def test_one_bad_gradient_among_good_ones_is_seen() -> None:
    p, q = _leaf(), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    made = _made(lambda x: p[x] + (q[x] * 0).sqrt(), parameters=[p, q])
    with pytest.raises(FloatingPointError, match=r"gradient of parameter 1 has \d entries"):
        made.backward(START, generator=rng())
    assert p.grad is None


def test_gradients_are_looked_at_without_sizes_too() -> None:
    """Huge entries overflow in their sum, and are finite all the same."""
    check_gradients((torch.zeros(2), torch.full((4,), 3e38)))
    with pytest.raises(FloatingPointError, match="gradient of parameter 1 has 1 entries"):
        check_gradients((torch.zeros(2), torch.tensor([1.0, torch.nan])))


def _interrupted(
    instruction: int, update: Callable[[list[nn.Parameter]], None]
) -> tuple[bool, list[Any]]:
    """Raise KeyboardInterrupt before this instruction of an update, and what `.grad` is then."""
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(4)]
    for parameter in parameters[:2]:
        parameter.grad = torch.ones(3)
    left = instruction

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    before, stopped = sys.gettrace(), False
    gc.disable()  # its callbacks would swallow the interrupt
    sys.settrace(trace)
    try:
        update(parameters)
    except KeyboardInterrupt:
        stopped = True
    finally:
        sys.settrace(before)
        gc.enable()
    return stopped, [None if p.grad is None else p.grad.tolist() for p in parameters]


def _accumulate(parameters: list[nn.Parameter]) -> None:
    backward.accumulate(parameters, [torch.ones(3)] * 4)


def _reduce(parameters: list[nn.Parameter]) -> None:
    mg.distributed.reduce(parameters)


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize(
    ("update", "expected"), [(_accumulate, [2.0, 2.0, 1.0, 1.0]), (_reduce, [0.5, 0.5, None, None])]
)
def test_an_interrupt_never_leaves_half_of_the_gradients(
    update: Callable[[list[nn.Parameter]], None],
    expected: list[float | None],
    planted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C at every instruction: `.grad` of all parameters is updated, or of none."""
    # A second process, of as many chains, whose gradients are 0.
    second = lambda tensor: None if tensor.is_floating_point() else tensor.mul_(2)  # noqa: E731
    monkeypatch.setattr("mlmcgrad.distributed.world.all_reduce", second)
    if planted:  # updates one by one, between which Python handles signals
        monkeypatch.setattr(backward, "deque", lambda updates, maxlen: [None for _ in updates])
    none: list[list[float] | None] = [[1.0] * 3, [1.0] * 3, None, None]
    every = [None if value is None else [value] * 3 for value in expected]
    seen: list[list[list[float] | None]] = []
    stopped, found = True, none
    while stopped:
        stopped, found = _interrupted(len(seen), update)
        seen.append(found)
    assert found == every
    assert len(seen) > 50
    assert all(state in (none, every) for state in seen) != planted


def test_a_gradient_that_does_not_fit_changes_nothing() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    parameters[0].grad = torch.ones(3)
    parameters[1].grad = torch.ones(3)
    with pytest.raises(ValueError, match=r"\.grad of parameter 1 is \(3,\) on cpu, .*\(1, 3\)"):
        backward.accumulate(parameters, [torch.ones(3), torch.ones(1, 3)])
    assert [p.grad.tolist() for p in parameters if p.grad is not None] == [[1.0] * 3] * 2
    parameters[0].grad = None
    with pytest.raises(ValueError, match=r"\.grad of parameter 1 is \(3,\) on cpu, .*\(1, 3\)"):
        backward.accumulate(parameters, [torch.ones(3), torch.ones(1, 3)])
    parameters[1].grad = None
    with pytest.raises(ValueError, match=r"\.grad of parameter 1 is \(3,\) on cpu, .*\(1, 3\)"):
        backward.accumulate(parameters, [torch.ones(3), torch.ones(1, 3)])
    assert [p.grad for p in parameters] == [None, None]


def test_sparse_and_dense_gradients_of_one_parameter() -> None:
    dense = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]])
    for before in (None, dense, dense.to_sparse()):
        for gradient in (dense, dense.to_sparse()):
            p = torch.nn.Parameter(torch.zeros(3, 2))
            p.grad = None if before is None else before.clone()
            backward.accumulate([p], [gradient])
            expected = dense if before is None else 2.0 * dense
            assert p.grad is not None
            assert torch.equal(p.grad.to_dense(), expected)
            assert gradient.to_dense().tolist() == dense.tolist()


def test_a_sparse_gradient_that_is_not_finite() -> None:
    table = nn.Embedding(3, 2, sparse=True, dtype=torch.float64)
    with torch.no_grad():
        table.weight.zero_()
    made = _made(lambda x: table(x).square().sum(1).sqrt())
    with pytest.raises(FloatingPointError, match=r"gradient of parameter 0 has \d entries .*NaN"):
        made.backward(START, generator=rng())
    estimate = _made(lambda x: table(x).sum(1)).backward(START, generator=rng())
    (parameter,) = estimate.parameters
    assert parameter.grad is not None
    assert parameter.grad.is_sparse
    assert parameter.grad.to_dense().sum() == pytest.approx(2.0)  # not that of the first call
