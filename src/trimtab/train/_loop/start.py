"""Preparation of a run: processes, images, and the network as the recipe trains it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from trimtab import models, norm, rng
from trimtab._accel import channels_last
from trimtab.data import Images, as_set
from trimtab.data import load as load_set
from trimtab.data.augment import RESIZED_CROP, parse_augment
from trimtab.data.folder import FolderSet
from trimtab.data.loader import Loader
from trimtab.data.sets import ImageSet
from trimtab.models.pixels import channels_of
from trimtab.runtime import require_bfloat16
from trimtab.train.recipe import Recipe
from trimtab.types import BadInput, InputSpec

FEW = 100
"""Images that are sampled to fingerprint a set on disk, and to recognize a set that is sorted by class."""
_MIXING = rng.purpose("images that come class by class")


@dataclass(frozen=True)
class Engine:
    """Where a run trains: accelerator, processes and machines.

    Args:
        accelerator: cpu, cuda, mps, or auto for what is available.
        devices: Number of processes on this machine; `torchrun` sets it, if it started this process.
        nodes: Number of machines; `torchrun` sets it as well.
    """

    accelerator: str = "auto"
    devices: int | str = "auto"
    nodes: int = 1

    def start(self, precision: str) -> Fabric:
        """Start the processes and return their Fabric.

        Args:
            precision: As in a recipe: 32-true, bf16-mixed or 16-mixed.
        """
        devices, nodes = self.devices, self.nodes
        if "LOCAL_WORLD_SIZE" in os.environ:
            devices = int(os.environ["LOCAL_WORLD_SIZE"])
            nodes = int(os.environ["WORLD_SIZE"]) // devices
        fabric = Fabric(accelerator=self.accelerator, devices=devices, num_nodes=nodes, precision=precision)  # type: ignore[arg-type]
        if precision.startswith("bf16") and fabric.device.type == "cpu":
            require_bfloat16()
        fabric.launch()
        return fabric


IN_MEMORY = "own:"
"""Prefix of a recipe's name for a model or images that the caller gave as an object."""


def name_of(given: Any) -> str:
    """Return how a recipe names a model or images: a name as it is, an object by its `name` or class."""
    if isinstance(given, str):
        return given
    name = getattr(given, "name", None)
    return f"{IN_MEMORY}{name if isinstance(name, str) else type(given).__name__}"


def _loadable(source: str, what: str) -> str:
    """Return the name of a model or of images; raise BadInput if it names an object of the caller."""
    if source.startswith(IN_MEMORY):
        raise BadInput(
            f"the run was started from Python with {what} given as an object "
            f"({source.removeprefix(IN_MEMORY)}); resume it there, with train.resume(folder, model, data)"
        )
    return source


def training_sets(data: Any, recipe: Recipe) -> tuple[Images, Images | None]:
    """Return the images to train on, and the images held out to choose checkpoints by."""
    if data is None or isinstance(data, str):
        data = _loadable(data or recipe.data.name, "images")
        cropped = [name for name, _ in parse_augment(recipe.data.augment)[0]][:1] == [RESIZED_CROP]
        whole = load_set(data, "train", decoded=not cropped)
    else:
        whole = as_set(data)
    whole = _unsorted(whole)
    held_out = recipe.data.validation
    if held_out >= len(whole):
        raise BadInput(f"{held_out} images cannot be held out of {len(whole)}; lower data.validation")
    end = len(whole) - held_out
    train_set = whole.subset(slice(0, min(recipe.data.images or end, end)))
    return train_set, whole.subset(slice(end, len(whole))) if held_out else None


def _unsorted(images: Images) -> Images:
    """Permute a set that is sorted by class, since its last images are no random sample."""
    sample = torch.linspace(0, len(images) - 1, min(len(images), FEW)).long()
    steps = images.subset(sample).labels.diff()
    by_class = bool((steps >= 0).all() or (steps <= 0).all()) and bool(steps.any())
    return images.subset(rng.permutation(len(images), 0, _MIXING)) if by_class else images


def fingerprint(images: Images) -> str:
    """Return a hash by which a resumed run recognizes its training images; fast for any number of images.

    For images in memory it is their digest. For a folder it covers all names and labels, and a sample of the
    files. For any other set, whose pixels may differ at each reading, all ids and a sample of the labels.
    """
    if isinstance(images, ImageSet):
        return images.digest
    n = len(images)
    sample = images.subset(torch.linspace(0, n - 1, min(n, FEW)).long())
    content = hashlib.sha256(images.ids.contiguous().numpy().data)
    if isinstance(images, FolderSet):
        content.update(sample.digest.encode())
        content.update(images.labels.contiguous().numpy().data)
        content.update("\n".join(images.files).encode(errors="surrogateescape"))
    else:
        content.update(sample.labels.contiguous().numpy().data)
    return content.hexdigest()


def loader_for(fabric: Fabric, train_set: Images, recipe: Recipe) -> Loader:
    """Return a loader of shuffled, augmented batches; each process gets its contiguous part of a batch."""
    rank, world = fabric.global_rank, fabric.world_size
    if recipe.batch_size % (world * recipe.accumulate):
        parts = f"{world} processes with {recipe.accumulate} parts each"
        raise BadInput(f"a batch of {recipe.batch_size} cannot be split evenly over {parts}")
    options = {"augment": recipe.data.augment, "seed": recipe.seed, "rank": rank, "world": world}
    return Loader(train_set, recipe.batch_size, **options, drop_last=True)  # type: ignore[arg-type]


def network(model: nn.Module | str | None, recipe: Recipe, images: Images) -> nn.Module:
    """Return the given model, or the model that the recipe names, for these images and the recipe's seed.

    A trained network, or an object of the caller, keeps its mean and std; a new one gets those of the images.
    """
    if isinstance(model, nn.Module):
        return model
    source = _loadable(model or recipe.model, "a model")
    torch.manual_seed(recipe.seed)
    if models.has_record(source):
        made = models.load(source, classes=images.classes)
        if made.spec != InputSpec(made.spec.size, made.spec.channels):
            return made
        # Nothing is recorded, so the input is pixels in [0, 1], of the size of these images.
        channels = channels_of(made.net) or images.spec.channels
        return models.wrap(made, InputSpec(images.spec.size, channels))
    options: dict[str, Any] = {"channels": images.spec.channels} if source.startswith("net:") else {}
    return models.load(source, classes=images.classes, input=images.spec, **options)


@torch.no_grad()
def broadcast_model(fabric: Fabric, model: nn.Module) -> nn.Module:
    """Copy the network of the first process to all processes."""
    for value in (*model.parameters(), *model.buffers()) if fabric.world_size > 1 else ():
        first = value.contiguous()
        torch.distributed.broadcast(first, 0)
        value.copy_(first)
    return model


def prepare_network(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Prepare the network for the recipe, in place: branches, frozen parameters, memory layout."""
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
    if recipe.norm.synchronize and norm.layers(model):
        norm.synchronize(model)
    return model
