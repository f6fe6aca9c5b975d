"""Problems for `benchmarks/planner.py`, with what every estimator really does on them.

Of chains with a few states everything follows from the transition matrix. Of the others the bias of
each length is measured against the exact gradient (of the autoencoder: against a long run), with
many times the evaluations of any pilot, down to where it falls in proportion to 1/length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from tests.diagnostics.exact import Exact
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import mlmcgrad as mg
from mlmcgrad import iwae, kernels, problems
from mlmcgrad.diagnostics import Predicted
from mlmcgrad.diagnostics._decay import Decay, Squared
from mlmcgrad.diagnostics._pilot import Simulator, run_pilot
from mlmcgrad.diagnostics._plan import Cost, predict, simulation_cost
from mlmcgrad.estimators import Estimator
from mlmcgrad.paper import datasets

_CLEAR = 4.0  # standard errors
_EVALUATIONS = 1e7  # of what takes the place of the truth


@dataclass(frozen=True)
class Task:
    """A gradient, where its simulations start, and its limit (d,)."""

    gradient: mg.MarkovGradient
    x0: Tensor | None
    context: tuple[Tensor, ...]
    limit: Tensor
    exact: Exact | None = None
    evaluations: float = _EVALUATIONS

    @cached_property
    def rows(self) -> int:
        """Of the data."""
        return self.gradient.kernel.chains(self.x0, self.context)

    @cached_property
    def cost(self) -> Cost:
        """Of a simulation."""
        rng = torch.Generator().manual_seed(1)
        return simulation_cost(Simulator(self.gradient, self.x0, self.context, rng))

    @cached_property
    def decay(self) -> Decay:
        """Of a pilot that takes the place of the truth."""
        rng = torch.Generator().manual_seed(999)
        found = run_pilot(Simulator(self.gradient, self.x0, self.context, rng), self.evaluations)
        return _Truth(found, self.limit)

    def truth(self, estimator: Estimator) -> Predicted:
        """What the estimator does."""
        if self.exact is None:
            return predict(estimator, self.decay, self.cost)
        bias, variance, steps = self.exact.moments(estimator)
        return Predicted(estimator, Squared(bias, 0.0), variance, self.cost.of(steps))


@dataclass(frozen=True)
class _Truth(Decay):
    """Where the limit is known, the bias of each length is measured, and 1/length in the end."""

    limit: Tensor = field(default_factory=Tensor)

    def bias(self, weights: dict[int, float]) -> Squared:
        """‖Σ_l a_l b(2^l)‖²."""
        last = len(self._biases) - 1
        terms = (
            a * 2.0 ** min(0, last - level) * self._biases[min(level, last)]
            for level, a in weights.items()
        )
        vector = sum(terms, torch.zeros_like(self.limit))
        return Squared(float(vector @ vector), 0.0)

    @cached_property
    def _biases(self) -> list[Tensor]:
        found: list[Tensor] = []
        for level in range(self.pilot.highest + 1):
            h = torch.cat([g.estimates[:, level] for g in self.pilot.groups[level:]])
            bias = h.mean(0) - self.limit
            noise = float(h.var(0).sum()) / len(h)
            if found and float(bias @ bias) < _CLEAR**2 * noise:
                break
            found.append(bias)
        return found


def _flat(tensors: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten().double() for t in tensors])


def _finite(states: int, seed: int) -> Task:
    chain = problems.finite_chain(states=states, seed=seed)
    law = torch.zeros(states, dtype=torch.float64)
    law[int(chain.start(1)[0])] = 1.0
    features = (chain.features - chain.data_mean).double().detach()
    gradient = mg.MarkovGradient(
        chain.kernel(), chain.loss, mg.MLMC(2), parameters=chain.parameters
    )
    limit = _flat(list(chain.exact_gradient()))
    return Task(gradient, chain.start(1), (), limit, Exact(chain.matrix(), law, features, 2**16))


def _boltzmann() -> Task:
    machine, rows = problems.boltzmann(6, 4, seed=3), 1
    states = machine.states()
    place = machine.start(rows) @ (2.0 ** torch.arange(states.shape[1], dtype=torch.float64))
    law = torch.bincount(place.long(), minlength=len(states)).double() / rows
    each = [
        torch.cat(
            [
                t.flatten()
                for t in torch.autograd.grad(machine.loss(s[None]).sum(), machine.parameters)
            ]
        )
        for s in states
    ]
    gradient = mg.MarkovGradient(
        machine.kernel(), machine.loss, mg.MLMC(2), parameters=machine.parameters
    )
    exact = Exact(machine.transition(), law, torch.stack(each), 2**16)
    return Task(gradient, machine.start(rows), (), _flat(list(machine.exact_gradient())), exact)


def _gaussian(kernel: Callable[[Callable[[Tensor], Tensor]], kernels.Kernel]) -> Task:
    target = problems.gaussian()
    gradient = mg.MarkovGradient(
        kernel(target.log_density), target.loss, mg.MLMC(2), parameters=target.parameters
    )
    return Task(gradient, target.start(1), (), _flat(list(target.exact_gradient())))


def _weighed(kind: str, spread: float) -> Task:
    """Target N(0, I), proposal N(m, s² I), H(x) = x; log weights with this standard deviation."""
    d, s, m = {1.0: (2, 1.25, 0.5), 2.25: (8, 1.25, 0.55), 4.1: (16, 1.3, 0.7)}[spread]
    theta = torch.zeros(d, dtype=torch.float64, requires_grad=True)
    centre = torch.full((d,), m, dtype=torch.float64)

    def log_weight(z: Tensor, _: Tensor) -> Tensor:
        return 0.5 * ((z - centre) / s).square().sum(1) - 0.5 * z.square().sum(1)

    def propose(rows: int, _: Tensor, generator: torch.Generator) -> Tensor:
        return centre + s * torch.randn(rows, d, dtype=torch.float64, generator=generator)

    sampler = (kernels.Importance if kind == "importance" else kernels.ISIR)(log_weight, propose, 4)
    gradient = mg.MarkovGradient(sampler, lambda z, _: z @ theta, mg.MLMC(2), parameters=[theta])
    return Task(gradient, None, (torch.zeros(1, dtype=torch.float64),), theta.detach())


@dataclass(frozen=True)
class Mixed:
    """Logistic regression with a random intercept: 24 groups of 6, proposals from the prior."""

    gradient: mg.MarkovGradient
    theta: Tensor  # β_0, β_1, log σ
    context: tuple[Tensor, Tensor]
    log_likelihood: Callable[[Tensor], float]  # of a group on average, by quadrature
    limit: Callable[[], Tensor]  # the exact gradient of its negative


def mixed_model(start: tuple[float, float, float]) -> Mixed:
    """The model with its data, which are the same for all starts."""
    rng, groups, size, count = torch.Generator().manual_seed(5), 24, 6, 80
    theta = torch.tensor([-0.5, 1.0, 0.4], dtype=torch.float64)
    x = torch.randn(groups, size, dtype=torch.float64, generator=rng)
    u = torch.randn(groups, dtype=torch.float64, generator=rng)

    def logits(z: Tensor, x: Tensor) -> Tensor:
        return theta[0] + theta[1] * x + theta[2].exp() * z[:, None]

    y = (torch.rand(x.shape, dtype=torch.float64, generator=rng) < logits(u, x).sigmoid()).double()
    theta = torch.tensor(start, dtype=torch.float64, requires_grad=True)

    def loss(z: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(logits(z, x), y, reduction="none").sum(1)

    def log_weight(z: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return -loss(z, y, x).detach()

    def propose(rows: int, *_: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, dtype=torch.float64, generator=generator)

    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(count))
    logs = (weights / weights.sum()).log()

    def at_nodes() -> Tensor:
        every = (y.repeat_interleave(count, 0), x.repeat_interleave(count, 0))
        return loss(nodes.repeat(groups), *every).reshape(groups, count)

    def log_likelihood(at: Tensor) -> float:
        kept = theta.detach().clone()
        with torch.no_grad():
            theta.copy_(at)
            found = float((logs - at_nodes()).logsumexp(1).mean())
            theta.copy_(kept)
        return found

    def limit() -> Tensor:
        (found,) = torch.autograd.grad(-(logs - at_nodes()).logsumexp(1).mean(), theta)
        return found

    sampler = kernels.Importance(log_weight, propose, 4)
    gradient = mg.MarkovGradient(sampler, loss, mg.MLMC(2), parameters=[theta])
    return Mixed(gradient, theta, (y, x), log_likelihood, limit)


def _mixed() -> Task:
    model = mixed_model((-0.5, 1.0, 0.4))
    return Task(model.gradient, None, model.context, model.limit())


def _autoencoder() -> Task:
    """A small autoencoder of digits, trained for a while; the gradient of a part of its decoder."""
    rng = torch.Generator().manual_seed(0)
    data = datasets.digits()
    sizes = iwae.Sizes(data.train.shape[1:], channels=(), hidden=(16,), latent=4)
    model = iwae.LatentModel(sizes, iwae.BernoulliLikelihood(), rng)
    images = torch.from_numpy(data.as_floats(data.train))
    objective = iwae.Objective(model, "iwae", candidates=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(1500):
        optimizer.zero_grad()
        rows = torch.randint(len(images), (64,), generator=rng)
        objective.backward(images[rows], generator=rng)
        optimizer.step()
    model.double()
    y = images[:16].double()
    context = (y, *(t.detach() for t in model.encoder(y)))
    parameters = [p for p in model.decoder.parameters() if p.numel() == 64 and p.dim() == 2]
    sampler = kernels.Importance(model.log_weight, model.propose, 4)
    gradient = mg.MarkovGradient(
        sampler, lambda z, y, *_: -model.log_joint(z, y), mg.MLMC(2), parameters=parameters
    )
    many = tuple(t.repeat(8, *([1] * (t.dim() - 1))) for t in context)
    long = replace(gradient, estimator=mg.Average(2**9))
    value, _ = long.gradient(None, *many, generator=rng)
    return Task(gradient, None, context, torch.cat([v.flatten() for v in value]), evaluations=2e5)


TASKS: dict[str, Callable[[], Task]] = {
    "finite chain, fast": lambda: _finite(4, 0),
    "finite chain, slow": lambda: _finite(20, 2),
    "Gaussian, RWMH": lambda: _gaussian(lambda f: kernels.RWMH(f, 1.0)),
    "Gaussian, MALA": lambda: _gaussian(lambda f: kernels.MALA(f, 0.5)),
    **{
        f"{kind}, sd {spread:g}": partial(_weighed, kind, spread)
        for kind in ("i-SIR", "importance")
        for spread in (1.0, 2.25, 4.1)
    },
    "Boltzmann machine": _boltzmann,
    "mixed model": _mixed,
    "digits autoencoder": _autoencoder,
}
