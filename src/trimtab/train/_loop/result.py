"""The network of an epoch: itself or its moving average, its accuracy on held-out images, the choice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from trimtab import norm, rng
from trimtab.data import Batch, Images
from trimtab.measure import Accuracy, accuracy
from trimtab.norm.synchronize import average
from trimtab.train._loop import checkpoint
from trimtab.train._loop.work import Work, norm_policy, parts_of
from trimtab.train.recipe import Recipe

BATCH = 256
"""Images per batch of a validation."""
RECALIBRATION = 32
"""Number of batches from which the norm statistics of an averaged network are estimated."""


def initial_average(model: nn.Module) -> dict[str, Tensor]:
    """Return the average before the first step: copies of parameters and statistics, by name."""
    state = model.state_dict().items()
    return {name: t.clone() for name, t in state if t.is_floating_point() and bool(t.isfinite().all())}


@torch.no_grad()
def update_average(ema: dict[str, Tensor], model: nn.Module, decay: float) -> None:
    """Update the average in place: ema <- decay ema + (1 - decay) weights."""
    for name, value in model.state_dict().items():
        if name in ema:
            ema[name].lerp_(value, 1 - decay)


def current_network(work: Work) -> nn.Module:
    """Return the network itself, or its moving average with recalibrated statistics."""
    if not work.ema:
        return work.model
    result = copy.deepcopy(work.model)
    with torch.no_grad():
        for name, value in result.state_dict().items():
            if name in work.ema:
                value.copy_(work.ema[name])
    _recalibrate(work, result)
    return result


def chosen_network(work: Work, last: nn.Module | None) -> nn.Module:
    """Return the network of the epoch that the recipe chooses; `last` is that of the last epoch, if known."""
    if work.recipe.validation.choose == "last" or not work.run.best.exists():
        return current_network(work) if last is None else last
    model = copy.deepcopy(work.model) if work.ema else work.model
    checkpoint.load_weights(work.run.best, model)
    return model


def _recalibrate(work: Work, result: nn.Module) -> None:
    """Set norm statistics to their average over the first batches of an epoch, by passes of the objective.

    So each branch gets the statistics of the clean, noisy or adversarial images that it is trained on.
    Statistics that training does not update are kept.
    """
    recipe, epoch = work.recipe, work.epoch
    result.train()
    with norm_policy(recipe, result, epoch):
        updating = norm.updating_layers(result)
        if not updating:
            return
        batches = islice(work.loader.at(epoch, 0), RECALIBRATION)
        parts = (part for batch in batches for part in parts_of(work, batch))
        for number, (x, y, ids) in enumerate(parts):
            torch.manual_seed(rng.key(recipe.seed, number, work.fabric.global_rank))  # for dropout
            with norm.use(updating, update=1 / (1 + number)), work.fabric.autocast():
                work.objective(result, x, y, seed=rng.key(recipe.seed, number), ids=ids)
    result.zero_grad()


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
