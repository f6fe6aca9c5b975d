"""A linear-Gaussian latent model: everything an IWAE approximates is known in closed form.

    z ~ N(0, I_q),   y | z ~ N(Wz + b, σ² I_p),   θ = (W, b);
    y ~ N(b, C),  C = WWᵀ + σ²I;     z | y ~ N(A(y − b), I − AW),  A = Wᵀ C^{-1}.

Fisher's identity ∇_θ log p(y) = E[∇_θ log p(y, z) | y] makes loss_θ(z, y) = −log p_θ(y, z) the
loss whose expectation under the posterior has the gradient of V(θ) = −log p_θ(y), mean over the
data. The proposal of i-SIR has the exact posterior mean plus a shift, and covariance s²I, so its
mismatch, and with it the spread of the log weights, can be chosen.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from mlmcgrad.kernels import ISIR


@dataclass(frozen=True)
class LinearGaussian:
    """The problem at one θ, made by `linear_gaussian`."""

    weight: Tensor  # (p, q): W, a leaf that is differentiated
    bias: Tensor  # (p,): b, another
    _: KW_ONLY
    noise: float  # σ
    data: Tensor  # (data, p)
    proposal_scale: float  # s
    proposal_shift: float  # added to every coordinate of the posterior mean

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the loss."""
        return (self.weight, self.bias)

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """−log p_θ(y, z), (rows,)."""
        residual = y - z @ self.weight.T - self.bias
        p, q = self.weight.shape
        constant = 0.5 * (p + q) * math.log(2.0 * math.pi) + p * math.log(self.noise)
        squares = residual.square().sum(1) / self.noise**2 + z.square().sum(1)
        return 0.5 * squares + constant

    def log_density(self, z: Tensor, y: Tensor) -> Tensor:
        """Log p_θ(z | y) up to a constant: what MALA or RWMH would sample."""
        return -self.loss(z, y)

    def log_weight(self, z: Tensor, y: Tensor) -> Tensor:
        """Log p_θ(y, z) − log q(z | y), (rows,)."""
        mean, s = self.proposal_mean(y), self.proposal_scale
        q = z.shape[1]
        log_q = -0.5 * (z - mean).square().sum(1) / s**2 - q * math.log(s)
        return -self.loss(z, y) - (log_q - 0.5 * q * math.log(2.0 * math.pi))

    def propose(self, rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
        """One draw of q(z | y) for each row."""
        mean = self.proposal_mean(y)
        return mean + self.proposal_scale * torch.randn(
            rows, mean.shape[1], dtype=y.dtype, generator=generator
        )

    def proposal_mean(self, y: Tensor) -> Tensor:
        """Mean of q(z | y), (rows, q)."""
        return self.posterior(y)[0] + self.proposal_shift

    def kernel(self, candidates: int = 5, rao_blackwell: bool = False) -> ISIR:
        """i-SIR for the posterior."""
        return ISIR(self.log_weight, self.propose, candidates, rao_blackwell=rao_blackwell)

    def posterior(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean, (rows, q), and covariance, (q, q), of z given y."""
        w = self.weight.detach()
        gain = torch.linalg.solve(self.marginal_covariance(), w).T  # (q, p): A
        identity = torch.eye(w.shape[1], dtype=w.dtype)
        return (y - self.bias.detach()) @ gain.T, identity - gain @ w

    def sample(self, y: Tensor, generator: torch.Generator) -> Tensor:
        """One independent draw of the posterior for each row of y."""
        mean, covariance = self.posterior(y)
        noise = torch.randn(mean.shape, dtype=mean.dtype, generator=generator)
        return mean + noise @ torch.linalg.cholesky(covariance).T

    def marginal_covariance(self) -> Tensor:
        """C = WWᵀ + σ²I, (p, p)."""
        w = self.weight.detach()
        return w @ w.T + self.noise**2 * torch.eye(w.shape[0], dtype=w.dtype)

    def log_likelihood(self, y: Tensor) -> Tensor:
        """Log p_θ(y), (rows,)."""
        centred = y - self.bias.detach()
        covariance = self.marginal_covariance()
        squares = (centred * torch.linalg.solve(covariance, centred.T).T).sum(1)
        constant = y.shape[1] * math.log(2.0 * math.pi) + torch.logdet(covariance)
        return -0.5 * (squares + constant)

    def objective(self) -> float:
        """V(θ) = −log p_θ(y), mean over the data."""
        return -float(self.log_likelihood(self.data).mean())

    def exact_gradient(self) -> tuple[Tensor, ...]:
        """∇V: −C^{-1}(S − C)C^{-1}W for W, with S the second moment about b, and −C^{-1}(ȳ − b)."""
        centred = self.data - self.bias.detach()
        precision = torch.linalg.inv(self.marginal_covariance())
        second = centred.T @ centred / len(centred)
        slope = precision @ second @ precision - precision
        return -slope @ self.weight.detach(), -precision @ centred.mean(0)


def linear_gaussian(
    observed: int = 4,
    latent: int = 2,
    *,
    data: int = 8,
    noise: float = 0.5,
    proposal_scale: float = 0.4,
    proposal_shift: float = 0.25,
    seed: int = 0,
) -> LinearGaussian:
    """Make a problem with random W, b and data from a different W.

    Args:
        observed: p.
        latent: q.
        data: number of observations.
        noise: σ.
        proposal_scale: s; the wider the proposal, the larger the spread of the log weights.
        proposal_shift: added to the posterior mean.
        seed: determines everything random.

    Example:
        >>> [tuple(g.shape) for g in linear_gaussian().exact_gradient()]
        [(4, 2), (4,)]
    """
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(
        data + 2 * observed + 1, max(latent, observed), dtype=torch.float64, generator=generator
    )
    weight, other = draw[:observed, :latent], draw[observed : 2 * observed, :latent]
    z = draw[2 * observed + 1 :, :latent]
    spread = torch.randn(data, observed, dtype=torch.float64, generator=generator)
    return LinearGaussian(
        weight=weight.clone().requires_grad_(),
        bias=draw[2 * observed, :observed].clone().requires_grad_(),
        noise=noise,
        data=z @ (weight + 0.3 * other).T + noise * spread,
        proposal_scale=proposal_scale,
        proposal_shift=proposal_shift,
    )
