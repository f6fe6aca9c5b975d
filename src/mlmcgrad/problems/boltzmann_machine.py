"""A restricted Boltzmann machine small enough to enumerate, sampled by block Gibbs.

    p_θ(v, h) ∝ exp(vᵀWh + a·v + c·h),   v ∈ {0,1}^p,  h ∈ {0,1}^q,  θ = (W, a, c);
    free energy F_θ(v) = −a·v − Σ_j log(1 + e^{(vᵀW + c)_j}),     p_θ(v) ∝ e^{−F_θ(v)};
    V(θ) = −mean log p_θ(data) = mean F_θ(data) + log Z,    ∇V = mean ∇F_θ(data) − E_{p_θ}[∇F_θ(v)].

The chain is `kernels.Gibbs`. Stopping after one step from the data is contrastive divergence.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from mlmcgrad.kernels import Gibbs
from mlmcgrad.kernels.gibbs import binary_states


@dataclass(frozen=True)
class Boltzmann:
    """The problem at one θ, made by `boltzmann`. States are v, (chains, p) of 0. and 1."""

    weight: Tensor  # (p, q): W, a leaf that is differentiated
    visible: Tensor  # (p,): a, another
    hidden: Tensor  # (q,): c, another
    _: KW_ONLY
    data: Tensor  # (data, p)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the loss."""
        return (self.weight, self.visible, self.hidden)

    def free_energy(self, v: Tensor) -> Tensor:
        """Return F_θ(v), (rows,)."""
        return self.kernel().free_energy(v)

    def loss(self, v: Tensor) -> Tensor:
        """Return mean F_θ(data) − F_θ(v), (rows,): its gradient has the mean ∇V under p_θ."""
        return self.free_energy(self.data).mean() - self.free_energy(v)

    def kernel(self) -> Gibbs:
        """Return block Gibbs."""
        return Gibbs(self.weight, self.visible, self.hidden)

    def start(self, chains: int) -> Tensor:
        """Repeat the data as often as needed: the start of contrastive divergence."""
        return self.data[torch.arange(chains) % len(self.data)]

    def states(self) -> Tensor:
        """Return all visible states, (2^p, p)."""
        return binary_states(len(self.visible), self.data.dtype)

    def law(self) -> Tensor:
        """Return p_θ(v) for all visible states, (2^p,)."""
        with torch.no_grad():
            return (-self.free_energy(self.states())).softmax(0)

    def sample(self, chains: int, generator: torch.Generator) -> Tensor:
        """Draw from p_θ(v) independently."""
        return self.states()[torch.multinomial(self.law(), chains, True, generator=generator)]

    def transition(self) -> Tensor:
        """Return the matrix of a Gibbs step between visible states, (2^p, 2^p), a sum over h."""
        with torch.no_grad():
            v = self.states()
            h = binary_states(len(self.hidden), v.dtype)
            down = torch.sigmoid(v @ self.weight + self.hidden)  # P(h_j = 1 | v)
            up = torch.sigmoid(h @ self.weight.T + self.visible)  # P(v_i = 1 | h)
            return _product(down, h) @ _product(up, v)  # (2^p, 2^q) times (2^q, 2^p)

    def objective(self) -> float:
        """Return V(θ)."""
        with torch.no_grad():
            log_z = (-self.free_energy(self.states())).logsumexp(0)
            return float(self.free_energy(self.data).mean() + log_z)

    def exact_gradient(self) -> tuple[Tensor, ...]:
        """Return ∇V(θ), by enumeration of all visible states."""
        with torch.enable_grad():
            expected = (self.law() * self.loss(self.states())).sum()
            return torch.autograd.grad(expected, self.parameters)


def _product(probability: Tensor, outcomes: Tensor) -> Tensor:
    """Π_j p_j^{o_j} (1 − p_j)^{1 − o_j} for each row of probabilities and each outcome."""
    log_p, log_q = probability.log(), torch.log1p(-probability)
    return (log_p @ outcomes.T + log_q @ (1.0 - outcomes).T).exp()


def boltzmann(visible: int = 4, hidden: int = 3, *, data: int = 6, seed: int = 0) -> Boltzmann:
    """Make a problem with random parameters and data.

    Args:
        visible: p; there are 2^p states to enumerate.
        hidden: q.
        data: number of observations.
        seed: determines everything random.

    Example:
        >>> boltzmann().states().shape
        torch.Size([16, 4])
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    return Boltzmann(
        weight=normal(visible, hidden),
        visible=normal(visible),
        hidden=normal(hidden),
        data=torch.randint(0, 2, (data, visible), generator=generator).double(),
    )
