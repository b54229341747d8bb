"""Adaptive BN for adversarially trained classifiers (Nandy et al.; ImageNet, ResNet-50).

At a small scale Adv_inf is trained at 8/255, Adv_2 at 0.5 (32 x 32 pixels have a 49th of the paper's, and an
l2 radius of 3 there is about 0.43 here), Rand under noise of sigma 0.25.
"""

from __future__ import annotations

from trimtab.evaluate import Clean, Noise, PerBatch
from trimtab.studies.bench import Bench
from trimtab.studies.claim import claim
from trimtab.studies.nets import Net
from trimtab.studies.scales import Scale
from trimtab.studies.verdicts import Above


def _small(value: object) -> object:
    """A value for the small scales; the paper's recipe keeps its own."""
    return lambda scale: None if scale.name == "paper" else value


BASELINE = Net("lig-resnet50-paper", given="torchvision:resnet50+IMAGENET1K_V1")
ADV_INF = Net("ada-adv-linf-paper", {"objective.attack.budget": _small({"linf": "8/255"})})
ADV_2 = Net("ada-adv-l2-paper", {"objective.attack.budget": _small({"l2": 0.5})})
RAND = Net("ada-rand-paper", {"objective.sigma": _small(0.25)})
NETWORKS = {"Adv_inf": ADV_INF, "Adv_2": ADV_2, "Baseline": BASELINE, "Rand": RAND}


def noisy(scale: Scale) -> float:
    """The noise that a claim is tested at: the largest of the scale's."""
    return {"smoke": 0.5, "laptop": 0.25, "paper": 0.5}[scale.name]


@claim(
    "ADA-1",
    "Adaptive BN restores accuracy under Gaussian noise, far more for adversarially trained than for "
    "standard networks, and costs little on clean data",
    figures={
        "Adv_2, sigma 0.5": "0.9 -> 47.3", "Baseline, sigma 0.5": "0.3 -> 7.7",
        "Rand, sigma 0": "22.0 -> 62.7", "Rand, sigma 0.5": "60.9 -> 59.5",
    },
    tests=[
        Above("Adv_inf, gain under noise", 0.0, effect=0.02),
        Above("Adv_2, gain under noise", 0.0, effect=0.02),
        Above("Adv_inf, gain under noise", "Baseline, gain under noise", effect=0.02),
        Above("Adv_inf, gain on clean images", -0.05, effect=0.0),
        Above("Adv_2, gain on clean images", -0.05, effect=0.0),
    ],
    networks=list(NETWORKS.values()), headline=True, minutes=2,
)  # fmt: skip
def adaptation_restores(bench: Bench) -> dict[str, float]:
    levels = {0.0, noisy(bench.scale), *bench.scale.sigmas}
    rows: dict[str, float] = {}
    for name, net in NETWORKS.items():
        model = bench.network(net)
        for sigma in sorted(levels):
            shown = Noise(sigma) if sigma else Clean()
            static = bench.accuracy(model, shown)
            adapted = bench.accuracy(model, shown, state=PerBatch())
            rows[f"{name}, sigma {sigma:g}, static"] = static
            rows[f"{name}, sigma {sigma:g}, adapted"] = adapted
            if sigma == noisy(bench.scale):
                rows[f"{name}, gain under noise"] = adapted - static
            if sigma == 0:
                rows[f"{name}, gain on clean images"] = adapted - static
    return rows
