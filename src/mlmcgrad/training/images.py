"""Pictures of a model: samples, and test images beside their reconstructions, as PNG grids."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.runs.atomic import write_atomically

COLUMNS = 8
_LEAST_SIDE = 32  # pixels of an image in a grid: smaller ones are enlarged
_GAP = 2


@torch.no_grad()
def draw(
    model: LatentModel, y: Tensor, generator: torch.Generator, folder: Path, iteration: int
) -> None:
    """Write `samples-ITERATION.png` and `reconstructions-ITERATION.png`.

    Args:
        model: the latent model.
        y: images to reconstruct; the first 32 are.
        generator: source of the samples' z.
        folder: where the files go.
        iteration: names the files.
    """
    device = next(model.parameters()).device
    z = torch.randn(COLUMNS**2, model.sizes.latent, generator=generator, device=generator.device)
    samples = model.likelihood.mean(model.decoder(z.to(device)))
    columns = min(COLUMNS, len(y))
    y = y[: min(COLUMNS * COLUMNS // 2, len(y) // columns * columns)]
    decoded = model.likelihood.mean(model.decoder(model.encoder(y)[0]))
    # A row of images, below it their reconstructions, and so on.
    rows = torch.stack([y.unflatten(0, (-1, columns)), decoded.unflatten(0, (-1, columns))], dim=1)
    save_grid(samples, folder / f"samples-{iteration:06d}.png")
    save_grid(rows.flatten(0, 2), folder / f"reconstructions-{iteration:06d}.png", columns)


def save_grid(images: Tensor, path: Path, columns: int = COLUMNS) -> None:
    """Write images in [0, 1], (count, 1 or 3, h, w), as a grid, row by row."""
    count, channels, height, width = images.shape
    scale = -(-_LEAST_SIDE // max(height, width))
    pixels = images.detach().cpu().clamp(0.0, 1.0).mul(255.0).round().to(torch.uint8)
    pixels = pixels.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    down, right = height * scale + _GAP, width * scale + _GAP
    lines = -(-count // columns)
    grid = torch.full(
        (lines * down + _GAP, columns * right + _GAP, channels), 255, dtype=torch.uint8
    )
    for i, image in enumerate(pixels.permute(0, 2, 3, 1)):
        top, left = _GAP + (i // columns) * down, _GAP + (i % columns) * right
        grid[top : top + height * scale, left : left + width * scale] = image
    picture = Image.fromarray((grid if channels == 3 else grid[:, :, 0]).numpy())
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    write_atomically(path, buffer.getvalue())
