"""PGD and Auto-PGD against torchattacks, foolbox and ART, as ratios in one process.

    python benchmarks/attacks.py --standard file:RUN --robust file:RUN [--images 256] [--rounds 5]

Rounds are interleaved, medians are compared. "as shipped" sets our any-iterate scoring, which lets broken
images leave, against the peers' last iterate; "same rule" keeps all images to the last iterate on both sides.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import torch

import trimtab
from trimtab import data
from trimtab.attacks import APGD, PGD, Linf

EPS, STEPS = 8 / 255, 20
STEP = 2.5 * EPS / STEPS
Work = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def contestants(model: torch.nn.Module) -> dict[str, Work]:
    """The same PGD-20 in four libraries; each takes a batch and returns images."""
    warnings.simplefilter("ignore")
    import foolbox
    import torchattacks
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    ta = torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=STEPS, random_start=True)
    fb = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS, random_start=True)
    fb_model = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    classifier = PyTorchClassifier(
        model, torch.nn.CrossEntropyLoss(), (3, 32, 32), 10, clip_values=(0.0, 1.0), device_type="cpu"
    )
    options = {"eps": EPS, "eps_step": STEP, "max_iter": STEPS, "num_random_init": 1, "verbose": False}

    def art(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        attack = ProjectedGradientDescentPyTorch(classifier, batch_size=len(x), **options)
        return torch.from_numpy(attack.generate(x.numpy(), y.numpy()))

    return {
        "trimtab, any iterate": lambda x, y: PGD(Linf(EPS), STEPS, score="any")(model, x, y),
        "trimtab, last iterate": lambda x, y: PGD(Linf(EPS), STEPS)(model, x, y),
        "torchattacks": lambda x, y: ta(x, y),
        "foolbox": lambda x, y: fb(fb_model, x, y, epsilons=EPS)[1],
        "art": art,
    }


def timed(work: Work, x: torch.Tensor, y: torch.Tensor, batch: int) -> float:
    began = time.perf_counter()
    for images, labels in zip(x.split(batch), y.split(batch), strict=True):
        work(images, labels)
    return time.perf_counter() - began


def race(
    works: dict[str, Work], x: torch.Tensor, y: torch.Tensor, sizes: list[int], rounds: int
) -> dict[str, dict[int, float]]:
    times: dict[str, dict[int, list[float]]] = {name: {s: [] for s in sizes} for name in works}
    for _ in range(rounds):
        for size in sizes:
            for name, work in works.items():
                times[name][size].append(timed(work, x, y, size))
    return {name: {s: statistics.median(t) for s, t in by.items()} for name, by in times.items()}


def table(title: str, found: dict[str, dict[int, float]], sizes: list[int], ours: str) -> None:
    print(f"\n{title}: seconds, and how many times faster {ours} is")
    best = {name: min(by.values()) for name, by in found.items()}
    for name, by in found.items():
        cells = "  ".join(f"batch {s}: {by[s]:7.2f} s {by[s] / found[ours][s]:6.2f}x" for s in sizes)
        print(f"  {name:<24}{cells}   each at its best batch: {best[name] / best[ours]:6.2f}x")


def auto_pgd(model: torch.nn.Module) -> dict[str, Work]:
    import torchattacks

    ta = torchattacks.APGD(model, norm="Linf", eps=EPS, steps=STEPS, loss="ce", seed=0)
    return {
        "trimtab": lambda x, y: APGD(Linf(EPS), STEPS)(model, x, y),
        "torchattacks": lambda x, y: ta(x, y),
    }


def memory(spec: str, which: str, images: int) -> int:
    """Peak memory above idle of one PGD-20 call, in MB, in a process of its own."""
    code = f"""
import resource, sys, torch
sys.path.insert(0, "benchmarks")
import attacks, trimtab
model = trimtab.load({spec!r}).eval()
x, y = torch.rand({images}, 3, 32, 32), torch.zeros({images}, dtype=torch.long)
work = attacks.contestants(model)[{which!r}]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
work(x[:2], y[:2]); idle = peak()
work(x, y); print((peak() - idle) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--standard", required=True)
    parser.add_argument("--robust", required=True)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 64])
    given = parser.parse_args()
    batch = next(iter(data.load("cifar10", "test").batches(given.images)))
    x, y = batch.x.contiguous(), batch.y
    for kind in ("standard", "robust"):
        model = trimtab.load(getattr(given, kind)).eval()
        with torch.no_grad():
            clean = float((model(x).argmax(1) == y).double().mean())
        robust = 1 - PGD(Linf(EPS), STEPS).outcome(model, x, y).broken.double().mean()
        print(f"\n=== {kind} network: clean {100 * clean:.1f} %, PGD-20 {100 * robust:.1f} %")
        found = race(contestants(model), x, y, given.sizes, given.rounds)
        table("as shipped", found, given.sizes, "trimtab, any iterate")
        table("same rule (last iterate, all kept)", found, given.sizes, "trimtab, last iterate")
        table(
            "Auto-PGD-20",
            race(auto_pgd(model), x, y, given.sizes[:1], given.rounds),
            given.sizes[:1],
            "trimtab",
        )
    print(
        "\npeak memory above idle, MB:",
        {
            n: memory(given.robust, n, given.images)
            for n in ("trimtab, any iterate", "trimtab, last iterate", "torchattacks")
        },
    )
    print("peak of this process:", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MB")


if __name__ == "__main__":
    main()
