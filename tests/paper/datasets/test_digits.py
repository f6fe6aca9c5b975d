"""The digits are the same, and split the same, everywhere."""

import numpy as np
import pytest

from mlmcgrad.paper.datasets import digits
from mlmcgrad.paper.datasets.dataset import Images, _embedded, sha256, split_order


def test_shapes_values_and_hashes() -> None:
    data = digits()
    assert data.train.shape == (1500, 1, 8, 8)
    assert data.test.shape == (297, 1, 8, 8)
    assert data.train.dtype == data.test.dtype == np.uint8
    assert data.levels == 17
    assert (data.train.min(), data.train.max()) == (0, 16)
    assert sha256(data.train) == "5c56d17a9e9f55befd9e9c1c2fd8cc21ec3354c352fca7115da89d2c2bcc2d69"
    assert sha256(data.test) == "ce255a4b9d64fd57fb0e71a2d4d4fcdae4895aa6fe2713e56f5e2f7d1f24ac33"
    assert "scikit-learn" in data.source
    assert data.folder is None


def test_the_split_is_a_permutation_written_down() -> None:
    order = split_order()
    assert sorted(order) == list(range(1797))
    assert order[:8] == [381, 1454, 1380, 1760, 368, 385, 1759, 1394]
    data = digits()
    np.testing.assert_array_equal(np.concatenate([data.train, data.test]), _embedded()[order])


def test_other_digits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def altered() -> Images:
        images = original()
        images[1000, 0, 4, 4] ^= 1
        return images

    original = _embedded
    monkeypatch.setitem(digits.__globals__, "_embedded", altered)
    with pytest.raises(
        ValueError, match=r"digits of scikit-learn .* have the SHA-256 .*, not 8f26b2bd"
    ):
        digits()


def test_images_are_read_only_and_rows_are_copies() -> None:
    data = digits()
    with pytest.raises(ValueError, match="read-only"):
        data.train[0] = 0
    data.train[np.array([0, 1])][:] = 0
    assert data.train[:2].max() > 0
