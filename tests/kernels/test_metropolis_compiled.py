"""`compile=True`: the same chains, few graphs, parameters as they are now, and a way out.

Graphs are unrolled less than usual here, because compilation takes most of the time.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import MALA, RWMH, Outcome
from mlmcgrad.kernels import metropolis as compiled
from mlmcgrad.measure import Measure
from tests.chains import rng, run

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler"
)
BOTH = pytest.mark.parametrize("name", ["MALA", "RWMH"])
DIMENSION = 3


@dataclass(frozen=True)
class Pair:
    """A kernel with and without compilation, and the parameter that its density captures."""

    plain: Any
    fast: Any
    theta: Tensor


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, Pair]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "STRIDE", 2)
        patch.setattr(compiled, "_STRIDE_OF_ONE", 3)
        patch.setattr(compiled, "_LONG", 24)
        h = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
        yield {"MALA": _pair(MALA, h), "RWMH": _pair(RWMH, 0.8)}


def _pair(kind: Any, size: Any) -> Pair:
    theta = torch.linspace(0.5, 1.5, DIMENSION, dtype=torch.float64).requires_grad_()

    def log_density(x: Tensor, centre: Tensor, power: int) -> Tensor:
        inside = (x > -1.0).all(1)
        value = -(theta * (x - centre).abs() ** power).sum(1) - 0.1 * x.sin().sum(1)
        return torch.where(inside, value, torch.nan)

    return Pair(kind(log_density, size), kind(log_density, size, compile=True), theta)


def _go(kernel: Any, chains: int, estimator: Any, seed: int = 3) -> tuple[Measure, Outcome]:
    generator = rng(seed)
    plan = estimator.draw(chains, 1, generator)
    centre = torch.linspace(0.0, 1.0, chains, dtype=torch.float64)[:, None]
    x0 = torch.full((chains, DIMENSION), 0.1, dtype=torch.float64)
    with warnings.catch_warnings():
        # torch's own, about its own code.
        warnings.simplefilter("ignore", DeprecationWarning)
        return run(kernel, x0, plan, (centre, 2), generator)


def _graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


@needs_compiler
@BOTH
def test_same_chains_from_few_graphs(pairs: dict[str, Pair], name: str) -> None:
    """Any number of chains, any lengths: what the plain kernel does, by at most three graphs."""
    pair, before = pairs[name], _graphs()
    invalid = 0
    for chains, estimator in (
        (6, mg.Average(5)),
        (9, mg.MLMC(32)),
        (1, mg.Average(7)),
        (1, mg.Average(40)),
        (30, mg.MLMC(16, assignment="balanced")),
        (2, mg.Average(1)),
        (1, mg.MLMC(8)),
    ):
        measure, outcome = _go(pair.plain, chains, estimator)
        first, again = (_go(pair.fast, chains, estimator) for _ in range(2))
        assert torch.equal(first[0].points, again[0].points)
        assert torch.equal(first[1].last, again[1].last)
        assert torch.allclose(first[1].last, outcome.last, rtol=0.0, atol=1e-12)
        assert torch.allclose(first[0].points, measure.points, rtol=0.0, atol=1e-12)
        assert torch.equal(first[0].coefficient, measure.coefficient)
        assert torch.equal(first[0].owner, measure.owner)
        counts = (outcome.accepted, outcome.invalid, outcome.evaluations)
        assert (first[1].accepted, first[1].invalid, first[1].evaluations) == counts
        invalid += outcome.invalid
    assert invalid > 0
    assert 0 < _graphs() - before <= 3


@needs_compiler
@BOTH
def test_parameters_are_those_of_now(pairs: dict[str, Pair], name: str) -> None:
    """The density captures θ; training changes it in place. A stale copy must be noticed."""
    pair = pairs[name]
    stale = pair.theta.detach().clone()

    def frozen(x: Tensor, centre: Tensor, power: int) -> Tensor:
        return -(stale * (x - centre).abs() ** power).sum(1)

    def follows(kernel: Any) -> bool:
        """Whether its chains move as those of the plain kernel, before and after an update."""
        agree = []
        saved = pair.theta.detach().clone()
        for _ in range(2):
            expected, got = (_go(k, 5, mg.Average(4))[1].last for k in (pair.plain, kernel))
            agree.append(torch.allclose(expected, got, rtol=0.0, atol=1e-12))
            pair.theta.grad = -torch.ones_like(pair.theta)
            torch.optim.SGD([pair.theta], lr=2.0).step()
        pair.theta.data.copy_(saved)
        pair.theta.grad = None
        return all(agree)

    before = _go(pair.fast, 5, mg.Average(4))[1].last
    assert follows(pair.fast)
    assert torch.equal(before, _go(pair.fast, 5, mg.Average(4))[1].last)
    size = pair.plain.step_size
    assert not follows(type(pair.plain)(frozen, size))
    assert pair.theta.grad is None


@needs_compiler
def test_a_gradient_of_the_same_size(pairs: dict[str, Pair]) -> None:
    """`MarkovGradient` does not know the difference."""
    pair, found = pairs["MALA"], []

    def loss(x: Tensor, centre: Tensor, power: int) -> Tensor:
        return (pair.theta * (x - centre).abs() ** power).sum(1)

    for kernel in (pair.plain, pair.fast):
        gradient = mg.MarkovGradient(kernel, loss, mg.MLMC(16), parameters=[pair.theta])
        centre = torch.zeros(8, 1, dtype=torch.float64)
        x0 = torch.zeros(8, DIMENSION, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            (tensor,), _ = gradient.gradient(x0, centre, 2, n=1, generator=rng())
        found.append(tensor)
    assert torch.allclose(found[0], found[1], rtol=1e-10)


@BOTH
def test_a_density_that_cannot_be_compiled(name: str) -> None:
    """A branch on a value: one warning that says so, and the results of the plain kernel."""

    def log_density(x: Tensor) -> Tensor:
        scale = 2.0 if x.sum().item() > 0.0 else 1.0
        return -scale * x.square().sum(1)

    kind: Any = {"MALA": MALA, "RWMH": RWMH}[name]
    plan, x0 = mg.Average(5).draw(4, 1, rng()), torch.zeros(4, 2)
    expected = run(kind(log_density, 0.5), x0, plan)[1].last
    kernel = kind(log_density, 0.5, compile=True)
    with pytest.warns(
        RuntimeWarning, match=r"log_density could not be compiled \(.*item"
    ) as caught:
        assert torch.equal(run(kernel, x0, plan)[1].last, expected)
    ours = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    assert len(ours) == 1
    assert f"{name}(compile=True) goes on without compilation" in ours[0]
    assert torch.equal(run(kernel, x0, plan)[1].last, expected)  # and no second warning


def test_an_error_of_the_density_is_raised_as_it_is() -> None:
    calls = []

    def log_density(x: Tensor) -> Tensor:
        calls.append(len(x))
        if len(calls) > 1:
            raise ZeroDivisionError("my own")
        return -x.square().sum(1)

    kernel = RWMH(log_density, 0.5, compile=True)
    with pytest.warns(RuntimeWarning, match="log_density"), pytest.raises(ZeroDivisionError):
        run(kernel, torch.zeros(4, 2), mg.Average(5).draw(4, 1, rng()))


SCRIPT = """
import sys, warnings
import torch, mlmcgrad as mg

def log_density(x):
    return -x.square().sum(1)

lasts = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for compile in (False, True):
        kernel = mg.kernels.RWMH(log_density, 0.5, compile=compile)
        for _ in range(2):
            generator = torch.Generator().manual_seed(0)
            plan = mg.Average(3).draw(4, 1, generator)
            chains = mg.kernels.Simulation(kernel.run(torch.zeros(4, 2), (), plan, generator))
            assert list(chains)
            lasts.append(chains.outcome.last)
assert all(torch.equal(lasts[0], last) for last in lasts[1:])
print(*(w.message for w in caught if w.category is RuntimeWarning), sep="|")
"""


def test_no_compiler(tmp_path: Any) -> None:
    """One warning that names the remedy, and the results of the plain kernel."""
    environment = {k: v for k, v in os.environ.items() if k != "CXX"}
    environment |= {"PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.strip().split("|")
    assert len(said) == 1
    assert said[0].startswith("no C++ compiler was found; install g++ or clang, or set CXX")


def test_a_copy_compiles_for_itself() -> None:
    kernel = RWMH(torch.Tensor.sum, 0.5, compile=True)
    graph = kernel._compiled
    twin = copy.deepcopy(kernel)
    assert twin == kernel
    assert twin._compiled is not graph


def test_private_parts_of_torch_stay_behind_one_door() -> None:
    """A new torch must be tried on purpose: add it to TESTED when this module passes with it."""
    assert torch.__version__.rpartition(".")[0] in compiled.TESTED
    for path in Path(mg.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        private = any(name in text for name in ("torch._dynamo", "torch._inductor", "FunctionType"))
        assert private == (path.name == "metropolis.py"), path
