"""Accuracy on held-out images during training, by which checkpoints are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from lightning_fabric import Fabric
from torch import nn

from trimtab import norm
from trimtab.data import Batch, Images
from trimtab.measure import Accuracy, accuracy
from trimtab.train._loop.processes import average
from trimtab.train.recipe import Recipe

BATCH = 256
"""Images per batch."""


def validate(fabric: Fabric, model: nn.Module, held_out: Images | None, recipe: Recipe) -> dict[str, float]:
    """Return clean accuracy, and robust accuracy under the attack of the recipe, over all processes."""
    if held_out is None:
        return {}
    validation, like = recipe.validation, next(model.parameters())
    with norm.use(model, branch=validation.branch) if norm.layers(model) else nullcontext():
        accuracies = {"clean": accuracy(model, _images_of_rank(fabric, held_out))}
        if validation.attack is not None:
            accuracies["robust"] = Accuracy()
            for x, y, ids in _images_of_rank(
                fabric, held_out.subset(slice(0, validation.images or len(held_out)))
            ):
                x, y = fabric.to_device(x).to(like.dtype), fabric.to_device(y)
                accuracies["robust"] += Accuracy.of(
                    ~validation.attack.outcome(model, x, y, recipe.seed, ids).success
                )
    counts = torch.tensor([[float(a.correct), float(a.n)] for a in accuracies.values()], device=fabric.device)
    average([counts])
    return {name: correct / n for name, (correct, n) in zip(accuracies, counts.tolist(), strict=True)}


def _images_of_rank(fabric: Fabric, images: Images) -> Iterator[Batch]:
    """Return the images of this process; with fewer images than processes some get none."""
    own_part = slice(fabric.global_rank, len(images), fabric.world_size)
    return images.subset(own_part).batches(BATCH) if fabric.global_rank < len(images) else iter(())
