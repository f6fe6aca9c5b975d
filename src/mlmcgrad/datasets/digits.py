"""The 8×8 handwritten digits that ship with scikit-learn: 1797 pictures, 17 grey values.

Picture i goes to the place of SHA-256("mlmcgrad digits i") in the order of these hashes; the first
1500 places are for training, the other 297 for testing. So the split depends on no random number
generator and on no version of any library.
"""

from __future__ import annotations

import hashlib

import numpy as np

from mlmcgrad.datasets.dataset import Dataset, Images, sha256

COUNT, TRAINING, LEVELS = 1797, 1500, 17
SHA256 = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"


def digits() -> Dataset:
    """The digits, split into 1500 for training and 297 for testing, the same everywhere.

    Returns:
        A dataset with `train` (1500, 1, 8, 8), `test` (297, 1, 8, 8) and `levels` 17.

    Raises:
        ValueError: if scikit-learn's digits are not the ones that this split is of.

    Example:
        >>> digits().train.shape
        (1500, 1, 8, 8)

    Reference: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
    Learning Repository, 1998 (its test set).
    """
    import sklearn  # half a second: only who wants digits waits for it

    images = _embedded()
    if (found := sha256(images)) != SHA256:
        raise ValueError(
            f"the digits of scikit-learn {sklearn.__version__} hash to {found}, not to {SHA256}, "
            "so results would not compare; install the version named in constraints.txt"
        )
    images = images[split_order()]
    images.setflags(write=False)
    source = f"scikit-learn {sklearn.__version__}"
    return Dataset("digits", images[:TRAINING], images[TRAINING:], LEVELS, source)


def split_order(count: int = COUNT) -> list[int]:
    """Picture numbers in the order of the hashes of their names."""
    return sorted(range(count), key=lambda i: hashlib.sha256(b"mlmcgrad digits %d" % i).digest())


def _embedded() -> Images:
    from sklearn.datasets import load_digits

    return load_digits().images.astype(np.uint8)[:, None]  # (1797, 1, 8, 8)


__all__ = ["digits", "split_order"]
