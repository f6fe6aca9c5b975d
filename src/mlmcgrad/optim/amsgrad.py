"""MLMC-AMSGrad (the paper's Algorithm 2, Theorem "amsgrad").

With n the step number, counted from 1, m_0 = W_0 = Ŵ_0 = 0, and all operations elementwise:

    m_n = ρ1 m_{n−1} + (1−ρ1) Ĥ_n,
    W_n = ρ2 W_{n−1} + (1−ρ2) min(M_n², Ĥ_n²),    Ŵ_n = max(Ŵ_{n−1}, W_n),
    θ_n = θ_{n−1} − γ_n (δ + Ŵ_n)^{-1/2} m_n.

`clip(n)` is M_n, a threshold of |Ĥ_n| as in Adagrad. The paper clips the squares at its ε_n, so
ε_n = M_n². These m_n, W_n, Ŵ_n and the matrix (δ + Ŵ_n)^{-1/2} have index n − 1 in the paper, which
counts iterations from 0; γ_n and ε_n have the same index there.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._checks import FRACTION, NON_NEGATIVE, POSITIVE, POSITIVE_OR_INFINITE, Ranges
from mlmcgrad.optim._elementwise import Batch, ElementwiseOptimizer
from mlmcgrad.schedules import Schedule


class AMSGrad(ElementwiseOptimizer):
    r"""AMSGrad without bias correction, δ inside the root, squares clipped before averaging.

    $$
    \theta_{n+1} = \theta_n - \gamma_{n+1} (\delta + \hat W_n)^{-1/2} m_n,\quad
    \hat W_n = \max(\hat W_{n-1}, W_n)
    $$

    Differs from `torch.optim.Adam(amsgrad=True)`, which corrects both averages for their start at
    zero and adds its ε outside the root. Without the correction the first steps are about
    (1−ρ1)/√(1−ρ2) γ per coordinate, 3.2 γ with the defaults.

    Args:
        params: parameters, named parameters or param groups.
        lr: step size γ_n ≥ 0, a number or a schedule; the theorem needs it non-increasing.
        rho1: ρ1 in [0, 1), the memory of the average of gradients.
        rho2: ρ2 in [0, 1), the memory of the average of squares.
        delta: δ > 0; no eigenvalue of A exceeds δ^{-1/2}.
        clip: threshold M_n > 0 of |Ĥ_n|, a number or a schedule, with M_n² the paper's ε_n; the
            theorem needs it non-decreasing. `math.inf` does not clip.
        weight_decay: λ ≥ 0 of the penalty ½λ‖θ‖², whose gradient λθ is added to Ĥ_n.
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

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE, "clip": POSITIVE_OR_INFINITE}
    _fixed: ClassVar[Ranges] = {"rho1": FRACTION, "rho2": FRACTION, "delta": POSITIVE}
    _state_names = ("momentum", "average", "largest")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        rho1: float = 0.9,
        rho2: float = 0.999,
        delta: float = 1e-8,
        clip: float | Schedule = math.inf,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "rho1": rho1, "rho2": rho2, "delta": delta, "clip": clip}
        defaults["weight_decay"] = weight_decay
        super().__init__(params, {**defaults, "foreach": foreach, "maximize": maximize})

    def _under_root(self, values: dict[str, Any]) -> tuple[str, float]:
        return "delta", float(values["delta"])

    def _update(self, group: dict[str, Any], batch: Batch, rate: float) -> None:
        rho2, clip = group["rho2"], group["clip"]
        momentum, average = batch.state("momentum"), batch.state("average")
        largest = batch.state("largest")
        torch._foreach_lerp_(momentum, batch.grads, 1.0 - group["rho1"])
        if math.isinf(clip):
            torch._foreach_mul_(average, rho2)
            torch._foreach_addcmul_(average, batch.grads, batch.grads, value=1.0 - rho2)
        else:
            squares = torch._foreach_mul(batch.grads, batch.grads)
            torch._foreach_clamp_max_(squares, clip * clip)
            torch._foreach_lerp_(average, squares, 1.0 - rho2)
            del squares  # their memory is used again for the roots
        torch._foreach_maximum_(largest, average)
        roots = torch._foreach_add(largest, group["delta"])
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(batch.params, momentum, roots, value=rate)

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """(ε̲_{n−1}, δ^{-1/2}): ε̲_0 = 0 and ε̲_{n−1} = (δ + M_{n−1}² (1−ρ2^{n−1}))^{-1/2}.

        For n ≥ 2, ε̲_{n−1} bounds the paper's A_{n−2} from below: the latest matrix that does not
        depend on the gradient of step n. ε̲_0 = 0 because the proof sets A_{−1} = 0, so a random
        iterate is never θ_0. δ^{-1/2} bounds all of them from above. If M decreases, which the
        theorem excludes, its supremum up to n − 1 replaces M_{n−1}.
        """
        group = self.param_groups[index]
        upper = group["delta"] ** -0.5
        if n == 1:
            return 0.0, upper
        largest = self._supremum(index, "clip", n - 1)
        squares = largest * largest * (1.0 - group["rho2"] ** (n - 1))
        return (group["delta"] + squares) ** -0.5, upper
