"""Optimizers with a diagonal matrix: SGD, Adagrad, RMSProp, AMSGrad (paper, Sections 2 and 3).

They take the steps θ_n = θ_{n−1} − γ_n A_{n−1} Ĥ_n, n = 1, 2, …, and A_0 is their first matrix. In
the formulas of the classes all operations are elementwise, and sums and averages start from 0.

The update of each is written once, over lists of tensors. With `foreach` the lists are long, which
suits accelerators; without it they hold one tensor each. The numbers are the same. On a CPU the
lists are cut to about the size of a cache: one list then goes through all operations of the update
before the next list is touched, and temporaries stay that small.

`weight_decay` λ is an L2 penalty, as in torch.optim.SGD and Adam (not decoupled as in AdamW): the
gradient is Ĥ_n + λ θ_{n−1} wherever Ĥ_n stands in a formula. It estimates ∇(V + ½λ‖θ‖²) with the
bias of Ĥ_n, so the theorems apply to the penalised objective, with a G that also bounds λ‖θ‖.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._base import (
    EPS,
    FRACTION,
    NON_NEGATIVE,
    POSITIVE_OR_INFINITE,
    AdaptiveOptimizer,
    Range,
    RangePair,
    Ranges,
    state_dtype,
)
from mlmcgrad.schedules import Schedule

CACHE_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class ForeachBatch:
    """Tensors that are updated together: one device, one dtype, one count."""

    params: list[Tensor]
    grads: list[Tensor]
    states: dict[str, list[Tensor]]
    count: int
    """How many gradients each of these parameters has had, this one included."""


class DiagonalOptimizer(AdaptiveOptimizer):
    """Base class of the diagonal optimizers; a subclass names its state and writes its update."""

    _state_names: ClassVar[tuple[str, ...]]
    """State tensors of a parameter; each has its shape and starts at zero."""

    @abstractmethod
    def _update(self, group: dict[str, Any], batch: ForeachBatch, rate: float) -> None:
        """Update the state tensors and parameters of one batch in place."""

    @final
    def _check(self, group: dict[str, Any], params: list[Tensor], where: str) -> None:
        added = group.get("eps", 1.0) ** 2  # SGD has no root
        for dtype in {state_dtype(p) for p in params}:
            least = torch.finfo(dtype).tiny
            if added < least:
                raise ValueError(
                    f"eps={group['eps']!r} adds {added:.3g} under the root, which is next to 0 "
                    f"in {dtype}, so that a step could divide by 0{where}; set eps to at least "
                    f"{least**0.5:.3g}"
                )

    @final
    def _initial_state(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        zeros = {name: torch.zeros_like(p, dtype=state_dtype(p)) for name in self._state_names}
        return {"count": 0, **zeros}

    @final
    def _apply(self, group: dict[str, Any], params: list[Tensor], rate: float) -> None:
        for p in params:
            state = self.state[p]
            if not state:
                state.update(self._initial_state(group, p))
            state["count"] += 1
        # Ascent maximises V − ½λ‖θ‖², so there the penalty enters the gradient with a minus.
        decay = -group["weight_decay"] if group["maximize"] else group["weight_decay"]
        for members in self._lists(params, group["foreach"]):
            states = {name: [self.state[p][name] for p in members] for name in self._state_names}
            count = self.state[members[0]]["count"]
            moved, grads = members, [p.grad for p in members if p.grad is not None]
            if state_dtype(members[0]) != members[0].dtype:
                moved, grads = [p.float() for p in moved], [g.float() for g in grads]
            if decay:
                grads = list(torch._foreach_add(grads, moved, alpha=decay))
            self._update(group, ForeachBatch(moved, grads, states, count), rate)
            if moved is not members:
                torch._foreach_copy_(members, moved)

    def _lists(self, params: list[Tensor], foreach: bool | None) -> Iterator[list[Tensor]]:
        """Cut parameters into lists that a foreach operation can work on."""
        # Tensor subclasses (DTensor and the like) need not know the foreach operations.
        plain = all(type(p) in (Tensor, torch.nn.Parameter) for p in params)
        together = plain if foreach is None else foreach
        limit = CACHE_ELEMENTS if together else 0
        lists: dict[tuple[torch.device, torch.dtype, int], list[Tensor]] = {}
        sizes: dict[tuple[torch.device, torch.dtype, int], int] = {}
        for p in params:
            key = (p.device, p.dtype, self.state[p]["count"])
            members = lists.setdefault(key, [])
            size = sizes.get(key, 0) + p.numel()
            if members and size > limit and (p.device.type == "cpu" or not together):
                yield members
                lists[key] = members = []
                size = p.numel()
            members.append(p)
            sizes[key] = size
        yield from lists.values()


class SGD(DiagonalOptimizer):
    r"""Stochastic gradient descent with a scheduled step size: A = I.

    $$
    \theta_n = \theta_{n-1} - \gamma_n \hat H_n
    $$

    The steps are those of `torch.optim.SGD`. It has no momentum, to which the theorem does not
    apply; use `torch.optim.SGD` for that.

    Args:
        params: parameters, named parameters or param groups.
        lr: step size γ_n ≥ 0, a number or a schedule.
        weight_decay: λ ≥ 0 of the penalty ½λ‖θ‖², whose gradient λθ is added to Ĥ_n.
        foreach: work on lists of tensors (None: yes, unless there are tensor subclasses).
        maximize: ascend instead of descend.
        check_finite: refuse gradients that are not finite and steps that would overflow, before
            anything is changed; False saves a pass, and on an accelerator the only wait of a step.

    Example:
        >>> from mlmcgrad.schedules import power
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = SGD([theta], lr=power(0.25, -0.5))
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> theta.item()  # 1 − 0.25 · 2
        0.5

    Reference:
        Robbins, Monro (1951), A stochastic approximation method; the paper, Theorem "gen".
    """

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE}
    _fixed: ClassVar[Ranges] = {"weight_decay": NON_NEGATIVE}
    _state_names = ()

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
        check_finite: bool = True,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay}
        common = {"foreach": foreach, "maximize": maximize, "check_finite": check_finite}
        super().__init__(params, {**defaults, **common})

    def _update(self, group: dict[str, Any], batch: ForeachBatch, rate: float) -> None:
        torch._foreach_add_(batch.params, batch.grads, alpha=rate)

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """Return (1, 1), the eigenvalues of I, at every n."""
        return 1.0, 1.0


class Adagrad(DiagonalOptimizer):
    r"""MLMC-Adagrad: averaged, clipped squares and a regularization inside the root.

    $$
    S_n = S_{n-1} + \min(\hat H_n^2, M_n^2), \quad
    \theta_n = \theta_{n-1} - \gamma_n (\mathrm{eps}_n^2 + S_n / n)^{-1/2} \hat H_n
    $$

    `eps(n)` is 1/ε_n of the paper's equation "a-adagrad", small as in torch; a growing
    ε_n = ε_1 n^a is `eps=power(1/ε_1, -a)`. `clip(n)` is the paper's M_{n−1}: the paper counts M
    from 0, with the iterations, and lets M_{n−1} ∝ n^M in its corollary.

    Differs from `torch.optim.Adagrad`: squares are averaged, not summed (so γ_n ∝ n^{-1/2} here is
    a constant `lr` there), they are clipped, and the regularization is inside the root. If a
    parameter had no gradient at some steps, the average is over the others.

    Args:
        params: parameters, named parameters or param groups.
        lr: step size γ_n ≥ 0, a number or a schedule.
        eps: regularization, a number or a schedule in (0, 1000]: the inverse of the paper's ε_n.
            No eigenvalue of A exceeds 1/eps. torch adds its eps outside the root; here eps² is
            added inside, 1e-8 by default.
        clip: threshold M_n > 0 of |Ĥ_n|, a number or a schedule; `math.inf` does not clip.
        weight_decay: λ ≥ 0 of the penalty ½λ‖θ‖², whose gradient λθ is added to Ĥ_n.
        foreach: work on lists of tensors (None: yes, unless there are tensor subclasses).
        maximize: ascend instead of descend.
        check_finite: refuse gradients that are not finite and steps that would overflow, before
            anything is changed; False saves a pass, and on an accelerator the only wait of a step.

    Example:
        >>> from mlmcgrad.schedules import power
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = Adagrad([theta], lr=power(0.5, -0.5), eps=1.0, clip=10.0)
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> round(theta.item(), 4)  # 1 − 0.5 · 2 / √(1 + 4)
        0.5528

    Reference:
        Duchi, Hazan, Singer (2011), Adaptive subgradient methods; the paper, Section 3.2.
    """

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE, "eps": EPS, "clip": POSITIVE_OR_INFINITE}
    _fixed: ClassVar[Ranges] = {"weight_decay": NON_NEGATIVE}
    _state_names = ("sum",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        eps: float | Schedule = 1e-4,
        clip: float | Schedule = math.inf,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
        check_finite: bool = True,
    ) -> None:
        defaults = {"lr": lr, "eps": eps, "clip": clip, "weight_decay": weight_decay}
        common = {"foreach": foreach, "maximize": maximize, "check_finite": check_finite}
        super().__init__(params, {**defaults, **common})

    def _update(self, group: dict[str, Any], batch: ForeachBatch, rate: float) -> None:
        totals, n = batch.states["sum"], batch.count
        bounded = clipped(batch.grads, group["clip"])
        torch._foreach_addcmul_(totals, bounded, bounded)
        del bounded  # its memory is used again for the roots
        # (eps² + S/n)^{-1/2} = √n (n eps² + S)^{-1/2}: one pass over memory less.
        roots = torch._foreach_add(totals, n / (1.0 / group["eps"]) ** 2)
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(batch.params, batch.grads, roots, value=rate * math.sqrt(n))

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """Return (ε̲_{n−1}, ε_n): ε̲_0 = ε_1, ε̲_{n−1} = (ε_n^{-2} + sup_{i ≤ n−2} M_i²)^{-1/2}.

        They bound the eigenvalues of the paper's Ã_{n−1}, which is A_{n−1} without its latest
        square; ε_n bounds those of A_{n−1} too. With a large ε_1 and a small M, ε̲_0 is far above
        the others, so a random iterate stays at θ_0 for long: an ε_1 of order 1/M avoids that.
        """
        epsilon = 1.0 / self._value(index, "eps", n)
        if n == 1:
            return epsilon, epsilon
        largest = self._supremum(index, "clip", n - 1)  # M_0 … M_{n−2} are clip(1) … clip(n−1)
        return (epsilon**-2 + largest * largest) ** -0.5, epsilon


class RMSProp(DiagonalOptimizer):
    r"""Steps scaled by an exponential moving average of squared gradients.

    $$
    W_n = \rho W_{n-1} + (1-\rho) \min(\hat H_n^2, M_n^2), \quad
    \theta_n = \theta_{n-1} - \gamma_n (\delta + W_n)^{-1/2} \hat H_n
    $$

    with ρ = `alpha` and δ = eps².

    Differs from `torch.optim.RMSprop`, which adds eps outside the root. The paper's definition has
    no clipping: M = ∞, the default. A finite M makes assumption A5 hold.

    Args:
        params: parameters, named parameters or param groups.
        lr: step size γ_n ≥ 0, a number or a schedule.
        alpha: ρ in [0, 1), the memory of the average of squares.
        eps: the root of δ, in (0, 1000]; no eigenvalue of A exceeds 1/eps.
        clip: threshold M_n > 0 of |Ĥ_n|, a number or a schedule; `math.inf` does not clip.
        weight_decay: λ ≥ 0 of the penalty ½λ‖θ‖², whose gradient λθ is added to Ĥ_n.
        foreach: work on lists of tensors (None: yes, unless there are tensor subclasses).
        maximize: ascend instead of descend.
        check_finite: refuse gradients that are not finite and steps that would overflow, before
            anything is changed; False saves a pass, and on an accelerator the only wait of a step.

    Example:
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = RMSProp([theta], lr=0.01, alpha=0.75)
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> round(theta.item(), 4)  # 1 − 0.01 · 2 / √(0.25 · 4)
        0.98

    Reference:
        Tieleman, Hinton (2012), Lecture 6.5: RMSProp; the paper, Section 2.
    """

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE, "clip": POSITIVE_OR_INFINITE}
    _fixed: ClassVar[Ranges] = {"alpha": FRACTION, "eps": EPS, "weight_decay": NON_NEGATIVE}
    _state_names = ("average",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        alpha: float = 0.99,
        eps: float = 1e-4,
        clip: float | Schedule = math.inf,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
        check_finite: bool = True,
    ) -> None:
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "clip": clip}
        defaults["weight_decay"] = weight_decay
        common = {"foreach": foreach, "maximize": maximize, "check_finite": check_finite}
        super().__init__(params, {**defaults, **common})

    def _update(self, group: dict[str, Any], batch: ForeachBatch, rate: float) -> None:
        average = batch.states["average"]
        torch._foreach_mul_(average, group["alpha"])
        bounded = clipped(batch.grads, group["clip"])
        torch._foreach_addcmul_(average, bounded, bounded, value=1.0 - group["alpha"])
        del bounded  # its memory is used again for the roots
        roots = torch._foreach_add(average, group["eps"] ** 2)
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(batch.params, batch.grads, roots, value=rate)

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """Return ((δ + (1−ρ^n) sup_{k ≤ n} M_k²)^{-1/2}, δ^{-1/2}), for A_{n−1}.

        M_k is the threshold of step k. Without clipping the lower bound is 0.
        """
        group = self.param_groups[index]
        largest = self._supremum(index, "clip", n)
        squares = largest * largest * (1.0 - group["alpha"] ** n)
        delta = group["eps"] ** 2
        return (delta + squares) ** -0.5, delta**-0.5


class AMSGrad(DiagonalOptimizer):
    r"""MLMC-AMSGrad: no bias correction, δ inside the root, squares clipped before averaging.

    $$
    \begin{aligned}
    m_n &= \rho_1 m_{n-1} + (1-\rho_1) \hat H_n, \quad
    W_n = \rho_2 W_{n-1} + (1-\rho_2) \min(M_n^2, \hat H_n^2), \\
    \hat W_n &= \max(\hat W_{n-1}, W_n), \quad
    \theta_n = \theta_{n-1} - \gamma_n (\delta + \hat W_n)^{-1/2} m_n
    \end{aligned}
    $$

    with (ρ1, ρ2) = `betas` and δ = eps².

    `clip(n)` is M_n, a threshold of |Ĥ_n| as in Adagrad. The paper clips the squares at its ε_n, so
    ε_n = M_n². The paper counts iterations from 0, so m_n, W_n and Ŵ_n carry the index n − 1 there;
    γ_n and ε_n have the same index as here.

    Differs from `torch.optim.Adam(amsgrad=True)`, which corrects both averages for their start at
    zero and adds eps outside the root. Without the correction the first steps are about
    (1−ρ1)/√(1−ρ2) γ per coordinate, 3.2 γ with the defaults.

    Args:
        params: parameters, named parameters or param groups.
        lr: step size γ_n ≥ 0, a number or a schedule; the theorem needs it non-increasing.
        betas: ρ1 and ρ2 in [0, 1), the memory of the averages of gradients and of squares.
        eps: the root of δ, in (0, 1000]; no eigenvalue of A exceeds 1/eps.
        clip: threshold M_n > 0 of |Ĥ_n|, a number or a schedule; the theorem needs it
            non-decreasing. `math.inf` does not clip.
        weight_decay: λ ≥ 0 of the penalty ½λ‖θ‖², whose gradient λθ is added to Ĥ_n.
        foreach: work on lists of tensors (None: yes, unless there are tensor subclasses).
        maximize: ascend instead of descend.
        check_finite: refuse gradients that are not finite and steps that would overflow, before
            anything is changed; False saves a pass, and on an accelerator the only wait of a step.

    Example:
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = AMSGrad([theta], lr=0.01)
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> round(theta.item(), 4)  # 1 − 0.01 · (0.1 · 2) / √(0.001 · 4)
        0.9684

    Reference:
        Reddi, Kale, Kumar (2018), On the convergence of Adam and beyond; the paper, Algorithm 2.
    """

    _scheduled: ClassVar[Ranges] = {"lr": NON_NEGATIVE, "clip": POSITIVE_OR_INFINITE}
    _fixed: ClassVar[Mapping[str, Range | RangePair]] = {
        "betas": RangePair(FRACTION),
        "eps": EPS,
        "weight_decay": NON_NEGATIVE,
    }
    _state_names = ("momentum", "average", "largest")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | Schedule,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-4,
        clip: float | Schedule = math.inf,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
        check_finite: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "clip": clip}
        defaults["weight_decay"] = weight_decay
        common = {"foreach": foreach, "maximize": maximize, "check_finite": check_finite}
        super().__init__(params, {**defaults, **common})

    def _update(self, group: dict[str, Any], batch: ForeachBatch, rate: float) -> None:
        (rho1, rho2), clip = group["betas"], group["clip"]
        momentum, average = batch.states["momentum"], batch.states["average"]
        largest = batch.states["largest"]
        torch._foreach_lerp_(momentum, batch.grads, 1.0 - rho1)
        if math.isinf(clip):
            torch._foreach_mul_(average, rho2)
            torch._foreach_addcmul_(average, batch.grads, batch.grads, value=1.0 - rho2)
        else:
            squares = torch._foreach_mul(batch.grads, batch.grads)
            torch._foreach_clamp_max_(squares, clip * clip)
            torch._foreach_lerp_(average, squares, 1.0 - rho2)
            del squares  # their memory is used again for the roots
        torch._foreach_maximum_(largest, average)
        roots = torch._foreach_add(largest, group["eps"] ** 2)
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(batch.params, momentum, roots, value=rate)

    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """Return (ε̲_{n−1}, δ^{-1/2}): ε̲_0 = 0, ε̲_{n−1} = (δ + M_{n−1}² (1−ρ2^{n−1}))^{-1/2}.

        For n ≥ 2, ε̲_{n−1} bounds the paper's A_{n−2} from below: the latest matrix that does not
        depend on the gradient of step n. ε̲_0 = 0 because the proof sets A_{−1} = 0, so a random
        iterate is never θ_0. δ^{-1/2} bounds all of them from above. If M decreases, which the
        theorem excludes, its supremum up to n − 1 replaces M_{n−1}.
        """
        group = self.param_groups[index]
        delta = group["eps"] ** 2
        upper = delta**-0.5
        if n == 1:
            return 0.0, upper
        largest = self._supremum(index, "clip", n - 1)
        squares = largest * largest * (1.0 - group["betas"][1] ** (n - 1))
        return (delta + squares) ** -0.5, upper


def clipped(grads: list[Tensor], clip: float) -> list[Tensor]:
    """Return the gradients with every entry brought into [−M, M]; themselves if M is infinite."""
    if math.isinf(clip):
        return grads
    bounded = list(torch._foreach_clamp_max(grads, clip))
    torch._foreach_clamp_min_(bounded, -clip)
    return bounded
