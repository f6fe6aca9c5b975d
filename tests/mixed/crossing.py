"""Models with two crossed factors, and their exact likelihoods, written without the library."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.mixed.design import Design, build


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def simulate(seed: int, groups: tuple[int, int], rows: int, family: str) -> dict[str, list[object]]:
    """Rows of y, x, a, b with an intercept and a slope for each a, and an intercept for each b."""
    rng = np.random.default_rng(seed)
    cells = np.resize(np.arange(groups[0] * groups[1]), rows)
    a, b = cells // groups[1], cells % groups[1]
    x = rng.normal(size=rows)
    of_a, of_slope, of_b = (rng.normal(size=size) for size in (groups[0], groups[0], groups[1]))
    eta = 0.3 + 0.5 * x + 1.5 * of_a[a] + 0.5 * of_slope[a] * x + of_b[b]
    y = eta + 0.8 * rng.normal(size=rows)
    if family == "bernoulli":
        y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-eta))).astype(np.float64)
    columns = {"y": y.tolist(), "x": x.tolist()}
    return columns | {"a": [f"a{i}" for i in a], "b": [f"b{i}" for i in b]}


@dataclass(frozen=True)
class Normal:
    """y ~ N(Xβ, σ²I + Σ_f Z_f Σ_f Z_fᵀ) for (1 + x | a) + (1 | b).

    θ is β (2), Λ_a (3, row by row), Λ_b (1), log σ.
    """

    design: Design

    def covariance(self, theta: Tensor) -> tuple[Tensor, list[Tensor]]:
        """That of y, and those of y with the b of each factor, (n, groups·q)."""
        zero = torch.zeros((), dtype=theta.dtype)
        lower = torch.stack([theta[2], zero, theta[3], theta[4]]).reshape(2, 2)
        total = torch.exp(2.0 * theta[6]) * torch.eye(len(self.design.y), dtype=theta.dtype)
        with_b = []
        factors = (lower @ lower.T, (theta[5] * theta[5]).reshape(1, 1))
        for effects, covariance in zip(self.design.effects, factors, strict=True):
            one_hot = torch.nn.functional.one_hot(effects.index).double()
            dense = (one_hot[:, :, None] * effects.columns[:, None, :]).flatten(1)
            whole = torch.kron(torch.eye(one_hot.shape[1]).double(), covariance)
            with_b.append(dense @ whole)
            total = total + dense @ whole @ dense.T
        return total, with_b

    def log_likelihood(self, theta: Tensor) -> Tensor:
        mean = self.design.fixed @ theta[:2]
        normal = torch.distributions.MultivariateNormal(mean, self.covariance(theta)[0])
        return normal.log_prob(self.design.y)

    def maximum(self, theta: Tensor) -> Tensor:
        at = theta.clone().requires_grad_()
        search = torch.optim.LBFGS(
            [at], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            search.zero_grad()
            loss = -self.log_likelihood(at)
            loss.backward()
            return loss

        search.step(closure)
        return at.detach()


def normal() -> Normal:
    return Normal(build("y ~ x + (1 + x | a) + (1 | b)", simulate(0, (5, 4), 40, "gaussian")))


@dataclass(frozen=True)
class Binary:
    """Bernoulli with logits, (1 | a) + (1 | b): Gauss–Hermite in all dimensions around the mode.

    θ is β (2), the standard deviations of a and of b.
    """

    design: Design
    at: Tensor  # the θ around which nodes are placed
    nodes: int = 12

    @cached_property
    def points(self) -> tuple[Tensor, Tensor]:
        """Nodes u, (nodes^D, D), and logarithms of their weights."""
        dimension = sum(len(effects.groups) for effects in self.design.effects)
        mode = torch.zeros(dimension, dtype=torch.float64)

        def joint(u: Tensor) -> Tensor:
            return self.log_joint(self.at, u[None])[0]

        for _ in range(50):
            gradient = torch.autograd.functional.jacobian(joint, mode)
            hessian = torch.autograd.functional.hessian(joint, mode)
            mode = mode - torch.linalg.solve(hessian, gradient)
        root = torch.linalg.cholesky(torch.linalg.inv(-hessian))
        node, weight = np.polynomial.hermite_e.hermegauss(self.nodes)
        axes = [torch.from_numpy(node)] * dimension
        x = torch.cartesian_prod(*axes)
        log_weight = torch.from_numpy(np.log(weight))
        logs = torch.cartesian_prod(*[log_weight] * dimension).sum(1) + 0.5 * x.square().sum(1)
        return mode + x @ root.T, logs + root.diagonal().log().sum()

    def log_joint(self, theta: Tensor, u: Tensor) -> Tensor:
        sizes = np.cumsum([0] + [len(effects.groups) for effects in self.design.effects])
        eta = self.design.fixed @ theta[:2]
        for f, (begin, end) in enumerate(pairwise(sizes)):
            eta = eta + theta[2 + f] * u[:, begin:end][:, self.design.effects[f].index]
        sign = 2.0 * self.design.y - 1.0
        prior = -0.5 * u.square().sum(1) - 0.5 * u.shape[1] * float(np.log(2.0 * np.pi))
        return torch.nn.functional.logsigmoid(sign * eta).sum(1) + prior

    def log_likelihood(self, theta: Tensor) -> Tensor:
        u, log_weight = self.points
        return torch.logsumexp(self.log_joint(theta, u) + log_weight, 0)


def binary(at: Tensor) -> Binary:
    return Binary(build("y ~ x + (1 | a) + (1 | b)", simulate(3, (3, 2), 24, "bernoulli")), at)
