"""The two selections against a plain sequential implementation and against each other."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mlmcgrad.kernels.selection import choose_sampled, rao_blackwell, sampled
from tests.chains import rng
from tests.statistics import mean_is


def _weights(chains: int, steps: int, fresh: int, seed: int, spread: float) -> tuple[Tensor, ...]:
    generator = rng(seed)
    start = spread * torch.randn(chains, dtype=torch.float64, generator=generator)
    new = spread * torch.randn(chains, steps, fresh, dtype=torch.float64, generator=generator)
    weights = torch.randint(-1, 2, (chains, steps), generator=generator).double()
    return start, new, weights


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6), st.floats(0.1, 20.0))
def test_sampled_follows_algorithm_3(steps: int, fresh: int, seed: int, spread: float) -> None:
    """One chain, in plain Python, from the same uniforms."""
    start, new, weights = _weights(1, steps, fresh, seed, spread)
    generator = rng(seed + 1)
    choice = torch.rand(1, steps, dtype=torch.float64, generator=generator)
    leave = torch.rand(1, steps, dtype=torch.float64, generator=generator)
    found, _ = choose_sampled(start, new, weights, choice, leave)
    w = [math.exp(v) for v in [float(start[0]), *new[0].flatten().tolist()]]
    coefficient, kept = [0.0] * len(w), 0
    for p in range(steps):
        block = list(range(1 + p * fresh, 1 + (p + 1) * fresh))
        total = w[kept] + sum(w[j] for j in block)
        for j in [kept, *block]:
            coefficient[j] += float(weights[0, p]) * w[j] / total
        if float(leave[0, p]) >= w[kept] / total:
            mass, rest = float(choice[0, p]) * sum(w[j] for j in block), 0.0
            for j in block:
                rest += w[j]
                if rest > mass:
                    kept = j
                    break
    assert torch.allclose(found.coefficient[0], torch.tensor(coefficient).double(), atol=1e-9)
    assert int(found.kept[0]) == kept


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6), st.floats(0.1, 20.0))
def test_rao_blackwell_is_design_s_formula(
    steps: int, fresh: int, seed: int, spread: float
) -> None:
    """p'(old j) = p(j) w_j/(w_j+S),  p'(new j) = w_j Σ_s p(s)/(w_s+S), in plain Python."""
    start, new, weights = _weights(1, steps, fresh, seed, spread)
    found = rao_blackwell(start, new, weights, rng())
    w = [math.exp(v) for v in [float(start[0]), *new[0].flatten().tolist()]]
    law, coefficient = [1.0], [0.0] * len(w)
    for p in range(steps):
        block = w[1 + p * fresh : 1 + (p + 1) * fresh]
        total = sum(block)
        fresh_law = [v * sum(q / (s + total) for q, s in zip(law, w, strict=False)) for v in block]
        law = [q * s / (s + total) for q, s in zip(law, w, strict=False)] + fresh_law
        for j, q in enumerate(law):
            coefficient[j] += float(weights[0, p]) * q
    assert torch.allclose(found.coefficient[0], torch.tensor(coefficient).double(), atol=1e-9)


def test_rao_blackwell_is_the_mean_of_sampled() -> None:
    """Null: for given draws the mean over selections is the averaged one; false alarm 1e-5."""
    start, new, weights = _weights(1, 5, 2, seed=3, spread=1.5)
    many = 20_000
    drawn = sampled(start.expand(many), new.expand(many, -1, -1), weights.expand(many, -1), rng(1))
    exact = rao_blackwell(start, new, weights, rng(2))
    assert mean_is(drawn.coefficient, exact.coefficient[0])
    # The state kept at the end has the law of the last step, in both.
    last = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    law = rao_blackwell(start, new, last, rng(2)).coefficient[0]
    one_hot = torch.eye(11, dtype=torch.float64)
    averaged = rao_blackwell(start.expand(many), new.expand(many, -1, -1), last.expand(many, -1),
                             rng(3))  # fmt: skip
    often = law * many > 20.0  # rarer ones are too few for a normal approximation
    assert mean_is(one_hot[drawn.kept][:, often], law[often])
    assert mean_is(one_hot[averaged.kept][:, often], law[often])
    # Planted bug: the normalisation of erratum 2, over steps instead of candidates.
    wrong = new.softmax(1)[0].flatten() * 0.2
    assert not mean_is(drawn.coefficient[:, 1:], wrong)
