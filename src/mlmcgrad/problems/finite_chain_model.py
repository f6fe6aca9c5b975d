"""A Metropolis chain on a ring of S states whose stationary law depends on θ.

    π_θ(x) ∝ exp(θ·f(x)),     V(θ) = log Σ_x exp(θ·f(x)) − θ·f̄,     ∇V(θ) = E_{π_θ}[f(X)] − f̄,

the negative log-likelihood of an exponential family with feature means f̄ in the data. The chain
proposes a neighbour on the ring (each with probability 1/2) and accepts it by Metropolis, so it
mixes in about S² steps. The transition matrix and the expectation of a chain average of any length
from any start are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.kernels import Finite


@dataclass(frozen=True)
class FiniteChain:
    """The problem at one θ, made by `finite_chain`.

    Attributes:
        theta: the parameters, (d,), a leaf.
        features: f(x), (S, d).
        data_mean: f̄, (d,).
    """

    theta: Tensor
    features: Tensor
    data_mean: Tensor

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the loss."""
        return (self.theta,)

    def loss(self, x: Tensor) -> Tensor:
        """Return θ·(f(x) − f̄), (chains,): its gradient has the mean ∇V under π_θ."""
        return (self.features[x] - self.data_mean) @ self.theta

    def kernel(self) -> Finite:
        """Return the chain as a kernel that follows θ."""
        return Finite(self.matrix)

    def start(self, chains: int) -> Tensor:
        """Start all chains in state 0, far from the stationary law."""
        return torch.zeros(chains, dtype=torch.int64)

    def sample(self, chains: int, generator: torch.Generator) -> Tensor:
        """Draw from π_θ independently."""
        return torch.multinomial(self.law(), chains, replacement=True, generator=generator)

    def matrix(self) -> Tensor:
        """Return the transition matrix P_θ, (S, S)."""
        energy = -(self.features @ self.theta.detach())  # (S,)
        size = len(energy)
        state = torch.arange(size)
        matrix = torch.zeros(size, size, dtype=energy.dtype)
        for shift in (1, -1):
            neighbour = (state + shift) % size
            accepted = (energy - energy[neighbour]).exp().clamp(max=1.0)
            # += through index_put: for S = 2 both neighbours are the same state.
            matrix.index_put_((state, neighbour), 0.5 * accepted, accumulate=True)
        return matrix + torch.diag(1.0 - matrix.sum(1))

    def law(self) -> Tensor:
        """Return π_θ(x) ∝ exp f(x)ᵀθ, (S,)."""
        return (self.features @ self.theta.detach()).softmax(0)

    def objective(self) -> float:
        """Return V(θ)."""
        theta = self.theta.detach()
        return float(torch.logsumexp(self.features @ theta, 0) - self.data_mean @ theta)

    def exact_gradient(self) -> tuple[Tensor, ...]:
        """Return ∇V(θ) = Σ_x π_θ(x) f(x) − f̄."""
        return ((self.law()[:, None] * self.features).sum(0) - self.data_mean,)

    def average_gradient(self, length: int, start: int = 0) -> Tensor:
        """Return E[H^{(length)}] for a chain from `start`."""
        matrix, law = self.matrix(), torch.zeros(len(self.features), dtype=self.features.dtype)
        law[start] = 1.0
        total = torch.zeros_like(law)
        for _ in range(length):
            law = law @ matrix
            total += law
        return total / length @ self.features - self.data_mean


def finite_chain(states: int = 8, dimension: int = 2, *, seed: int = 0) -> FiniteChain:
    """Make a problem with random features, data and θ.

    Args:
        states: S ≥ 2.
        dimension: d.
        seed: determines everything random.

    Example:
        >>> problem = finite_chain()
        >>> problem.matrix().shape
        torch.Size([8, 8])
    """
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(states, dimension, dtype=torch.float64, generator=generator)
    weights = torch.rand(states, dtype=torch.float64, generator=generator)
    theta = torch.randn(dimension, dtype=torch.float64, generator=generator) * 0.5
    return FiniteChain(
        theta=theta.requires_grad_(),
        features=features,
        data_mean=weights / weights.sum() @ features,
    )
