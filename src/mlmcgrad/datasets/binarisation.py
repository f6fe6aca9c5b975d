"""Black and white images from grey ones: a pixel is white with its grey value for probability.

Drawn once, with a seed that is not the run's: then all runs have the same images, and numbers
compare. The draws depend on no version of any library: PCG64's bits are fixed for ever, and a pixel
of value v is white where the upper 32 of 64 bits are below ⌊v · 2³² / (levels − 1)⌋.

Reference: R. Salakhutdinov and I. Murray, "On the Quantitative Analysis of Deep Belief Networks",
ICML 2008 (a binarisation drawn once; theirs is another draw).
"""

from __future__ import annotations

import numpy as np

from mlmcgrad.datasets.dataset import Images

_ROWS = 1000  # at a time: 8 bytes of noise for each pixel


def binarised(images: Images, levels: int, seed: int, part: str) -> Images:
    """Images whose pixels are 0 or levels − 1, drawn once.

    Args:
        images: values 0, …, levels − 1, (N, …).
        levels: grey levels.
        seed: of the draws.
        part: "train" or "test": they have draws of their own.

    Returns:
        A new read-only array of the same shape; the same arguments give the same bits.

    Example:
        >>> grey = np.array([[[[0, 128, 255]]]], np.uint8)
        >>> binarised(np.repeat(grey, 8, 2), 256, seed=0, part="test").sum(2).tolist()
        [[[0, 1275, 2040]]]
    """
    bits = np.random.PCG64([seed, ("train", "test").index(part)])
    thresholds = (np.arange(levels, dtype=np.uint64) << np.uint64(32)) // np.uint64(levels - 1)
    result = np.empty(images.shape, np.uint8)
    for begin in range(0, len(images), _ROWS):
        rows = np.asarray(images[begin : begin + _ROWS])
        noise = bits.random_raw(rows.size).reshape(rows.shape) >> np.uint64(32)
        result[begin : begin + _ROWS] = (noise < thresholds[rows]) * np.uint8(levels - 1)
    result.setflags(write=False)
    return result
