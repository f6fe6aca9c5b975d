"""Iterates to keep: averages over them, and the random iterate θ_R of the paper's theorems.

**Averages** have a memory that grows with n:

    θ̄_n = θ̄_{n−1} + w_n (θ_n − θ̄_{n−1}),     w_n = (η + 1) / (n + η),

so θ_k has the weight of about k^η: the average forgets the beginning, and covers about the last
n / (η + 1) iterations. At a constant step size single iterates are spread around the optimum at a
distance that does not shrink; their average approaches it, and is what to test, to save and to look
at with `diagnostics`.

**The random iterate** (the paper's equation "def-r"): after N steps R ∈ {0 … N} has

    P(R = n) = w_n / Σ_{k ≤ N} w_k,    w_n = γ_{n+1} λ_{n+1}.

A weighted reservoir of size one holds θ_R: θ_n replaces it with probability w_n / Σ_{k ≤ n} w_k.
Its law is then right after every n, N need not be known, and one copy of the parameters is stored.
γ_{n+1} is certain only when step n + 1 begins (an LR scheduler may have changed it), so θ_n is
offered to the reservoir then, or when θ_R is read, whichever comes first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from mlmcgrad._checks import non_negative
from mlmcgrad.optim._base import NON_NEGATIVE, AdaptiveOptimizer
from mlmcgrad.schedules import Schedule


class Follower(ABC):
    """Follows an optimizer by hooks on its steps, and keeps a copy of the parameters."""

    _kept_as: str
    """What the copy is, in messages."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self._swapped = optimizer, False
        self._stored = [p.detach().clone() for p in self._parameters()]
        self._hooks = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )

    @abstractmethod
    def _after_step(self, *_: Any) -> None:
        """Take a step of the optimizer into account."""

    def detach(self) -> None:
        """Stop following the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _before_step(self, *_: Any) -> None:
        if self._swapped:
            raise RuntimeError("no step can be taken inside `with ….applied()`")

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _followed(self) -> list[Tensor]:
        """Return the parameters; raise if there are more or fewer than at the beginning."""
        parameters = self._parameters()
        if len(parameters) != len(self._stored):
            name = type(self).__name__
            raise RuntimeError(
                f"the optimizer has {len(parameters)} parameters, it had {len(self._stored)} when "
                f"{name} was made; make a new one after add_param_group"
            )
        return parameters

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange the parameters and the copy."""
        self._swapped = not self._swapped
        for stored, p in zip(self._stored, self._parameters(), strict=True):
            current = p.detach().clone()
            p.copy_(stored)
            stored.copy_(current)

    def _load(self, tensors: list[Tensor]) -> None:
        """Replace the copy by tensors of the same shapes."""
        saved, shapes = ([tuple(t.shape) for t in ts] for ts in (tensors, self._stored))
        if saved != shapes:
            raise ValueError(
                f"state_dict must hold {self._kept_as} of shapes {shapes}, got {saved}"
            )
        for stored, value in zip(self._stored, tensors, strict=True):
            stored.copy_(value)


class Averaged(Follower):
    r"""Follows an optimizer and keeps the polynomial-decay average of its parameters.

    Differs from `torch.optim.swa_utils.AveragedModel` in that it is updated by the steps of the
    optimizer, and that its memory grows, so that there is no start to choose.

    Args:
        optimizer: any torch optimizer.
        eta: η ≥ 0; 0 weights all iterates equally, and 9 averages about the last tenth of them.

    Example:
        >>> theta = torch.tensor([0.0], requires_grad=True)
        >>> optimizer = torch.optim.SGD([theta], lr=1.0)
        >>> averaged = Averaged(optimizer, eta=0.0)
        >>> for _ in range(3):
        ...     theta.grad = torch.tensor([-1.0])
        ...     optimizer.step()
        >>> with averaged.applied():
        ...     theta.item()  # the mean of 1, 2 and 3
        2.0
        >>> theta.item()
        3.0

    Reference:
        Shamir, Zhang (2013), Stochastic gradient descent for non-smooth optimization.
    """

    _kept_as = "averages"

    def __init__(self, optimizer: Optimizer, *, eta: float = 9.0) -> None:
        self.eta = non_negative(eta, "eta")
        self.n = 0
        """Number of steps that were averaged."""
        super().__init__(optimizer)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages into the parameters for a `with` block; then restore the iterate."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs."""
        return {"n": self.n, "mean": [mean.clone() for mean in self._stored]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` made with parameters of the same shapes."""
        self._load(state_dict["mean"])
        self.n = int(state_dict["n"])

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        parameters = self._followed()
        self.n += 1
        weight = (self.eta + 1.0) / (self.n + self.eta)
        torch._foreach_lerp_(self._stored, [p.detach() for p in parameters], weight)


class RandomIterate(Follower):
    r"""Follows an optimizer and keeps one iterate, drawn with the weights given in the theorems.

    $$
    P(R = n) \propto \gamma_{n+1}\lambda_{n+1}, \quad n = 0, \dots, N
    $$

    λ_{n+1} is the lower bound of `optimizer.preconditioner_bounds(n + 1)`: λ̲ of assumption A5, or
    the paper's ε̲_n for `Adagrad` and `AMSGrad`. It is 1 for `torch.optim.SGD` too. With several
    param groups the weight is the smallest γλ of all groups, a lower bound of the step matrix γA.

    Args:
        optimizer: one of this package or `torch.optim.SGD`; any other with `weight`.
        generator: source of the draws, one for each iterate. Save its state in your checkpoints:
            `state_dict` does not contain it.
        weight: λ_n as a number or a schedule of the step number, instead of the optimizer's.

    Example:
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = torch.optim.SGD([theta], lr=0.1)
        >>> random_iterate = RandomIterate(optimizer, torch.Generator().manual_seed(0))
        >>> for _ in range(9):
        ...     optimizer.zero_grad()
        ...     theta.square().sum().backward()
        ...     optimizer.step()
        >>> [theta_r] = random_iterate.iterate()
        >>> round(theta_r.item(), 6) == round(0.8 ** random_iterate.index, 6)
        True

    Reference:
        Ghadimi, Lan (2013), Stochastic first- and zeroth-order methods; the paper, Section 3.
        Chao (1982), A general purpose unequal probability sampling plan, for the reservoir.
    """

    _kept_as = "an iterate"

    def __init__(
        self,
        optimizer: Optimizer,
        generator: torch.Generator,
        *,
        weight: float | Schedule | None = None,
    ) -> None:
        if weight is None and not isinstance(optimizer, (AdaptiveOptimizer, torch.optim.SGD)):
            raise TypeError(
                f"no preconditioner bound is known for {type(optimizer).__name__}; pass weight=, "
                "a number or a schedule λ_n"
            )
        # Step 1 does not count: AMSGrad's lower bound is 0 there by definition.
        if weight is None and _bound(optimizer, 2) == 0.0:
            raise ValueError(
                f"{type(optimizer).__name__} without clipping has the preconditioner bound 0, so "
                "theory gives no weights; make its clip finite, or pass weight=1.0"
            )
        if weight is not None and not callable(weight):
            weight = NON_NEGATIVE.check("weight", weight)
        super().__init__(optimizer)
        self._generator = generator
        self._lambda = weight
        self._n = optimizer.iteration if isinstance(optimizer, AdaptiveOptimizer) else 0
        self._pending = True  # θ_n has not been offered yet
        self._total = 0.0
        self._index: int | None = None

    @property
    def index(self) -> int:
        """R, the number of steps from θ_0 to θ_R."""
        self._offer()
        if self._index is None:
            raise RuntimeError(
                f"no iterate has a positive weight after {self._n} steps (AMSGrad gives θ_0 the "
                "weight 0); take a step with a positive lr first"
            )
        return self._index

    def iterate(self) -> list[Tensor]:
        """Return θ_R as new tensors, in the order of the optimizer's parameters.

        Reading changes nothing: a second call gives the same, and later draws keep their law.
        """
        _ = self.index
        return [stored.clone() for stored in self._stored]

    @contextmanager
    def applied(self) -> Iterator[int]:
        """Put θ_R into the parameters for a `with` block, which gets R; then restore θ_N."""
        index = self.index
        self._swap()
        try:
            yield index
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, without the generator's state."""
        numbers = {key: getattr(self, name) for key, name in _NUMBERS.items()}
        return {**numbers, "iterate": [stored.clone() for stored in self._stored]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` made with parameters of the same shapes."""
        if not isinstance(state_dict, dict) or set(state_dict) != {*_NUMBERS, "iterate"}:
            raise ValueError(
                "state_dict must be what state_dict() of a RandomIterate returns, with the keys "
                f"{[*_NUMBERS, 'iterate']}, got {repr(state_dict)[:80]}"
            )
        self._load(state_dict["iterate"])
        for key, name in _NUMBERS.items():
            setattr(self, name, state_dict[key])

    def _offer(self) -> None:
        if not self._pending:
            return
        parameters, weight = self._followed(), self._weight()
        device = self._generator.device
        u = torch.rand((), dtype=torch.float64, device=device, generator=self._generator).item()
        self._total += weight
        if u * self._total < weight:
            self._index = self._n
            for stored, p in zip(self._stored, parameters, strict=True):
                stored.copy_(p.detach())
        self._pending = False

    def _weight(self) -> float:
        """Return w_n, the smallest of all param groups, before step n + 1 is taken."""
        optimizer, n, products = self._optimizer, self._n + 1, []
        for g, group in enumerate(optimizer.param_groups):
            lr = float(group["lr"])
            if isinstance(optimizer, AdaptiveOptimizer):
                lr = optimizer.lr_at(n, g)
            factor = self._lambda(n) if callable(self._lambda) else self._lambda
            if factor is None:
                factor = _bound(optimizer, n, g)
            factor = NON_NEGATIVE.check("weight", factor, f" at step n={n}")
            products.append(NON_NEGATIVE.check("lr", lr, f" in param group {g}") * factor)
        return min(products)

    def _before_step(self, *_: Any) -> None:
        super()._before_step()
        self._offer()

    def _after_step(self, *_: Any) -> None:
        self._n += 1
        self._pending = True


_NUMBERS = {"iteration": "_n", "pending": "_pending", "total": "_total", "index": "_index"}
"""Entries of a state_dict, and the attributes that hold them."""


def _bound(optimizer: Optimizer, n: int, group: int | None = None) -> float:
    """Return the lower bound λ_n of an optimizer; it is 1 where the matrix is the identity."""
    if isinstance(optimizer, AdaptiveOptimizer):
        return optimizer.preconditioner_bounds(n, group)[0]
    return 1.0
