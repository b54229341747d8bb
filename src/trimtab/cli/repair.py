"""`trimtab repair`: re-estimate statistics that no longer fit the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

import trimtab
from trimtab.cli.lazy import console, data, norm
from trimtab.cli.options import OnImages, OptionalInt, OptionalPath, Split, describe_source, first
from trimtab.types import BadInput


@dataclass(frozen=True)
class RepairCommand(OnImages):
    """Re-estimate running statistics that no longer fit the weights.

    As after pruning, quantizing, averaging checkpoints or with another input size. Accuracy before and after
    is measured on the test images; statistics that do not help are not kept. Take the augmentation that the
    network was trained with: a network trained on padded crops has the statistics of padded crops.

      repair file:pruned --data cifar10 --augment crop flip --out repaired
      repair file:int4 --data folder:photos --images 1024 --out repaired

    The written folder holds a plain state dict, which stock PyTorch loads.
    """

    data: str = "sample"
    """Images (`trimtab data list`); with labels, accuracy is compared, else agreement and entropy."""
    split: Split = "train"
    """The part of the images to re-estimate on."""
    images: int = 2048
    """Number of images to re-estimate on."""
    augment: tuple[str, ...] = ()
    """How they are augmented, such as crop:4 flip."""
    compare_split: Annotated[str, tyro.conf.arg(help="The part of the images to compare on.")] = "test"
    limit: OptionalInt = None
    """Compare on the first N images only."""
    only: tuple[str, ...] = ()
    """Names of the layers to re-estimate (`trimtab audit` lists them); all if none are given."""
    branch: str = "main"
    """The branch to re-estimate."""
    always: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep the new statistics even where they do not help."""
    out: OptionalPath = None
    """Write the repaired model here."""
    batch_size: int = 128
    strict: Annotated[
        tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="Exit with 1 if it does not help.")
    ] = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        from trimtab.evaluate.records import ImagesRecord
        from trimtab.evaluate.stored_images import preprocessing

        if self.images < 2 or self.batch_size < 2:
            raise BadInput("--images and --batch-size must be 2 or more: one image has no statistics")
        if self.out is not None and self.out.is_file():
            raise BadInput(f"--out takes a folder, and {self.out} is a file")
        model, known = self.load_model_and_images()
        known = first(known, self.images)
        compared = first(data.load(self.data, self.compare_split, input=model.spec), self.limit)
        report = norm.repair(
            model,
            data.Loader(compared, self.batch_size, shuffle=False),
            estimate_on=equal_batches(known, self.batch_size, self.augment, self.seed),
            only=self.only or None,
            branch=self.branch,
            always=self.always,
        )
        how = f", augmented by {' '.join(self.augment)}" if self.augment else ""
        source = f"{len(known)} {describe_source(known, compared, self.split)} of {self.data}{how}"
        on = ImagesRecord(compared.name, compared.digest, 0, len(compared))
        written = report.kept and self.out is not None
        if self.out is not None and written:
            trimtab.save(model, self.out, {"statistics re-estimated on": source})
        where = {"branch": self.branch, "compared_on": on, "estimated_on": source}
        where |= {"batch_size": self.batch_size, "preprocessing": preprocessing(model, compared)}
        about = {**_plain(report), **where, "out": self.out if written else None}
        text = f"Statistics of branch {self.branch} re-estimated on {source}, compared on {on}."
        outcome = f"The repaired model is in {self.out}." if written else "Nothing was written."
        done = [] if self.out is None else [outcome]
        console.result(self.json, about, text, str(report), *done)
        return int(self.strict and not report.helps)


def equal_batches(images: Any, size: int, augment: tuple[str, ...] = (), seed: int = 0) -> Any:
    """Return a loader of batches of at most `size` that differ by one image at most.

    A small last batch would have statistics of its own, and one of a single image none.
    """
    count = -(-len(images) // size)
    return data.Loader(images, -(-len(images) // count), augment, seed)


def _plain(report: norm.Repair) -> dict[str, object]:
    return {
        "images": report.before.images,
        "before": report.before,
        "after": report.after,
        "agreement": report.agreement,
        "p_value": report.p_value,
        "layers": report.layers,
        "helps": report.helps,
        "kept": report.kept,
        "warnings_before": sum(len(layer.warnings) for layer in report.audit_before.layers),
        "warnings_after": sum(len(layer.warnings) for layer in report.audit_after.layers),
    }
