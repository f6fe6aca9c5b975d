"""The likelihood of a model with several grouping factors, nested or crossed.

No group is independent of the others, so the random effects of all groups are one vector. Its
posterior is sampled by MALA chains over the whole vector, in coordinates that move with θ. The
score is the mean over chains whose random lengths and signed weights are those of `MLMCSum`: its
expectation is that of the longest chain, T steps after the discarded ones. A normal response needs
no chains: Laplace's approximation is exact, and the score is its difference in θ.

**Chains.** In the coordinates of Laplace's approximation, u = mode + Cx, x is nearly N(0, I), so
one step size serves all coordinates. For N(0, I) in D dimensions the best one is h = ½ · 1.65² ·
D^{-1/3}, with an acceptance of 0.57 (Roberts and Rosenthal, 1998). Chains start from x ~ N(0, I),
independent of each other. The first 12/h steps are discarded: where it was measured (binary
responses, D = 80 and 300), the error of Laplace's approximation fell by a factor of e in at most
3/h steps. Along the path

    log π_λ(x) = (1 − λ) log N(x; 0, I) + λ log p_θ(y, mode + Cx)

the start is λ = 0 and the posterior λ = 1.

**One vector.** u ~ N(0, I) holds the standardised effects of the groups of all factors, one after
the other, of dimension D = Σ_f groups_f · q_f. Each row picks the block of its group from every
factor,

    η_i = x_iᵀβ + offset_i + Σ_f z_{f,i}ᵀ Λ_f u_{f, g_f(i)},      in short η = Xβ + offset + ZΛ̃u,

with Λ̃ block diagonal, Λ_f for each group of f. Z is sparse, with Σ_f q_f numbers per row. θ is laid
out as if the effects of all factors were side by side: Λ of `Layout` is block diagonal.

    f(u) = log p_θ(y, u),      ∇f = Λ̃ᵀZᵀr − u,      −∇²f ≈ H = I + Λ̃ᵀZᵀWZΛ̃,

where r and W are the slope and the (expected) curvature of log p in η. The mode is found by
Newton's method with a dense Cholesky factor, halving steps that go downhill. N(mode, H^{-1}) is
Laplace's approximation of p_θ(u | y).

**Scores and information.** By Fisher's identity the score is the posterior mean of S(u) = ∇_θ log
p_θ(y, u). The variance of S is all the information that is lost because u is not observed. In the
coordinates x of Laplace's approximation, u_θ(x) = mode_θ + C_θ x, the same identity is for each
parameter k

    ∂_k log p_θ(y) = E[ R_k | y ],      R_k = d/dθ_k { log p_θ(y, u_θ(x)) + log det C_θ }
                   = S_k(u) + ∇_u log p_θ(y, u)ᵀ (a_k + B_k x) + tr(C^{-1} B_k),

with a_k = ∂_k mode and B_k = ∂_k C. Where the posterior is normal, x is N(0, I) at every θ and R is
the score itself, whatever x is; otherwise R varies as much as the posterior differs from Laplace's
approximation. All terms but S_k have mean 0 for any a_k and B_k (Stein's identity), so finite
differences, or the derivatives at a θ nearby, cause no bias.

In the same coordinates L_θ(x) = log p_θ(y, u_θ(x)) + log det C_θ is the log density of x up to
log p_θ(y), and Louis' identity is

    I = −E[∇²L | y] − Var[∇L | y].

In the usual coordinates both terms are large and nearly cancel in a direction that the random
effects explain well. In these, where the posterior is normal, ∇L does not depend on x and I is
exact. ∇L and ∇²L are central differences at the same states. At x = 0 alone L is Laplace's
approximation of the log-likelihood up to a constant, and −∇²L its information.

The complete-data information J = E[−∇²_θ log p_θ(y, u)] is what I would be if u were observed.
Since η_i is linear in β and Λ, with slopes x̃_i = (x_i, z_{ia} u_{ib}), J = E[X̃ᵀWX̃], where W is the
curvature of log p in η, which is ≥ 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from mlmcgrad.estimators import Average, Estimator, MLMCSum
from mlmcgrad.kernels import MALA
from mlmcgrad.kernels.base import Outcome, Simulation
from mlmcgrad.measure import Measure, concatenate
from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family, Gaussian, Slopes
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.search import LogLikelihood

_BEST = 0.5 * 1.65**2
_WARM = 12.0
_CHAINS = 32  # chains in an estimate of the score
# At most 64 steps after the discarded ones; 16, the fewest, is about the autocorrelation time.
_LEVELS = MLMCSum(64.0, assignment="balanced", base=16)
_LONG = Average(16)  # steps of the chains for information and effects
_MANY = 64  # number of these chains
_FEW = 16  # states for the complete-data information
_NEAR = 0.25  # change of the linear predictor up to which a motion is used again
_ACCEPTANCE = 0.57
_ANNEALED = 256  # chains for the log-likelihood
_FEWEST, _MOST = 32, 1024  # temperatures: at first, and at most
_SPREAD = 0.4  # standard deviation of log w above which a few chains have most of the weight
LARGEST = 3000  # D: its matrix takes 72 MB, and a Cholesky factor of it about a second
_LOG_2PI = math.log(2.0 * math.pi)
_NEWTON_STEPS, _HALVINGS = 60, 30
_ENOUGH = 1e-20  # Newton's decrement at the mode, small because modes are differenced in θ
_SCORE_STEP, _STEP = 1e-4, 2e-3  # of differences in θ, for scores and for the information
_LEAST = 0.05  # of the complete-data information in a direction: a step is at most 20 times EM's
_PART = 2**21  # numbers (states × rows or random effects) in memory at once


@final
class Crossed:
    """The likelihood as a function of θ, estimated by chains over all random effects.

    θ holds the entries of Λ of all factors, in the order of `design.effects`; see `Layout`. The
    columns of the design have similar scales.
    """

    def __init__(self, design: Design, family: Family, generator: torch.Generator) -> None:
        self._joint = Joint(design, family)
        self.layout: Layout = self._joint.layout
        self._generator = generator
        self._step = step_size(self._joint.dimension)
        self._mode: Tensor | None = None  # the last one
        self._motion: Motion | None = None
        self.exact = isinstance(family, Gaussian)

    @property
    def method(self) -> str:
        """How the integrals are computed, in words."""
        return "in closed form" if self.exact else "by Langevin chains over all random effects"

    def value_and_score(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the log-likelihood of a normal response, and its gradient by differences."""
        start = self._laplace(theta).mode
        steps = torch.diag(_SCORE_STEP * theta.abs().clamp(min=1.0))
        slopes = [
            (self._closed(theta + h, start) - self._closed(theta - h, start)) / (2.0 * h.sum())
            for h in steps
        ]
        return float(self._closed(theta, start)), torch.stack(slopes)

    def curvature(self, theta: Tensor) -> Tensor:
        """Return the information of a normal response, (θ, θ)."""
        return laplace_information(self._laplace(theta))

    def settle(self, theta: Tensor) -> bool:
        """Return False: a closed form is as precise as can be."""
        return False

    def _closed(self, theta: Tensor, start: Tensor) -> Tensor:
        """Return Laplace's approximation of the log-likelihood."""
        _, lower, value = newton(self._joint, theta, start)
        return value - lower.diagonal().log().sum() + 0.5 * self._joint.dimension * _LOG_2PI

    def scores(self, theta: Tensor, count: int) -> Tensor:
        """Return estimates of the score, (count, θ), whose only bias is that of T steps."""
        here = self._laplace(theta)
        if self.exact:  # the posterior is N(0, I)
            return moving_scores(here, Motion.at(here), self._normal(count, self._generator))
        return torch.stack([self._score(here) for _ in range(count)])

    def adaptive(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score, and Laplace's information made positive definite.

        There are no independent groups whose outer products could stand for the information.
        Laplace's information needs no random numbers. Far from the maximum it may be indefinite;
        there the complete-data information bounds it on both sides; see `positive`.
        """
        here = self._laplace(theta)
        u = here.at(self._normal(_FEW, self._generator))
        complete = complete_information(self._joint, theta, u)
        score = self.value_and_score(theta)[1] if self.exact else self._score(here)
        return score, positive(laplace_information(here), complete)

    def information(self, theta: Tensor, effort: int = 1) -> Tensor:
        """Return estimates of the observed information, one for each chain, (64 · effort, θ, θ)."""
        here, chains = self._laplace(theta), effort * _MANY
        if self.exact:
            return laplace_information(here).expand(2, -1, -1)
        states = self._run(here, _LONG, chains)
        terms = louis_terms(here, states.points, states.coefficient / chains)
        terms = states.coefficient[:, None, None] * terms
        return terms.new_zeros(chains, *terms.shape[1:]).index_add_(0, states.owner, terms)

    def log_likelihood(self, theta: Tensor, generator: torch.Generator) -> LogLikelihood:
        """Compute or estimate the log-likelihood, in one part."""
        here = self._laplace(theta)
        if self.exact:
            value = self._closed(theta, here.mode)[None]
            return LogLikelihood(value, value.new_zeros(1, 2))
        x = self._normal(_ANNEALED, generator)
        found = annealed(here, x, _FEWEST, self._step, generator)
        spread = float((1.0 + found.deviation).log().std())
        if spread <= _SPREAD:
            return found
        # The variance of log w falls like 1/temperatures.
        temperatures = min(_MOST, math.ceil(_FEWEST * (spread / _SPREAD) ** 2))
        x = self._normal(_ANNEALED, generator)
        return annealed(here, x, temperatures, self._step, generator)

    def effects(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return mean and covariance of b = Λu given the data, for each factor.

        With δ = u − mode and w = −H^{-1} ∇_u log p(y, u), the means of w and of
        ½(δwᵀ + wδᵀ) − H^{-1} are 0 (Stein's identity), so those of δ − w and
        δδᵀ − ½(δwᵀ + wδᵀ) + H^{-1} are the posterior moments. Where the posterior is normal, w = δ,
        and they are exact.
        """
        joint, here = self._joint, self._laplace(theta)
        root, points, c = here.root, theta.new_zeros(1, joint.dimension), theta.new_ones(1)
        if not self.exact:
            states = self._run(here, _LONG, _MANY)
            points, c = states.points, states.coefficient / _MANY
        delta = here.at(points) - here.mode[:, None]
        w = -root @ (root.T @ here.density(points)[1])
        factor, found = self.layout.factor(theta), []
        for span in joint.spans:
            own = factor[span.effects, span.effects]
            of_delta, of_w = joint.blocks(span, delta), joint.blocks(span, w)
            of_root = joint.blocks(span, root)
            moved = (of_delta - of_w) @ c  # (groups, q_f)
            half = (c * of_delta) @ (0.5 * of_delta - 0.5 * of_w).mT
            second = of_root @ of_root.mT + half + half.mT
            mean = joint.blocks(span, here.mode[:, None])[..., 0] + moved
            covariance = second - moved[:, :, None] * moved[:, None, :]
            found.append((mean @ own.T, own @ covariance @ own.T))
        return found

    def length(self, step: Tensor) -> float:
        """Return how far a step of θ moves the linear predictor of groups with ‖u‖ about 2."""
        of_beta = self._joint.x @ self.layout.beta(step)
        of_factor = (self._joint.z @ self.layout.factor(step)).norm(dim=1)
        return float((of_beta.abs() + 2.0 * of_factor).max())

    def _laplace(self, theta: Tensor) -> Laplace:
        """Find Laplace's approximation at θ, starting from the mode of the last call."""
        found = laplace(self._joint, theta, self._mode)
        self._mode = found.mode
        return found

    def _score(self, here: Laplace) -> Tensor:
        motion = self._motion
        if motion is None or self.length(here.theta - motion.theta) > _NEAR:
            self._motion = motion = Motion.at(here)
        states = self._run(here, _LEVELS, _CHAINS)
        return states.coefficient @ moving_scores(here, motion, states.points) / _CHAINS

    def _run(self, here: Laplace, estimator: Estimator, chains: int) -> Measure:
        """Run chains and return their states; the acceptance rate adapts the next step size."""
        x = self._normal(chains, self._generator)
        states, outcome = run(here, estimator, x, self._step, self._generator)
        acceptance = outcome.accepted / (outcome.evaluations - chains)
        best = step_size(self._joint.dimension)
        changed = self._step * 2.0 ** (acceptance - _ACCEPTANCE)
        self._step = min(max(changed, 0.05 * best), best)
        return states

    def _normal(self, chains: int, generator: torch.Generator) -> Tensor:
        """Draw whitened states from Laplace's approximation, N(0, I)."""
        return torch.randn(chains, self._joint.dimension, dtype=torch.float64, generator=generator)


def step_size(dimension: int) -> float:
    """Return the h that is best for N(0, I)."""
    return _BEST * dimension ** (-1.0 / 3.0)


def run(
    here: Laplace, estimator: Estimator, x: Tensor, step: float, generator: torch.Generator
) -> tuple[Measure, Outcome]:
    """Run chains of the posterior from whitened states x, (chains, D).

    The estimator counts steps from the end of the discarded ones.
    """
    kernel = MALA(_path(here, 1.0), step)
    warm = Average(1, burn_in=math.ceil(_WARM / step) - 1)
    _, outcome = _simulate(kernel, x, warm, generator)
    return _simulate(kernel, outcome.last, estimator, generator)


def annealed(
    here: Laplace, x: Tensor, temperatures: int, step: float, generator: torch.Generator
) -> LogLikelihood:
    """Estimate the log-likelihood by annealed importance sampling (Neal, 2001).

    A chain takes one step at each λ_k = k/K, k = 1 … K − 1, from x_0 ~ N(0, I). The mean of

        w = det C · exp Σ_k (λ_k − λ_{k−1}) {log p_θ(y, mode + C x_{k−1}) − log N(x_{k−1}; 0, I)}

    is the likelihood, for any number K; the larger K is, the less log w varies. With plain
    importance sampling (K = 1) its variance grows with D.
    """
    log_w = x.new_zeros(len(x))
    for k in range(temperatures):
        if k:
            kernel = MALA(_path(here, k / temperatures), step)
            x = _simulate(kernel, x, Average(1), generator)[1].last
        log_w += (here.density(x)[0] + _minus_log_normal(x)) / temperatures
    found = LogLikelihood.of(log_w.reshape(1, -1, 1))
    return replace(found, value=found.value + here.log_volume)


def _path(here: Laplace, share: float) -> Callable[[Tensor], Tensor]:
    """Return log π_λ of whitened states, with the gradient in closed form."""

    def log_density(x: Tensor) -> Tensor:
        at = x.detach()
        value, gradient = here.density(at)
        value = share * value - (1.0 - share) * _minus_log_normal(at)
        gradient = share * (gradient.T @ here.root) - (1.0 - share) * at
        # The value with its slope in x: x − at is 0.
        return value + ((x - at) * gradient).sum(1)

    return log_density


def _simulate(
    kernel: MALA, x: Tensor, estimator: Estimator, generator: torch.Generator
) -> tuple[Measure, Outcome]:
    simulation = Simulation(kernel.run(x, (), estimator.draw(len(x), None, generator), generator))
    return concatenate(list(simulation)), simulation.outcome


def _minus_log_normal(x: Tensor) -> Tensor:
    return 0.5 * (x.square().sum(1) + x.shape[1] * _LOG_2PI)


@dataclass(frozen=True)
class Span:
    """The position of a factor: its effects among the columns of Z, its groups in u."""

    effects: slice  # of the q columns
    latent: slice  # of the D entries of u
    groups: int


@final
class Joint:
    """The density of the response and all random effects, log p_θ(y, u).

    Attributes:
        dimension: D.
        spans: the position of each factor.
        place: the position in u of the columns of a row, (n, q) int64.
    """

    def __init__(self, design: Design, family: Family) -> None:
        effects = design.effects
        self.dimension = sum(len(e.groups) * len(e.terms) for e in effects)
        if self.dimension > LARGEST:
            counts = ", ".join(f"{len(e.groups)} × {len(e.terms)} of {e.factor}" for e in effects)
            raise ValueError(
                f"design must have at most {LARGEST} random effects with several grouping factors, "
                f"got {self.dimension} ({counts}): their matrix is dense; make the factor "
                "with the fewest groups fixed, or keep one factor, for which there is no limit"
            )
        self.layout = Layout.of(design, family)
        self.family, self.x, self.offset = family, design.fixed, design.offset
        self.y, self.trials = design.y[:, None], design.trials[:, None]
        self.z = torch.cat([e.columns for e in effects], 1)  # (n, q)
        self.spans, places, column, begin = list[Span](), [], 0, 0
        for e in effects:
            q, size = len(e.terms), len(e.groups) * len(e.terms)
            span = Span(slice(column, column + q), slice(begin, begin + size), len(e.groups))
            self.spans.append(span)
            places.append(begin + e.index[:, None] * q + torch.arange(q))
            column, begin = column + q, begin + size
        self.place = torch.cat(places, 1)
        n, q = self.z.shape
        where = torch.stack([torch.arange(n).repeat_interleave(q), self.place.reshape(-1)])
        wide = torch.sparse_coo_tensor(
            where, self.z.reshape(-1), (n, self.dimension), check_invariants=True
        )
        self._wide, self._tall = wide.coalesce(), wide.T.coalesce()

    def predictor(self, theta: Tensor, u: Tensor) -> Tensor:
        """Return η, (n, m), of columns u, (D, m)."""
        base = (self.x @ self.layout.beta(theta) + self.offset)[:, None]
        return base + self._wide @ self.scaled(self.layout.factor(theta), u)

    def scaled(self, factor: Tensor, u: Tensor) -> Tensor:
        """Return Λ̃u, (D, m), for Λ, (q, q), and columns u."""
        parts = [factor[s.effects, s.effects] @ self.blocks(s, u) for s in self.spans]
        return torch.cat([part.reshape(-1, u.shape[1]) for part in parts])

    def blocks(self, span: Span, u: Tensor) -> Tensor:
        """Return the effects of a factor, (groups, q_f, m), of columns u, (D, m)."""
        return u[span.latent].reshape(span.groups, -1, u.shape[1])

    def slopes(self, theta: Tensor, eta: Tensor) -> Slopes:
        """Return log p(y_i | η_i), the slopes r and the curvatures W in η, (n, m) each."""
        return self.family.slopes(eta, self.y, self.trials, self.layout.log_dispersion(theta))

    def density(self, theta: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p(y, u), (m,), its gradient in u, (D, m), and W, (n, m), of columns u."""
        value, slope, curvature = self.slopes(theta, self.predictor(theta, u))
        constant = 0.5 * self.dimension * _LOG_2PI
        gradient = self.scaled(self.layout.factor(theta).T, self._tall @ slope) - u
        return value.sum(0) - 0.5 * u.square().sum(0) - constant, gradient, curvature

    def scores(self, theta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return ∇_θ log p(y, u), (m, θ), and the gradient in u, (D, m), of columns u.

        With r the slopes in η: ∇_β = Xᵀr, ∇_Λ = Σ_g (Zᵀr)_g u_gᵀ at its free entries, and the sum
        of the slopes in log φ.
        """
        eta = self.predictor(theta, u)
        _, slope, _ = self.slopes(theta, eta)
        gathered = self._tall @ slope
        q, m = self.layout.random, u.shape[1]
        of_factor = u.new_zeros(m, q, q)
        for s in self.spans:
            left, right = self.blocks(s, gathered), self.blocks(s, u)
            of_factor[:, s.effects, s.effects] = torch.einsum("gam,gbm->mab", left, right)
        row, column = self.layout.entries
        found = [slope.T @ self.x, of_factor[:, row, column]]
        if self.layout.dispersion:
            found.append(self.dispersion_slope(theta, eta).sum(0)[:, None])
        return torch.cat(found, 1), self.scaled(self.layout.factor(theta).T, gathered) - u

    def dispersion_slope(self, theta: Tensor, eta: Tensor) -> Tensor:
        """Return ∂ log p(y_i | η_i)/∂ log φ, (n, m)."""
        dispersion = self.layout.log_dispersion(theta)
        return self.family.dispersion_slope(eta, self.y, self.trials, dispersion)


@dataclass(frozen=True)
class Laplace:
    """Laplace's approximation N(mode, CCᵀ) of p_θ(u | y)."""

    joint: Joint
    theta: Tensor
    mode: Tensor  # (D,)
    root: Tensor  # (D, D): C with CCᵀ = H^{-1}, upper triangular

    def at(self, x: Tensor) -> Tensor:
        """Return the columns u = mode + Cx, (D, m), of whitened rows x, (m, D)."""
        return self.mode[:, None] + self.root @ x.T

    def density(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(y, u), (m,), and its gradient in u, (D, m), of whitened rows x."""
        return self.joint.density(self.theta, self.at(x))[:2]

    @property
    def log_volume(self) -> Tensor:
        """Log det C."""
        return self.root.diagonal().log().sum()


def laplace(joint: Joint, theta: Tensor, start: Tensor | None = None) -> Laplace:
    """Find Laplace's approximation at θ, by Newton's method from `start`, (D,); 0 by default."""
    mode, lower, _ = newton(joint, theta, start)
    # H = RRᵀ: C = R^{-ᵀ}.
    eye = torch.eye(joint.dimension, dtype=theta.dtype)
    root = torch.linalg.solve_triangular(lower.mT, eye, upper=True)
    # In row-major order its products with states are several times as fast.
    return Laplace(joint, theta, mode, root.contiguous())


def newton(
    joint: Joint, theta: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mode, (D,); R, lower triangular, with RRᵀ = H; and log p(y, mode)."""
    u = theta.new_zeros(joint.dimension) if start is None else start
    columns = joint.z @ joint.layout.factor(theta)  # (n, q): those of ZΛ̃
    value, gradient, curvature = joint.density(theta, u[:, None])
    for _ in range(_NEWTON_STEPS):
        lower = torch.linalg.cholesky(_hessian(joint, columns, curvature))
        step = torch.cholesky_solve(gradient, lower)[:, 0]
        if float(gradient[:, 0] @ step) < _ENOUGH:
            break
        size = 1.0
        for _ in range(_HALVINGS):
            found = joint.density(theta, (u + size * step)[:, None])
            if float(found[0]) >= float(value) - 1e-12 * abs(float(value)):
                break
            size *= 0.5
        u, (value, gradient, curvature) = u + size * step, found
    return u, lower, value[0]


def _hessian(joint: Joint, columns: Tensor, curvature: Tensor) -> Tensor:
    """Return H; the rows of a pair of groups add up at its position."""
    d = joint.dimension
    place = joint.place[:, :, None] * d + joint.place[:, None, :]
    products = columns[:, :, None] * (curvature * columns)[:, None, :]
    found = torch.bincount(place.reshape(-1), products.reshape(-1), d * d).reshape(d, d)
    found.diagonal().add_(1.0)
    return found


@dataclass(frozen=True)
class Motion:
    """The derivatives of Laplace's approximation in θ."""

    theta: Tensor
    shift: Tensor  # a, (θ, D)
    stretch: Tensor  # B, (θ, D, D), upper triangular

    @staticmethod
    def at(here: Laplace) -> Motion:
        """Compute them by central differences."""
        theta, shifts, stretches = here.theta, [], []
        for step in torch.diag(_SCORE_STEP * theta.abs().clamp(min=1.0)):
            above, below = (laplace(here.joint, theta + h, here.mode) for h in (step, -step))
            shifts.append((above.mode - below.mode) / (2.0 * step.sum()))
            stretches.append((above.root - below.root) / (2.0 * step.sum()))
        return Motion(theta, torch.stack(shifts), torch.stack(stretches))


def moving_scores(here: Laplace, motion: Motion, x: Tensor) -> Tensor:
    """Return R, (m, θ), whose posterior mean is the score, of whitened states x, (m, D).

    The motion may be that of a θ nearby.
    """
    trace = (motion.stretch.diagonal(dim1=1, dim2=2) / here.root.diagonal()).sum(1)
    found, size = [], max(len(here.joint.x), here.joint.dimension)
    for part in x.split(max(1, _PART // size)):
        complete, gradient = here.joint.scores(here.theta, here.at(part))
        moved = motion.shift @ gradient  # (θ, m)
        for k, stretch in enumerate(motion.stretch):
            moved[k] += (gradient * (stretch @ part.T)).sum(0)
        found.append(complete + moved.T + trace)
    return torch.cat(found)


def louis_terms(here: Laplace, x: Tensor, c: Tensor) -> Tensor:
    """Return terms whose mean is the observed information, (m, θ, θ).

    The mean is that of whitened states x, (m, D), with coefficients c that sum to 1.
    """

    def density(at: Tensor) -> Tensor:
        """Return L, (m,)."""
        moved = laplace(here.joint, at, here.mode)
        parts = x.split(max(1, _PART // len(here.joint.x)))
        return torch.cat([moved.density(part)[0] for part in parts]) + moved.log_volume

    slope, curvature = _differences(density, here.theta)
    centred = slope - c @ slope
    return -curvature - centred[:, :, None] * centred[:, None, :]


def laplace_information(here: Laplace) -> Tensor:
    """Return the information of Laplace's approximation, (θ, θ), symmetric; it is not random."""

    def density(at: Tensor) -> Tensor:
        _, lower, value = newton(here.joint, at, here.mode)
        return (value - lower.diagonal().log().sum())[None]

    return -_differences(density, here.theta)[1][0]


def _differences(function: Callable[[Tensor], Tensor], theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slopes of each component, (m, θ), and its second derivatives, (m, θ, θ)."""
    steps = torch.diag(_STEP * theta.abs().clamp(min=1.0))
    middle = function(theta)
    above, below = (torch.stack([function(theta + h) for h in hs], 1) for hs in (steps, -steps))
    both = above + below
    second = torch.diag_embed(both - 2.0 * middle[:, None])
    for i in range(len(theta)):
        for j in range(i):
            together = steps[i] + steps[j]
            mixed = function(theta + together) + function(theta - together)
            entry = 0.5 * (mixed - both[:, i] - both[:, j]) + middle
            second[:, i, j] = second[:, j, i] = entry
    h = steps.diagonal()
    return (above - below) / (2.0 * h), second / (h[:, None] * h)


def complete_information(joint: Joint, theta: Tensor, u: Tensor) -> Tensor:
    """Return the complete-data information at equally weighted states u, (D, m)."""
    row, column = joint.layout.entries
    size, linear = len(theta), joint.layout.fixed + len(row)
    total = theta.new_zeros(size, size)
    eta = joint.predictor(theta, u)
    curvature = joint.slopes(theta, eta)[2]
    for state, weight in zip(u.T, curvature.T, strict=True):
        columns = torch.cat([joint.x, joint.z[:, row] * state[joint.place[:, column]]], 1)
        total[:linear, :linear] += columns.T @ (weight[:, None] * columns)
    if joint.layout.dispersion:
        step = torch.zeros_like(theta)
        step[-1] = _STEP
        above, below = (
            joint.dispersion_slope(at, eta).sum() for at in (theta + step, theta - step)
        )
        total[-1, -1] = ((above - below) / (2.0 * _STEP)).abs()
    return total / u.shape[1]


def positive(information: Tensor, complete: Tensor) -> Tensor:
    """Return a positive definite matrix for steps: I with absolute eigenvalues, relative to J.

    Far from the maximum I may be indefinite, and Newton's method would go to a saddle. With J = LLᵀ
    and L^{-1} I L^{-ᵀ} = Σ λ_k q_k q_kᵀ, the matrix is L (Σ |λ_k| q_k q_kᵀ) Lᵀ with |λ| clamped to
    [0.05, 1]: a step goes uphill, in each direction between 1 and 20 times as far as EM's.
    """
    eye = torch.eye(len(complete), dtype=complete.dtype)
    lower = torch.linalg.cholesky(complete + 1e-8 * complete.diagonal().mean() * eye)
    left = torch.linalg.solve_triangular(lower, information, upper=False)
    relative = torch.linalg.solve_triangular(lower, left.T, upper=False)
    value, vector = torch.linalg.eigh(0.5 * (relative + relative.T))
    scaled = lower @ vector
    return (scaled * value.abs().clamp(_LEAST, 1.0)) @ scaled.T
