"""Linear algebra of `StochasticNewton`: Hessian products, secant projection, bounded inverse."""

from __future__ import annotations

import torch
from torch import Tensor


def normal_like(p: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal draws of a parameter's shape; the generator may live on another device."""
    draw = torch.randn(p.shape, dtype=p.dtype, device=generator.device, generator=generator)
    return draw.to(p.device)


def hessian_product(loss: Tensor, params: list[Tensor], direction: list[Tensor]) -> list[Tensor]:
    """∇²loss · direction by differentiating twice; zero where the loss is linear or constant."""
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
    """Σ clamp(1/|b_i|, lower, upper) v_i v_iᵀ for the symmetric matrix Σ b_i v_i v_iᵀ."""
    curvature, vectors = torch.linalg.eigh(matrix)
    weights = curvature.abs().clamp_(1.0 / upper, 1.0 / lower).reciprocal_()
    return torch.mm(vectors * weights, vectors.T)
