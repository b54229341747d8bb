"""AutoAttack against its authors' own package, image by image: `python -m benchmarks.autoattack`.

    python -m benchmarks.autoattack [--images 1000] [--chunk 20] [--published FOLDER] [--only NAME] [--page]

The networks are the zoo's robust one, the published ResNet-20 (from FOLDER; left out where it is absent), and
the robust one behind a planted defect: its input is rounded to 8 levels, so that gradients are zero and only
Square succeeds. Both libraries run version "standard" on the same images in the same order, a chunk at a
time, one thread, processor time. Each chunk is added to docs/results/autoattack.json, and a run that was
ended continues there; --page only writes the page. The distances are from one run of FAB on at most 200.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import trimtab
from benchmarks.race import Asked
from benchmarks.written import ROOT, circumstances
from trimtab import data
from trimtab.attacks import FAB, AutoAttack, Linf
from trimtab.io import atomic_write
from trimtab.types import InputSpec

OUT = ROOT / "docs" / "results" / "autoattack.json"
PUBLISHED = Path("published")
DISTANCES = 200
RADII = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Of the curve, in 1/255."""
WORSE = 0.005
"""How far our robust accuracy may lie above the reference's."""
ZOO, RESNET, MASKED = "zoo:cifar10-adversarial", "published ResNet-20", "zoo:cifar10-adversarial, 8 levels"
EPS = {ZOO: "8/255", RESNET: "1/255", MASKED: "8/255"}


class Levels(nn.Module):
    """A network behind a rounding of its input, whose gradient is zero."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net((x * 7).round() / 7)
        return logits


def networks(published: Path) -> Iterator[tuple[str, nn.Module]]:
    """The networks by name, in eval mode."""
    robust = trimtab.load(ZOO).eval()
    yield ZOO, robust
    file = published / "resnet20-12fca82f.th"
    if file.exists():
        spec = InputSpec(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        yield RESNET, trimtab.load(f"file:{file}@net:resnet20", input=spec).eval()
    yield MASKED, Levels(robust)


def reference(model: nn.Module, eps: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The authors' AutoAttack: takes images and labels, returns adversarial images."""
    import pyautoattack

    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    attack = pyautoattack.AutoAttack(model, norm="Linf", eps=eps, version="standard", seed=0)
    attack.verbose = False
    return lambda x, y: attack.run_standard_evaluation(x.contiguous(), y, batch_size=len(x))[0]


@torch.no_grad()
def misclassified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return model(x).argmax(1) != y


def compare(model: nn.Module, eps: str, x: Tensor, y: Tensor, first: int, so_far: dict[str, Any]) -> None:
    """Attack one chunk with both, and add what happened."""
    budget = Linf(eps)
    attack, theirs = AutoAttack(budget), reference(model, budget.radius)
    began = time.process_time()
    ours_success = attack.outcome(model, x, y, ids=range(first, first + len(x))).success
    middle = time.process_time()
    adversarial = theirs(x, y)
    ended = time.process_time()
    assert float((adversarial - x).abs().max()) <= budget.radius + 1e-5
    theirs_success = misclassified(model, adversarial, y)
    so_far["eps"] = eps
    for name, value in {
        "images": len(x),
        "clean": int((~misclassified(model, x, y)).sum()),
        "ours": int((~ours_success).sum()),
        "theirs": int((~theirs_success).sum()),
        "only_ours": _numbers(ours_success & ~theirs_success, first),
        "only_theirs": _numbers(theirs_success & ~ours_success, first),
        "seconds_ours": round(middle - began, 1),
        "seconds_theirs": round(ended - middle, 1),
    }.items():
        so_far[name] = so_far[name] + value if name in so_far else value


def _numbers(rows: Tensor, first: int) -> list[int]:
    return [first + row for row in rows.nonzero()[:, 0].tolist()]


def run(images: int, chunk: int, published: Path, only: str | None) -> None:
    """Compare up to that many images, a chunk of each network in turn."""
    found: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {"networks": {}}
    found["about"] = circumstances(Asked(threads=1), []) | {"command": "python -m benchmarks.autoattack"}
    whole = data.load("cifar10", "test")
    models = {name: model for name, model in networks(published) if only in (None, name)}
    while models:
        name = min(models, key=lambda name: found["networks"].get(name, {}).get("images", 0))
        so_far = found["networks"].setdefault(name, {})
        first = so_far.get("images", 0)
        if first >= images:
            return
        batch = next(whole.subset(slice(first, min(first + chunk, images))).batches(chunk))
        compare(models[name], EPS[name], batch.x, batch.y, first, so_far)
        if name != MASKED and first < DISTANCES:  # without gradients FAB does not move
            fab, ids = FAB(Linf(EPS[name])), range(first, first + len(batch.x))
            distances = fab.distances(models[name], batch.x, batch.y, ids=ids)
            so_far.setdefault("distances", []).extend(round(d, 6) for d in distances.tolist())
        with atomic_write(OUT) as part:
            part.write_text(json.dumps(found, indent=1) + "\n")
        print(name, {k: v for k, v in so_far.items() if k != "distances"}, flush=True)


def page(found: dict[str, Any]) -> str:
    """The page: the comparison, and the accuracy over eps."""
    about = found["about"]
    lines = [
        "# AutoAttack against its authors' package",
        "",
        f"`{about['command']}` on {about['machine']}, {about['threads']} thread, torch {about['torch']}, "
        f"commit {about['commit']}. Version `standard` of `attacks.AutoAttack` and of `pyautoattack` (the "
        "authors' own) on the first test images of CIFAR-10, seed 0. An image is robust if no attack "
        "succeeds; seconds are processor time.",
        "",
        "| network | eps | images | clean | robust: trimtab | robust: pyautoattack | broken by one only: "
        "trimtab, pyautoattack | seconds | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in found["networks"].items():
        n = row["images"]
        met = "met" if row["ours"] - row["theirs"] <= WORSE * n else "missed"
        seconds = f"{row['seconds_ours']:.0f}, {row['seconds_theirs']:.0f}"
        ratio = row["seconds_theirs"] / max(row["seconds_ours"], 0.1)
        lines.append(
            f"| {name} | {row['eps']} | {n} | {row['clean'] / n:.1%} | {row['ours'] / n:.1%} "
            f"| {row['theirs'] / n:.1%} | {_listed(row['only_ours'])}; {_listed(row['only_theirs'])} "
            f"| {seconds} ({ratio:.2f}x) | {met} |"
        )
    lines += [
        "",
        f"The target is a robust accuracy at most {WORSE:.1%} above the reference's. Images are named by "
        "their number in the test set. The last network rounds its input to 8 levels: its gradients are "
        "zero, and of the four attacks only Square, a random search, succeeds.",
        "",
        "## Accuracy over eps in one run",
        "",
        f"`attacks.FAB(...).distances(model, x, y)` on these images (at most {DISTANCES}): the distance of "
        "the nearest misclassified image of each, so that one run gives the robust accuracy at every eps.",
        "",
        "| network | " + " | ".join(f"{r}/255" for r in RADII) + " | median distance |",
        "|---|" + "---|" * (len(RADII) + 1),
    ]
    for name, row in found["networks"].items():
        if "distances" not in row:
            continue
        far = torch.tensor(row["distances"], dtype=torch.float64)
        cells = [f"{float((far > r / 255).double().mean()):.1%}" for r in RADII]
        middle = float(far[far > 0].median()) * 255
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {middle:.2f}/255 |")
    lines += ["", "The median is over the images that are classified correctly without an attack."]
    return "\n".join(lines) + "\n"


def _listed(images: list[int]) -> str:
    return f"{len(images)} ({', '.join(map(str, images))})" if images else "0"


def main() -> None:
    """Run what is missing, then write the page."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--images", type=int, default=1000)
    asked.add_argument("--chunk", type=int, default=20)
    asked.add_argument("--published", type=Path, default=PUBLISHED)
    asked.add_argument("--only", choices=EPS)
    asked.add_argument("--page", action="store_true", help="only write the page from the JSON")
    given = asked.parse_args()
    torch.set_num_threads(1)
    if not given.page:
        run(given.images, given.chunk, given.published, given.only)
    with atomic_write(OUT.with_suffix(".md")) as part:
        part.write_text(page(json.loads(OUT.read_text())))


if __name__ == "__main__":
    main()
