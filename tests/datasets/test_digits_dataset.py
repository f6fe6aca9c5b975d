"""The digits are the same, and split the same, everywhere."""

import numpy as np
import pytest

from mlmcgrad.datasets import Dataset, digits
from mlmcgrad.datasets.dataset import Images, sha256
from mlmcgrad.datasets.digits_dataset import _embedded, split_order


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


def test_as_floats() -> None:
    data = digits()
    floats = data.as_floats(data.test)
    assert floats.dtype == np.float32
    assert (floats.min(), floats.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(np.rint(floats * 16).astype(np.uint8), data.test)
    assert data.as_floats(data.test[:0]).shape == (0, 1, 8, 8)


def test_as_floats_accepts_only_images_of_its_kind() -> None:
    data = digits()
    with pytest.raises(ValueError, match="images must be uint8, got float32"):
        data.as_floats(data.as_floats(data.test))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="values below 17 for digits, got 200"):
        data.as_floats(np.full((1, 1, 8, 8), 200, np.uint8))


def test_images_are_read_only_and_rows_are_copies() -> None:
    data = digits()
    with pytest.raises(ValueError, match="read-only"):
        data.train[0] = 0
    data.train[np.array([0, 1])][:] = 0
    assert data.train[:2].max() > 0


def test_256_levels() -> None:
    images = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    floats = Dataset("any", images, images, levels=256, source="here").as_floats(images).ravel()
    np.testing.assert_allclose(floats, np.arange(256) / 255.0, rtol=1e-7)
