"""Before the first step: processes, images, the network as the recipe trains it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from trimtab import draws, models, norm
from trimtab.data import Images, as_set
from trimtab.data import load as load_set
from trimtab.data.augment import RESIZED_CROP, parsed
from trimtab.data.folder import FolderSet
from trimtab.data.loader import Loader
from trimtab.data.sets import ImageSet
from trimtab.layout import channels_last
from trimtab.models.pixels import channels_of
from trimtab.train.recipe import Recipe
from trimtab.types import BadInput, InputSpec

FEW = 100
"""Images that are looked at to recognise a set that lies on disk, and one that comes class by class."""
_MIXING = draws.purpose("images that come class by class")


@dataclass(frozen=True)
class Engine:
    """Where to run; under `torchrun` the number of processes is taken from it."""

    accelerator: str = "auto"
    """cpu, cuda, mps, or whatever there is."""
    devices: int | str = "auto"
    """Processes on this machine."""
    nodes: int = 1
    """Machines."""

    def start(self, precision: str) -> Fabric:
        devices, nodes = self.devices, self.nodes
        if "LOCAL_WORLD_SIZE" in os.environ:
            devices = int(os.environ["LOCAL_WORLD_SIZE"])
            nodes = int(os.environ["WORLD_SIZE"]) // devices
        fabric = Fabric(accelerator=self.accelerator, devices=devices, num_nodes=nodes, precision=precision)  # type: ignore[arg-type]
        fabric.launch()
        return fabric


OWN = "own:"
"""How a recipe names a model or images that were objects of the caller's."""


def named(given: Any) -> str:
    """What a recipe says of a model or of images: a name as it is, of an object its kind."""
    if isinstance(given, str):
        return given
    own = getattr(given, "name", None)
    return f"{OWN}{own if isinstance(own, str) else type(given).__name__}"


def _known(source: str, what: str) -> str:
    if source.startswith(OWN):
        raise BadInput(
            f"the run was begun from Python with {what} of its own ({source.removeprefix(OWN)}); go on "
            "there, with train.resume(folder, model, data)"
        )
    return source


def training_sets(data: Any, recipe: Recipe) -> tuple[Images, Images | None]:
    """The images to train on, and those held out to choose checkpoints by."""
    if data is None or isinstance(data, str):
        data = _known(data or recipe.data.name, "images")
        cropped = [name for name, _ in parsed(recipe.data.augment)[0]][:1] == [RESIZED_CROP]
        whole = load_set(data, "train", decoded=not cropped)
    else:
        whole = as_set(data)
    whole = _not_by_class(whole)
    held = recipe.data.validation
    if held >= len(whole):
        raise BadInput(f"{held} images cannot be held out of {len(whole)}; lower data.validation")
    end = len(whole) - held
    train_set = whole.subset(slice(0, min(recipe.data.images or end, end)))
    return train_set, whole.subset(slice(end, len(whole))) if held else None


def _not_by_class(images: Images) -> Images:
    """A set that comes class by class, in another order: else its ends are no sample."""
    few = torch.linspace(0, len(images) - 1, min(len(images), FEW)).long()
    steps = images.subset(few).labels.diff()
    sorted_ = bool((steps >= 0).all() or (steps <= 0).all()) and bool(steps.any())
    return images.subset(draws.permutation(len(images), 0, _MIXING)) if sorted_ else images


def fingerprint(images: Images) -> str:
    """What a run knows its training images by when it goes on; quickly found, however many.

    In memory it is their digest. Of a folder it is all names and labels, and the sizes of a few files. Of
    anything else, which may change its pixels each time it is read, it is all ids and the labels of a few.
    """
    if isinstance(images, ImageSet):
        return images.digest
    n = len(images)
    few = images.subset(torch.linspace(0, n - 1, min(n, FEW)).long())
    content = hashlib.sha256(images.ids.contiguous().numpy().data)
    if isinstance(images, FolderSet):
        content.update(few.digest.encode())
        content.update(images.labels.contiguous().numpy().data)
        content.update("\n".join(images.files).encode(errors="surrogateescape"))
    else:
        content.update(few.labels.contiguous().numpy().data)
    return content.hexdigest()


def loader_for(fabric: Fabric, train_set: Images, recipe: Recipe) -> Loader:
    """Shuffled, augmented batches; each process gets its contiguous part of every one."""
    rank, world = fabric.global_rank, fabric.world_size
    if recipe.batch_size % (world * recipe.accumulate):
        parts = f"{world} processes with {recipe.accumulate} parts each"
        raise BadInput(f"a batch of {recipe.batch_size} cannot be split evenly over {parts}")
    how = {"augment": recipe.data.augment, "seed": recipe.seed, "rank": rank, "world": world}
    return Loader(train_set, recipe.batch_size, **how, drop_last=True)  # type: ignore[arg-type]


def network(model: nn.Module | str | None, recipe: Recipe, images: Images) -> nn.Module:
    """The model given, or the one that the recipe names, for these images and with the recipe's seed.

    A network that has been trained, or is the user's own, keeps its mean and deviation; others take those of
    the images.
    """
    if isinstance(model, nn.Module):
        return model
    source = _known(model or recipe.model, "a model")
    torch.manual_seed(recipe.seed)
    if models.has_record(source):
        made = models.load(source, classes=images.classes)
        if made.spec != InputSpec(made.spec.size, made.spec.channels):
            return made
        # Nothing is recorded, so it is given pixels as they are, of these images' size.
        channels = channels_of(made.net) or images.spec.channels
        return models.wrap(made, InputSpec(images.spec.size, channels))
    own: dict[str, Any] = {"channels": images.spec.channels} if source.startswith("net:") else {}
    return models.load(source, classes=images.classes, input=images.spec, **own)


@torch.no_grad()
def alike(fabric: Fabric, model: nn.Module) -> nn.Module:
    """The first process's network in all of them: each may have made its own."""
    for value in (*model.parameters(), *model.buffers()) if fabric.world_size > 1 else ():
        first = value.contiguous()
        torch.distributed.broadcast(first, 0)
        value.copy_(first)
    return model


def prepared(model: nn.Module, recipe: Recipe) -> nn.Module:
    """The network as the recipe trains it: branches, frozen parameters, memory layout."""
    model = channels_last(model)
    recipe.objective.prepare(model)
    if recipe.norm.frozen:
        for p in norm.affine_parameters(model):
            p.requires_grad_(False)
    if recipe.norm.only:
        if not norm.layers(model):
            raise BadInput("norm.only trains the parameters of batch-norm layers, and this model has none")
        model.requires_grad_(False)
        for p in norm.affine_parameters(model):
            p.requires_grad_(True)
    if recipe.norm.synchronise and norm.layers(model):
        norm.synchronise(model)
    return model
