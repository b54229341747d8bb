"""APART: adversarially perturbed batch-norm statistics (CIFAR-10 and CIFAR-100, WRN-40-2 and
PreAct-ResNet-18).

Every comparison stands beside standard training of the same cost (1x: as many passes over the data; 2x: twice
as many epochs) and beside the two controls that the method contains: groups without a perturbation, and
random signs.
"""

from __future__ import annotations

from trimtab import measure
from trimtab.studies.bench import Bench
from trimtab.studies.claim import claim
from trimtab.studies.nets import Net
from trimtab.studies.verdicts import Above, Close

STANDARD = Net("standard-wrn40_2-cifar100-paper")
RADII = {"smoke": (0.1, 0.4), "laptop": (0.05, 0.1, 0.2, 0.4), "paper": (0.05, 0.1, 0.2, 0.4, 0.8)}
GROUPS = {"smoke": (1, 4), "laptop": (1, 4, 16), "paper": (1, 4, 16)}
BATCH = {"smoke": 32, "laptop": 128, "paper": 128}


@claim(
    "APA-6",
    "As an attack on the statistics, uniform noise does nothing, random signs need large radii, APART's "
    "step from one batch works at small radii, and more groups make it stronger",
    figures={"all": "figure 1: only curves are printed"},
    tests=[
        Close("uniform, eps 0.1, 1 groups", "no shift, 1 groups", margin=0.02),
        Above("random signs, eps 0.1, 1 groups", "sign step, eps 0.1, 1 groups", effect=0.02),
        Above("no shift, 1 groups", "sign step, eps 0.1, 1 groups", effect=0.02),
        Above("no shift, 1 groups", "random signs, eps 0.4, 1 groups", effect=0.02),
        Above("lost to the sign step in most groups", "lost to the sign step in 1 group", effect=0.01),
    ],
    networks=[STANDARD], headline=True, minutes=3,
)  # fmt: skip
def statistics_attacks(bench: Bench) -> dict[str, float]:
    """Accuracy over training images, batch statistics; delta is found on the first batch and then holds."""
    model, size = bench.network(STANDARD), BATCH[bench.scale.name]
    images = bench.images("train", bench.scale.test)
    words = {
        "random uniform": "uniform", "random signs": "random signs", "sign step (APART)": "sign step",
    }  # fmt: skip
    rows: dict[str, float] = {}
    for groups in GROUPS[bench.scale.name]:
        batches = [batch for batch in images.batches(size) if len(batch.y) == size]
        found = measure.tolerance(
            model, batches, (0.0, *RADII[bench.scale.name]), tuple(words), "batch", groups, bench.seed
        )
        for row in found:
            eps = f"{words[row['attack']]}, eps {row['eps']:g}" if row["eps"] else "no shift"
            rows[f"{eps}, {groups} groups"] = row["accuracy"]
        lost = rows[f"no shift, {groups} groups"] - rows[f"sign step, eps 0.1, {groups} groups"]
        rows[f"lost to the sign step in {'1 group' if groups == 1 else 'most groups'}"] = lost
    return rows
