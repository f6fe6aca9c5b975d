"""Stochastic Newton from Hessian-vector products (the paper, Section 2).

θ_n = θ_{n−1} − γ_n A_{n−1} Ĥ_n, where A_{n−1} is the inverse of a recursive Hessian estimate. The
k-th curvature pair is a random direction z ~ N(0, I) with y = (∇²loss) z. It moves the estimate
B_{k−1} a fraction a_k of the way to the nearest symmetric matrix, in Frobenius norm, with B z = y:

    r = y − B_{k−1} z,   B_k = B_{k−1} + a_k { (r zᵀ + z rᵀ)/‖z‖² − (zᵀr) z zᵀ/‖z‖⁴ }.

With exact products the error never grows, and for constant a_k it shrinks geometrically in mean
square. The move is linear in y, so with unbiased noisy products and a_k ∝ 1/k it is a
Robbins–Monro recursion whose only rest point is the expected Hessian. (Rank-one recursions on the
inverse itself, Sherman and Morrison's as in Bercu et al. and Boyer and Godichon-Baggioni, need
Hessians that are sums of known outer products, as in regression; secant updates of the inverse are
biased under noise.)

With B = Σ b_i v_i v_iᵀ, A = Σ clamp(1/|b_i|, λ, λ̄) v_i v_iᵀ. So A is positive with eigenvalues in
[λ, λ̄] on any problem: assumption A5 holds, directions of negative curvature are descended, and
saddles do not attract.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._checks import NON_NEGATIVE, POSITIVE, POSITIVE_OR_INFINITE, Ranges
from mlmcgrad.optim._curvature import bounded_inverse, hessian_product, move_to_secant, normal_like
from mlmcgrad.optim._matrix import MatrixOptimizer, dimension, flatten
from mlmcgrad.schedules import Schedule


class StochasticNewton(MatrixOptimizer):
    r"""Newton steps with a recursively estimated Hessian, safe on non-convex problems.

    $$
    \theta_{n+1} = \theta_n - \gamma_{n+1} A_n \hat H_{n+1}, \quad
    A_n \approx (\nabla^2 V)^{-1}, \quad \underline\lambda I \le A_n \le \overline\lambda I
    $$

    Curvature comes from `observe_loss`, or from `observe` if you have your own products (for
    example differences of gradients). A pair observed before step n enters A at step n + 1:
    A_{n−1} does not depend on the data of step n, as assumption A5 requires.

    Args:
        params: parameters, named parameters or param groups; each group has its own matrix.
        lr: step size γ_n ≥ 0, a number or a schedule; 1 or 1/n are usual for Newton.
        lower: λ > 0, the smallest eigenvalue of A; curvature beyond 1/λ counts as 1/λ.
        upper: λ̄ ≥ λ, the largest eigenvalue of A; curvature below 1/λ̄ counts as 1/λ̄.
        initial_curvature: B_0 is this number times the identity.
        averaging: c > 0 in a_k = min(1, c d / k). The start is forgotten like k^{-c}, noise is
            averaged over k/c pairs; `math.inf` (a_k = 1) suits exact products.
        max_dimension: groups of a larger dimension d are refused (d² memory, d³ operations a step).
        foreach: move the parameters by one operation on a list (None: yes).
        maximize: ascend instead of descend.

    Example:
        >>> rng = torch.Generator().manual_seed(0)
        >>> theta = torch.tensor([1.0, 1.0], requires_grad=True)
        >>> optimizer = StochasticNewton([theta], lr=1.0, averaging=math.inf)
        >>> for _ in range(20):
        ...     loss = (theta.square() * torch.tensor([0.5, 20.0])).sum()
        ...     optimizer.zero_grad()
        ...     optimizer.observe_loss(loss, rng)
        ...     loss.backward()
        ...     optimizer.step()
        >>> theta.abs().max().item() < 1e-5
        True

    Reference:
        Boyer, Godichon-Baggioni (2020), On the asymptotic rate of convergence of stochastic Newton
        algorithms, arXiv:2011.09706. Bercu, Godichon, Portier (2020), An efficient stochastic
        Newton algorithm for logistic regressions, arXiv:1904.07908. Godichon-Baggioni, Lu, Portier
        (2024), Online estimation of the inverse of the Hessian, arXiv:2401.10923, for random
        Hessian-vector products. Powell (1970), A new algorithm for unconstrained optimization, for
        the symmetric projection. Dauphin et al. (2014), arXiv:1406.2572, for |b_i|.
    """

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE}
    _fixed: ClassVar[Ranges] = {
        "lower": POSITIVE,
        "upper": POSITIVE,
        "initial_curvature": POSITIVE,
        "averaging": POSITIVE_OR_INFINITE,
    }
    _ordered = (("lower", "upper"),)
    _counts, _matrices = ("pairs", "inverted"), ("hessian", "inverse")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        lower: float = 1e-3,
        upper: float = 1e2,
        initial_curvature: float = 1.0,
        averaging: float = 2.0,
        max_dimension: int = 2048,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "lower": lower, "upper": upper, "max_dimension": max_dimension}
        curvature = {"initial_curvature": initial_curvature, "averaging": averaging}
        common = {"foreach": foreach, "maximize": maximize}
        super().__init__(params, {**defaults, **curvature, **common})

    def observe_loss(self, loss: Tensor, generator: torch.Generator) -> None:
        """Draw z ~ N(0, I) for each group and observe the pair (z, ∇²loss z).

        Call it before `loss.backward()` and `step()`. A loss that is the surrogate of a Markov
        chain gradient has the Hessian at fixed states, without the part that comes from the
        dependence of the invariant law on θ.

        Args:
            loss: scalar, differentiable twice in the parameters; its graph is kept.
            generator: source of the directions.
        """
        pairs = []
        for index, group in enumerate(self.param_groups):
            params: list[Tensor] = group["params"]
            z = [normal_like(p, generator) for p in params]
            pairs.append(self._pair(index, z, hessian_product(loss, params, z)))
        for index, pair in enumerate(pairs):
            self._record(index, *pair)

    def observe(
        self, direction: Sequence[Tensor], product: Sequence[Tensor], group: int = 0
    ) -> None:
        """Use a curvature pair (z, y ≈ ∇²V z) of one param group from the next step but one.

        Args:
            direction: z, one tensor for each parameter of the group, random and isotropic.
            product: y, of the same shapes.
            group: index of the param group.

        Raises:
            ValueError: the pair does not fit the group, is not finite, or z = 0.
        """
        self._record(group, *self._pair(group, direction, product))

    def _pair(
        self, index: int, direction: Sequence[Tensor], product: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """A curvature pair as two vectors, shape (d,), checked."""
        z, y = (flatten([t.detach() for t in part]) for part in (direction, product))
        d = dimension(self.param_groups[index])
        if z.numel() != d or y.numel() != d:
            raise ValueError(
                f"direction and product must have the {d} coordinates of param group {index}, got "
                f"{z.numel()} and {y.numel()}"
            )
        lengths = z.norm().item(), y.norm().item()
        if not (0.0 < lengths[0] < math.inf and lengths[1] < math.inf):
            raise ValueError(
                f"direction and product for param group {index} must be finite and direction not "
                f"zero, got norms {lengths[0]!r} and {lengths[1]!r}; skip this pair"
            )
        return z, y

    def _record(self, index: int, z: Tensor, y: Tensor) -> None:
        group = self.param_groups[index]
        state = self._group_state(group)
        state["pairs"] += 1
        fraction = min(1.0, group["averaging"] * z.numel() / state["pairs"])
        move_to_secant(state["hessian"], z, y, fraction)

    def _initial_state(self, group: dict[str, Any], like: Tensor, d: int) -> dict[str, Any]:
        hessian = group["initial_curvature"] * torch.eye(d, dtype=like.dtype, device=like.device)
        inverse = bounded_inverse(hessian, group["lower"], group["upper"])
        return {"pairs": 0, "inverted": 0, "hessian": hessian, "inverse": inverse}

    def _direction(self, group: dict[str, Any], state: dict[str, Any], gradient: Tensor) -> Tensor:
        inverse: Tensor = state["inverse"]
        direction = inverse @ gradient
        if state["inverted"] != state["pairs"]:  # only now: A must not depend on this step's data
            state["inverse"] = bounded_inverse(state["hessian"], group["lower"], group["upper"])
            state["inverted"] = state["pairs"]
        return direction

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """(λ, λ̄), for the eigenvalues of A_{n−1}, at every n."""
        group = self.param_groups[index]
        return group["lower"], group["upper"]
