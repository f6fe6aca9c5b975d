"""MLMC-AMSGrad (the paper's Algorithm 2, Theorem "amsgrad").

With n the step number, counted from 1, m_0 = W_0 = Ŵ_0 = 0, and all operations per coordinate:

    m_n = ρ1 m_{n−1} + (1−ρ1) Ĥ_n,
    W_n = ρ2 W_{n−1} + (1−ρ2) min(ε_n, Ĥ_n²),    Ŵ_n = max(Ŵ_{n−1}, W_n),
    θ_n = θ_{n−1} − γ_n (δ + Ŵ_n)^{-1/2} m_n.

These m_n, W_n, Ŵ_n and the matrix (δ + Ŵ_n)^{-1/2} have index n − 1 in the paper, which counts
iterations from 0; γ_n and ε_n have the same index there.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._checks import DECAY, NON_NEGATIVE, POSITIVE, POSITIVE_OR_INFINITE, Ranges
from mlmcgrad.optim._elementwise import Batch, ElementwiseOptimizer
from mlmcgrad.schedules import Schedule


class AMSGrad(ElementwiseOptimizer):
    r"""AMSGrad without bias correction, δ inside the root, squares clipped before averaging.

    .. math::
        \theta_{n+1} = \theta_n - \gamma_{n+1} (\delta + \hat W_n)^{-1/2} m_n,\quad
        \hat W_n = \max(\hat W_{n-1}, W_n)

    Differs from `torch.optim.Adam(amsgrad=True)`, which corrects both averages for their start at
    zero and adds its ε outside the root. Without the correction the first steps are about
    (1−ρ1)/√(1−ρ2) γ per coordinate, 3.2 γ with the defaults.

    Args:
        params: parameters, named parameters or param groups.
        lr: step size γ_n ≥ 0, a float or a schedule; the theorem wants it non-increasing.
        rho1: ρ1 in [0, 1), forgetting of the gradient average.
        rho2: ρ2 in [0, 1), forgetting of the average of squares.
        delta: δ > 0; no eigenvalue of A exceeds δ^{-1/2}.
        epsilon: clipping ε_n > 0 of the squares, a float or a schedule; the theorem wants it
            non-decreasing. `math.inf` does not clip.
        foreach: work on lists of tensors (None: yes, unless there are tensor subclasses).
        maximize: ascend instead of descend.

    Example:
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = AMSGrad([theta], lr=0.01)
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> round(theta.item(), 4)  # 1 − 0.01 · (0.1 · 2) / √(0.001 · 4)
        0.9684

    Reference:
        Reddi, Kale, Kumar (2018), On the convergence of Adam and beyond; the paper, Algorithm 2.
    """

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE, "epsilon": POSITIVE_OR_INFINITE}
    _fixed: ClassVar[Ranges] = {"rho1": DECAY, "rho2": DECAY, "delta": POSITIVE}
    _state_names = ("momentum", "average", "largest")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Schedule,
        rho1: float = 0.9,
        rho2: float = 0.999,
        delta: float = 1e-8,
        epsilon: float | Schedule = math.inf,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "rho1": rho1, "rho2": rho2, "delta": delta, "epsilon": epsilon}
        super().__init__(params, defaults, foreach=foreach, maximize=maximize)

    def _update(self, group: dict[str, Any], batch: Batch, rate: float) -> None:
        rho2, epsilon = group["rho2"], group["epsilon"]
        momentum, average = batch.state("momentum"), batch.state("average")
        largest = batch.state("largest")
        torch._foreach_lerp_(momentum, batch.grads, 1.0 - group["rho1"])
        if math.isinf(epsilon):
            torch._foreach_mul_(average, rho2)
            torch._foreach_addcmul_(average, batch.grads, batch.grads, value=1.0 - rho2)
        else:
            squares = torch._foreach_mul(batch.grads, batch.grads)
            torch._foreach_clamp_max_(squares, epsilon)
            torch._foreach_lerp_(average, squares, 1.0 - rho2)
            del squares  # its memory serves for the roots
        torch._foreach_maximum_(largest, average)
        roots = torch._foreach_add(largest, group["delta"])
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(batch.params, momentum, roots, value=rate)

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """(ε̲_{n−1}, δ^{-1/2}): ε̲_0 = 0 and ε̲_{n−1} = (δ + ε_{n−1} (1−ρ2^{n−1}))^{-1/2}.

        For n ≥ 2, ε̲_{n−1} bounds the paper's A_{n−2} from below: the latest matrix that does not
        know the gradient of step n. ε̲_0 = 0 because the proof sets A_{−1} = 0, so a random iterate
        is never θ_0. δ^{-1/2} bounds all of them from above. Where ε is not non-decreasing, as
        the theorem wants it, its supremum up to n − 1 stands in for ε_{n−1}.
        """
        group = self.param_groups[index]
        upper = group["delta"] ** -0.5
        if n == 1:
            return 0.0, upper
        largest = self._supremum(index, "epsilon", n - 1)
        return (group["delta"] + largest * (1.0 - group["rho2"] ** (n - 1))) ** -0.5, upper


__all__ = ["AMSGrad"]
