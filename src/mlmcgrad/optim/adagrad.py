"""MLMC-Adagrad (the paper's equation "a-adagrad", Theorem "adagrad").

With n the step number, counted from 1, and all operations elementwise:

    S_n = S_{n−1} + min(Ĥ_n², M_n²),    A_{n−1} = (ε_n^{-2} + S_n / n)^{-1/2},
    θ_n = θ_{n−1} − γ_n A_{n−1} Ĥ_n.

`epsilon(n)` is the paper's ε_n. `clip(n)` is the paper's M_{n−1}: the paper counts M from 0, with
the iterations, and lets M_{n−1} ∝ n^M in its corollary.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._checks import NON_NEGATIVE, POSITIVE, POSITIVE_OR_INFINITE, Ranges
from mlmcgrad.optim._elementwise import Batch, ElementwiseOptimizer, clipped
from mlmcgrad.schedules import Schedule


class Adagrad(ElementwiseOptimizer):
    r"""Adagrad with averaged, clipped squares and a regularization inside the root.

    $$
    A_n = \Big\{\varepsilon_{n+1}^{-2} I
          + \mathrm{Diag}\Big(\frac{1}{n+1}\sum_{k\le n}
            \min(\hat H_k^2, M_k^2)\Big)\Big\}^{-1/2}
    $$

    Differs from `torch.optim.Adagrad`: squares are averaged, not summed (so γ_n ∝ n^{-1/2} here is
    a constant `lr` there), they are clipped, and the regularization is inside the root. If a
    parameter had no gradient at some steps, the average is over the others.

    Args:
        params: parameters, named parameters or param groups.
        lr: step size γ_n ≥ 0, a number or a schedule.
        epsilon: regularization ε_n > 0, a number or a schedule; the paper's usual choice is the
            constant ε^{-1/2} for a small ε, here ε = 1e-8. No eigenvalue of A exceeds ε_n.
        clip: threshold M_n > 0 of |Ĥ_n|, a number or a schedule; `math.inf` does not clip.
        weight_decay: λ ≥ 0 of the penalty ½λ‖θ‖², whose gradient λθ is added to Ĥ_n.
        foreach: work on lists of tensors (None: yes, unless there are tensor subclasses).
        maximize: ascend instead of descend.

    Example:
        >>> from mlmcgrad.schedules import power
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = Adagrad([theta], lr=power(0.5, -0.5), epsilon=1.0, clip=10.0)
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> round(theta.item(), 4)  # 1 − 0.5 · 2 / √(1 + 4)
        0.5528

    Reference:
        Duchi, Hazan, Singer (2011), Adaptive subgradient methods; the paper, Section 3.2.
    """

    _scheduled: ClassVar[Ranges] = {
        "lr": NON_NEGATIVE,
        "epsilon": POSITIVE,
        "clip": POSITIVE_OR_INFINITE,
    }
    _fixed: ClassVar[Ranges] = {}
    _state_names = ("sum",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        epsilon: float | Schedule = 1e4,
        clip: float | Schedule = math.inf,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "epsilon": epsilon, "clip": clip, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "foreach": foreach, "maximize": maximize})

    def _under_root(self, values: dict[str, Any]) -> tuple[str, float]:
        return "epsilon", float(values["epsilon"]) ** -2

    def _update(self, group: dict[str, Any], batch: Batch, rate: float) -> None:
        totals, n = batch.state("sum"), batch.count
        bounded = clipped(batch.grads, group["clip"])
        torch._foreach_addcmul_(totals, bounded, bounded)
        del bounded  # its memory is used again for the roots
        # (ε^{-2} + S/n)^{-1/2} = √n (n ε^{-2} + S)^{-1/2}: one pass over memory less.
        roots = torch._foreach_add(totals, n / group["epsilon"] ** 2)
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(batch.params, batch.grads, roots, value=rate * math.sqrt(n))

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """(ε̲_{n−1}, ε_n): ε̲_0 = ε_1 and ε̲_{n−1} = (ε_n^{-2} + sup_{i ≤ n−2} M_i²)^{-1/2}.

        They bound the eigenvalues of the paper's Ã_{n−1}, which is A_{n−1} without its latest
        square; ε_n bounds those of A_{n−1} too. With a large ε_1 and a small M, ε̲_0 is far above
        the others, so a random iterate stays at θ_0 for long: an ε_1 of order 1/M avoids that.
        """
        epsilon = self._value(index, "epsilon", n)
        if n == 1:
            return epsilon, epsilon
        largest = self._supremum(index, "clip", n - 1)  # M_0 … M_{n−2} are clip(1) … clip(n−1)
        return (epsilon**-2 + largest * largest) ** -0.5, epsilon
