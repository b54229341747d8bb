"""Make the sheets of all corruptions at all severities: corruptions-224.png, -32.png and -28-gray.png.

    python docs/pictures/corruptions.py

The photograph is NASA's public-domain portrait of Eileen Collins, as it comes with scikit-image; the gray
image is from the embedded part of Fashion-MNIST. Frost is the grown ice. Tiles are enlarged or reduced for
viewing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import skimage.data
import torch
from PIL import Image, ImageDraw

from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from trimtab.data.embedded import sample

HERE = Path(__file__).parent
NAMES = CORRUPTIONS + EXTRA_CORRUPTIONS
ROWS = 10  # in two columns of blocks


def portrait(size: int) -> torch.Tensor:
    """uint8 (1, 3, size, size)."""
    face = Image.fromarray(skimage.data.astronaut()).resize((size, size), box=(64, 0, 384, 320))
    return torch.from_numpy(np.array(face)).permute(2, 0, 1)[None]


def sheet(image: torch.Tensor, cell: int) -> Image.Image:
    """A row for each corruption: its name, the severities 1 to 5; the original comes first."""
    label, line = 14, cell + 18
    page = Image.new("RGB", (2 * (5 * cell + 24), ROWS * line), "white")
    pen = ImageDraw.Draw(page)
    for i, name in enumerate(("original", *NAMES)):
        left, top = (i // ROWS) * (5 * cell + 24), (i % ROWS) * line
        pen.text((left + 2, top + 1), name, fill="black")
        for severity in range(1, 6 if i else 2):
            pixels = corrupt(image, name, severity) if i else image
            tile = Image.fromarray(pixels[0].permute(1, 2, 0).numpy().squeeze()).convert("RGB")
            smooth = Image.Resampling.LANCZOS if cell < image.shape[-1] else Image.Resampling.NEAREST
            page.paste(tile.resize((cell, cell), smooth), (left + (severity - 1) * cell, top + label))
    return page


def main() -> None:
    sheet(portrait(224), 104).save(HERE / "corruptions-224.png", optimize=True)
    sheet(portrait(32), 96).save(HERE / "corruptions-32.png", optimize=True)
    gray = sample("test").images[[7]].contiguous()
    sheet(gray, 84).save(HERE / "corruptions-28-gray.png", optimize=True)


if __name__ == "__main__":
    main()
