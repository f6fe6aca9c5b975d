"""Block Gibbs of a restricted Boltzmann machine with binary units.

    p_θ(v, h) ∝ exp(vᵀWh + a·v + c·h),   v ∈ {0,1}^p,  h ∈ {0,1}^q,  θ = (W, a, c);
    P(h_j = 1 | v) = σ((vᵀW + c)_j),     P(v_i = 1 | h) = σ((Wh + a)_i);
    F_θ(v) = −a·v − Σ_j log(1 + e^{(vᵀW + c)_j}),     p_θ(v) = e^{−F_θ(v)} / Z_θ.

A step draws h given v, then v given h: two matrix products and two comparisons. The state is v.
Since ∇log Z_θ = E_{p_θ}[−∇F_θ(v)], the gradient of −mean log p_θ(data) = mean F_θ(data) + log Z_θ
is that of the free energy of the data plus an expectation under the chain, of the loss −F_θ. In
∂F/∂W = −v E[h | v]ᵀ the hidden layer enters by its conditional mean, not by a draw, which
Rao–Blackwellises the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mlmcgrad._checks import non_negative, whole
from mlmcgrad.kernels.base import (
    Context,
    Fault,
    Position,
    StepKernel,
    Walk,
    check_place,
    described,
    precise,
)


@final
@dataclass(frozen=True)
class Gibbs(StepKernel[Position]):
    """A restricted Boltzmann machine: its block Gibbs chain, free energy and loss.

    Args:
        weight: W, (p, q), usually float32; read again for every estimate.
        visible: a, (p,).
        hidden: c, (q,).

    States are v, (chains, p) of 0 and 1 in the dtype of the parameters. Chains start at data
    (contrastive divergence), at states of a `Store` or of `estimate.last` (persistent contrastive
    divergence), or at `random_states`.

    Example:
        >>> import mlmcgrad as mg
        >>> rng = torch.Generator().manual_seed(0)
        >>> machine = Gibbs.of_size(6, 4, generator=rng)
        >>> data = machine.random_states(20, rng)
        >>> gradient = mg.MarkovGradient(machine, machine.loss, mg.MLMC(64))
        >>> machine.free_energy(data).mean().backward()  # the data's part of the gradient
        >>> estimate = gradient.backward(data, generator=rng)  # and that of log Z
        >>> machine.weight.grad.shape
        torch.Size([6, 4])

    Reference:
        Hinton (2002), Training products of experts by minimizing contrastive divergence. Tieleman
        (2008), Training restricted Boltzmann machines using approximations to the likelihood
        gradient.
    """

    weight: Tensor
    visible: Tensor
    hidden: Tensor

    def __post_init__(self) -> None:
        weight = self.weight
        if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
            raise ValueError(
                "weight must be a floating-point tensor of shape (p, q), got " + described(weight)
            )
        for name, size in (("visible", weight.shape[0]), ("hidden", weight.shape[1])):
            bias = getattr(self, name)
            if not isinstance(bias, Tensor) or bias.shape != (size,) or bias.dtype != weight.dtype:
                raise ValueError(
                    f"{name} must be {weight.dtype} of shape ({size},) to go with weight of shape "
                    f"{tuple(weight.shape)}, got {described(bias)}"
                )

    @classmethod
    def of_size(
        cls,
        visible: int,
        hidden: int,
        *,
        scale: float = 0.01,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Gibbs:
        """A machine to be trained: normal parameters that require a gradient.

        Args:
            visible: p, the number of visible units.
            hidden: q, the number of hidden units.
            scale: standard deviation of weights and biases.
            generator: source of the randomness; its device is that of the parameters.
            dtype: of the parameters and states.
        """
        whole(visible, "visible")
        whole(hidden, "hidden")
        non_negative(scale, "scale")

        def normal(*shape: int) -> Tensor:
            z = torch.randn(shape, dtype=dtype, device=generator.device, generator=generator)
            return (scale * z).requires_grad_()

        return cls(normal(visible, hidden), normal(visible), normal(hidden))

    @property
    def parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """(W, a, c)."""
        return self.weight, self.visible, self.hidden

    def free_energy(self, v: Tensor) -> Tensor:
        """F_θ(v), (rows,), differentiable in the parameters."""
        inside = torch.addmm(self.hidden, v, self.weight)
        return -(v @ self.visible) - torch.nn.functional.softplus(inside).sum(1)

    def loss(self, v: Tensor) -> Tensor:
        """−F_θ(v), (rows,): the mean of its gradient under p_θ is ∇log Z_θ."""
        return -self.free_energy(v)

    def random_states(self, chains: int, generator: torch.Generator) -> Tensor:
        """Visible units of fair coins, (chains, p)."""
        whole(chains, "chains")
        size = (chains, len(self.visible))
        return torch.randint(
            0, 2, size, dtype=self.weight.dtype, device=self.weight.device, generator=generator
        )

    def start(self, x: Tensor, context: Context) -> tuple[Position, int]:
        """State at x; nothing is evaluated."""
        p, dtype = len(self.visible), self.weight.dtype
        if x.shape[1:] != (p,) or x.dtype != dtype:
            raise ValueError(
                f"x0 must be {dtype} of shape (chains, {p}) for this machine, got {described(x)}"
            )
        for name, parameter in zip(("weight", "visible", "hidden"), self.parameters, strict=True):
            check_place(name, parameter, x)
        return Position(x), 0

    def fault(self, state: Position) -> Fault:
        """States that are not binary, and parameters that are not finite."""
        binary = ((state.x == 0.0) | (state.x == 1.0)).all()
        finite = torch.stack([p.detach().isfinite().all() for p in self.parameters]).all()

        def error() -> Exception:
            if not bool(binary):
                return ValueError("x0 must hold nothing but 0 and 1, the states of binary units")
            return FloatingPointError(
                "the machine has a parameter that is NaN or infinite; the training has diverged "
                "before this step, lower its step size"
            )

        return Fault(~(binary & finite), error)

    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Uniforms for a block of steps, (steps, chains, q) and (1 + steps, chains, p).

        The first row of the second is room for where the chains are, not filled. They are never
        in half precision, whose uniforms are multiples of 1/256 in bfloat16.
        """
        p, q = self.weight.shape
        precise = torch.promote_types(x.dtype, torch.float32)
        hidden = x.new_empty(steps, len(x), q, dtype=precise).uniform_(generator=generator)
        visible = x.new_empty(steps + 1, len(x), p, dtype=precise)
        visible[1:].uniform_(generator=generator)
        return hidden, visible

    def walk(
        self, state: Position, noise: tuple[Tensor, Tensor], context: Context
    ) -> Walk[Position]:
        """Make a block of transitions of every chain."""
        for_hidden, path = noise
        x = state.x.to(path.dtype)
        weight, visible_bias, hidden_bias = (p.detach().to(path.dtype) for p in self.parameters)
        # Comparisons write 0. and 1. over their uniforms: a third of the time of making a mask
        # first. The path takes the place of the noise that it is made of.
        path[0] = x
        with precise(x.device):
            for hidden, visible in zip(for_hidden, path[1:], strict=True):
                torch.lt(hidden, torch.addmm(hidden_bias, x, weight).sigmoid_(), out=hidden)
                x = torch.lt(
                    visible, torch.addmm(visible_bias, hidden, weight.T).sigmoid_(), out=visible
                )
        moved = torch.ones(for_hidden.shape[:2], dtype=torch.bool, device=path.device)
        dtype = state.x.dtype
        return Walk(Position(x.to(dtype)), path.to(dtype), moved, None)


def binary_states(units: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """All states of some binary units, (2^units, units), for machines that can be enumerated."""
    return (torch.arange(2**units)[:, None] >> torch.arange(units) & 1).to(dtype)
