"""When to change from a cheap biased gradient to one without bias.

Early in a training iterations matter and bias does not; at the end a biased gradient converges to
a point that no further iteration improves. With the mean G of the biased gradient and U = G + C of
the unbiased one, a positive diagonal matrix P, and the lengths 1 and c of their simulations, one
evaluation makes to first order the progress

    unbiased: ⟨U, P U⟩ / c,       biased: ⟨U, P G⟩.

`Finish` compares the two at the averaged parameters and changes when the first is estimated larger.
It does not wait for significance: a training that continues shrinks G but not C, so that a change
where both are equal costs little, and one that never comes leaves the bias for good. The standard
error decides how much is simulated.

**G costs nothing.** It is the average of the gradients of the training itself, with the weights of
`optim.Averaged`. Single gradients are mostly noise, and so is the gradient at a single iterate of a
constant step size; the average of many iterations shows where the training is still going.

**C costs at most 0.5 % of the evaluations.** The unbiased estimate minus the biased one of the same
simulation is again a signed measure on lengths (`Lengths.correction`), so that one call of
`MarkovGradient` samples C, with far less noise than two. Groups of different rows give independent
samples; products of different groups contain no noise in their mean, and the standard error is the
jackknife's.

**P** has the entries 1/√(mean square of the gradient), the metric of Adam, RMSProp and AMSGrad. It
does not depend on the units of the parameters.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from mlmcgrad._checks import non_negative, positive, whole
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Start, check_call, take

_GROUPS = 8  # independent samples of C
_LEAST = 2  # rows in each of them
_STAGES = (0.125, 1.0)  # parts of the remaining evaluations: most checks are decided by the first
_PRUDENT = 0.8  # share of what is allowed that a check plans to spend
_CLEAR = 3.0  # standard errors that decide without more simulations


@dataclass(frozen=True)
class PointEstimate:
    """A number with its standard error."""

    value: float
    se: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.se:.2g}"


@dataclass(frozen=True)
class FinishCheck:
    """What one check of `Finish` measured.

    Attributes:
        gain: progress per evaluation of the unbiased gradient minus that of the biased one, in
            units of the squared gradient.
        bias: ‖C‖² in the metric P, the squared bias of the cheap gradient.
        left: ‖G‖² in the metric P, how far the biased training is from convergence.
        rows: number of simulations.
        evaluations: number spent.
        finish: whether to change to the unbiased gradient.
    """

    gain: PointEstimate
    bias: PointEstimate
    left: float
    rows: int
    evaluations: int
    finish: bool

    def record(self) -> dict[str, Any]:
        """Return the numbers for a JSON file."""
        return asdict(self)

    def __str__(self) -> str:
        verdict = "finish without bias" if self.finish else "the biased gradient is better for now"
        return (
            f"squared bias {self.bias}, squared mean gradient {self.left:.3g}, gain {self.gain}: "
            f"{verdict} ({self.rows} rows, {self.evaluations} evaluations)"
        )


class Finish:
    """Follows the optimizer of a training, and says when to finish it with an unbiased gradient.

    Args:
        optimizer: of the training; the gradients of its steps are averaged.
        gradient: the unbiased gradient, for example by `MLMCSum(64, 2**-1.5)`, with `parameters`.
            The training begins with the estimate of the shortest length, its `base`, and leaves
            this gradient of the same loss in `.grad`, as a mean over rows.
        share: share of the evaluations of the training that all checks together may spend, in
            expectation, because lengths are drawn.
        eta: memory of the averages, as in `optim.Averaged`.

    Attributes:
        finishing: whether a check has said to change; it stays True.
        evaluations: number spent by all checks.

    Example:
        >>> import mlmcgrad as mg
        >>> theta = torch.zeros((), requires_grad=True)  # target N(1, 1), proposal N(0, 1)
        >>> draw = lambda rows, y, generator: torch.randn(rows, generator=generator)
        >>> kernel = mg.kernels.Importance(lambda z, y: z, draw, candidates=2)
        >>> loss = lambda z, y: 0.5 * (theta - z) ** 2
        >>> biased = mg.MarkovGradient(kernel, loss, mg.Average(1), parameters=[theta])
        >>> multilevel = mg.MLMCSum(64, 2**-1.5)
        >>> unbiased = mg.MarkovGradient(kernel, loss, multilevel, parameters=[theta])
        >>> optimizer = torch.optim.SGD([theta], lr=0.1)
        >>> finish, y = Finish(optimizer, unbiased), torch.zeros(1000)
        >>> rng, spent = torch.Generator().manual_seed(0), 0
        >>> for n in range(1, 201):
        ...     optimizer.zero_grad()
        ...     gradient = unbiased if finish.finishing else biased
        ...     spent += gradient.backward(None, y, generator=rng).evaluations
        ...     optimizer.step()
        ...     if n == 100:
        ...         finish.check(None, y, spent=spent, generator=rng).finish
        True
        >>> abs(theta.item() - 1.0) < 0.1
        True
    """

    def __init__(
        self,
        optimizer: Optimizer,
        gradient: MarkovGradient,
        *,
        share: float = 0.005,
        eta: float = 9.0,
    ) -> None:
        if gradient.parameters is None:
            raise ValueError("gradient must have parameters=... whose gradients are compared")
        self.gradient = gradient
        self.share, self.eta = positive(share, "share"), non_negative(eta, "eta")
        self.finishing = False
        self.evaluations = 0
        self._parameters = tuple(gradient.parameters)
        self._n = 0
        self._mean = [torch.zeros_like(p) for p in self._parameters]
        self._square = [torch.zeros_like(p) for p in self._parameters]
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def check(
        self,
        x0: Start,
        *context: Any,
        spent: float,
        n: SupportsIndex | None = None,
        generator: torch.Generator,
    ) -> FinishCheck | None:
        """Compare the two gradients at the present parameters: put the averages into them before.

        A good time is when the step size begins to fall, and once more in the middle of its fall.

        Args:
            x0: where simulations start, as for `gradient.backward`.
            context: as for `gradient.backward`, with all rows of the data; some are chosen.
            spent: evaluations of the training so far, which limit those of the check.
            n: iteration, for an estimator with schedules.
            generator: source of all randomness; seed it by the iteration, so that a resumed
                training decides the same.

        Returns:
            What was measured; None if the check may not spend enough for 16 simulations yet.
        """
        if self._n == 0:
            raise RuntimeError("the optimizer must have stepped before: its gradients are averaged")
        rows = check_call(self.gradient.kernel, x0, context, generator)
        allowed = self.share * spent - self.evaluations
        length = self.gradient.estimator.expected_length(None if n is None else whole(n, "n"))

        def simulate(index: Tensor) -> tuple[Tensor, float, int]:
            (start,), data = take((x0,), index), take(context, index)
            lengths = self.gradient.draw_lengths(start, data, n, generator)
            pieces, estimate = self.gradient.gradient(
                start, *data, generator=generator, lengths=lengths.correction()
            )
            self.evaluations += estimate.evaluations
            return _flat(pieces), float(lengths.terms[0, 0]), estimate.transitions

        before, host = self.evaluations, _host(generator)
        if allowed < 2 * _LEAST * _GROUPS * length:  # a step takes an evaluation or more
            return None
        _, _, steps = simulate(torch.randperm(rows, generator=host)[:1])
        each = max(1.0, (self.evaluations - before) / steps) * length  # evaluations per row
        check = None
        for share in _STAGES:
            remaining = allowed - (self.evaluations - before)
            # Long simulations are rare and expensive: some are in hand for them.
            count = min(int(_PRUDENT * remaining / each), _GROUPS * rows)
            if count < _LEAST * _GROUPS:
                break
            count = max(_LEAST * _GROUPS, int(share * count))
            passes = range(-(-count // rows))
            order = torch.cat([torch.randperm(rows, generator=host) for _ in passes])[:count]
            samples = [simulate(index) for index in order.tensor_split(_GROUPS)]
            correction, base = torch.stack([sample for sample, *_ in samples]), samples[0][1]
            gain, bias, left = self._compare(correction, base / length)
            finish = gain.value > 0.0
            check = FinishCheck(gain, bias, left, count, self.evaluations - before, finish)
            if abs(gain.value) > _CLEAR * gain.se:
                break
        self.finishing = self.finishing or (check is not None and check.finish)
        return check

    def _compare(
        self, correction: Tensor, ratio: float
    ) -> tuple[PointEstimate, PointEstimate, float]:
        """Return the gain, the squared bias and the squared mean gradient in the metric P."""
        square = _flat(self._square)
        root = torch.where(square > 0.0, square, math.inf).rsqrt().sqrt()
        mean, correction = _flat(self._mean) * root, correction * root
        unbiased = mean + correction
        progress = ratio * (unbiased @ unbiased.T) - (unbiased @ mean)[:, None]
        bias = off_diagonal_mean(correction @ correction.T)
        return off_diagonal_mean(progress), bias, float(mean @ mean)

    def detach(self) -> None:
        """Stop following the optimizer."""
        self._hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs, for a checkpoint."""
        return {
            "n": self._n,
            "finishing": self.finishing,
            "evaluations": self.evaluations,
            "mean": [mean.clone() for mean in self._mean],
            "square": [square.clone() for square in self._square],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` made with parameters of the same shapes."""
        shapes = [p.shape for p in self._parameters]
        for name, own in (("mean", self._mean), ("square", self._square)):
            if [p.shape for p in state_dict[name]] != shapes:
                raise ValueError(f"state_dict must hold a {name} for each of {len(own)} parameters")
            for mine, saved in zip(own, state_dict[name], strict=True):
                mine.copy_(saved)
        self._n, self.finishing = int(state_dict["n"]), bool(state_dict["finishing"])
        self.evaluations = int(state_dict["evaluations"])

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        if self.finishing:
            return
        self._n += 1
        weight = (self.eta + 1.0) / (self._n + self.eta)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        torch._foreach_lerp_(self._mean, gradients, weight)
        torch._foreach_lerp_(self._square, torch._foreach_mul(gradients, gradients), weight)


def off_diagonal_mean(products: Tensor) -> PointEstimate:
    """Return the mean product of different samples, with its jackknife standard error.

    Args:
        products: product of sample r and sample s, (R, R) with R ≥ 3; not necessarily symmetric.
    """
    count = len(products)
    cross = (products + products.T) / 2.0
    cross = cross - torch.diag(cross.diagonal())
    total = cross.sum()
    without = (total - 2.0 * cross.sum(1)) / ((count - 1) * (count - 2))
    spread = (count - 1) / count * (without - without.mean()).square().sum()
    return PointEstimate(float(total / (count * (count - 1))), float(spread.sqrt()))


def _flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).double()


def _host(generator: torch.Generator) -> torch.Generator:
    """Return a generator on the host: the same rows on every device."""
    if generator.device.type == "cpu":
        return generator
    return torch.Generator().manual_seed(generator.initial_seed())
