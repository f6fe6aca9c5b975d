"""A non-convex problem on a torus for which every constant of the paper's theorems is a number.

    f_x(θ) = Σ_k a_{x,k} sin(k·θ + φ_{x,k}),  k ∈ {(1,0), (0,1), (1,1)},   x = 0 … S−1,
    π_θ(x) ∝ exp f_x(θ),     V(θ) = log Σ_x exp f_x(θ) − f̄(θ),     f̄ = Σ_x p_x f_x,
    H_θ(x) = ∇f_x(θ) − ∇f̄(θ),     ∇V(θ) = E_{π_θ}[H_θ(X)],

a likelihood of categories with data frequencies p, smooth, bounded and 2π-periodic in θ ∈ R². The
chain is P_θ = a I + (1−a) 1π_θᵀ (`Regenerative`), so for every θ ζ = 1, α = a and d̄(t) = a^t.

The chain average of t steps from x_0 has the mean (1−s) ∇V(θ) + s H_θ(x_0), s = (1/t) Σ_{i≤t} a^i:
the gradient of V_t = (1−s) V + s (f_{x_0} − f̄). Training with a constant T therefore minimises V_t
instead of V, and the gradient that is left of V at its minima is known (`biased_gradient`).

**Constants.** Suprema over θ are maxima over a grid of m × m points of the torus, raised by what
can happen between them: every θ is within r = √2 π/m of a grid point. With B_j = max_x Σ_k
|a_{x,k}| |k|^j, a bound of the j-th derivative of every f_x and of f̄ in every direction,

    G = max ‖H_θ(x)‖ + 2 B_2 r,
    L = max ‖∇²V‖ + (2 B_3 + 3 B_1 B_2 + B_1³) r,
    V* ≥ min V − L r²/2                 (∇V = 0 at the minimiser),
    E V(θ_0) ≤ mean V + L r²/2          (θ_0 uniform; linear terms cancel in each cell),

maxima, minimum and mean over the grid. The bracket bounds the third derivative of V in any
direction: with D_j for the j-th derivative of f_X, X ~ π_θ, that of log Σ exp f is
E D_3 + 3 Cov(D_2, D_1) + E(D_1 − E D_1)³, and |D_j| ≤ B_j.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from mlmcgrad.kernels import Regenerative

_FREQUENCIES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)  # (3, 2)
_SCALE = torch.tensor([1.0, 1.0, 0.7], dtype=torch.float64)


@dataclass(frozen=True)
class Smoothness:
    """What the theorems need to know about V and H, valid for every θ."""

    G: float
    """Bound of the Euclidean norm ‖H_θ(x)‖."""
    L: float
    """Lipschitz constant of ∇V."""
    lowest: float
    """Lower bound of V."""
    gap: float
    """Upper bound of E V(θ_0) − min V for θ_0 uniform on the torus."""


@dataclass(frozen=True)
class Sticky:
    """The problem for several θ at once, one row each, made by `sticky`.

    Attributes:
        theta: the parameters, (rows, 2), a leaf.
        amplitude: a_{x,k}, (S, 3).
        phase: φ_{x,k}, (S, 3).
        frequency: p, (S,).
        stay: a, the probability that the chain stays where it is.
    """

    theta: Tensor
    _: KW_ONLY
    amplitude: Tensor
    phase: Tensor
    frequency: Tensor
    stay: float

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the loss."""
        return (self.theta,)

    def loss(self, x: Tensor, theta: Tensor) -> Tensor:
        """The loss f_x(θ) − f̄(θ), with one row of θ for each x: its gradient is H_θ(x)."""
        waves = theta @ _FREQUENCIES.T  # (points, 3)
        mean = self.values(theta) @ self.frequency
        return (self.amplitude[x] * (waves + self.phase[x]).sin()).sum(-1) - mean

    def kernel(self) -> Regenerative:
        """The chain, one row of θ as the context of each."""
        return Regenerative(self.stay, self.law)

    def start(self, state: int = 0) -> Tensor:
        """All chains in one state, one for each row of θ."""
        return torch.full((len(self.theta),), state)

    def law(self, theta: Tensor) -> Tensor:
        """π_θ, (rows, S)."""
        return self.values(theta).softmax(-1)

    def matrix(self, theta: Tensor) -> Tensor:
        """Transition matrices P_θ, (rows, S, S)."""
        law = self.law(theta)[:, None, :]
        identity = torch.eye(law.shape[-1], dtype=law.dtype)
        return self.stay * identity + (1.0 - self.stay) * law.expand(-1, law.shape[-1], -1)

    def values(self, theta: Tensor) -> Tensor:
        """f_x(θ), (rows, S)."""
        waves = (theta @ _FREQUENCIES.T)[:, None]  # (rows, 1, 3)
        return (self.amplitude * (waves + self.phase).sin()).sum(-1)

    def slopes(self, theta: Tensor) -> Tensor:
        """H_θ(x) = ∇f_x(θ) − ∇f̄(θ) for every x, (rows, S, 2)."""
        waves = (theta @ _FREQUENCIES.T)[:, None]
        each = (self.amplitude * (waves + self.phase).cos()) @ _FREQUENCIES
        return each - (self.frequency[:, None] * each).sum(1, keepdim=True)

    def objective(self, theta: Tensor) -> Tensor:
        """V(θ), (rows,)."""
        values = self.values(theta)
        return values.logsumexp(-1) - values @ self.frequency

    def gradient(self, theta: Tensor) -> Tensor:
        """∇V(θ), (rows, 2)."""
        return (self.law(theta)[..., None] * self.slopes(theta)).sum(1)

    def exact_gradient(self) -> tuple[Tensor, ...]:
        """∇V at every row of θ."""
        return (self.gradient(self.theta.detach()),)

    def hessian(self, theta: Tensor, share: float = 0.0, start: int = 0) -> Tensor:
        """Second derivatives of (1−s) V + s (f_start − f̄), (rows, 2, 2): of V by default.

        ∇²V = E_π ∇²f − ∇²f̄ + Cov_π(∇f).
        """
        waves = (theta @ _FREQUENCIES.T)[:, None]
        bend = -self.amplitude * (waves + self.phase).sin()  # (rows, S, 3)
        law, slopes, mean = self.law(theta), self.slopes(theta), self.gradient(theta)
        weights = (1.0 - share) * law - self.frequency
        weights[:, start] += share
        outer = _FREQUENCIES[:, :, None] * _FREQUENCIES[:, None]  # (3, 2, 2)
        second = torch.einsum("rs,rsk,kij->rij", weights, bend, outer)
        moment = torch.einsum("rs,rsi,rsj->rij", law, slopes, slopes)
        return second + (1.0 - share) * (moment - mean[:, :, None] * mean[:, None])

    def bias_share(self, length: int) -> float:
        """The weight s = (1/t) Σ_{i≤t} a^i of the start in a chain average of t steps."""
        return self.stay * (1.0 - self.stay**length) / ((1.0 - self.stay) * length)

    def biased_gradient(self, theta: Tensor, length: int, start: int = 0) -> Tensor:
        """E[H^{(length)}] for a chain from `start`: ∇V_t(θ), (rows, 2)."""
        share = self.bias_share(length)
        return (1.0 - share) * self.gradient(theta) + share * self.slopes(theta)[:, start]

    def biased_minima(self, theta: Tensor, length: int, start: int = 0) -> Tensor:
        """The minimum of V_t that each row of θ descends to, (rows, 2).

        The steps are Newton's with |λ| for the eigenvalues λ, so they descend everywhere, and at
        most 0.1 long.
        """
        share = self.bias_share(length)
        for _ in range(5000):
            slope = self.biased_gradient(theta, length, start)
            if float(slope.abs().max()) < 1e-9:
                break
            values, vectors = torch.linalg.eigh(self.hessian(theta, share, start))
            along = torch.einsum("rij,ri->rj", vectors, slope) / values.abs().clamp(min=0.05)
            step = torch.einsum("rij,rj->ri", vectors, along)
            theta = theta - step * (0.1 / step.norm(dim=1, keepdim=True)).clamp(max=1.0)
        return theta

    def smoothness(self, points: int = 512) -> Smoothness:
        """G, L, min V and the gap, from a grid of points × points and the module's margins."""
        line = torch.arange(points, dtype=torch.float64) * (2.0 * math.pi / points)
        slope, bend, lowest, total = 0.0, 0.0, math.inf, 0.0
        for first in line:  # one row of the grid at a time
            theta = torch.stack([first.expand(points), line], dim=1)
            slope = max(slope, float(self.slopes(theta).norm(dim=-1).max()))
            bend = max(bend, float(torch.linalg.eigvalsh(self.hessian(theta)).abs().max()))
            values = self.objective(theta)
            lowest, total = min(lowest, float(values.min())), total + float(values.sum())
        radius = math.sqrt(2.0) * math.pi / points
        b1, b2, b3 = (self._derivative(order) for order in (1, 2, 3))
        lipschitz = bend + (2.0 * b3 + 3.0 * b1 * b2 + b1**3) * radius
        margin = lipschitz * radius**2 / 2.0
        return Smoothness(
            G=slope + 2.0 * b2 * radius,
            L=lipschitz,
            lowest=lowest - margin,
            gap=total / points**2 - lowest + 2.0 * margin,
        )

    def _derivative(self, order: int) -> float:
        """B_j, a bound of the j-th derivative of every f_x in every direction."""
        return float((self.amplitude.abs() @ _FREQUENCIES.norm(dim=1) ** order).max())


def sticky(rows: int = 1, *, states: int = 4, stay: float = 0.5, seed: int = 0) -> Sticky:
    """Make a problem with random waves and frequencies, and θ uniform on the torus in every row.

    Args:
        rows: number of θ.
        states: S ≥ 2.
        stay: a in [0, 1); the larger, the slower the chain mixes.
        seed: determines everything random.

    Example:
        >>> problem = sticky()
        >>> problem.matrix(problem.theta.detach()).shape
        torch.Size([1, 4, 4])
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (states, len(_FREQUENCIES))
    amplitude = torch.randn(shape, dtype=torch.float64, generator=generator) * _SCALE
    phase = torch.rand(shape, dtype=torch.float64, generator=generator) * (2.0 * math.pi)
    weights = torch.rand(states, dtype=torch.float64, generator=generator)
    theta = torch.rand(rows, 2, dtype=torch.float64, generator=generator) * (2.0 * math.pi)
    return Sticky(
        theta.requires_grad_(),
        amplitude=amplitude,
        phase=phase,
        frequency=weights / weights.sum(),
        stay=stay,
    )
