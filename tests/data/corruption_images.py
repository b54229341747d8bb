"""Real images for the tests of corruptions: crops of NASA's public-domain portrait of Eileen Collins."""

from __future__ import annotations

import numpy as np
import skimage.data
import torch
from PIL import Image


def photographs(size: int, count: int) -> np.ndarray:
    """uint8 (count, size, size, 3): different parts of the portrait, reduced."""
    portrait = Image.fromarray(skimage.data.astronaut())
    side = 256
    corners = [(x, y) for y in range(0, 257, 64) for x in range(0, 257, 64)]
    return np.stack(
        [
            np.asarray(
                portrait.resize((size, size), Image.Resampling.LANCZOS, box=(x, y, x + side, y + side))
            )
            for x, y in corners[:count]
        ]
    )


def as_tensor(images: np.ndarray) -> torch.Tensor:
    """uint8 (N, H, W, C) -> [0, 1] (N, C, H, W)."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous() / 255


def as_levels(x: torch.Tensor) -> np.ndarray:
    """[0, 1] (N, C, H, W) -> levels (N, H, W, C) in float64."""
    return (x.double() * 255).permute(0, 2, 3, 1).numpy()


def psnr(changed: np.ndarray, original: np.ndarray) -> np.ndarray:
    """Peak signal-to-noise ratio of each image in dB."""
    error = ((changed.astype(float) - original) ** 2).mean(axis=(1, 2, 3))
    return 10 * np.log10(255**2 / error)
