"""The weights of blocks, against plain Python."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.kernels.importance import Blocks, block_weights, shares, uniforms
from mlmcgrad.lengths import Lengths

LADDERS = ((1, 2, 8), (4, 4, 4), (1, 1, 1), (3, 3, 7))


def test_blocks_know_their_places() -> None:
    blocks = Blocks.of(np.array([2, 1, 3]))
    assert blocks.chain.tolist() == [0, 0, 1, 2, 2, 2]
    assert (blocks.first.tolist(), blocks.end.tolist()) == ([0, 2, 3], [2, 3, 6])


def test_shares_of_blocks_with_any_spread() -> None:
    """Hundreds of nats, a block without weight, a block with one draw that has some."""
    log_w = np.array([[700.0, 700.0], [-900.0, -900.0 + math.log(3.0)], [-np.inf] * 2])
    log_sum, share = shares(np.concatenate([log_w, [[-np.inf, 5.0]]]))
    assert np.allclose(log_sum[[0, 1, 3]], [700.0 + math.log(2.0), -900.0 + math.log(4.0), 5.0])
    assert log_sum[2] == -np.inf
    assert np.allclose(share, [[0.5, 0.5], [0.25, 0.75], [0.0, 0.0], [0.0, 1.0]])


@given(
    st.lists(st.sampled_from(LADDERS), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.floats(0.1, 300.0),
)
def test_block_weights_are_the_formula(
    ladders: list[tuple[int, ...]], seed: int, spread: float
) -> None:
    """Σ_j (a_j / groups) S_b / S_g with groups that have any weight, one by one."""
    rng = np.random.default_rng(seed)
    lengths = np.array(ladders)
    a = rng.integers(-2, 3, lengths.shape).astype(float)
    log_sum = spread * rng.standard_normal(lengths[:, -1].sum())
    log_sum[rng.random(len(log_sum)) < 0.3] = -np.inf
    levels, steps = torch.zeros(len(ladders), dtype=torch.int64), torch.from_numpy(lengths)
    plan = Lengths(levels, steps, torch.from_numpy(a / lengths))
    found, total = block_weights(log_sum, Blocks.of(lengths[:, -1]), plan)
    begin = 0
    for chain, ladder in enumerate(ladders):
        mine, expected = log_sum[begin : begin + ladder[-1]].tolist(), [0.0] * ladder[-1]
        for p, factor in zip(ladder, a[chain], strict=True):
            groups = [range(i, i + p) for i in range(0, ladder[-1] - p + 1, p)]
            alive = [g for g in groups if max(mine[b] for b in g) > -math.inf]
            for group in alive:
                top = max(mine[b] for b in group)
                whole = math.fsum(math.exp(mine[b] - top) for b in group)
                for b in group:
                    expected[b] += factor / len(alive) * math.exp(mine[b] - top) / whole
        assert np.allclose(found[begin : begin + ladder[-1]], expected, rtol=1e-12, atol=1e-12)
        assert math.isclose(total[chain], np.logaddexp.reduce(mine), rel_tol=1e-12) or (
            total[chain] == -math.inf == max(mine)
        )
        begin += ladder[-1]


def test_uniforms_are_double_and_those_of_the_generator() -> None:
    u = uniforms(torch.Generator().manual_seed(3), 2, 5)
    again = torch.rand(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert torch.equal(u, again)
