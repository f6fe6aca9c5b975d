"""Random graph models of the marriages among 16 families of Renaissance Florence.

An exponential random graph model gives a network y the probability ∝ exp{θ·s(y)}, here with
s = (edges, triangles) or (edges, two-stars). Nobody sums over 2^120 networks, but the gradient of
the log-likelihood, s(y_obs) − E_θ s(Y), is an expectation under a Markov chain: MLMC estimates it,
stochastic Newton steps find the maximum, and chains from three starts check it. Takes about
10 seconds, draws ergm.png and prints, with certificates,

    edges + triangles    estimate  std. error  MC error
    edges                  -1.674       0.351    0.0009
    triangles               0.155       0.586    0.0014
    edges + two-stars    estimate  std. error  MC error
    edges                  -1.656       0.838    0.0016
    two-stars               0.010       0.171    0.0003

Two ties without a common family are independent given all others, in these models. The 120 pairs
are therefore drawn as a tournament is played: 15 rounds of 8 pairs, a round at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import mlmcgrad as mg

# Padgett (1994), by way of Breiger and Pattison (1986) and `flomarriage` of the R package ergm: a
# place in the picture, and marriages with families further down. Pucci has none.
FAMILIES: dict[str, tuple[tuple[float, float], str]] = {
    "Acciaiuoli": ((-1.2, -0.7), "Medici"),
    "Albizzi": ((0.1, 1.5), "Ginori Guadagni Medici"),
    "Barbadori": ((0.9, -1.1), "Castellani Medici"),
    "Bischeri": ((3.1, 0.6), "Guadagni Peruzzi Strozzi"),
    "Castellani": ((2.1, -1.3), "Peruzzi Strozzi"),
    "Ginori": ((-0.9, 2.0), ""),
    "Guadagni": ((1.6, 1.6), "Lamberteschi Tornabuoni"),
    "Lamberteschi": ((2.6, 2.2), ""),
    "Medici": ((0.0, 0.0), "Ridolfi Salviati Tornabuoni"),
    "Pazzi": ((-2.3, 1.1), "Salviati"),
    "Peruzzi": ((3.2, -0.7), "Strozzi"),
    "Pucci": ((-2.2, -1.3), ""),
    "Ridolfi": ((1.2, 0.0), "Strozzi Tornabuoni"),
    "Salviati": ((-1.3, 0.6), ""),
    "Strozzi": ((2.2, -0.2), ""),
    "Tornabuoni": ((0.9, 0.8), ""),
}
MARRIAGES = tuple((a, b) for a, (_, others) in FAMILIES.items() for b in others.split())
# Coefficients of edges and triangles that others printed with ergm (sources: on the page).
PUBLISHED: dict[str, tuple[float, float]] = {
    "statnet workshop 2021": (-1.6930, 0.2038),
    "statnet workshop 2022": (-1.6900, 0.1901),
    "README of tabulergm": (-1.6507, 0.1082),
    "Masad's blog": (-1.6773, 0.1574),
}
# Of each term: what a tie of i and j adds, from the ties of i and of j with the other nodes, both
# (pairs, others, chains); and how many there are, from adjacency matrices, (rows, nodes, nodes).
TERMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "triangles": (lambda i, j: (i * j).sum(1), lambda a: ((a @ a) * a).sum((1, 2)) / 6.0),
    "two-stars": (lambda i, j: (i + j).sum(1), lambda a: ((a @ a).sum((1, 2)) - a.sum((1, 2))) / 2),
}
# Of certificates: sweeps before and while scores are averaged; when they hold.
BURN_IN, SWEEPS, FALSE_ALARM, WIDEST = 30, 20, 1e-3, 0.05


def florence() -> Tensor:
    """The adjacency matrix, (16, 16) of 0 and 1."""
    names = list(FAMILIES)
    network = torch.zeros(len(names), len(names))
    for a, b in MARRIAGES:
        network[names.index(a), names.index(b)] = 1.0
    return network + network.T


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """All pairs of nodes, in rounds in which nobody plays twice; of an odd number one rests."""
    last = nodes - 1 + nodes % 2  # keeps its seat, the others move round the table
    found = []
    for r in range(last):
        pairs = [(r, last), *(((r + k) % last, (r - k) % last) for k in range(1, (last + 1) // 2))]
        found.append([(min(p), max(p)) for p in pairs if max(p) < nodes])
    return found


class Graphs:
    """Networks like a given one, and the block Gibbs sampler of a model of them.

    A state is a row of 0 and 1 (float32), a number for each pair, in the order of the rounds. The
    network is a symmetric matrix, (nodes, nodes); terms, besides the edges, are those of `TERMS`.
    """

    def __init__(self, network: Tensor, terms: Sequence[str]) -> None:
        nodes, games = len(network), rounds(len(network))
        self.terms = ("edges", *terms)
        pairs = [pair for game in games for pair in game]
        self.number = torch.zeros(nodes, nodes, dtype=torch.int64)  # of each pair
        for k, (i, j) in enumerate(pairs):
            self.number[i, j] = self.number[j, i] = k
        self.rounds: list[tuple[slice, Tensor]] = []  # pairs; of both sides with others, (2, …)
        for game in games:
            first = int(self.number[game[0]])
            others = torch.tensor([[m for m in range(nodes) if m not in pair] for pair in game])
            sides = self.number[torch.tensor(game).T[:, :, None], others]
            self.rounds.append((slice(first, first + len(game)), sides))
        self.observed = network[tuple(torch.tensor(pairs).T)].float()
        self.target = self.statistics(self.observed[None])[0]
        most = self.statistics(torch.ones_like(self.observed)[None])[0]
        if bool(((self.target <= 0.0) | (self.target >= most)).any()):
            counts = dict(zip(self.terms, self.target.tolist(), strict=True))
            raise ValueError(f"network must have some of each term, not all or none: got {counts}")

    def statistics(self, x: Tensor) -> Tensor:
        """s(x), (rows, terms) float64."""
        n = len(self.number)
        ties = x.index_select(1, self.number.flatten()).reshape(-1, n, n)
        ties.diagonal(dim1=1, dim2=2).zero_()
        counts = (TERMS[term][1](ties) for term in self.terms[1:])
        return torch.stack([x.sum(1), *counts], dim=1).double()

    def sweep(self, x: Tensor, theta: Tensor, generator: torch.Generator) -> Tensor:
        """Draw every tie once from its law given the others, a round of pairs at a time."""
        y = x.T.clone(memory_format=torch.contiguous_format)  # (pairs, chains): fast to gather
        u = torch.rand(y.shape, generator=generator)
        edges, *coefficients = theta.tolist()
        for pairs, sides in self.rounds:
            i, j = y.index_select(0, sides.flatten()).view(*sides.shape, -1)
            logit = torch.full_like(u[pairs], edges)
            for term, coefficient in zip(self.terms[1:], coefficients, strict=True):
                logit.add_(TERMS[term][0](i, j), alpha=coefficient)
            y[pairs] = u[pairs] < logit.sigmoid_()
        return y.T.contiguous()


@dataclass(frozen=True)
class Certificate:
    """How far the maximum is from an estimate, by chains that had no part in it."""

    displacement: Tensor  # of the maximum, in standard errors, (terms,)
    error: Tensor  # its standard deviation if the estimate is right, (terms,)
    p_value: float  # of the hypothesis that the estimate is the maximum, but for its noise
    agreement: float  # p-value of the hypothesis that all starts have the same mean

    @property
    def holds(self) -> bool:
        """Whether the starts agree and the interval of the displacement, with 0, is narrow."""
        p = min(self.p_value, self.agreement)
        return p >= FALSE_ALARM and float(self.error.max()) <= WIDEST

    def __str__(self) -> str:
        if self.agreement < FALSE_ALARM:
            return "NOT certified: chains from different networks have not come together."
        far = int(self.displacement.abs().argmax())
        away = f"{self.displacement.abs()[far]:.3f} ± {self.error[far]:.3f} standard errors away"
        return (
            f"Certificate {'holds' if self.holds else 'does NOT hold'}: by chains from the "
            "observed, the empty and the full network\n"
            f"the maximum is at most {away} (p = {self.p_value:.2f})."
        )


@dataclass(frozen=True)
class Fit:
    """A fitted model: a number for each term, and how it was found."""

    terms: tuple[str, ...]
    estimates: Tensor
    standard_errors: Tensor
    monte_carlo_errors: Tensor
    certificate: Certificate

    def __str__(self) -> str:
        lines = [f"{' + '.join(self.terms):20s} estimate  std. error  MC error"]
        columns = (self.estimates, self.standard_errors, self.monte_carlo_errors)
        for term, *row in zip(self.terms, *(c.tolist() for c in columns), strict=True):
            lines.append("{:20s} {:8.3f} {:11.3f} {:9.4f}".format(term, *row))
        return "\n".join([*lines, str(self.certificate)])


def fit(graphs: Graphs, seed: int = 0, *, chains: int = 1000, batch: int = 2) -> Fit:
    """The maximum of the likelihood: 10 iterations to get near, 20 batches to average."""
    rng, near, batches = torch.Generator().manual_seed(seed), 10, 20
    # The maximum without the other terms has independent ties: exact draws to start with.
    density = graphs.observed.mean()
    begin = torch.zeros(len(graphs.terms), dtype=torch.float64)
    begin[0] = density.double().logit()
    x = density.expand(chains, len(graphs.observed)).bernoulli(generator=rng)
    # The Hessian of −log-likelihood is Cov_θ s(Y), and edges and two-stars have the correlation
    # 0.96. In the coordinates φ = Rᵀ(θ − θ_0), with Cov = RRᵀ at θ_0, it is about the identity.
    root = torch.linalg.cholesky(graphs.statistics(x).T.cov())
    back = torch.linalg.inv(root.T)
    phi = torch.zeros_like(begin, requires_grad=True)
    gradient = mg.MarkovGradient(
        mg.kernels.FromStep(lambda y, generator: graphs.sweep(y, begin + back @ phi, generator)),
        lambda y: (graphs.statistics(y) - graphs.target) @ (begin + back @ phi),
        mg.MLMCSum(16, base=8, assignment="balanced"),
    )
    # Newton steps with the weights 1/n: the last iterate is the mean of what all of them say.
    optimizer = mg.optim.StochasticNewton([phi], lr=lambda n: min(0.5, 1.0 / max(1, n - near)))
    said, curvatures = [], []
    for n in range(1, near + batches * batch + 1):
        (slope,), estimate = gradient.gradient(x, n=n, generator=rng)
        x = estimate.last  # chains go on where they are: what is left of their bias vanishes
        curvatures.append((graphs.statistics(x) @ back).T.cov())
        said.append((phi.detach().clone(), slope))
        z = torch.randn(len(phi), dtype=torch.float64, generator=rng)
        optimizer.observe([z], [curvatures[-1] @ z])
        phi.grad = slope.clone()
        optimizer.step()
    hessian = torch.stack(curvatures[near:]).mean(0)
    targets = torch.stack([p - torch.linalg.solve(hessian, g) for p, g in said[near:]])
    means = targets.reshape(batches, batch, -1).mean(1)
    noise = back @ (means.T.cov() / batches) @ back.T
    theta = (begin + back @ phi).detach()
    return Fit(
        graphs.terms,
        estimates=theta,
        standard_errors=torch.linalg.inv(root @ hessian @ root.T).diag().sqrt(),
        monte_carlo_errors=noise.diag().sqrt(),
        certificate=certify(graphs, theta, rng, noise, chains),
    )


def certify(
    graphs: Graphs, theta: Tensor, generator: torch.Generator, noise: Tensor, chains: int = 1000
) -> Certificate:
    """Estimate the score at θ by `chains` each from the observed, the empty and the full network.

    `noise` is the covariance about the maximum that θ is known to have, (terms, terms).
    """
    means, errors, spreads = [], [], []
    full = torch.ones_like(graphs.observed)
    for start in (graphs.observed, 0.0 * full, full):
        x, seen = start.expand(chains, -1), []
        for k in range(BURN_IN + SWEEPS):
            x = graphs.sweep(x, theta, generator)
            if k >= BURN_IN:
                seen.append(graphs.statistics(x))
        own = torch.stack(seen).mean(0)  # of each chain, (chains, terms)
        means.append(own.mean(0))
        errors.append(own.T.cov() / chains)
        spreads.append(torch.cat(seen).T.cov())
    apart = ((a, b) for a in range(3) for b in range(a))
    same = [_p_value(means[a] - means[b], errors[a] + errors[b]) for a, b in apart]
    inverse = torch.linalg.inv(torch.stack(spreads).mean(0))
    standard = inverse.diag().sqrt()
    shift = inverse @ (graphs.target - torch.stack(means).mean(0))  # a Newton step
    variance = inverse @ (torch.stack(errors).sum(0) / 9.0) @ inverse + noise
    error = variance.diag().sqrt()
    agreement = min(1.0, 3.0 * min(same))  # three comparisons
    return Certificate(shift / standard, error / standard, _p_value(shift, variance), agreement)


def _p_value(difference: Tensor, covariance: Tensor) -> float:
    """Of the hypothesis that a normal vector has mean 0, by its χ² statistic."""
    distance = difference @ torch.linalg.solve(covariance, difference)
    half = torch.tensor(len(difference) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(half, distance / 2.0))


def draw(path: Path, found: Fit) -> None:
    """The marriages, and the fit of edges and triangles among published ones."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11.0, 4.4), dpi=100, layout="constrained")
    note = {"textcoords": "offset points", "fontsize": 10}
    for a, b in MARRIAGES:
        left.plot(*zip(FAMILIES[a][0], FAMILIES[b][0], strict=True), c="#bbbbbb", zorder=1)
    for name, (place, _) in FAMILIES.items():
        left.plot(*place, "o", ms=9, color="#00798c", mec="white", zorder=2)
        left.annotate(name, place, (0, 7), ha="center", **note)
    left.set_axis_off()
    for name, (x, y) in PUBLISHED.items():
        right.plot(x, y, "o", ms=9, color="#d1495b", mec="white")
        right.annotate(name, (x, y), (8, 5), **note)
    (x, y), (dx, dy) = found.estimates.tolist(), (2.0 * found.monte_carlo_errors).tolist()
    right.errorbar(x, y, dy, dx, color="#00798c", lw=2.0, zorder=3)
    right.annotate("this fit, ± 2 MC errors", (x, y), (10, -14), va="top", color="#00798c", **note)
    right.set(xlabel="coefficient of edges", ylabel="coefficient of triangles")
    right.margins(0.3)
    right.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    plt.close(figure)


def main(out: Path = Path("ergm.png"), chains: int = 1000) -> None:
    """Print the tables of both models, and draw the first."""
    fits = [fit(Graphs(florence(), [term]), chains=chains) for term in TERMS]
    print(*fits, sep="\n\n")
    draw(out, fits[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("ergm.png"), help="the figure")
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    main(out=parser.parse_args().out)
