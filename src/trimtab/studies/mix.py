"""Mixture BN: "Intriguing properties of adversarial training" (ImageNet, ResNet-152, eps 16/255).

Robust means: right under targeted PGD with steps of 1/255 from a random start, as many iterations as the
scale affords (2000 in the paper), last iterate. Mixed training is on every image twice, clean and
adversarial.

The paper itself expects mixed training with BN to be robust on small sets such as CIFAR-10 (section 4.2):
where a claim rests on its failure, a refutation at a small scale is outside the paper's scope.
"""

from __future__ import annotations

from torch import nn

from trimtab.attacks import FGSM, CurvePGD, Linf
from trimtab.evaluate import Branch, NormState
from trimtab.studies.bench import Bench
from trimtab.studies.claim import claim
from trimtab.studies.conditions import CraftedOn
from trimtab.studies.nets import Net
from trimtab.studies.verdicts import Above, Close

EPS = Linf("16/255")
SMALL = "section 4.2 excepts small sets, CIFAR-10 by name: mixed training with BN is robust there, too"
EXEMPT = {"smoke": SMALL, "laptop": SMALL}

CLEAN = Net("mix-adversarial-paper", {"objective": {"kind": "standard", "label_smoothing": 0.1}})
ADV = Net("mix-adversarial-paper")
MIXED = Net("mix-mixed-paper")
MBN = Net("mix-mbn-paper")
AFFINE = Net("mix-mbn-paper", {"objective.separate": "affine"})
STATISTICS = Net("mix-mbn-paper", {"objective.separate": "statistics"})


def judge(bench: Bench, eps: Linf = EPS) -> CurvePGD:
    """The attack that robustness is read from, and its iterations on the way."""
    marks = bench.scale.marks
    return CurvePGD(eps, steps=marks[-1], step_size="1/255", targeted=True, marks=marks)


def robust(bench: Bench, model: nn.Module, state: NormState | None = None) -> float:
    return bench.accuracy(model, judge(bench), state=state)


@claim(
    "MIX-4",
    "Mixture BN (separate BN for clean and for adversarial images) restores robustness while training on "
    "both: its adversarial branch is close to adv-only, its clean branch close to clean-only",
    figures={
        "MBN adv, robust": "38.3", "adv only, robust": "39.2", "mixed, robust": "20.9",
        "MBN clean, clean": "78.9 + 0.4", "clean only, clean": "78.9",
    },
    tests=[
        Close("MBN adv, robust", "adv only, robust", margin=0.03),
        Close("MBN clean, clean", "clean only, clean", margin=0.03),
        Above("MBN adv, robust", "mixed, robust"),
    ],
    networks=[ADV, MIXED, MBN, AFFINE, STATISTICS, CLEAN], headline=True, exempt=EXEMPT, minutes=7,
)  # fmt: skip
def mixture_restores(bench: Bench) -> dict[str, float]:
    adv, mixed, mbn, clean = (bench.network(net) for net in (ADV, MIXED, MBN, CLEAN))
    rows = {
        "MBN adv, robust": robust(bench, mbn, Branch("adv")),
        "adv only, robust": robust(bench, adv),
        "mixed, robust": robust(bench, mixed),
        "MBN clean, clean": bench.accuracy(mbn, state=Branch("main")),
        "clean only, clean": bench.accuracy(clean),
        "MBN adv, clean": bench.accuracy(mbn, state=Branch("adv")),
        "adv only, clean": bench.accuracy(adv),
        "mixed, clean": bench.accuracy(mixed),
    }
    # An attacker may craft on either branch, whichever one classifies.
    for craft in ("main", "adv"):
        for route in ("main", "adv"):
            crossed = CraftedOn(judge(bench), craft)
            rows[f"crafted on {craft}, routed to {route}"] = bench.accuracy(mbn, crossed, state=Branch(route))
    # Which half of the layer matters: 2 x 2 of shared and separate, with "mixed" and "MBN adv" above.
    for name, net in {"only affine separate": AFFINE, "only statistics separate": STATISTICS}.items():
        rows[f"{name}, robust"] = robust(bench, bench.network(net), Branch("adv"))
        rows[f"{name}, clean branch, clean"] = bench.accuracy(bench.network(net), state=Branch("main"))
    rows["MBN adv, FGSM"] = bench.accuracy(mbn, FGSM(EPS), state=Branch("adv"))
    rows["adv only, FGSM"] = bench.accuracy(adv, FGSM(EPS))
    rows["mixed, FGSM"] = bench.accuracy(mixed, FGSM(EPS))
    return rows
