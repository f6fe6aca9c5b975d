"""Kernels that propose a move and accept or reject it (Metropolis–Hastings).

From x a proposal y is accepted with probability 1 ∧ e^r,

    r = log π(y) − log π(x) + log q(y,x) − log q(x,y).

Random-walk Metropolis–Hastings, `RWMH`:

    Y = X + h Z,  Z ~ N(0, I);     accepted with probability 1 ∧ π(Y)/π(X).

The Metropolis-adjusted Langevin algorithm, `MALA`, with U = −log π:

    Y = X − h ∇U(X) + √(2h) Z,  Z ~ N(0, I);
    accepted with probability  1 ∧ π(Y) q(Y,X) / (π(X) q(X,Y)),
    log q(x,y) = −‖y − x + h ∇U(x)‖² / (4h) + const.

The paper's last sentence on MALA leaves out the proposal ratio q(Y,X)/q(X,Y); without it the
kernel does not leave π invariant (erratum 3 in docs/errata.md).

A kernel has `at` (the state at a position), `proposal` (the proposed position) and `log_ratio` (r);

**Compiled steps.** A step of a small model is a few dozen tiny operations, and Python takes longer
to call them than they take to run. With `compile=True` several steps are unrolled into one graph of
`torch.compile`, density and gradient included; the remaining steps use the graph of a single one.
The noise is drawn outside, from the user's generator, and is the same as without compilation.

The number of graphs stays small: the numbers of steps are fixed, the number of chains is symbolic,
and finished chains leave between blocks. torch specialises on a single row; such a graph is made
only where many steps make it worthwhile, and elsewhere the row is run as two equal rows. So a
kernel has at most three graphs for one shape and dtype of its states.

**CUDA graphs.** `compile="reduce-overhead"` makes blocks of 8 steps of at most 1 + log₄(chains)
numbers of chains: finished chains continue without effect until a quarter of the rows suffices. A
graph for each of these shapes is recorded once and replayed by one launch. The noise is drawn for
these blocks, so the chains differ from those without this option.

Tensors that `log_density` captures, such as the parameters of a model, are inputs of the graph and
may change between calls. Numbers and other Python values are part of the graph: a new value means a
new graph.

This is the only module that uses private parts of torch's compiler and code objects of Python.
"""

from __future__ import annotations

import itertools
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import FunctionType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast, final

import torch
from torch import Tensor

from mlmcgrad.kernels.base import (
    HALF,
    STRIDE,
    Context,
    Fault,
    StepKernel,
    Walk,
    check_place,
    check_rows,
    check_unchanged,
    judged,
    map_tensors,
    precise,
    steps,
    tensors_in,
)

S = TypeVar("S", bound="tuple[Tensor, ...]")

# The versions of torch whose private functions were tested.
TESTED = ("2.13",)
# The calls of one graph come from C++: a step of one chain takes half the time.
_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"cpp_wrapper": True}
# What mode="reduce-overhead" of torch.compile stands for.
_GRAPHS: dict[str, str | int | bool | Callable[..., Any]] = {"triton.cudagraphs": True}
# For one chain the calls take longer than the steps, so its graph has more of them; a graph that
# takes so long to compile is made for long blocks only.
_STRIDE_OF_ONE = 4 * STRIDE
_LONG = 8 * _STRIDE_OF_ONE
_numbers = itertools.count()


@dataclass(frozen=True)
class MetropolisKernel(StepKernel[S]):
    """A kernel with Gaussian jumps; its state begins with the position and its log density.

    Args:
        log_density: log π up to a constant, `log_density(x, *context) -> (chains,)`.
        step_size: size of a move, a number or a tensor that broadcasts against one state.
        compile: make blocks of steps by `torch.compile`: several times faster for small models,
            after some seconds of compilation. It needs a C++ compiler; without one, or if
            `log_density` cannot be compiled, the kernel warns and runs uncompiled.
            `"reduce-overhead"`, for GPUs, makes blocks of fixed shapes that torch replays as CUDA
            graphs.
    """

    log_density: Callable[..., Tensor]
    step_size: float | Tensor
    compile: bool | Literal["reduce-overhead"] = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.compile not in (False, True, "reduce-overhead"):
            raise ValueError(
                f"compile must be False, True or 'reduce-overhead', got {self.compile!r}"
            )
        size = torch.as_tensor(self.step_size)
        if not bool(((size > 0.0) & size.isfinite()).all()):
            raise ValueError(f"step_size must be positive and finite, got {self.step_size!r}")

    @property
    @final
    def fixed_shapes(self) -> bool:
        """Whether blocks have few shapes, as CUDA graphs need them."""
        return self.compile == "reduce-overhead"

    @abstractmethod
    def at(self, x: Tensor, context: Context) -> S:
        """State at x: one evaluation of the density, with its gradient where that is used."""

    @property
    @abstractmethod
    def deviation(self) -> float | Tensor:
        """Standard deviation of a jump."""

    @abstractmethod
    def proposal(self, state: S, jump: Tensor) -> Tensor:
        """Where the chains would move, y."""

    @abstractmethod
    def log_ratio(self, state: S, proposed: S, jump: Tensor) -> Tensor:
        """Log of π(y) q(y,x) / (π(x) q(x,y)), (chains,)."""

    @final
    def start(self, x: Tensor, context: Context) -> tuple[S, int]:
        """State at x, which must have a density; one evaluation."""
        if not x.is_floating_point():
            name = type(self).__name__
            raise ValueError(f"x0 must have a floating-point dtype for {name}, got {x.dtype}")
        if isinstance(self.step_size, Tensor):
            check_place("step_size", self.step_size, x)
        version = x._version
        with torch.no_grad():
            state = self.at(x, context)
        check_unchanged("log_density", x, version)
        check_rows("log_density", state[1], x)
        return state, 1

    @final
    def fault(self, state: S) -> Fault:
        """Chains whose density, or a gradient of it, is not finite."""
        x, values, *gradient = state
        bad = ~values.isfinite()
        for slope in gradient:
            bad = bad | ~slope.reshape(len(x), -1).isfinite().all(1)

        def error() -> Exception:
            chain = int(bad.nonzero()[0, 0])
            shown = [f"{v:.4g}" for v in x[chain].flatten()[:4].tolist()]
            return FloatingPointError(
                "log_density must be finite (with a finite gradient, where one is used) at x0, got "
                f"{values[chain].item()!r} for {int(bad.sum())} of {len(bad)} chains (the first of "
                f"these starts at [{', '.join(shown)}{', …' * (x[chain].numel() > 4)}]); start "
                "inside the support"
            )

        return Fault(bad, error)

    @final
    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> Noise:
        """Jumps and log uniforms for a block of steps."""
        return proposal_noise(steps, x, self.deviation, generator)

    @final
    def advance(
        self, state: S, noise: Noise, context: Context
    ) -> tuple[S, Tensor, tuple[Tensor, Tensor]]:
        """One transition of every chain: next state, who moved, and log ratio and log π(y)."""
        proposed = self.at(self.proposal(state, noise.jump), context)
        log_ratio = self.log_ratio(state, proposed, noise.jump)
        accepted = decide(log_ratio, noise.log_uniform)
        return choose(accepted, proposed, state), accepted, (log_ratio, proposed[1])

    @final
    def walk(self, state: S, noise: Noise, context: Context) -> Walk[S]:
        """Make a block of transitions of every chain."""
        walk = self._compiled.walk if self.compile else self._plain
        return walk(state, noise, context)

    def _plain(self, state: S, noise: Noise, context: Context) -> Walk[S]:
        return steps(self.advance, state, noise.unbind(), context, usable)

    @cached_property
    def _compiled(self) -> Compiled[S]:
        return Compiled(type(self).__name__, self._plain, replayed=self.fixed_shapes)


def decide(log_ratio: Tensor, log_uniform: Tensor) -> Tensor:
    """Accept where log u < r < ∞, (chains,) bool; a ratio of NaN or +∞ is a rejection."""
    return (log_uniform < log_ratio) & (log_ratio < torch.inf)


def probability(log_ratio: Tensor) -> Tensor:
    """The chance 1 ∧ e^r that `decide` accepts, (chains,); 0 for a ratio of NaN or +∞."""
    return torch.where(log_ratio < torch.inf, log_ratio.clamp(max=0.0).exp(), 0.0)


def usable(log_ratio: Tensor, log_density: Tensor) -> Tensor:
    """Whether proposals could be judged, from their r and log π(y); of any shape.

    A proposal outside the support, log π(y) = −∞, is an ordinary rejection. Anything else that
    leaves no finite ratio (NaN, an infinite density or gradient) is refused and counted. This is
    bookkeeping, done for a block of steps at a time.
    """
    return (log_ratio.abs() < torch.inf) | log_density.isneginf()


class Noise(NamedTuple):
    """The random numbers for a step of a Metropolis kernel; for a block, steps come first."""

    jump: Tensor  # (chains, *shape): the random part of the proposed move
    log_uniform: Tensor  # (chains,)

    def unbind(self) -> list[Noise]:
        """The noise of each step of a block."""
        pairs = zip(self.jump.unbind(), self.log_uniform.unbind(), strict=True)
        return [Noise(jump, log_uniform) for jump, log_uniform in pairs]

    def part(self, begin: int, steps: int) -> Noise:
        """The noise of some steps of a block, as tensors that begin where their memory does.

        Whether they do is something that a compiled graph depends on.
        """
        fields = [field[begin : begin + steps] for field in self]
        return Noise(*(fields if begin == 0 else [field.clone() for field in fields]))


def proposal_noise(
    steps: int, x: Tensor, deviation: float | Tensor, generator: torch.Generator
) -> Noise:
    """Centred normals of that deviation, and log uniforms, for a block of steps."""
    options: Any = {"device": x.device, "generator": generator}
    jump = torch.randn(steps, *x.shape, dtype=x.dtype, **options).mul_(deviation)
    precise = torch.promote_types(x.dtype, torch.float32)
    uniform = torch.rand(steps, x.shape[0], dtype=precise, **options)
    # An exact 0 would accept anything; half of the smallest positive value stands for it.
    uniform.clamp_(min=0.25 * torch.finfo(precise).eps)
    return Noise(jump, uniform.log_())


def choose(accepted: Tensor, proposed: S, current: S) -> S:
    """The proposed state where it was accepted and the current one elsewhere, field by field."""
    over = accepted.view(-1, *(1,) * (proposed[0].dim() - 1))
    fields = [
        torch.where(over if p.dim() > 1 else accepted, p, c)
        for p, c in zip(proposed, current, strict=True)
    ]
    return type(proposed)(*fields)


Steps = Callable[[S, Noise, Context], Walk[S]]


@final
class Compiled(Generic[S]):
    """Makes the steps of a kernel by compiled graphs, or in Python once that has failed.

    Args:
        kernel: name of the kernel, for the warning.
        plain: makes a block of steps of all chains in Python.
        replayed: whether blocks have fixed shapes, and are replayed as CUDA graphs.
    """

    def __init__(self, kernel: str, plain: Steps[S], *, replayed: bool = False) -> None:
        self._kernel, self._plain, self._replayed = kernel, plain, replayed
        self._graph: Steps[S] | None = _compile(plain, _GRAPHS if replayed else _OPTIONS)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or another process, compiles for itself."""
        return partial(Compiled, replayed=self._replayed), (self._kernel, self._plain)

    def walk(self, state: S, noise: Noise, context: Context) -> Walk[S]:
        """Make a block of steps."""
        if self._graph is not None:
            try:
                if self._replayed:
                    return _replayed(self._graph, state, noise, context)
                return _joined(list(_pieces(self._graph, state, noise, context)))
            # Whatever the reason, the same steps can be made without a graph; an error of the
            # user's own function comes up again there.
            except Exception as error:
                self._graph = None
                warnings.warn(_explain(self._kernel, error), RuntimeWarning, stacklevel=2)
        return self._plain(state, noise, context)


def _compile(plain: Steps[S], options: dict[str, Any]) -> Steps[S]:
    def block(state: S, noise: Noise, context: Context) -> Walk[S]:
        return plain(state, noise, context)

    # Graphs belong to a code object and are limited in number for each: every kernel has its own.
    code = block.__code__.replace(co_name=f"block_{next(_numbers)}")
    own = FunctionType(code, block.__globals__, code.co_name, None, block.__closure__)
    return cast("Steps[S]", torch.compile(own, fullgraph=True, dynamic=False, options=options))


def _replayed(graph: Steps[S], state: S, noise: Noise, context: Context) -> Walk[S]:
    """Replay a graph; what it returns is copied, because the next replay writes over it."""
    if state[0].device.type != "cuda":
        return graph(state, noise, context)
    torch.compiler.cudagraph_mark_step_begin()
    walk: Walk[S] = map_tensors(torch.clone, graph(state, noise, context))
    return walk


def _pieces(graph: Steps[S], state: S, noise: Noise, context: Context) -> Iterator[Walk[S]]:
    single = len(state[0]) == 1
    begin, end = 0, len(noise.jump)
    while begin < end:
        left = end - begin
        long = single and end >= _LONG and left >= _STRIDE_OF_ONE
        size = _STRIDE_OF_ONE if long else STRIDE if left >= STRIDE else 1
        inputs = (state, noise.part(begin, size), context)
        if single and not long:
            inputs = _two_rows(*inputs)
        if not long:
            _make_chains_symbolic(*inputs)
        walk = graph(*inputs)
        walk = _one_of_two(walk) if single and not long else walk
        yield walk
        state, begin = walk.state, begin + size


def _joined(walks: list[Walk[S]]) -> Walk[S]:
    if len(walks) == 1:
        return walks[0]
    # Each begins with the last position of the one before.
    path = torch.cat([walks[0].path, *(walk.path[1:] for walk in walks[1:])])
    valid = torch.cat([walk.valid for walk in walks if walk.valid is not None])
    return Walk(walks[-1].state, path, torch.cat([walk.moved for walk in walks]), valid)


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


class RWMHState(NamedTuple):
    """Position and its log density."""

    x: Tensor  # (chains, *shape)
    log_density: Tensor  # (chains,)


@final
@dataclass(frozen=True)
class RWMH(MetropolisKernel[RWMHState]):
    """Random-walk Metropolis–Hastings with Gaussian proposals.

    Args:
        log_density: log π up to a constant, `log_density(x, *context) -> (chains,)`. It is
            evaluated once per step and never differentiated.
        step_size: h, standard deviation of the proposal, a number or a tensor that broadcasts
            against one state. In d dimensions about 2.4/√d standard deviations of π is a good
            start; `adapt` finds it.
        compile: make blocks of steps by `torch.compile`, see `MetropolisKernel`.

    Reference:
        Metropolis et al. (1953); Mengersen and Tweedie (1996) for its geometric ergodicity.
    """

    def at(self, x: Tensor, context: Context) -> RWMHState:
        """State at x; one density evaluation."""
        return RWMHState(x, judged(self.log_density(x, *context)))

    @property
    def deviation(self) -> float | Tensor:
        """The step size h."""
        return self.step_size

    def proposal(self, state: RWMHState, jump: Tensor) -> Tensor:
        """The point x + h z."""
        return state.x + jump

    def log_ratio(self, state: RWMHState, proposed: RWMHState, jump: Tensor) -> Tensor:
        """Log of π(y)/π(x)."""
        return proposed.log_density - state.log_density


class MALAState(NamedTuple):
    """Position, its log density and the gradient of that."""

    x: Tensor  # (chains, *shape)
    log_density: Tensor  # (chains,)
    gradient: Tensor  # (chains, *shape): ∇ log π = −∇U


@final
@dataclass(frozen=True)
class MALA(MetropolisKernel[MALAState]):
    """Langevin proposals, Metropolis–Hastings acceptance.

    Args:
        log_density: log π up to a constant, `log_density(x, *context) -> (chains,)`,
            differentiable in x. Evaluated and differentiated once per step.
        step_size: h, a number or a tensor that broadcasts against one state. An acceptance near
            0.57 is about right in high dimension; `adapt` finds the step size for it.
        compile: make blocks of steps by `torch.compile`, see `MetropolisKernel`.

    Reference:
        Roberts and Tweedie (1996), "Exponential convergence of Langevin distributions and their
        discrete approximations".
    """

    def at(self, x: Tensor, context: Context) -> MALAState:
        """State at x; one evaluation of the density and its gradient."""
        value, gradient = value_and_gradient(self.log_density, x, context)
        return MALAState(x, judged(value), gradient)

    @property
    def deviation(self) -> float | Tensor:
        """√(2h)."""
        return (2.0 * self.step_size) ** 0.5

    def proposal(self, state: MALAState, jump: Tensor) -> Tensor:
        """The point x + h ∇ log π(x) + √(2h) z."""
        return _plus(state.x + jump, self.step_size, state.gradient)

    def log_ratio(self, state: MALAState, proposed: MALAState, jump: Tensor) -> Tensor:
        """Log of π(y) q(y,x) / (π(x) q(x,y)).

        In log q(y,x) − log q(x,y) x and y cancel: with D = ∇ log π(x) + ∇ log π(y) it is
        −½ Σ D (√(2h) Z + ½ h D).
        """
        before, after = state.gradient, proposed.gradient
        if before.dtype in HALF:
            before, after, jump = before.float(), after.float(), jump.float()
        slopes = before + after
        total = _dot(slopes, _plus(jump, 0.5 * self.step_size, slopes))
        return torch.sub(proposed.log_density - state.log_density, total, alpha=0.5)


def _plus(a: Tensor, h: float | Tensor, b: Tensor) -> Tensor:
    """A + h b in one pass over the numbers."""
    return torch.addcmul(a, b, h) if isinstance(h, Tensor) else torch.add(a, b, alpha=h)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Σ a b over each state, (chains,)."""
    if a.dim() != 2:
        a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    total = torch.linalg.vecdot(a, b)
    if total.dtype != a.dtype:  # by autocast; to ask for it first would take longer
        with precise(a.device):
            return torch.linalg.vecdot(a, b)
    return total


def value_and_gradient(
    log_density: Callable[..., Tensor], x: Tensor, context: Context
) -> tuple[Tensor, Tensor]:
    """Log π(x) for every chain and its gradient in x, detached."""
    if torch.compiler.is_dynamo_compiling():
        return _traced(log_density, x, context)
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        value = log_density(leaf, *context)
    check_rows("log_density", value, x)
    if not value.requires_grad:
        raise ValueError(
            "log_density must be differentiable in x for MALA, but its value does not depend "
            "on x through differentiable operations; RWMH needs no gradient"
        )
    (gradient,) = torch.autograd.grad((value,), (leaf,), (torch.ones_like(value),))
    return value.detach(), gradient


def _traced(
    log_density: Callable[..., Tensor], x: Tensor, context: Context
) -> tuple[Tensor, Tensor]:
    """The same in a form that can be part of a compiled graph."""

    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        value = log_density(x, *context)
        return value.sum(), value

    gradient, value = torch.func.grad(total, has_aux=True)(x)
    return value.detach(), gradient
