"""APART on a network with linear bottlenecks: alone, or as one of two processes (`torchrun ... FOLDER`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab import models, train
from trimtab.data.sets import from_arrays
from trimtab.train.recipe import Data, OptimizerConfig, Recipe, Schedule


def trained(folder: Path, **changes: Any) -> dict[str, Tensor]:
    """The weights of mobilenetv3_small_050 in float64 after two steps of APART on 16 images."""
    torch.manual_seed(0)
    net = models.load("timm:mobilenetv3_small_050", classes=4).double()
    pixels = torch.randint(
        256, (32, 3, 32, 32), generator=torch.Generator().manual_seed(5), dtype=torch.uint8
    )
    recipe = Recipe(
        data=Data(augment=("flip",), validation=0), objective=train.APART(eps=0.1, **changes),
        optimizer=OptimizerConfig(lr=0.05), schedule=Schedule(kind="constant"), epochs=1, batch_size=16,
    )  # fmt: skip
    run = train.fit(net, from_arrays(pixels, torch.arange(32) % 4), recipe, folder / "run")
    assert run.model is not None
    return {name: value.detach().clone() for name, value in run.model.state_dict().items()}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import conftest  # noqa: F401 (declares what torchvision lacks here)

    weights = trained(Path(sys.argv[1]))
    if torch.distributed.get_rank() == 0:
        torch.save(weights, Path(sys.argv[1]) / "two.pt")
    torch.distributed.destroy_process_group()
