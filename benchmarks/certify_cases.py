"""Problems with an exact gradient for `diagnostics.certify`: right kernels, and planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.kernels import ISIR, MALA, RWMH, FromStep, Importance, Kernel
from mlmcgrad.kernels.base import Context, Outcome, Pieces, Simulation, Start
from mlmcgrad.kernels.importance import ProposingKernel, WeightedPiece
from mlmcgrad.kernels.metropolis import MALAState, MetropolisKernel, RWMHState, value_and_gradient
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure


@dataclass(frozen=True)
class Case:
    """A gradient, where it starts, and what it should be."""

    name: str
    gradient: mg.MarkovGradient
    x0: Tensor | None
    exact: Tensor
    context: tuple[Tensor, ...] = ()
    fails: str = ""  # the check that should fail, for planted bugs


def _case(
    name: str,
    kernel: Kernel,
    problem: problems.Problem,
    loss: Callable[..., Tensor],
    x0: Tensor | None,
    fails: str = "",
) -> Case:
    gradient = mg.MarkovGradient(kernel, loss, mg.MLMC(2), parameters=problem.parameters)
    exact = torch.cat([g.flatten() for g in problem.exact_gradient()])
    return Case(name, gradient, x0, exact, fails=fails)


@dataclass(frozen=True)
class Weighed:
    """Target N(0, I_d), proposal N(m, s² I) and H(x) = x: the gradient is 0."""

    dimension: int
    shift: float
    scale: float = 1.25

    def log_weight(self, z: Tensor, row: Tensor) -> Tensor:
        """Log π − log q, up to a constant."""
        return 0.5 * (((z - self.shift) / self.scale).square() - z.square()).sum(1)

    def propose(self, rows: int, row: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of q."""
        z = torch.randn(rows, self.dimension, dtype=torch.float64, generator=generator)
        return self.shift + self.scale * z

    def case(self, name: str, kernel: Kernel, fails: str = "") -> Case:
        """With a kernel of these weights."""
        theta = torch.zeros(self.dimension, dtype=torch.float64, requires_grad=True)
        gradient = mg.MarkovGradient(
            kernel, lambda z, row: z @ theta, mg.MLMC(2), parameters=[theta]
        )
        return Case(name, gradient, None, torch.zeros(self.dimension), (torch.zeros(1),), fails)


MILD, WILD = Weighed(2, 0.5), Weighed(8, 0.55)  # log weights of standard deviation 1 and 2.25


@dataclass(frozen=True)
class Intercepts:
    """Logistic regression with a random intercept for each group, as rows of the context."""

    theta: Tensor  # (3,): intercept, slope, log σ
    x: Tensor  # (groups, m)
    y: Tensor  # (groups, m)

    @classmethod
    def simulated(cls, groups: int = 12, size: int = 6) -> Intercepts:
        """With θ that is not the maximum."""
        rng = torch.Generator().manual_seed(3)
        x = torch.randn(groups, size, dtype=torch.float64, generator=rng)
        u = torch.randn(groups, 1, dtype=torch.float64, generator=rng)
        p = (0.3 + 0.8 * x + 1.2 * u).sigmoid()
        y = torch.rand(p.shape, dtype=torch.float64, generator=rng).lt(p).double()
        theta = torch.tensor([0.1, 0.5, 0.3], dtype=torch.float64, requires_grad=True)
        return cls(theta, x, y)

    def loss(self, u: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """−log p_θ(y, u) up to a constant, (rows,), u of shape (rows, 1)."""
        eta = self.theta[0] + self.theta[1] * x + self.theta[2].exp() * u
        fit = (y * eta - torch.nn.functional.softplus(eta)).sum(1)
        return 0.5 * u.square().sum(1) - fit

    def exact(self) -> Tensor:
        """By Gauss–Hermite quadrature with 100 points."""
        nodes, weight = np.polynomial.hermite_e.hermegauss(100)
        u, log_w = torch.from_numpy(nodes), torch.from_numpy(np.log(weight))
        values = [-self.loss(v.expand(len(self.x), 1), self.x, self.y) + v * v / 2.0 for v in u]
        total = -(torch.stack(values, 1) + log_w).logsumexp(1).mean()
        return torch.autograd.grad(total, self.theta)[0]

    def case(self, name: str) -> Case:
        """By MALA."""
        kernel = MALA(lambda u, x, y: -self.loss(u, x, y), 0.4)
        gradient = mg.MarkovGradient(kernel, self.loss, mg.MLMC(2), parameters=[self.theta])
        return Case(
            name, gradient, torch.zeros(len(self.x), 1).double(), self.exact(), (self.x, self.y)
        )


def right() -> list[Case]:
    """Ten problems that are to be certified."""
    fast, slow = problems.finite_chain(states=6, seed=1), problems.finite_chain(states=24, seed=2)
    normal, machine = problems.gaussian(3), problems.boltzmann()
    walk, langevin = RWMH(normal.log_density, 1.5), MALA(normal.log_density, 0.5)
    return [
        _case("finite chain, 6 states", fast.kernel(), fast, fast.loss, fast.start(1)),
        _case("finite chain, 24 states", slow.kernel(), slow, slow.loss, slow.start(1)),
        _case("Gaussian, RWMH", walk, normal, normal.loss, normal.start(1)),
        _case("Gaussian, MALA", langevin, normal, normal.loss, normal.start(1)),
        MILD.case("i-SIR, log weights ±1", ISIR(MILD.log_weight, MILD.propose, 5)),
        WILD.case("i-SIR, log weights ±2.25", ISIR(WILD.log_weight, WILD.propose, 16)),
        MILD.case("importance, log weights ±1", Importance(MILD.log_weight, MILD.propose, 5)),
        WILD.case("importance, log weights ±2.25", Importance(WILD.log_weight, WILD.propose, 16)),
        _case("Boltzmann machine, Gibbs", machine.kernel(), machine, machine.loss, machine.data),
        Intercepts.simulated().case("random intercepts, MALA"),
    ]


class Tempered(MetropolisKernel[RWMHState]):
    """Planted bug: the square root of the ratio decides, so the law is that of √π."""

    def at(self, x: Tensor, context: Context) -> RWMHState:
        """State at x."""
        return RWMHState(x, self.log_density(x, *context))

    @property
    def deviation(self) -> float | Tensor:
        """Of a jump."""
        return self.step_size

    def proposal(self, state: RWMHState, jump: Tensor) -> Tensor:
        """As it should be."""
        return state.x + jump

    def log_ratio(self, state: RWMHState, proposed: RWMHState, jump: Tensor) -> Tensor:
        """Half of what it should be."""
        return 0.5 * (proposed.log_density - state.log_density)


class Langevin(MetropolisKernel[MALAState]):
    """MALA's proposals, for bugs in what is accepted."""

    def at(self, x: Tensor, context: Context) -> MALAState:
        """State at x."""
        return MALAState(x, *value_and_gradient(self.log_density, x, context))

    @property
    def deviation(self) -> float | Tensor:
        """Of a jump."""
        return (2.0 * self.step_size) ** 0.5

    def proposal(self, state: MALAState, jump: Tensor) -> Tensor:
        """As it should be."""
        return state.x + jump + self.step_size * state.gradient


class Unadjusted(Langevin):
    """Planted bug: everything is accepted."""

    def log_ratio(self, state: MALAState, proposed: MALAState, jump: Tensor) -> Tensor:
        """As if π were flat."""
        return torch.ones_like(state.log_density)


class OneSided(Langevin):
    """Planted bug, erratum 3 of the paper: the ratio of the proposals is left out."""

    def log_ratio(self, state: MALAState, proposed: MALAState, jump: Tensor) -> Tensor:
        """Without q(y, x)/q(x, y)."""
        return proposed.log_density - state.log_density


@dataclass(frozen=True)
class WrongSelection(ProposingKernel):
    """Planted bug: i-SIR that selects by the square roots of the weights."""

    def parts(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Generator[WeightedPiece, None, Outcome]:
        """Run another kernel."""
        wrong = ISIR(lambda z, *c: 0.5 * self.log_weight(z, *c), self.propose, self.candidates)
        return wrong.parts(x0, context, lengths, generator)


@dataclass(frozen=True)
class WrongWeights(Importance):  # type: ignore[misc]  # a bug that only a subclass can plant
    """Planted bug: importance sampling with the square roots of the weights."""

    def parts(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Generator[WeightedPiece, None, Outcome]:
        """Run another kernel."""
        wrong = Importance(
            lambda z, *c: 0.5 * self.log_weight(z, *c), self.propose, self.candidates
        )
        return wrong.parts(x0, context, lengths, generator)


@dataclass(frozen=True)
class Drifting:
    """Planted bug: the longer a chain is planned, the more its states are shifted."""

    kernel: Kernel

    def chains(self, x0: Start, context: Context) -> int:
        """As the kernel says."""
        return self.kernel.chains(x0, context)

    def run(self, x0: Start, context: Context, plan: Lengths, generator: torch.Generator) -> Pieces:
        """Shifted."""
        shift = 0.2 * float(plan.longest.max())
        simulation = Simulation(self.kernel.run(x0, context, plan, generator))
        for measure in simulation:
            yield Measure(measure.points + shift, measure.owner, measure.coefficient)
        return simulation.outcome


def two_modes(x: Tensor) -> Tensor:
    """Log density of N(−8, 1)/4 + N(8, 1)·3/4, x of shape (rows, 1)."""
    far = torch.stack([-0.5 * (x + 8.0) ** 2, -0.5 * (x - 8.0) ** 2 + np.log(3.0)])
    return far.logsumexp(0)[:, 0]


def planted() -> list[Case]:
    """What is not to be certified, with the check that should fail."""
    normal = problems.gaussian(3)
    density, start = normal.log_density, normal.start(1)

    def metropolis(name: str, kernel: Kernel, fails: str) -> Case:
        return _case(name, kernel, normal, normal.loss, start, fails)

    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    modes = mg.MarkovGradient(
        RWMH(two_modes, 1.0), lambda x: x @ theta, mg.MLMC(2), parameters=[theta]
    )
    apart = torch.tensor([[-8.0], [8.0]], dtype=torch.float64)
    far = Weighed(60, 1.5)
    still = FromStep(lambda x, generator: x)
    return [
        metropolis("RWMH that accepts by √ratio", Tempered(density, 1.5), "law"),
        metropolis("MALA without correction", Unadjusted(density, 0.5), "law"),
        metropolis("MALA without the proposal ratio", OneSided(density, 0.5), "law"),
        MILD.case(
            "i-SIR, wrong selection", WrongSelection(MILD.log_weight, MILD.propose, 5), "law"
        ),
        MILD.case(
            "importance, wrong weights", WrongWeights(MILD.log_weight, MILD.propose, 5), "law"
        ),
        metropolis("law that depends on the length", Drifting(MALA(density, 0.5)), "levels"),
        Case("two far modes", modes, apart, torch.tensor([4.0]), fails="mixing"),
        metropolis("chains that never move", still, "mixing"),
        far.case("collapsed weights", Importance(far.log_weight, far.propose, 8), "weights"),
    ]
