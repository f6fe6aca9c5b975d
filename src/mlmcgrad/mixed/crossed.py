"""The likelihood of a model with several grouping factors, nested or crossed.

No group is independent of the others, so the random effects of all groups are one vector, u. A
normal law approximates its posterior. Levels of importance sampling from it correct the difference
where the weights are mild, otherwise MALA chains. Both have random
lengths and signed weights, those of `MLMCSum`, that remove or reduce their bias. The posterior of a
normal response is normal, which needs neither.

**One vector.** u ~ N(0, I) holds the standardised effects of the groups of all factors, one after
the other, of dimension D = Σ_f groups_f · q_f. Each row picks the block of its group from every
factor,

    η_i = x_iᵀβ + offset_i + Σ_f z_{f,i}ᵀ Λ_f u_{f, g_f(i)},      in short η = Xβ + offset + ZΛ̃u,

with Λ̃ block diagonal, Λ_f for each group of f. Z is sparse, with Σ_f q_f numbers per row. θ is laid
out as if the effects of all factors were side by side: Λ of `Layout` is block diagonal.

**The normal law.** With f(u) = log p_θ(y, u), Laplace's approximation has the mode of f as its
mean, and the curvature there. Where the posterior is skewed, its mean is elsewhere. The law
N(m, CCᵀ) with the largest variational bound (Gaussian variational approximation),

    B(m, C) = E f(m + Cx) + log det C + constant,      x ~ N(0, I),

is much closer: the standard deviation of the log weights of VerbAgg (340 effects) is 1.2, and 2.4
with Laplace's approximation. At its maximum

    Λ̃ᵀZᵀr̄ = m,      (CCᵀ)^{-1} = I + Λ̃ᵀZᵀW̄ZΛ̃,

where r̄ and W̄ are means of the slope and the curvature of log p(y_i | η_i) over the law of η_i,
N(m_i, v_i): an integral in one dimension per row. Newton steps in m and the second equation in turn
find it, from Laplace's approximation. The gradient of the bound in θ is that at fixed m and C. Its
maximum is near that of the likelihood, and takes no random numbers: the search starts from there.

**Scores and information.** By Fisher's identity the score is the posterior mean of S(u) = ∇_θ log
p_θ(y, u). The variance of S is all the information that is lost because u is not observed. In the
coordinates x of the normal law, u_θ(x) = m_θ + C_θ x, the same identity is for each parameter k

    ∂_k log p_θ(y) = E[ R_k | y ],      R_k = d/dθ_k { log p_θ(y, u_θ(x)) + log det C_θ }
                   = S_k(u) + ∇_u log p_θ(y, u)ᵀ (a_k + B_k x) + tr(C^{-1} B_k),

with a_k = ∂_k m and B_k = ∂_k C. Where the posterior is normal, x is N(0, I) at every θ and R is
the score itself, whatever x is; otherwise R varies as much as the posterior differs from the normal
law. All terms but S_k have mean 0 for any a_k and B_k (Stein's identity), so finite differences, or
the derivatives at a θ nearby, cause no bias.

In the same coordinates L_θ(x) = log p_θ(y, u_θ(x)) + log det C_θ is the log density of x up to
log p_θ(y), and Louis' identity is

    I = −E[∇²L | y] − Var[∇L | y].

In the usual coordinates both terms are large and nearly cancel in a direction that the random
effects explain well. In these, where the posterior is normal, ∇L does not depend on x and I is
exact. The motion u_θ(x) may be any smooth function of θ, here one of second order.

**Importance sampling.** Draws x ~ N(0, I), in pairs ±x, have the weights w = p_θ(y, m + Cx) det C /
N(x; 0, I), with mean p_θ(y). A pilot measures the standard deviation s of log w. With s ≤ 2.5 the
score is the mean of R with weights over blocks of 16 exp(s²) draws, worth about 16 draws of the
posterior, and levels remove its bias. A normal law has lighter tails than the posterior may have,
so very few weights may be very large; such draws are as rare as their share of the posterior.

**Chains.** If the weights vary more, MALA samples x. As x is nearly N(0, I), one step size serves
all coordinates. For N(0, I) in D dimensions the best one is h = ½ · 1.65² · D^{-1/3}, with an
acceptance of 0.57 (Roberts and Rosenthal, 1998). Chains start from x ~ N(0, I), independent of each
other. The first 12/h steps are discarded: where it was measured (binary responses, D = 80 and 300),
the error of Laplace's approximation fell by a factor of e in at most 3/h steps. The expectation of
the score is that of the longest chain, T steps after the discarded ones. For the log-likelihood
chains follow the path

    log π_λ(x) = (1 − λ) log N(x; 0, I) + λ log p_θ(y, m + Cx)

from the normal law, λ = 0, to the posterior, λ = 1.

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
from mlmcgrad.kernels.importance import Blocks, block_weights, shares
from mlmcgrad.measure import Measure, concatenate
from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family, Gaussian, Slopes
from mlmcgrad.mixed.grouped import ENDLESS, gauss_hermite
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
# Of differences in θ: of the approximation, its second ones, and of exact scores.
_MOTION_STEP, _BEND_STEP, _STEP = 1e-3, 1e-2, 1e-4
_SLOPE_STEP = 1e-5  # of differences of slopes, in η and in the dispersion
_NODES = 9  # for the law of η_i in a normal approximation
_ROUNDS, _SETTLED = 60, 1e-6  # of the variational approximation; change in the last one
_PILOT, _MILD = 256, 2.5  # draws for the spread of log w, and the largest for importance sampling
_EFFECTIVE, _BLOCKS = 16, 8  # exact draws that a block is worth; blocks in an information
_PARTS, _ERROR, _DRAWS = 64, 0.015, 2**16  # blocks, error and most draws for the log-likelihood
_LEAST = 0.05  # of the complete-data information in a direction: a step is at most 20 times EM's
_PART = 2**18  # numbers (states × rows or random effects) at once: they stay in the cache


@final
class Crossed:
    """The likelihood as a function of θ, estimated by draws or chains of all random effects.

    θ holds the entries of Λ of all factors, in the order of `design.effects`; see `Layout`. The
    columns of the design have similar scales.
    """

    def __init__(self, design: Design, family: Family, generator: torch.Generator) -> None:
        self._joint = Joint(design, family)
        self.layout: Layout = self._joint.layout
        self._generator = generator
        self._step = step_size(self._joint.dimension)
        self._here: Approximation | None = None  # the last one
        self._motion: Motion | None = None
        self._mild = True
        self.exact = isinstance(family, Gaussian)

    @property
    def method(self) -> str:
        """How the integrals are computed, in words."""
        if self.exact:
            return "in closed form"
        if self._mild:
            return "by levels of importance sampling over all random effects"
        return "by Langevin chains over all random effects"

    def value_and_score(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the bound of the log-likelihood and its gradient, exact for a normal response."""
        return bound(self._approximate(theta))

    def curvature(self, theta: Tensor) -> Tensor:
        """Return the information of a normal response, (θ, θ)."""
        here = self._approximate(theta)
        rows = [
            (bound(here.near(theta - h))[1] - bound(here.near(theta + h))[1]) / (2.0 * h.sum())
            for h in torch.diag(_STEP * theta.abs().clamp(min=1.0))
        ]
        exact = torch.stack(rows)
        return 0.5 * (exact + exact.T)

    def settle(self, theta: Tensor) -> bool:
        """Return False: a closed form is as precise as can be."""
        return False

    def scores(self, theta: Tensor, count: int) -> Tensor:
        """Return estimates of the score, (count, θ), whose only bias is that of T steps."""
        here = self._approximate(theta)
        if self.exact:
            return bound(here)[1].expand(count, -1)
        motion, block = self._moving(here), self._block(here, self._generator)
        if block:
            return weighted_scores(here, motion, block, count, self._generator)
        found = []
        for _ in range(count):
            states = self._run(here, _LEVELS, _CHAINS)
            found.append(mean_score(here, motion, states.points, states.coefficient / _CHAINS))
        return torch.stack(found)

    def adaptive(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the bound, and its information made positive definite.

        They need no random numbers, and the maximum of the bound is near that of the likelihood.
        Far from it the information may be indefinite; there the complete-data information bounds
        it on both sides; see `positive`.
        """
        here = self._approximate(theta)
        u = here.at(self._normal(_FEW))
        complete = complete_information(self._joint, theta, u)
        return bound(here)[1], positive(self._moving(here).information, complete)

    def information(self, theta: Tensor, effort: int = 1) -> Tensor:
        """Return estimates of the observed information, (n · effort, θ, θ)."""
        if self.exact:
            return self.curvature(theta).expand(2, -1, -1)
        here = self._approximate(theta)
        motion, block = Motion.at(here), self._block(here, self._generator)
        if block:
            count = effort * _BLOCKS
            x, log_w = draws(here, count * block, self._generator)
            c, owner = log_w.softmax(0), torch.arange(count).repeat_interleave(block)
        else:
            count = effort * _MANY
            states = self._run(here, _LONG, count)
            x, c, owner = states.points, states.coefficient / count, states.owner
        return louis(here, motion, x, c, owner)

    def log_likelihood(self, theta: Tensor, generator: torch.Generator) -> LogLikelihood:
        """Compute or estimate the log-likelihood, in one part."""
        here = self._approximate(theta)
        if self.exact:
            value = theta.new_tensor([bound(here)[0]])
            return LogLikelihood(value, value.new_zeros(1, 2))
        block = self._block(here, generator)
        if block:
            # The relative variance of the mean weight of a block is 1 / _EFFECTIVE.
            wanted = min(1.0 / (_EFFECTIVE * _ERROR**2), _DRAWS / block)
            blocks = _PARTS * math.ceil(wanted / _PARTS)
            _, log_w = draws(here, blocks * block, generator)
            return LogLikelihood.of(log_w.reshape(1, _PARTS, -1))
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

        With δ = u − mean and w = CCᵀ∇_u log p(y, u), the means of w and of ½(δwᵀ + wδᵀ) + CCᵀ are 0
        (Stein's identity), so those of δ + w and δδᵀ + ½(δwᵀ + wδᵀ) + CCᵀ are the posterior
        moments. Where the posterior is normal, w = −δ, and they are exact.
        """
        joint, here = self._joint, self._approximate(theta)
        root, points, c = here.root, theta.new_zeros(1, joint.dimension), theta.new_ones(1)
        if not self.exact:
            block = self._block(here, self._generator)
            if block:
                points, log_w = draws(here, _BLOCKS * block, self._generator)
                c = log_w.softmax(0)
            else:
                states = self._run(here, _LONG, _MANY)
                points, c = states.points, states.coefficient / _MANY
        delta = here.at(points) - here.mean[:, None]
        w = -root @ (root.T @ here.density(points)[1])
        factor, found = self.layout.factor(theta), []
        for span in joint.spans:
            own = factor[span.effects, span.effects]
            of_delta, of_w = joint.blocks(span, delta), joint.blocks(span, w)
            of_root = joint.blocks(span, root)
            moved = (of_delta - of_w) @ c  # (groups, q_f)
            half = (c * of_delta) @ (0.5 * of_delta - 0.5 * of_w).mT
            second = of_root @ of_root.mT + half + half.mT
            mean = joint.blocks(span, here.mean[:, None])[..., 0] + moved
            covariance = second - moved[:, :, None] * moved[:, None, :]
            found.append((mean @ own.T, own @ covariance @ own.T))
        return found

    def length(self, step: Tensor) -> float:
        """Return how far a step of θ moves the linear predictor of groups with ‖u‖ about 2."""
        of_beta = self._joint.x @ self.layout.beta(step)
        of_factor = (self._joint.z @ self.layout.factor(step)).norm(dim=1)
        return float((of_beta.abs() + 2.0 * of_factor).max())

    def _approximate(self, theta: Tensor) -> Approximation:
        """Find the approximation at θ, starting from the last one."""
        last = self._here
        if last is None or not torch.equal(last.theta, theta):
            start = None if last is None else last.mean
            self._here = last = variational(self._joint, theta, start)
        return last

    def _moving(self, here: Approximation) -> Motion:
        """Return the motion there, or at a θ nearby."""
        motion = self._motion
        if motion is None or self.length(here.theta - motion.theta) > _NEAR:
            self._motion = motion = Motion.at(here)
        return motion

    def _block(self, here: Approximation, generator: torch.Generator) -> int:
        """Return how many draws have the precision of `_EFFECTIVE` exact ones; 0 for chains."""
        spread = float(draws(here, _PILOT, generator)[1].std())
        self._mild = spread <= _MILD
        # The variance of normal log weights of this spread is exp(spread²) times as large.
        return 2 * math.ceil(0.5 * _EFFECTIVE * math.exp(spread**2)) if self._mild else 0

    def _run(self, here: Approximation, estimator: Estimator, chains: int) -> Measure:
        """Run chains and return their states; the acceptance rate adapts the next step size."""
        x = self._normal(chains)
        states, outcome = run(here, estimator, x, self._step, self._generator)
        acceptance = outcome.accepted / (outcome.evaluations - chains)
        best = step_size(self._joint.dimension)
        changed = self._step * 2.0 ** (acceptance - _ACCEPTANCE)
        self._step = min(max(changed, 0.05 * best), best)
        return states

    def _normal(self, chains: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw whitened states from N(0, I)."""
        generator = generator or self._generator
        return torch.randn(chains, self._joint.dimension, dtype=torch.float64, generator=generator)


def draws(here: Approximation, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw whitened states, (count, D), in pairs ±x, and their log weights, (count,).

    The mean weight is the likelihood.
    """
    size = here.joint.dimension
    x = torch.randn(count // 2, size, dtype=torch.float64, generator=generator)
    x = torch.stack([x, -x], 1).reshape(-1, size)
    log_w = torch.cat([here.log_density(p) + _minus_log_normal(p) for p in here.parts(x)])
    return x, torch.where(log_w.isnan(), -torch.inf, log_w) + here.log_volume


def weighted_scores(
    here: Approximation, motion: Motion, block: int, count: int, generator: torch.Generator
) -> Tensor:
    """Return unbiased estimates of the score, (count, θ): means of R with weights, in levels.

    The self-normalised mean over blocks of draws is biased; the random number of blocks and their
    signed weights, those of `MLMCSum` without truncation, remove the bias.
    """
    lengths = ENDLESS.draw(count, None, generator)
    blocks = Blocks.of(lengths.longest.numpy())
    x, log_w = draws(here, len(blocks.chain) * block, generator)
    log_sum, share = shares(log_w.reshape(-1, block).numpy())
    weight, _ = block_weights(log_sum, blocks, lengths)
    c = torch.from_numpy(weight[:, None] * share).reshape(-1)
    sizes = (block * lengths.longest).tolist()
    each = zip(x.split(sizes), c.split(sizes), strict=True)
    return torch.stack([mean_score(here, motion, own, its) for own, its in each])


def step_size(dimension: int) -> float:
    """Return the h that is best for N(0, I)."""
    return _BEST * dimension ** (-1.0 / 3.0)


def run(
    here: Approximation, estimator: Estimator, x: Tensor, step: float, generator: torch.Generator
) -> tuple[Measure, Outcome]:
    """Run chains of the posterior from whitened states x, (chains, D).

    The estimator counts steps from the end of the discarded ones.
    """
    kernel = MALA(_path(here, 1.0), step)
    warm = Average(1, burn_in=math.ceil(_WARM / step) - 1)
    _, outcome = _simulate(kernel, x, warm, generator)
    return _simulate(kernel, outcome.last, estimator, generator)


def annealed(
    here: Approximation, x: Tensor, temperatures: int, step: float, generator: torch.Generator
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


def _path(here: Approximation, share: float) -> Callable[[Tensor], Tensor]:
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
        return base + self.wide(self.scaled(self.layout.factor(theta), u))

    def wide(self, b: Tensor) -> Tensor:
        """Return Zb, (n, m), of columns b, (D, m)."""
        found: Tensor = self._wide @ b
        return found

    def gathered(self, slope: Tensor) -> Tensor:
        """Return Zᵀr, (D, m), of columns r, (n, m)."""
        found: Tensor = self._tall @ slope
        return found

    def pulled(self, theta: Tensor, slope: Tensor) -> Tensor:
        """Return Λ̃ᵀZᵀr, (D, m), of columns r, (n, m)."""
        return self.scaled(self.layout.factor(theta).T, self.gathered(slope))

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
        gradient = self.pulled(theta, slope) - u
        return value.sum(0) - 0.5 * u.square().sum(0) - constant, gradient, curvature

    def scores(self, theta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return ∇_θ log p(y, u), (m, θ), and the gradient in u, (D, m), of columns u.

        With r the slopes in η: ∇_β = Xᵀr, ∇_Λ = Σ_g (Zᵀr)_g u_gᵀ at its free entries, and the sum
        of the slopes in log φ.
        """
        eta = self.predictor(theta, u)
        _, slope, _ = self.slopes(theta, eta)
        gathered = self.gathered(slope)
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
class Approximation:
    """A normal approximation N(mean, CCᵀ) of p_θ(u | y)."""

    joint: Joint
    theta: Tensor
    mean: Tensor  # (D,)
    root: Tensor  # (D, D): C, upper triangular

    def at(self, x: Tensor) -> Tensor:
        """Return the columns u = mean + Cx, (D, m), of whitened rows x, (m, D)."""
        return self.mean[:, None] + self.root @ x.T

    def density(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(y, u), (m,), and its gradient in u, (D, m), of whitened rows x."""
        return self.joint.density(self.theta, self.at(x))[:2]

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p(y, u), (m,), of whitened rows x."""
        u = self.at(x)
        value = self.joint.slopes(self.theta, self.joint.predictor(self.theta, u))[0]
        return value.sum(0) - 0.5 * u.square().sum(0) - 0.5 * len(u) * _LOG_2PI

    def parts(self, x: Tensor, numbers: int = 1) -> tuple[Tensor, ...]:
        """Split whitened rows x into parts that fit into memory, with so many numbers per row."""
        size = numbers * max(len(self.joint.x), self.joint.dimension)
        return x.split(max(1, _PART // size))

    def near(self, theta: Tensor) -> Approximation:
        """Return the variational approximation at a θ nearby."""
        return _improved(replace(self, theta=theta))

    @property
    def log_volume(self) -> Tensor:
        """Log det C."""
        return self.root.diagonal().log().sum()


def variational(joint: Joint, theta: Tensor, start: Tensor | None = None) -> Approximation:
    """Find the normal law with the largest bound, or Laplace's approximation where it fails."""
    first = laplace(joint, theta, start)
    found = _improved(first)
    finite = bool(found.mean.isfinite().all()) and bool(found.root.isfinite().all())
    return found if finite else first


def _improved(here: Approximation) -> Approximation:
    """Maximise the bound over mean and C, by Newton steps in the mean."""
    joint, theta = here.joint, here.theta
    columns, mean = joint.z @ joint.layout.factor(theta), here.mean
    covariance = here.root @ here.root.T
    for _ in range(_ROUNDS):
        row = _rows(joint, theta, mean, covariance)
        gradient = joint.pulled(theta, row.slope) - mean[:, None]
        lower, failed = torch.linalg.cholesky_ex(_hessian(joint, columns, row.curvature))
        if failed or not bool(gradient.isfinite().all()):
            return replace(here, mean=mean * math.nan)
        step, before = torch.cholesky_solve(gradient, lower)[:, 0], covariance.diagonal()
        mean, covariance = mean + step, torch.cholesky_inverse(lower)
        change = float((covariance.diagonal() - before).abs().max())
        if float(gradient[:, 0] @ step) < _SETTLED**2 and change < _SETTLED:
            break
    return replace(here, mean=mean, root=_inverse(lower))


@dataclass(frozen=True)
class _Rows:
    """Means over η_i ~ N(m_i, v_i), the law of each row in the approximation, (n, 1) each."""

    value: Tensor  # of log p(y_i | η_i)
    slope: Tensor
    curvature: Tensor
    dispersion: Tensor | None  # of the slope in log φ
    covariances: Tensor  # of η_i with its q effects, (n, q)


def _rows(joint: Joint, theta: Tensor, mean: Tensor, covariance: Tensor) -> _Rows:
    """Integrate over η_i by Gauss–Hermite quadrature; −E[∂²log p] is −E[r (η − m)]/v (Stein)."""
    columns = joint.z @ joint.layout.factor(theta)
    pairs = covariance[joint.place[:, :, None], joint.place[:, None, :]]
    covariances = (pairs @ columns[:, :, None])[..., 0]
    sd = (columns * covariances).sum(1, keepdim=True).clamp(min=1e-12).sqrt()
    t, log_weight = gauss_hermite(_NODES, 1)
    t, weight = t.reshape(1, -1), (log_weight - 0.5 * t.square().reshape(-1)).softmax(0)[:, None]
    eta = joint.predictor(theta, mean[:, None]) + sd * t
    value, slope, _ = joint.slopes(theta, eta)
    of_phi = joint.dispersion_slope(theta, eta) @ weight if joint.layout.dispersion else None
    curvature = (-(slope * t) @ weight / sd).clamp(min=0.0)
    return _Rows(value @ weight, slope @ weight, curvature, of_phi, covariances)


def bound(here: Approximation) -> tuple[float, Tensor]:
    """Return the variational bound of the log-likelihood, and its gradient in θ, (θ,).

    At the best mean and C their change with θ does not matter.
    """
    joint, theta = here.joint, here.theta
    row = _rows(joint, theta, here.mean, here.root @ here.root.T)
    prior = here.mean.square().sum() + here.root.square().sum() - joint.dimension
    value = row.value.sum() - 0.5 * prior + here.log_volume
    r, c = joint.layout.entries
    products = row.slope * here.mean[joint.place] - row.curvature * row.covariances  # E[r u]
    found = [(joint.x.T @ row.slope)[:, 0], (joint.z[:, r] * products[:, c]).sum(0)]
    if row.dispersion is not None:
        found.append(row.dispersion.sum()[None])
    return float(value), torch.cat(found)


def laplace(joint: Joint, theta: Tensor, start: Tensor | None = None) -> Approximation:
    """Find Laplace's approximation at θ, by Newton's method from `start`, (D,); 0 by default."""
    mode, lower, _ = newton(joint, theta, start)
    return Approximation(joint, theta, mode, _inverse(lower))


def _inverse(lower: Tensor) -> Tensor:
    """Return C = R^{-ᵀ}, upper triangular, of H = RRᵀ."""
    eye = torch.eye(len(lower), dtype=lower.dtype)
    root = torch.linalg.solve_triangular(lower.mT, eye, upper=True)
    # In row-major order its products with states are several times as fast.
    return root.contiguous()


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
    """The derivatives of the approximation in θ, and the information of its bound."""

    theta: Tensor
    shift: Tensor  # a, (θ, D)
    stretch: Tensor  # B, (θ, D, D), upper triangular
    information: Tensor  # (θ, θ), symmetric

    @staticmethod
    def at(here: Approximation) -> Motion:
        """Compute them by differences."""
        shifts, stretches, rows, score = [], [], [], bound(here)[1]
        for h in torch.diag(_MOTION_STEP * here.theta.abs().clamp(min=1.0)):
            there = here.near(here.theta + h)
            shifts.append((there.mean - here.mean) / h.sum())
            stretches.append((there.root - here.root) / h.sum())
            rows.append((score - bound(there)[1]) / h.sum())
        matrix = torch.stack(rows)
        matrix = 0.5 * (matrix + matrix.T)
        return Motion(here.theta, torch.stack(shifts), torch.stack(stretches), matrix)


def bends(here: Approximation) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
    """Return ∂_k∂_l mean, (D,), and ∂_k∂_l C, (D, D), for the entries k ≤ l of Λ, by differences.

    Those of the coefficients matter little.
    """
    entries, found = here.joint.layout.of_factor, {}
    steps = torch.diag(_BEND_STEP * here.theta.abs().clamp(min=1.0))
    once = {k: here.near(here.theta + steps[k]) for k in range(entries.start, entries.stop)}
    for k, first in once.items():
        for j in range(k, entries.stop):
            both, area = here.near(here.theta + steps[k] + steps[j]), steps[k, k] * steps[j, j]
            shift = (both.mean - first.mean - once[j].mean + here.mean) / area
            found[k, j] = shift, (both.root - first.root - once[j].root + here.root) / area
    return found


def mean_score(here: Approximation, motion: Motion, x: Tensor, c: Tensor) -> Tensor:
    """Return Σ_j c_j R_j, (θ,), of whitened states x, (m, D), with coefficients c that sum to 1.

    The posterior mean of R is the score. The motion may be that of a θ nearby.
    """
    found = (motion.stretch.diagonal(dim1=1, dim2=2) / here.root.diagonal()).sum(1)
    begin, size = 0, here.joint.dimension
    moment = x.new_zeros(size, size)  # Σ_j c_j ∇f_j x_jᵀ
    for part in here.parts(x):
        own = c[begin : begin + len(part)]
        begin += len(part)
        complete, gradient = here.joint.scores(here.theta, here.at(part))
        complete = torch.where(own[:, None] == 0.0, 0.0, complete)  # where it may be infinite
        gradient = torch.where(own == 0.0, 0.0, gradient) * own
        found = found + own @ complete + motion.shift @ gradient.sum(1)
        moment += gradient @ part
    return found + (motion.stretch * moment).sum((1, 2))


def louis(here: Approximation, motion: Motion, x: Tensor, c: Tensor, owner: Tensor) -> Tensor:
    """Return estimates of the observed information, (blocks, θ, θ), one for each block of states.

    States move with a second-order expansion of the approximation in θ.

    Args:
        here: the approximation.
        motion: its derivatives.
        x: whitened states, (m, D).
        c: coefficients that sum to 1, (m,).
        owner: the block of each state, (m,).
    """
    bent, size = bends(here), len(here.theta)
    inside = torch.linalg.solve_triangular(here.root, motion.stretch, upper=True)  # C^{-1}B
    trace = torch.einsum("kij,lji->kl", inside, inside)
    for (k, j), (_, stretch) in bent.items():
        trace[k, j] -= (stretch.diagonal() / here.root.diagonal()).sum()
        trace[j, k] = trace[k, j]
    slopes, sums, share = [], [], []
    for block in range(int(owner.max()) + 1):
        which = owner == block
        own, its = x[which], c[which]
        slope, total = x.new_zeros(len(own), size), -its.sum() * trace
        moment, push = x.new_zeros(own.shape[1], own.shape[1]), x.new_zeros(own.shape[1])
        begin = 0
        for part in here.parts(own, 2):
            end = begin + len(part)
            weight = its[begin:end]
            slope[begin:end], second, gradient = _derivatives(here, motion, part, weight)
            total, moment = total + second, moment + gradient @ part
            push, begin = push + gradient.sum(1), end
        for (k, j), (shift, stretch) in bent.items():
            cross = shift @ push + (stretch * moment).sum()
            total[k, j] += cross
            if k != j:
                total[j, k] += cross
        slopes.append(slope)
        sums.append(total)
        share.append(its)
    mean = sum(its @ slope for its, slope in zip(share, slopes, strict=True))
    own_sums = []
    for its, slope, total in zip(share, slopes, sums, strict=True):
        centred = slope - mean
        own_sums.append(-total - (its * centred.T) @ centred)
    found, shares_of = torch.stack(own_sums), torch.stack([its.sum() for its in share])
    whole = found.sum(0)
    found = whole + len(found) * (found - shares_of[:, None, None] * whole)
    return 0.5 * (found + found.mT)


def _derivatives(
    here: Approximation, motion: Motion, x: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return derivatives of log p_θ(y, u_θ(x)) in θ, and weighted gradients in u.

    The slopes are those of each state, (m, θ), without the volume. With η_k = ∂_k η and
    u_k = ∂_k u = a_k + B_k x the second derivatives, (θ, θ), weighted by c, are

        Σ_i {∂²_η log p · η_k η_l + r η_kl} − u_kᵀu_l,    η_kl = ZΛ̃_k u_l + ZΛ̃_l u_k,

    and terms of the dispersion. Those of the second derivatives of u are linear in the gradients
    in u, (D, m), times c.
    """
    joint, theta, layout = here.joint, here.theta, here.joint.layout
    u, p = here.at(x), len(here.theta)
    eta = joint.predictor(theta, u)
    slope = joint.slopes(theta, eta)[1]
    bend = (joint.slopes(theta, eta + _SLOPE_STEP)[1] - slope) / _SLOPE_STEP  # ∂²_η log p
    slope, bend = (torch.where(c == 0.0, 0.0, each) for each in (slope, bend))
    row, column = layout.entries
    factor, gathered = layout.factor(theta), joint.gathered(slope)
    both = zip(motion.shift, motion.stretch, strict=True)
    moved = torch.stack([a[:, None] + b @ x.T for a, b in both])  # u_k, (θ, D, m)
    first = torch.stack([joint.wide(joint.scaled(factor, v)) for v in moved])  # η_k, (θ, n, m)
    first[: layout.fixed] += joint.x.T[:, :, None]
    second = x.new_zeros(p, p)
    for e, (a, b) in enumerate(zip(row.tolist(), column.tolist(), strict=True)):
        k = layout.fixed + e
        first[k] += joint.z[:, a, None] * u[joint.place[:, b]]
        span = next(s for s in joint.spans if s.effects.start <= a < s.effects.stop)
        left = c * joint.blocks(span, gathered)[:, a - span.effects.start]
        for j, v in enumerate(moved):
            cross = (left * joint.blocks(span, v)[:, b - span.effects.start]).sum()
            second[k, j] += cross
            second[j, k] += cross
    flat = first.reshape(p, -1)
    second += (flat * (bend * c).reshape(-1)) @ flat.T
    second -= (moved * c).reshape(p, -1) @ moved.reshape(p, -1).T
    slopes = torch.einsum("knm,nm->mk", first, slope) - torch.einsum("kdm,dm->mk", moved, u)
    if layout.dispersion:
        h = torch.zeros_like(theta)
        h[-1] = _SLOPE_STEP
        of_phi = torch.where(c == 0.0, 0.0, joint.dispersion_slope(theta, eta))
        of_eta = (joint.slopes(theta + h, eta)[1] - slope) / _SLOPE_STEP
        of_both = (joint.dispersion_slope(theta + h, eta) - of_phi) / _SLOPE_STEP
        of_eta, of_both = (torch.where(c == 0.0, 0.0, each) for each in (of_eta, of_both))
        cross = flat @ (of_eta * c).reshape(-1)
        second[-1] += cross
        second[:, -1] += cross
        second[-1, -1] += (of_both @ c).sum()
        slopes[:, -1] += of_phi.sum(0)
    return slopes, second, c * (joint.scaled(factor.T, gathered) - u)


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
