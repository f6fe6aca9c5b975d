"""Optimizers with a dense matrix A_n over all parameters of a group: FullAdagrad, StochasticNewton.

Ĥ_n is the concatenation of all gradients of a param group, a vector of dimension d. A parameter
without a gradient counts as a gradient of zero in it, and is not moved. The state of a group
belongs to its first parameter.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad._checks import whole
from mlmcgrad.optim._base import (
    EPS,
    NON_NEGATIVE,
    POSITIVE,
    POSITIVE_OR_INFINITE,
    AdaptiveOptimizer,
    Ranges,
)
from mlmcgrad.schedules import Schedule


class DenseOptimizer(AdaptiveOptimizer):
    """Base class of the dense optimizers; a subclass turns a gradient vector into a direction."""

    @abstractmethod
    def _start(self, group: dict[str, Any], like: Tensor, d: int) -> dict[str, Any]:
        """Return the state of a group of dimension d before its first step."""

    @abstractmethod
    def _direction(self, group: dict[str, Any], state: dict[str, Any], gradient: Tensor) -> Tensor:
        """Return A_{n−1} Ĥ_n, shape (d,), from Ĥ_n of the same shape; update the state."""

    @final
    def _check(self, group: dict[str, Any], params: list[Tensor], where: str) -> None:
        d, limit = dimension(group), whole(group["max_dimension"], "max_dimension")
        if d > limit:
            raise ValueError(
                f"{type(self).__name__} keeps a dense matrix over all parameters of a group: their "
                f"dimension{where} is {d}, beyond max_dimension={limit}; split the parameters into "
                "several param groups, use a diagonal optimizer such as Adagrad, or raise "
                "max_dimension"
            )
        lower, upper = group.get("lower", 0.0), group.get("upper", math.inf)
        if lower > upper:
            raise ValueError(f"lower must not exceed upper, got {lower!r} and {upper!r}{where}")
        kinds = {(p.dtype, p.device) for p in group["params"]}
        if len(kinds) > 1 or next(iter(kinds))[0] not in (torch.float32, torch.float64):
            raise TypeError(
                f"the parameters{where} must share one device and be all float32 or all float64, "
                f"got {sorted(map(str, kinds))}; put parameters of different kinds into different "
                "param groups"
            )

    @final
    def _initial_state(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        return self._start(group, p, dimension(group)) if p is group["params"][0] else {}

    @final
    def _group_state(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a group, created on first use."""
        first: Tensor = group["params"][0]
        state: dict[str, Any] = self.state[first]
        if not state:
            state.update(self._initial_state(group, first))
        return state

    @final
    def _apply(self, group: dict[str, Any], params: list[Tensor], rate: float) -> None:
        members: list[Tensor] = group["params"]
        gradient = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in members])
        direction = self._direction(group, self._group_state(group), gradient)
        pieces = torch.split(direction, [p.numel() for p in members])
        for p, piece in zip(members, pieces, strict=True):
            if p.grad is not None:
                p.add_(piece.view_as(p), alpha=rate)


class FullAdagrad(DenseOptimizer):
    r"""Adagrad with the whole matrix of averaged outer products (the paper, Section 2).

    $$
    G_n = G_{n-1} + c_n^2 \hat H_n \hat H_n^\top, \quad c_n = \min(1, M_n / \|\hat H_n\|), \quad
    \theta_n = \theta_{n-1} - \gamma_n (\delta I + G_n / n)^{-1/2} \hat H_n
    $$

    with δ = eps². The inverse root is taken by eigendecomposition at every step: d² memory and d³
    operations. The paper's definition has no clipping: M = ∞, the default. A finite M makes
    assumption A5 hold.

    Args:
        params: parameters, named parameters or param groups; each group has its own matrix.
        lr: step size γ_n ≥ 0, a number or a schedule.
        eps: the root of δ, in (0, 1000]; no eigenvalue of A exceeds 1/eps. In float32 eigenvalues
            are known to about 1e-7 of the largest: a smaller δ is lost in rounding.
        clip: threshold M_n > 0 of ‖Ĥ_n‖, a number or a schedule: a longer gradient enters the
            matrix with this norm; `math.inf` does not clip.
        max_dimension: groups of a larger dimension are refused.
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
    _fixed: ClassVar[Ranges] = {"eps": EPS}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        eps: float = 1e-4,
        clip: float | Schedule = math.inf,
        max_dimension: int = 2048,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "eps": eps, "clip": clip, "max_dimension": max_dimension}
        super().__init__(params, {**defaults, "maximize": maximize})

    def _start(self, group: dict[str, Any], like: Tensor, d: int) -> dict[str, Any]:
        return {"count": 0, "outer": like.new_zeros(d, d)}

    def _direction(self, group: dict[str, Any], state: dict[str, Any], gradient: Tensor) -> Tensor:
        state["count"] += 1
        norm = gradient.norm()
        # A norm of zero is never a divisor: where the norm is small, the factor is 1.
        entering = gradient * (group["clip"] / norm) if norm > group["clip"] else gradient
        outer: Tensor = state["outer"].addr_(entering, entering)  # (d, d)
        eigenvalues, vectors = torch.linalg.eigh(outer / state["count"])
        # Rounding can leave eigenvalues just below zero; with a tiny δ that would matter.
        roots = eigenvalues.clamp_min(0.0).add_(group["eps"] ** 2).sqrt_()
        return torch.mv(vectors, torch.mv(vectors.T, gradient) / roots)

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """Return ((δ + sup_{k ≤ n} M_k²)^{-1/2}, δ^{-1/2}), for the eigenvalues of A_{n−1}.

        M_k is the threshold of step k. Without clipping the lower bound is 0.
        """
        delta = self.param_groups[index]["eps"] ** 2
        largest = self._supremum(index, "clip", n)
        return (delta + largest * largest) ** -0.5, delta**-0.5


class StochasticNewton(DenseOptimizer):
    r"""Newton steps with a recursively estimated Hessian (the paper, Section 2).

    $$
    \theta_n = \theta_{n-1} - \gamma_n A_{n-1} \hat H_n, \quad
    A_n \approx (\nabla^2 V)^{-1}, \quad \underline\lambda I \le A_n \le \overline\lambda I
    $$

    The k-th curvature pair is a random direction z ~ N(0, I) with y = (∇²loss) z. It moves the
    estimate B_{k−1} of the Hessian a fraction a_k of the way to the nearest symmetric matrix, in
    Frobenius norm, with B z = y:

        r = y − B_{k−1} z,   B_k = B_{k−1} + a_k { (r zᵀ + z rᵀ)/‖z‖² − (zᵀr) z zᵀ/‖z‖⁴ }.

    With exact products the error never grows, and for constant a_k it shrinks geometrically in
    mean square. The move is linear in y, so with unbiased noisy products and a_k ∝ 1/k it is a
    Robbins–Monro recursion whose only rest point is the expected Hessian. (Rank-one recursions on
    the inverse itself, as in Bercu et al. and Boyer and Godichon-Baggioni, need Hessians that are
    sums of known outer products, as in regression; secant updates of the inverse are biased under
    noise.)

    With B = Σ b_i v_i v_iᵀ, A = Σ clamp(1/|b_i|, λ, λ̄) v_i v_iᵀ. So A is positive with eigenvalues
    in [λ, λ̄] on any problem: assumption A5 holds, directions of negative curvature are descended,
    and saddles do not attract.

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
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "lower": lower, "upper": upper, "max_dimension": max_dimension}
        curvature = {"initial_curvature": initial_curvature, "averaging": averaging}
        super().__init__(params, {**defaults, **curvature, "maximize": maximize})

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
            options: Any = {"device": generator.device, "generator": generator}
            z = [torch.randn(p.shape, dtype=p.dtype, **options).to(p.device) for p in params]
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
        """Return a curvature pair as two vectors, shape (d,), checked."""
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

    def _start(self, group: dict[str, Any], like: Tensor, d: int) -> dict[str, Any]:
        hessian = group["initial_curvature"] * torch.eye(d, dtype=like.dtype, device=like.device)
        weights = bounded_reciprocal(hessian.diagonal(), group["lower"], group["upper"])
        return {"pairs": 0, "inverted": 0, "hessian": hessian, "inverse": torch.diag(weights)}

    def _direction(self, group: dict[str, Any], state: dict[str, Any], gradient: Tensor) -> Tensor:
        inverse: Tensor = state["inverse"]
        direction = inverse @ gradient
        if state["inverted"] != state["pairs"]:  # only now: A must not depend on this step's data
            state["inverse"] = bounded_inverse(state["hessian"], group["lower"], group["upper"])
            state["inverted"] = state["pairs"]
        return direction

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """Return (λ, λ̄), for the eigenvalues of A_{n−1}, at every n."""
        group = self.param_groups[index]
        return group["lower"], group["upper"]


def hessian_product(loss: Tensor, params: list[Tensor], direction: list[Tensor]) -> list[Tensor]:
    """Return ∇²loss · direction by differentiating twice; zero for a linear or constant loss."""
    with torch.enable_grad():
        first = torch.autograd.grad(loss, params, create_graph=True, materialize_grads=True)
        slope = torch.stack([(g * z).sum() for g, z in zip(first, direction, strict=True)]).sum()
    if slope.grad_fn is None:
        return [torch.zeros_like(p) for p in params]
    return list(torch.autograd.grad(slope, params, retain_graph=True, materialize_grads=True))


def move_to_secant(matrix: Tensor, z: Tensor, y: Tensor, fraction: float) -> None:
    """Move a symmetric matrix B, in place, towards the nearest one with B z = y.

    With r = y − B z this adds fraction · { (r zᵀ + z rᵀ)/‖z‖² − (zᵀr) z zᵀ/‖z‖⁴ }.

    Args:
        matrix: B, shape (d, d).
        z: direction, shape (d,), not zero.
        y: product, shape (d,).
        fraction: 1 for the projection itself.
    """
    length = z.norm()
    unit = z / length
    residual = (y - torch.mv(matrix, z)) / length
    # u = r − ½ (zᵀr) z makes u zᵀ + z uᵀ the whole bracket: two rank-one updates instead of three.
    residual = residual - 0.5 * residual.dot(unit) * unit
    change = torch.outer(residual, unit)
    matrix.add_(change + change.T, alpha=fraction)


def bounded_inverse(matrix: Tensor, lower: float, upper: float) -> Tensor:
    """Return Σ clamp(1/|b_i|, lower, upper) v_i v_iᵀ for the symmetric matrix Σ b_i v_i v_iᵀ."""
    curvature, vectors = torch.linalg.eigh(matrix)
    return torch.mm(vectors * bounded_reciprocal(curvature, lower, upper), vectors.T)


def bounded_reciprocal(curvature: Tensor, lower: float, upper: float) -> Tensor:
    """Return clamp(1/|b_i|, lower, upper) of each curvature b_i."""
    return curvature.abs().clamp_(1.0 / upper, 1.0 / lower).reciprocal_()


def dimension(group: dict[str, Any]) -> int:
    """Return the number of coordinates in a param group."""
    return sum(p.numel() for p in group["params"])


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors into one vector, shape (d,)."""
    return torch.cat([t.reshape(-1) for t in tensors])
