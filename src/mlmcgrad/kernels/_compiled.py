"""Blocks of steps as one graph of `torch.compile`.

A step of a small model is a few dozen tiny operations, and Python takes longer to call them than
they take to run. So several steps are unrolled into one graph, density and gradient included; the
steps that are left over are made by the graph of a single one. The noise is drawn outside, from
the user's generator, and is the same as without compilation.

What keeps the number of graphs small: the numbers of steps are fixed, the number of chains is
symbolic, and finished chains leave between blocks. torch takes a single row for a case of its
own; it has a graph only where many steps make it worth while, and is run as two equal rows
elsewhere. So a kernel has at most three graphs for one shape and dtype of its states.

Tensors that `log_density` captures, such as the parameters of a model, are inputs of the graph:
they may change between calls. Numbers and other Python values are part of the graph, and a new
value means a new one.

This is the only module that uses private parts of torch's compiler and code objects of Python.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, TypeVar, cast, final

import torch
from torch import Tensor

from mlmcgrad.kernels.acceptance import Noise, usable
from mlmcgrad.kernels.base import Context, map_tensors, tensors_in
from mlmcgrad.kernels.steps import STRIDE, Walk, steps

S = TypeVar("S", bound="tuple[Tensor, ...]")
Advance = Callable[[S, Noise, Context], tuple[S, Tensor, tuple[Tensor, ...]]]

# The versions of torch that the private functions below were tested with.
TESTED = ("2.13",)
# The calls of one graph come from C++: a step of one chain takes half the time.
_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"cpp_wrapper": True}
# For one chain the calls take longer than the steps, so its graph has more of them; a graph that
# takes so long to compile is made for long blocks only.
_STRIDE_OF_ONE = 4 * STRIDE
_LONG = 8 * _STRIDE_OF_ONE
_numbers = itertools.count()


@final
class Compiled(Generic[S]):
    """Makes the steps of a kernel by compiled graphs, or in Python once that has failed.

    Args:
        kernel: name of the kernel, for the warning.
        advance: one step of all chains.
    """

    def __init__(self, kernel: str, advance: Advance[S]) -> None:
        self._kernel, self._advance = kernel, advance
        self._graph: Callable[..., Walk[S]] | None = _compile(advance)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or another process, compiles for itself."""
        return Compiled, (self._kernel, self._advance)

    def walk(self, state: S, noise: Noise, context: Context) -> list[Walk[S]]:
        """Make a block of steps."""
        if self._graph is None:
            return [steps(self._advance, state, noise.unbind(), context, usable)]
        single = len(state[0]) == 1
        begin, end = 0, len(noise.jump)
        walks: list[Walk[S]] = []
        while begin < end:
            left = end - begin
            long = single and end >= _LONG and left >= _STRIDE_OF_ONE
            size = _STRIDE_OF_ONE if long else STRIDE if left >= STRIDE else 1
            piece = noise.part(begin, size)
            if single and not long:
                walks.append(_one_of_two(self._walk(*_two_rows(state, piece, context))))
            else:
                walks.append(self._walk(state, piece, context))
            state, begin = walks[-1].state, begin + size
        return walks

    def _walk(self, state: S, noise: Noise, context: Context) -> Walk[S]:
        if self._graph is not None:
            if len(state[0]) > 1:
                _make_chains_symbolic(state, noise, context)
            try:
                return self._graph(state, noise, context)
            # Whatever the reason, the same steps can be made without a graph; an error of the
            # user's own function comes up again there.
            except Exception as error:
                self._graph = None
                warnings.warn(_explain(self._kernel, error), RuntimeWarning, stacklevel=2)
        return steps(self._advance, state, noise.unbind(), context, usable)


def _compile(advance: Advance[S]) -> Callable[..., Walk[S]]:
    def block(state: S, noise: Noise, context: Context) -> Walk[S]:
        return steps(advance, state, noise.unbind(), context, usable)

    # Graphs belong to a code object and are limited in number for each: every kernel has its own.
    code = block.__code__.replace(co_name=f"block_{next(_numbers)}")
    own = FunctionType(code, block.__globals__, code.co_name, None, block.__closure__)
    return cast(
        "Callable[..., Walk[S]]",
        torch.compile(own, fullgraph=True, dynamic=False, options=_OPTIONS),
    )


def _make_chains_symbolic(state: Any, noise: Noise, context: Context) -> None:
    for tensor in (*state, *tensors_in(context)):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    for tensor in noise:
        torch._dynamo.maybe_mark_dynamic(tensor, 1)


def _two_rows(state: S, noise: Noise, context: Context) -> tuple[S, Noise, Context]:
    return (
        type(state)(*(torch.cat([s, s]) for s in state)),
        Noise(*(torch.cat([n, n], 1) for n in noise)),
        map_tensors(lambda tensor: torch.cat([tensor, tensor]), context),
    )


def _one_of_two(walk: Walk[S]) -> Walk[S]:
    state = type(walk.state)(*(s[:1] for s in walk.state))
    valid = None if walk.valid is None else walk.valid[:, :1]
    return Walk(state, walk.path[:, :1], walk.moved[:, :1], valid)


def _explain(kernel: str, error: Exception) -> str:
    """Say why the steps are not compiled, and what would help."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cast("Exception", cause))
    tail = f"{kernel}(compile=True) goes on without compilation: the same results, more slowly."
    if any(type(e).__name__ == "InvalidCxxCompiler" for e in chain):
        return f"no C++ compiler was found; install g++ or clang, or set CXX to one. {tail}"
    lines = [line.strip() for line in str(chain[-1]).splitlines() if line.strip()]
    reason = lines[0] if lines else type(chain[-1]).__name__
    return (
        f"log_density could not be compiled ({type(error).__name__}: {reason}); write it with "
        "tensor operations only, without .item(), printing, or branches on the values of "
        f"tensors, and hand numbers that change as tensors. {tail}"
    )
