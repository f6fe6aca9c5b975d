"""Images as numbers, and pixels drawn once: with the right probabilities, the same everywhere."""

import numpy as np
import pytest

from mlmcgrad.paper.datasets import Dataset, binarised, digits
from mlmcgrad.paper.datasets.dataset import Images, sha256
from tests.paper.datasets.tiny_mnist import TEST

# Of every value as many pixels.
GREY: Images = np.broadcast_to(np.arange(256, dtype=np.uint8), (4000, 1, 1, 256))
GREY_SHA256 = "0cb9a3c9d1c6c09e9f473b3140e8a8c0e5670fda8378a6c5680457fc6dc89d6c"
DIGITS_SHA256 = "d5daad2304cf0a4261c21c147d4de807d4650131665cf87c2cdc4fab3834b845"


def test_the_draws_never_change() -> None:
    """Results of earlier versions compare with those of later ones."""
    assert sha256(binarised(GREY, 256, seed=0, part="test")) == GREY_SHA256
    assert sha256(binarised(digits().train, 17, seed=5, part="train")) == DIGITS_SHA256


def test_pixels_are_white_with_the_probability_that_they_are_grey() -> None:
    """Null hypothesis: each value v is white with probability v/255; false alarm below 1e-5.

    Σ over values of z² has 254 degrees of freedom, and fewer than 1e-5 of its law beyond 363.
    """
    white = binarised(GREY, 256, seed=1, part="train")
    assert set(np.unique(white)) == {0, 255}
    share = (white[:, 0, 0] == 255).mean(0)
    assert (share[0], share[255]) == (0.0, 1.0)
    p = np.arange(1, 255) / 255.0
    z = (share[1:-1] - p) / np.sqrt(p * (1.0 - p) / len(GREY))
    assert (z**2).sum() < 363.0
    # A planted bug: two percent too dark.
    wrong = np.arange(1, 255) / 255.0 * 0.98
    z = (share[1:-1] - wrong) / np.sqrt(p * (1.0 - p) / len(GREY))
    assert (z**2).sum() > 363.0


def test_pixels_are_drawn_independently() -> None:
    """Null hypothesis: neighbours are not correlated; |z| > 4.5 has probability below 1e-5."""
    half = np.full((2000, 1, 16, 16), 128, np.uint8)
    white = (binarised(half, 256, seed=2, part="test") > 0).astype(float) - 128 / 255
    for one, other in ((white[1:], white[:-1]), (white[..., 1:], white[..., :-1])):
        products = (one * other).ravel()
        assert abs(products.mean() / products.std() * np.sqrt(products.size)) < 4.5


def test_seeds_and_parts_have_draws_of_their_own() -> None:
    first = binarised(TEST, 256, seed=0, part="test")
    np.testing.assert_array_equal(first, binarised(TEST, 256, seed=0, part="test"))
    assert not first.flags.writeable
    assert first.shape == TEST.shape
    for other in (
        binarised(TEST, 256, seed=1, part="test"),
        binarised(TEST, 256, seed=0, part="train"),
    ):
        assert (first != other).mean() > 0.2


def test_levels_of_the_digits() -> None:
    images = digits().test
    white = binarised(images, 17, seed=0, part="test")
    assert set(np.unique(white)) == {0, 16}
    assert (white[images == 16] == 16).all()
    assert (white[images == 0] == 0).all()


def test_only_two_parts() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        binarised(TEST, 256, seed=0, part="validation")


def test_as_floats() -> None:
    data = digits()
    floats = data.as_floats(data.test)
    assert floats.dtype == np.float32
    assert (floats.min(), floats.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(np.rint(floats * 16).astype(np.uint8), data.test)
    assert data.as_floats(data.test[:0]).shape == (0, 1, 8, 8)


def test_as_floats_accepts_only_images_of_its_kind() -> None:
    data = digits()
    with pytest.raises(ValueError, match=r"images must be uint8 below 17, .* got float32"):
        data.as_floats(data.as_floats(data.test))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"images must be uint8 below 17, .* got uint8 up to 200"):
        data.as_floats(np.full((1, 1, 8, 8), 200, np.uint8))


def test_256_levels() -> None:
    images = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    floats = Dataset("any", images, images, levels=256, source="here").as_floats(images).ravel()
    np.testing.assert_allclose(floats, np.arange(256) / 255.0, rtol=1e-7)
