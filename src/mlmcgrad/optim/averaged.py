"""Averages over the iterates of an optimizer, with a memory that grows with n.

    θ̄_n = θ̄_{n−1} + w_n (θ_n − θ̄_{n−1}),     w_n = (η + 1) / (n + η),

so θ_k has the weight of about k^η: the average forgets the beginning, and covers about the last
n / (η + 1) iterations. At a constant step size single iterates are spread around the optimum at a
distance that does not shrink; their average approaches it, and is what to test, to save and to look
at with `diagnostics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from mlmcgrad._checks import non_negative


class Averaged:
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

    def __init__(self, optimizer: Optimizer, *, eta: float = 9.0) -> None:
        self.eta = non_negative(eta, "eta")
        self.n = 0
        """Number of steps that were averaged."""
        self._optimizer = optimizer
        self._mean = [p.detach().clone() for p in self._parameters()]
        self._swapped = False
        self._hooks = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages into the parameters for a `with` block; then restore the iterate."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def detach(self) -> None:
        """Stop following the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs."""
        return {"n": self.n, "mean": [mean.clone() for mean in self._mean]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` made with parameters of the same shapes."""
        saved, shapes = ([tuple(t.shape) for t in ts] for ts in (state_dict["mean"], self._mean))
        if saved != shapes:
            raise ValueError(f"state_dict must hold averages of shapes {shapes}, got {saved}")
        self.n = int(state_dict["n"])
        for mean, value in zip(self._mean, state_dict["mean"], strict=True):
            mean.copy_(value)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    @torch.no_grad()
    def _swap(self) -> None:
        self._swapped = not self._swapped
        for mean, p in zip(self._mean, self._parameters(), strict=True):
            iterate = p.detach().clone()
            p.copy_(mean)
            mean.copy_(iterate)

    def _before_step(self, *_: Any) -> None:
        if self._swapped:
            raise RuntimeError("no step can be taken inside `with averaged.applied()`")

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        parameters = self._parameters()
        if len(parameters) != len(self._mean):
            raise RuntimeError(
                f"the optimizer has {len(parameters)} parameters, it had {len(self._mean)} when "
                "Averaged was made; make a new one after add_param_group"
            )
        self.n += 1
        weight = (self.eta + 1.0) / (self.n + self.eta)
        torch._foreach_lerp_(self._mean, [p.detach() for p in parameters], weight)
