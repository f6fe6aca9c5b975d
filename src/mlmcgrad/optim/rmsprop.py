"""RMSProp (the paper, Section 2).

With n the step number, counted from 1, W_0 = 0, and all operations elementwise:

    W_n = ρ W_{n−1} + (1−ρ) min(Ĥ_n², M_n²),    θ_n = θ_{n−1} − γ_n (δ + W_n)^{-1/2} Ĥ_n.

The paper's definition has no clipping: M = ∞, the default. A finite M makes assumption A5 hold.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._checks import FRACTION, NON_NEGATIVE, POSITIVE, POSITIVE_OR_INFINITE, Ranges
from mlmcgrad.optim._elementwise import Batch, ElementwiseOptimizer, clipped
from mlmcgrad.schedules import Schedule


class RMSProp(ElementwiseOptimizer):
    r"""Steps scaled by an exponential moving average of squared gradients.

    $$
    A_n = \Big\{\delta I + \mathrm{Diag}\Big((1-\rho)\sum_{k\le n}\rho^{n-k}
          \min(\hat H_k^2, M_k^2)\Big)\Big\}^{-1/2}
    $$

    Differs from `torch.optim.RMSprop`, which adds its ε outside the root.

    Args:
        params: parameters, named parameters or param groups.
        lr: step size γ_n ≥ 0, a number or a schedule.
        rho: ρ in [0, 1), the memory of the average of squares.
        delta: δ > 0; no eigenvalue of A exceeds δ^{-1/2}.
        clip: threshold M_n > 0 of |Ĥ_n|, a number or a schedule; `math.inf`, the paper's
            definition, does not clip.
        weight_decay: λ ≥ 0 of the penalty ½λ‖θ‖², whose gradient λθ is added to Ĥ_n.
        foreach: work on lists of tensors (None: yes, unless there are tensor subclasses).
        maximize: ascend instead of descend.

    Example:
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = RMSProp([theta], lr=0.01, rho=0.75)
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> round(theta.item(), 4)  # 1 − 0.01 · 2 / √(0.25 · 4)
        0.98

    Reference:
        Tieleman, Hinton (2012), Lecture 6.5: RMSProp; the paper, Section 2.
    """

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE, "clip": POSITIVE_OR_INFINITE}
    _fixed: ClassVar[Ranges] = {"rho": FRACTION, "delta": POSITIVE}
    _state_names = ("average",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        rho: float = 0.99,
        delta: float = 1e-8,
        clip: float | Schedule = math.inf,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "rho": rho, "delta": delta, "clip": clip}
        defaults["weight_decay"] = weight_decay
        super().__init__(params, {**defaults, "foreach": foreach, "maximize": maximize})

    def _under_root(self, values: dict[str, Any]) -> tuple[str, float]:
        return "delta", float(values["delta"])

    def _update(self, group: dict[str, Any], batch: Batch, rate: float) -> None:
        average = batch.state("average")
        torch._foreach_mul_(average, group["rho"])
        bounded = clipped(batch.grads, group["clip"])
        torch._foreach_addcmul_(average, bounded, bounded, value=1.0 - group["rho"])
        del bounded  # its memory is used again for the roots
        roots = torch._foreach_add(average, group["delta"])
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(batch.params, batch.grads, roots, value=rate)

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """((δ + (1−ρ^n) sup_{k ≤ n} M_k²)^{-1/2}, δ^{-1/2}), for the eigenvalues of A_{n−1}.

        M_k is the threshold of step k. Without clipping the lower bound is 0.
        """
        group = self.param_groups[index]
        largest = self._supremum(index, "clip", n)
        squares = largest * largest * (1.0 - group["rho"] ** n)
        return (group["delta"] + squares) ** -0.5, group["delta"] ** -0.5
