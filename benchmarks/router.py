"""The router against each branch and the oracle: clean, corrupted, attacked, and attacked by who knows it.

    python -m benchmarks.router [--images 500] [--out docs/results/router.json]

Networks: the zoo's Mixture BN and AdvBN networks on CIFAR-10. The reference (which sets the router's weights)
is 500 training images, clean for `main`; for `adv` attacked by PGD-5 on that branch, for `aux` under Gaussian
noise and defocus blur of severity 3. The five corruptions of the table are others. Oracle: of each
condition's accuracies the better branch's. Adaptive PGD is the worst, image by image, of four attacks of 20
steps: on each branch, on the mean of the branches' logits, and on the blend with gradients through the
router's weights, each judged by the router itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import trimtab
from benchmarks.published import write
from trimtab import adapt, attacks, data, norm
from trimtab.measure import clopper_pearson

UNSEEN = ("shot_noise", "motion_blur", "fog", "contrast", "jpeg_compression")
SEVERITY = 3
BUDGET = attacks.Linf("8/255")
NETWORKS = {"zoo:cifar10-mixture": "adv", "zoo:cifar10-advbn": "aux"}


class OnBranch(nn.Module):
    """A model on one branch; on the mean of several branches' logits if there are more."""

    def __init__(self, model: nn.Module, *branches: str) -> None:
        super().__init__()
        self.model, self.branches = model, branches

    def forward(self, x: Tensor) -> Tensor:
        logits = []
        for branch in self.branches:
            with norm.use(self.model, branch=branch):
                logits.append(self.model(x))
        return torch.stack(logits).mean(0)


def measured(name: str, auxiliary: str, count: int) -> dict[str, Any]:
    """Accuracies of one network under all conditions."""
    model = trimtab.steer(trimtab.load(name))
    branches = ("main", auxiliary)
    pgd = attacks.PGD(BUDGET, steps=20, early_stop=False)
    known = next(data.load("cifar10", "train").batches(500))
    main, second, both = OnBranch(model, "main"), OnBranch(model, auxiliary), OnBranch(model, *branches)
    if auxiliary == "adv":
        other = [attacks.PGD(BUDGET, steps=5)(second, known.x, known.y, seed=1)]
    else:
        other = [data.corrupt(known.x, kind, SEVERITY, seed=1) for kind in ("gaussian_noise", "defocus_blur")]
    reference = {"main": [known.x], auxiliary: other}
    router = adapt.route(model, reference=reference)
    soft = adapt.route(model, reference=reference, blend=True)
    whole = adapt.route(model, reference=reference, per="batch")
    contestants = {"main": main, auxiliary: second, "router": router, "router, blend": soft,
                   "router, batches of 100": whole}  # fmt: skip

    test = next(data.load("cifar10", "test").batches(count))
    x, y = test.x, test.y
    conditions: dict[str, Callable[[], Tensor]] = {"clean": lambda: x}
    for kind in UNSEEN:
        conditions[f"{kind}, severity {SEVERITY}"] = lambda kind=kind: data.corrupt(x, kind, SEVERITY, seed=0)
    conditions["PGD-20 on main"] = lambda: pgd(main, x, y, seed=0)
    conditions[f"PGD-20 on {auxiliary}"] = lambda: pgd(second, x, y, seed=0)
    rows, attacked = [], {}
    for condition, images in conditions.items():
        x_shown = images()
        if condition.startswith("PGD"):
            attacked[condition] = x_shown
        correct = {title: right(net, x_shown, y) for title, net in contestants.items()}
        rows.append(row(condition, correct, branches))
        chosen = torch.cat([router.weights(part).argmax(1) for part in x_shown.split(100)])
        rows[-1]["auxiliary chosen"] = float(chosen.double().mean())
    attacked["PGD-20 on both"] = pgd(both, x, y, seed=0)
    attacked["PGD-20 through the blend"] = pgd(soft, x, y, seed=0)
    worst = {title: torch.stack([right(net, z, y) for z in attacked.values()]).all(0)
             for title, net in contestants.items()}  # fmt: skip
    rows.append(row("adaptive PGD (worst of four)", worst, branches))
    print(name, rows, flush=True)
    alone = {title: float(right(router, z, y).double().mean()) for title, z in attacked.items()}
    return {"model": name, "auxiliary": auxiliary, "rows": rows, "router under each attack": alone}


@torch.no_grad()
def right(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Whether each image is classified correctly, in batches of 100."""
    parts = zip(x.split(100), y.split(100), strict=True)
    return torch.cat([net(part).argmax(1) == label for part, label in parts])


def row(condition: str, correct: dict[str, Tensor], branches: tuple[str, ...]) -> dict[str, Any]:
    """Accuracies with intervals; the oracle takes the better branch of the condition."""
    n = len(correct["main"])
    accuracy = {title: float(values.double().mean()) for title, values in correct.items()}
    accuracy["oracle"] = max(accuracy[branch] for branch in branches)
    intervals = {title: clopper_pearson(round(value * n), n) for title, value in accuracy.items()}
    return {"condition": condition, "accuracy": accuracy, "interval": intervals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("docs/results/router.json"))
    asked = parser.parse_args()
    networks = [measured(name, auxiliary, asked.images) for name, auxiliary in NETWORKS.items()]
    command = f"python -m benchmarks.router --images {asked.images}"
    write(asked.out, command, {"images": asked.images, "networks": networks})


if __name__ == "__main__":
    main()
