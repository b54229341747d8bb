"""Merged statistics of shards against those of the whole, and what averaging variances loses.

    python -m benchmarks.merge --folder PUBLISHED [--images 2000]

ResNet-20 on the first --images test images of CIFAR-10, in four ways of cutting them into ten parts: at
random, by class (each client has one), by brightness, and with sizes in the ratio 1 : 2 : 4 ... The whole is
one pass in batches of 250 in the original order, so its batches are others than those of the parts.

Errors    of statistics gathered with `source="running"`, which do not depend on the batches; relative, the
          largest over all channels of all layers; of means relative to the std
Accuracy  on the same images, with statistics gathered with `source="batch"` loaded
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import trimtab
from benchmarks.published import network, write
from trimtab import data, norm
from trimtab.measure import clopper_pearson

PARTS = 10


def cuts(x: Tensor, y: Tensor) -> dict[str, list[Tensor]]:
    n, rng = len(x), torch.Generator().manual_seed(0)
    shuffled, brightness = torch.randperm(n, generator=rng), x.mean((1, 2, 3)).argsort()
    weights = torch.tensor([2.0**k for k in range(PARTS)])
    sizes = (weights / weights.sum() * n).long().clamp(min=2)
    sizes[-1] += n - sizes.sum()
    return {
        "at random": list(shuffled.chunk(PARTS)),
        "by class": [(y == label).nonzero()[:, 0] for label in range(PARTS)],
        "by brightness": list(brightness.chunk(PARTS)),
        "at random, sizes 1 : 2 : 4 ...": list(shuffled.split(sizes.tolist())),
    }


def gathered(net: nn.Module, x: Tensor, source: str) -> norm.Pack:
    return norm.gather(net, list(x.split(250)), source=source)


@torch.no_grad()
def correct(net: nn.Module, pack: norm.Pack, x: Tensor, y: Tensor) -> int:
    loaded = norm.load_pack(deepcopy(net), pack)
    return sum(int((loaded(a).argmax(1) == b).sum()) for a, b in zip(x.split(250), y.split(250), strict=True))


def worst(pack: norm.Pack, whole: norm.Pack) -> dict[str, float]:
    errors = {"mean": 0.0, "variance": 0.0}
    for name, exact in whole.layers.items():
        layer, var = pack.layers[name], exact.var.double()
        mean = (layer.mean.double() - exact.mean.double()).abs() / (var + 1e-5).sqrt()
        errors["mean"] = max(errors["mean"], float(mean.max()))
        errors["variance"] = max(errors["variance"], float(((layer.var.double() - var) / var).abs().max()))
    return errors


def averaged(packs: list[norm.Pack], merged: norm.Pack) -> norm.Pack:
    """What federated averaging of the buffers makes: means and variances averaged by count."""
    layers = {}
    for name, layer in merged.layers.items():
        parts = [pack.layers[name] for pack in packs]
        n = torch.tensor([part.elements for part in parts], dtype=torch.float64)
        var = torch.stack([part.var.double() for part in parts]).T @ n / n.sum()
        layers[name] = layer._replace(var=var.to(layer.var))
    return norm.Pack(layers, merged.weights, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the published networks are")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("docs/results/merge.json"))
    asked = parser.parse_args()
    net = trimtab.steer(network("resnet20", asked.folder))
    x, y, _ = next(data.load("cifar10", "test").batches(asked.images))
    exact, whole = (gathered(net, x, source) for source in ("running", "batch"))
    rows: list[dict[str, Any]] = []
    for how, parts in cuts(x, y).items():
        packs = [gathered(net, x[part], "running") for part in parts]
        merged = norm.merge(packs)
        row: dict[str, Any] = {"cut": how, "merged": worst(merged, exact)}
        row["averaged"] = worst(averaged(packs, merged), exact)
        packs = [gathered(net, x[part], "batch") for part in parts]
        merged = norm.merge(packs)
        average = averaged(packs, merged)
        for title, pack in (("whole", whole), ("merged", merged), ("averaged", average)):
            n = correct(net, pack, x, y)
            row[f"{title} accuracy"] = n / len(x)
            row[f"{title} interval"] = clopper_pearson(n, len(x))
        rows.append(row)
        print(row, flush=True)
    command = f"python -m benchmarks.merge --folder PUBLISHED --images {asked.images}"
    write(asked.out, command, {"images": asked.images, "parts": PARTS, "rows": rows})


if __name__ == "__main__":
    main()
