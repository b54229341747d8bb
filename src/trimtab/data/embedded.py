"""The embedded sample: 10,000 Fashion-MNIST images, so that everything runs offline at once.

800 training images of each of ten classes, evenly spaced through the original training set, and 200 test
images of each from the original test set, in their original order, 28x28, gray. They lie in two PNG
mosaics, 100 images to a row, that any viewer opens; the labels are the digits in each file's `labels` text
(tests/data/test_embedded.py rebuilds both). Fashion-MNIST is copyright 2017 Zalando SE, MIT license:
see sample/LICENSE.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from trimtab.data.sets import ImageSet
from trimtab.types import BadInput, InputSpec

CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
SPEC = InputSpec((28, 28), 1, (0.28614,), (0.35293,))
ROW = 100
"""Images in a row of the mosaic."""
PER_CLASS = {"train": 800, "test": 200}


def sample(split: str = "test") -> ImageSet:
    """Return the "train" or the "test" split."""
    if split not in PER_CLASS:
        raise BadInput(f"the sample has no split {split!r}; it has {' and '.join(PER_CLASS)}")
    with as_file(files("trimtab.data") / "sample" / f"{split}.png") as path:
        return read_mosaic(path)


def read_mosaic(path: Path) -> ImageSet:
    """Read a mosaic of images and the labels in its text."""
    with Image.open(path) as mosaic:
        labels = torch.tensor([int(digit) for digit in mosaic.text["labels"]])  # type: ignore[attr-defined]
        pixels = np.array(mosaic)
    images = pixels.reshape(-1, 28, ROW, 28).swapaxes(1, 2).reshape(-1, 1, 28, 28)
    return ImageSet(torch.from_numpy(images), labels, CLASSES, "sample", SPEC)
