"""Per-image moments and logits of a published network, once per image and condition: what a monitor sees.

    python -m benchmarks.features --folder PUBLISHED --out FEATURES

ResNet-20 on CIFAR-10's test images: all 10,000 as they are; images 2,000 to 2,499 under 19 corruptions at
severities 1, 3 and 5 (to calibrate with); images 3,000 to 3,499 under 19 corruptions at five severities (to
estimate on). `Replay` is a network that returns them, so a monitor judges streams that are drawn from them
without running the images again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.published import network
from trimtab import data
from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from trimtab.io import atomic_write
from trimtab.norm.sensors import ImageMoments, image_moments, sensor_layers

NETWORK, LAYERS = "resnet20", 4
KINDS = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
CALIBRATE, ESTIMATE = slice(2000, 2500), slice(3000, 3500)


class Features(NamedTuple):
    """Of the same images, in order."""

    moments: dict[str, ImageMoments]
    logits: Tensor
    labels: Tensor

    def at(self, which: Tensor | slice) -> Features:
        moments = {n: ImageMoments(m.mean[which], m.std[which]) for n, m in self.moments.items()}
        return Features(moments, self.logits[which], self.labels[which])

    @property
    def accuracy(self) -> float:
        return float((self.logits.argmax(1) == self.labels).double().mean())


class Replay(nn.Module):
    """A network that takes indices of images, and whose layers receive inputs of the stored moments.

    A layer with two positions that receives m - s and m + s sees the mean m and the std s.
    """

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.features = features
        self.sensors = nn.ModuleList(nn.BatchNorm1d(m.mean.shape[1]) for m in features.moments.values())

    @torch.no_grad()
    def forward(self, index: Tensor) -> Tensor:
        found = self.features.at(index)
        for sensor, (mean, std) in zip(self.sensors, found.moments.values(), strict=True):
            sensor(torch.stack([mean - std, mean + std], 2))
        return found.logits


@torch.no_grad()
def measured(net: nn.Module, x: Tensor, y: Tensor) -> Features:
    names = sensor_layers(net, LAYERS)
    parts, logits = [], []
    for images in x.split(250):
        with image_moments(net, names) as moments:
            logits.append(net(images))
        parts.append(moments)
    whole = {name: ImageMoments(*(torch.cat([part[name][half] for part in parts]) for half in (0, 1)))
             for name in names}  # fmt: skip
    return Features(whole, torch.cat(logits), y)


def path_of(folder: Path, part: str, kind: str, severity: int) -> Path:
    return folder / f"{part}-{kind}-{severity}.pt"


def read(folder: Path, part: str, kind: str = "clean", severity: int = 0) -> Features:
    moments, logits, labels = torch.load(path_of(folder, part, kind, severity), weights_only=True)
    return Features({name: ImageMoments(*pair) for name, pair in moments.items()}, logits, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the published networks are")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    net, test = network(NETWORK, asked.folder), next(data.load("cifar10", "test").batches(10_000))
    asked.out.mkdir(parents=True, exist_ok=True)
    cells = [("test", slice(None), "clean", 0)]
    cells += [("calibrate", CALIBRATE, kind, s) for kind in KINDS for s in (1, 3, 5)]
    cells += [("estimate", ESTIMATE, kind, s) for kind in KINDS for s in (1, 2, 3, 4, 5)]
    for part, rows, kind, severity in cells:
        path = path_of(asked.out, part, kind, severity)
        if path.exists():
            continue
        x = test.x[rows]
        if severity:
            x = data.corrupt(x, kind, severity, seed=0, ids=test.ids[rows])
        found = measured(net, x, test.y[rows])
        with atomic_write(path) as file:
            moments = {name: tuple(pair) for name, pair in found.moments.items()}
            torch.save((moments, found.logits, found.labels), file)
        print(f"{path.name}: accuracy {found.accuracy:.1%}", flush=True)


if __name__ == "__main__":
    main()
