"""Repair of published networks: accuracy before and after, of the intact network, and with torch's update_bn.

    python -m benchmarks.repair --folder PUBLISHED [--only resnet20 ...] [--images 2000] [--photographs 700]

Damage     50 and 70 % of all weights of convolutions and linear layers pruned, the smallest ones of the
           network (`torch.nn.utils.prune.global_unstructured`); weights rounded to 4 bits, symmetric, one
           scale per output channel; the average of two continuations of the published network, parameters
           and statistics; another resolution (24 instead of 32 pixels, 160 instead of 224)
CIFAR-10   ResNet-20 and ResNet-44; statistics re-estimated on 1,024 training images with the augmentation
           of their training (padded crops, flips), compared on the first --images test images
Photos     EfficientNet-Lite0 on the first --photographs, each of another class; of the even ones
           re-estimated, on the odd ones compared, and the other way round, so all are compared and none
           with its own statistics
Continued  SGD with momentum 0.9, seeds 0 and 1: 60 steps on 128 augmented CIFAR-10 images, learning rate
           0.1; for the photographs 20 steps on 32, learning rate 0.05, that imitate the published network's
           predictions, as there is no second image of a class
update_bn  `torch.optim.swa_utils.update_bn` on the same batches in the same order
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim.swa_utils import update_bn

from benchmarks.published import FILES, PHOTOGRAPHS, Batches, network, write
from trimtab import data, models, norm
from trimtab.measure import clopper_pearson

ESTIMATE, BATCH = 1024, 128
Setting = tuple[Batches, Batches]
"""What to re-estimate on, and what to compare on."""
Damage = Callable[[nn.Module, Batches], nn.Module]


def weighted(net: nn.Module) -> list[nn.Module]:
    return [module for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def pruned(amount: float) -> Damage:
    def damage(net: nn.Module, _: Batches) -> nn.Module:
        parameters = [(module, "weight") for module in weighted(net)]
        prune.global_unstructured(parameters, prune.L1Unstructured, amount=amount)
        for module, name in parameters:
            prune.remove(module, name)
        return net

    return damage


@torch.no_grad()
def four_bits(net: nn.Module, _: Batches) -> nn.Module:
    for module in weighted(net):
        weight: Tensor = module.weight.data  # type: ignore[union-attr, assignment]
        scale = weight.flatten(1).abs().amax(1).clamp(min=1e-12) / 7
        scale = scale.view(-1, *[1] * (weight.dim() - 1))
        weight.copy_((weight / scale).round().clamp(-8, 7) * scale)
    return net


def averaged(rate: float, steps: int, size: int, imitate: bool) -> Damage:
    def damage(net: nn.Module, batches: Batches) -> nn.Module:
        states = [continued(net, batches, rate, steps, size, imitate, s).state_dict() for s in (0, 1)]
        mean = {k: (v + states[1][k]) / 2 if v.is_floating_point() else v for k, v in states[0].items()}
        net.load_state_dict(mean)
        return net

    return damage


def continued(
    net: nn.Module, batches: Batches, rate: float, steps: int, size: int, imitate: bool, seed: int
) -> nn.Module:
    """A copy after some more steps of training, with its own running statistics."""
    copy, rng = deepcopy(net).train(), torch.Generator().manual_seed(seed)
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    optimizer = torch.optim.SGD(copy.parameters(), rate, momentum=0.9)
    for _ in range(steps):
        chosen = torch.randint(len(x), (size,), generator=rng)
        logits = copy(x[chosen])
        with torch.no_grad():
            target = net(x[chosen]).softmax(1) if imitate else y[chosen]
        optimizer.zero_grad()
        F.cross_entropy(logits, target).backward()
        optimizer.step()
    return copy.eval()


@torch.no_grad()
def right(net: nn.Module, batches: Batches) -> int:
    return sum(int((net(x).argmax(1) == y).sum()) for x, y in batches)


def loaded(images: data.ImageSet, size: int, augment: tuple[str, ...] = ()) -> Batches:
    return [(b.x, b.y) for b in data.Loader(images, size, augment, shuffle=bool(augment))]


def smaller(batches: Batches, side: int) -> Batches:
    return [(F.interpolate(x, (side, side), mode="bilinear", antialias=True), y) for x, y in batches]


def settings(name: str, net: nn.Module, asked: argparse.Namespace) -> tuple[list[Setting], list[Setting]]:
    """The parts of the images at the network's own resolution, and at another."""
    if name in FILES:
        known = loaded(data.load("cifar10", "train").subset(slice(0, ESTIMATE)), BATCH, ("crop", "flip"))
        test = loaded(data.load("cifar10", "test").subset(slice(0, asked.images)), 250)
        return [(known, test)], [(smaller(known, 24), smaller(test, 24))]
    folds = []
    for side in (224, 160):
        sized = models.wrap(net, net.spec.at_size(side))  # type: ignore[union-attr, operator]
        photographs = data.load(f"imagenet:{asked.folder / PHOTOGRAPHS}", "test", input=sized.spec)
        halves = [loaded(photographs.subset(slice(start, asked.photographs, 2)), 50) for start in (0, 1)]
        folds.append([(halves[0], halves[1]), (halves[1], halves[0])])
    return folds[0], folds[1]


def rows(name: str, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each kind of damage."""
    net = network(name, asked.folder)
    own, other = settings(name, net, asked)
    continuing = averaged(0.1, 60, 128, False) if name in FILES else averaged(0.05, 20, 32, True)
    damages: dict[str, Damage] = {
        "none": lambda net, _: net,
        "50 % of the weights pruned": pruned(0.5),
        "70 % of the weights pruned": pruned(0.7),
        "4-bit weights": four_bits,
        "average of two checkpoints": continuing,
        f"{24 if name in FILES else 160} pixels": lambda net, _: net,
    }
    intact = 0
    for title, damage in damages.items():
        counts = {"before": 0, "after": 0, "update_bn": 0}
        images, helps = 0, []
        for known, test in other if "pixels" in title else own:
            damaged = damage(deepcopy(net), known)
            baseline = deepcopy(damaged)
            report = norm.repair(damaged, test, estimate_on=known, always=True)
            update_bn(known, baseline)
            n = report.before.images
            images += n
            assert report.before.accuracy is not None
            assert report.after.accuracy is not None
            counts["before"] += round(report.before.accuracy * n)
            counts["after"] += round(report.after.accuracy * n)
            counts["update_bn"] += right(baseline.eval(), test)
            helps.append(report.helps)
        intact = intact if title != "none" else counts["before"]
        row = {
            "network": name, "damage": title, "images": images,
            "estimated on": sum(len(x) for x, _ in own[0][0]), "kept": all(helps),
        }  # fmt: skip
        for key, correct in {**counts, "intact": intact}.items():
            row |= {key: correct / images, f"{key} interval": clopper_pearson(correct, images)}
        print(row, flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the published networks are")
    parser.add_argument("--only", nargs="*", default=[*FILES, "efficientnet_lite0"])
    parser.add_argument("--images", type=int, default=2000, help="of CIFAR-10, to compare on")
    parser.add_argument("--photographs", type=int, default=700)
    parser.add_argument("--out", type=Path, default=Path("docs/results/repair.json"))
    asked = parser.parse_args()
    sizes = f"--images {asked.images} --photographs {asked.photographs}"
    command = f"python -m benchmarks.repair --folder PUBLISHED {sizes}"
    for name in asked.only:
        for row in rows(name, asked):
            stored = json.loads(asked.out.read_text())["rows"] if asked.out.exists() else []
            kept = [r for r in stored if (r["network"], r["damage"]) != (name, row["damage"])]
            write(asked.out, command, {"rows": [*kept, row]})


if __name__ == "__main__":
    main()
