"""A small table with columns of every kind."""

import numpy as np
import pandas as pd


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Columns y (0, 1), use (no, yes), n, x, z (> 1), a, b (text), c (1, 2, 3), g, h (groups)."""
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "y": random.integers(0, 2, rows),
            "use": random.choice(["yes", "no"], rows),
            "n": random.integers(1, 9, rows),
            "x": random.normal(size=rows),
            "z": random.uniform(1.0, 2.0, rows),
            "a": random.choice(["p", "q", "r"], rows),
            "b": random.choice(["u", "v"], rows),
            "c": random.choice([1, 2, 3], rows),
            "g": random.choice(list("ABCDE"), rows),
            "h": random.integers(0, 4, rows),
        }
    )
