"""Plain stochastic gradient: θ_n = θ_{n−1} − γ_n Ĥ_n, so A_{n−1} = I (the paper, Section 2)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._checks import NON_NEGATIVE, Ranges
from mlmcgrad.optim._elementwise import Batch, ElementwiseOptimizer
from mlmcgrad.schedules import Schedule


class SGD(ElementwiseOptimizer):
    r"""Stochastic gradient descent with a scheduled step size.

    $$
    \theta_{n+1} = \theta_n - \gamma_{n+1} \hat H_{n+1}
    $$

    The steps are those of `torch.optim.SGD`. It has no momentum, to which the theorem does not
    apply; use `torch.optim.SGD` for that.

    Args:
        params: parameters, named parameters or param groups.
        lr: step size γ_n ≥ 0, a number or a schedule.
        weight_decay: λ ≥ 0 of the penalty ½λ‖θ‖², whose gradient λθ is added to Ĥ_n.
        foreach: work on lists of tensors (None: yes, unless there are tensor subclasses).
        maximize: ascend instead of descend.

    Example:
        >>> from mlmcgrad.schedules import power
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = SGD([theta], lr=power(0.25, -0.5))
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> theta.item()  # 1 − 0.25 · 2
        0.5

    Reference:
        Robbins, Monro (1951), A stochastic approximation method; the paper, Theorem "gen".
    """

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE}
    _fixed: ClassVar[Ranges] = {}
    _state_names = ()

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "foreach": foreach, "maximize": maximize})

    def _under_root(self, values: dict[str, Any]) -> tuple[str, float]:
        return "lr", 1.0  # there is no root

    def _update(self, group: dict[str, Any], batch: Batch, rate: float) -> None:
        torch._foreach_add_(batch.params, batch.grads, alpha=rate)

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """(1, 1), the eigenvalues of I, at every n."""
        return 1.0, 1.0
