"""Full-matrix Adagrad (the paper, Section 2).

With n the step number, counted from 1, G_0 = 0, and Ĥ_n the concatenation of all gradients of a
param group, a vector of dimension d:

    G_n = G_{n−1} + c_n² Ĥ_n Ĥ_nᵀ,    c_n = min(1, M_n / ‖Ĥ_n‖),
    θ_n = θ_{n−1} − γ_n (δ I + G_n / n)^{-1/2} Ĥ_n.

The inverse root is taken by eigendecomposition at every step: d² memory and d³ operations. The
paper's definition has no clipping: M = ∞, the default. A finite M makes assumption A5 hold.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._checks import NON_NEGATIVE, POSITIVE, POSITIVE_OR_INFINITE, Ranges
from mlmcgrad.optim._matrix import MatrixOptimizer
from mlmcgrad.schedules import Schedule


class FullAdagrad(MatrixOptimizer):
    r"""Adagrad with the whole matrix of averaged outer products.

    $$
    A_n = \Big\{\delta I + \frac{1}{n+1}\sum_{k\le n}\hat H_k \hat H_k^\top\Big\}^{-1/2}
    $$

    Args:
        params: parameters, named parameters or param groups; each group has its own matrix.
        lr: step size γ_n ≥ 0, a number or a schedule.
        delta: δ > 0; no eigenvalue of A exceeds δ^{-1/2}. In float32 eigenvalues are known to
            about 1e-7 of the largest: a smaller δ is lost in rounding.
        clip: threshold M_n > 0 of ‖Ĥ_n‖, a number or a schedule: a longer gradient enters the
            matrix with this norm; `math.inf`, the paper's definition, does not clip.
        max_dimension: groups of a larger dimension are refused.
        foreach: move the parameters by one operation on a list (None: yes).
        maximize: ascend instead of descend.

    Example:
        >>> theta = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> optimizer = FullAdagrad([theta], lr=1.0)
        >>> (0.5 * theta.square().sum()).backward()
        >>> optimizer.step()
        >>> [round(x, 4) for x in theta.tolist()]  # one unit along the gradient (3, 4)
        [2.4, 3.2]

    Reference:
        Duchi, Hazan, Singer (2011), Adaptive subgradient methods; the paper, Section 2.
    """

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE, "clip": POSITIVE_OR_INFINITE}
    _fixed: ClassVar[Ranges] = {"delta": POSITIVE}
    _counts, _matrices = ("count",), ("outer",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        delta: float = 1e-8,
        clip: float | Schedule = math.inf,
        max_dimension: int = 2048,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "delta": delta, "clip": clip, "max_dimension": max_dimension}
        super().__init__(params, {**defaults, "foreach": foreach, "maximize": maximize})

    def _initial_state(self, group: dict[str, Any], like: Tensor, d: int) -> dict[str, Any]:
        return {"count": 0, "outer": like.new_zeros(d, d)}

    def _direction(self, group: dict[str, Any], state: dict[str, Any], gradient: Tensor) -> Tensor:
        state["count"] += 1
        norm = gradient.norm()
        # A norm of zero is never a divisor: where the norm is small, the factor is 1.
        entering = gradient * (group["clip"] / norm) if norm > group["clip"] else gradient
        outer: Tensor = state["outer"].addr_(entering, entering)  # (d, d)
        eigenvalues, vectors = torch.linalg.eigh(outer / state["count"])
        # Rounding can leave eigenvalues just below zero; with a tiny δ that would matter.
        roots = eigenvalues.clamp_min(0.0).add_(group["delta"]).sqrt_()
        return torch.mv(vectors, torch.mv(vectors.T, gradient) / roots)

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """((δ + sup_{k ≤ n} M_k²)^{-1/2}, δ^{-1/2}), for the eigenvalues of A_{n−1}.

        M_k is the threshold of step k. Without clipping the lower bound is 0.
        """
        delta = self.param_groups[index]["delta"]
        largest = self._supremum(index, "clip", n)
        return (delta + largest * largest) ** -0.5, delta**-0.5
