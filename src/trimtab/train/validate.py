"""Accuracy on held-out images while training: what checkpoints are chosen by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from lightning_fabric import Fabric
from torch import nn

from trimtab import norm
from trimtab.data import Batch, Images
from trimtab.measure import Accuracy, accuracy
from trimtab.train.processes import average
from trimtab.train.recipe import Recipe

BATCH = 256


def validate(fabric: Fabric, model: nn.Module, held_out: Images | None, recipe: Recipe) -> dict[str, float]:
    """Accuracy on held-out images, clean and under the recipe's attack; each process takes its share."""
    if held_out is None:
        return {}
    how, like = recipe.validation, next(model.parameters())
    with norm.use(model, branch=how.branch) if norm.layers(model) else nullcontext():
        found = {"clean": accuracy(model, _share(fabric, held_out))}
        if how.attack is not None:
            found["robust"] = Accuracy()
            for x, y, ids in _share(fabric, held_out.subset(slice(0, how.images or len(held_out)))):
                x, y = fabric.to_device(x).to(like.dtype), fabric.to_device(y)
                found["robust"] += Accuracy.of(~how.attack.outcome(model, x, y, recipe.seed, ids).broken)
    counts = torch.tensor([[float(a.correct), float(a.n)] for a in found.values()], device=fabric.device)
    average([counts])
    return {name: correct / n for name, (correct, n) in zip(found, counts.tolist(), strict=True)}


def _share(fabric: Fabric, images: Images) -> Iterator[Batch]:
    """This process's images; of fewer images than processes some have none."""
    mine = slice(fabric.global_rank, len(images), fabric.world_size)
    return images.subset(mine).batches(BATCH) if fabric.global_rank < len(images) else iter(())
