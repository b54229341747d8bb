import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from trimtab.data import load
from trimtab.data.embedded import CLASSES, PER_CLASS, ROW, SPEC, read_mosaic, sample
from trimtab.data.sets import moments
from trimtab.types import BadInput

ORIGINAL = Path("/usr/share/datasets/fashion-mnist")


def make(split: str, source: Path, to: Path) -> None:
    """Write a mosaic from Fashion-MNIST's own files (Debian has them in dataset-fashion-mnist)."""
    prefix = {"train": "train", "test": "t10k"}[split]
    images = _idx(source / f"{prefix}-images-idx3-ubyte.gz", header=16).reshape(-1, 28, 28)
    labels = _idx(source / f"{prefix}-labels-idx1-ubyte.gz", header=8)
    keep = np.sort(np.concatenate([_spread(labels == c, PER_CLASS[split]) for c in range(len(CLASSES))]))
    mosaic = images[keep].reshape(-1, ROW, 28, 28).swapaxes(1, 2).reshape(-1, ROW * 28)
    text = PngImagePlugin.PngInfo()
    text.add_text("labels", "".join(map(str, labels[keep])), zip=True)
    Image.fromarray(mosaic).save(to, "PNG", pnginfo=text, optimize=True)


def _spread(chosen: np.ndarray, count: int) -> np.ndarray:
    """`count` of the chosen positions, evenly spaced, so that no stretch of the set is rich in a class."""
    positions = np.flatnonzero(chosen)
    return positions[np.arange(count) * len(positions) // count]


def _idx(path: Path, header: int) -> np.ndarray:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


@pytest.mark.parametrize(("split", "per_class"), [("train", 800), ("test", 200)])
def test_the_sample_has_as_many_images_of_each_class(split: str, per_class: int) -> None:
    images = sample(split)
    assert images.images.shape == (10 * per_class, 1, 28, 28)
    assert torch.bincount(images.labels).tolist() == [per_class] * 10


def test_the_sample_is_at_most_five_megabytes() -> None:
    folder = Path(sample.__code__.co_filename).parent / "sample"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 5_000_000
    assert "Zalando" in (folder / "LICENSE").read_text()


def test_its_normalization_is_that_of_its_training_images() -> None:
    assert moments(sample("train").images.permute(0, 2, 3, 1).split(1000)) == (SPEC.mean, SPEC.std)
    assert sample("test").spec == SPEC


def test_no_stretch_of_the_test_images_is_rich_in_a_class() -> None:
    """Batches must look like the whole, or methods that adapt to a batch are misjudged."""
    counts = torch.stack([torch.bincount(part, minlength=10) for part in sample("test").labels.split(200)])
    chi_square = float(((counts - 20.0) ** 2 / 20).sum())
    assert chi_square < 127  # 90 degrees of freedom: the 99.5 % point is 128.3


@pytest.mark.skipif(not ORIGINAL.is_dir(), reason="needs Debian's dataset-fashion-mnist")
def test_the_sample_is_a_part_of_fashion_mnist() -> None:
    for split, prefix in (("train", "train"), ("test", "t10k")):
        with gzip.open(ORIGINAL / f"{prefix}-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
        with gzip.open(ORIGINAL / f"{prefix}-labels-idx1-ubyte.gz") as file:
            labels = np.frombuffer(file.read(), np.uint8, offset=8)
        known = {image.tobytes(): label for image, label in zip(pixels, labels, strict=True)}
        images = sample(split)
        ours = images.images.reshape(len(images), 784).numpy()
        assert [known[image.tobytes()] for image in ours] == images.labels.tolist()
        assert len({image.tobytes() for image in ours}) == len(ours)


@pytest.mark.skipif(not ORIGINAL.is_dir(), reason="needs Debian's dataset-fashion-mnist")
def test_the_sample_can_be_made_again(tmp_path: Path) -> None:
    make("test", ORIGINAL, tmp_path / "again.png")
    assert read_mosaic(tmp_path / "again.png").digest == sample("test").digest


def test_it_loads_by_name_and_has_no_other_split() -> None:
    assert load("sample", "train").digest == sample("train").digest
    with pytest.raises(BadInput, match="no split 'val'"):
        load("sample", "val")
