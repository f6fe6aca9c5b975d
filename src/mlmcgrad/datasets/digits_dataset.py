"""The 8×8 handwritten digits that ship with scikit-learn: 1797 images, 17 grey values.

The images are sorted by SHA-256("mlmcgrad digits i") for image i; the first 1500 are for training,
the other 297 for testing. So the split depends on no random number generator and on no version of
any library.
"""

from __future__ import annotations

import hashlib

import numpy as np

from mlmcgrad.datasets.dataset import Dataset, Images, sha256

TRAINING, LEVELS = 1500, 17
SHA256 = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"


def digits() -> Dataset:
    """The digits, split into 1500 for training and 297 for testing, the same everywhere.

    Returns:
        A dataset with `train` (1500, 1, 8, 8), `test` (297, 1, 8, 8) and `levels` 17.

    Raises:
        ValueError: scikit-learn's digits are not those of this split.

    Example:
        >>> digits().train.shape
        (1500, 1, 8, 8)

    Reference: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
    Learning Repository, 1998 (its test set).
    """
    try:
        import sklearn  # takes half a second, so not at the top
    except ModuleNotFoundError as error:
        remedy = "digits come with the package scikit-learn; pip install 'mlmcgrad[cli]'"
        raise ModuleNotFoundError(remedy, name=error.name) from error
    images = _embedded()
    if (digest := sha256(images)) != SHA256:
        raise ValueError(
            f"the digits of scikit-learn {sklearn.__version__} have the SHA-256 {digest}, not "
            f"{SHA256}, so results would not compare; install the version in constraints.txt"
        )
    images = images[split_order()]
    images.setflags(write=False)
    source = f"scikit-learn {sklearn.__version__}"
    return Dataset("digits", images[:TRAINING], images[TRAINING:], levels=LEVELS, source=source)


def split_order() -> list[int]:
    """Image numbers in the order of the hashes of their names."""
    return sorted(range(1797), key=lambda i: hashlib.sha256(b"mlmcgrad digits %d" % i).digest())


def _embedded() -> Images:
    from sklearn.datasets import load_digits

    return load_digits().images.astype(np.uint8)[:, None]  # (1797, 1, 8, 8)
