"""`trimtab pack`: the statistics of one branch of a model, in a small file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

import trimtab
from trimtab.cli.lazy import console, data, norm
from trimtab.cli.options import Device, Json, Model, OptionalInt, OptionalStr, Seed, Split, first, load_model
from trimtab.cli.repair import equal_batches
from trimtab.types import BadInput, at_least, one_of

File = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="PACK")]
Force = Annotated[
    tyro.conf.FlagCreatePairsOff[bool],
    tyro.conf.arg(help="Accept a pack that was made for other weights."),
]


ONE_ROUND = (
    "The pack was saved with --source running. Applied, its statistics change the inputs of later layers: "
    "save and apply again until nothing changes (trimtab pack diff)."
)
"""What to do after applying such a pack."""


@dataclass(frozen=True)
class SavePack:
    """Write a branch of a model, or its statistics on the images of --data, as a pack.

    pack save zoo:cifar10-standard foggy.safetensors --data folder:fog --about weather=fog
    """

    model: Model
    pack: File
    """The file to write."""
    branch: str = "main"
    """The branch to save; with --data, the branch that the images run through."""
    data: OptionalStr = None
    """Estimate the statistics on these images."""
    split: Split = "train"
    images: OptionalInt = None
    """Only the first N images of --data."""
    source: str = "batch"
    """With --data, what the layers normalize by: each batch's statistics (batch), as in training, or running,
    as in evaluation. With running, packs of any parts of the data merge exactly; but once applied, they
    change the inputs of later layers: repeat until nothing changes."""
    augment: tuple[str, ...] = ()
    """Augmentation of these images, such as crop:4 flip."""
    about: tuple[str, ...] = ()
    """What the statistics describe, as KEY=VALUE ...; kept in the file."""
    batch_size: int = 128
    seed: Seed = 0
    device: Device = "auto"
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        at_least(1, **{"--batch-size": self.batch_size})
        one_of(("batch", "running"), **{"--source": self.source})
        about = {"model": self.model, "branch": self.branch}
        for text in self.about:
            key, equals, value = text.partition("=")
            if not key or not equals:
                raise BadInput(f"--about takes KEY=VALUE, found {text!r}")
            about[key] = value
        model = trimtab.steer(load_model(self.model, self.device))
        pack = norm.pack(model, self.branch) if self.data is None else self._gather(model, about)
        norm.save_pack(pack, self.pack, provenance=about)
        size = self.pack.stat().st_size / 1024
        sentence = f"{len(pack.layers)} layers are in {self.pack} ({size:.1f} KB)."
        return console.result(self.json, _described(self.pack, norm.read_pack(self.pack)), sentence)

    def _gather(self, model: Any, about: dict[str, str]) -> Any:
        """Estimate the statistics on --data, and add to `about` where they come from."""
        assert self.data is not None
        images = first(data.load(self.data, self.split, input=model.spec), self.images)
        about |= {"data": self.data, "split": self.split, "images": str(len(images))}
        if self.augment:
            about["augment"] = " ".join(self.augment)
        loader = equal_batches(images, self.batch_size, self.augment, self.seed)
        return norm.gather(model, loader, branch=self.branch, source=self.source)


@dataclass(frozen=True)
class ApplyPack:
    """Write a model with the statistics of a pack, in its main branch or as a branch of its own.

    pack apply zoo:cifar10-standard foggy.safetensors --branch fog --out foggy
    """

    model: Model
    pack: File
    out: Path
    """The folder to write."""
    branch: str = "main"
    """The branch to overwrite; a new name adds a branch, and main stays as it is."""
    force: Force = False
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        if self.out.is_file():
            raise BadInput(f"--out takes a folder, and {self.out} is a file")
        model = trimtab.steer(trimtab.load(self.model))
        if self.branch not in norm.branches(model):
            trimtab.add_branch(model, self.branch)
        pack = norm.read_pack(self.pack)
        norm.load_pack(model, pack, self.branch, self.force)
        trimtab.save(model, self.out, {f"pack in {self.branch}": str(self.pack)})
        about = {"model": self.model, "branch": self.branch, "out": str(self.out)}
        sentence = f"{self.out} has the statistics of {self.pack} in {self.branch}."
        repeat = [ONE_ROUND] if pack.provenance.get("source") == "running" else []
        return console.result(self.json, about, sentence, *repeat)


@dataclass(frozen=True)
class ListPacks:
    """List packs and what they describe; with --model, also which of them were made for its weights."""

    packs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="PACK")] = (Path("."),)
    """Packs, or folders that hold packs; the current folder if not given."""
    model: OptionalStr = None
    """A model whose weights are compared with those that the packs were made for."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        digest = None if self.model is None else norm.weights_digest(trimtab.steer(trimtab.load(self.model)))
        rows = []
        for path in self.packs:
            files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
            for file in files:
                try:
                    pack = norm.read_pack(file)
                except BadInput:
                    if not path.is_dir():  # other files of a folder need not be packs
                        raise
                    continue
                fits = None if digest is None else digest == pack.weights
                rows.append({**_described(file, pack), "fits": fits})
        if self.json:
            console.as_json(rows)
            return 0
        table = [
            [
                row["pack"],
                str(row["layers"]),
                str(row["channels"]),
                f"{row['elements']:,}" if row["elements"] else "",
                {None: "", True: "yes", False: "no"}[row["fits"]],
                ", ".join(f"{key}={value}" for key, value in row["provenance"].items()),
            ]
            for row in rows
        ]
        columns = ["pack", "layers", "channels", "elements", "fits", "about"]
        console.table("Statistics packs", columns, table, right=[1, 2, 3])
        return 0


@dataclass(frozen=True)
class DiffPacks:
    """Compare two packs layer by layer: shift of the means in stds, ratio of the stds, change of gamma/beta.

    pack diff foggy.safetensors clean.safetensors
    """

    pack: File
    """The pack to describe."""
    reference: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="REFERENCE")]
    """The pack to compare it with."""
    strict: Annotated[
        tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="Exit with 1 if the packs differ.")
    ] = False
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        new, reference = norm.read_pack(self.pack), norm.read_pack(self.reference)
        rows = norm.compare(new, reference)
        same = all(row.mean_shift == row.affine_change == 0 and row.std_ratio == 1 for row in rows)
        if self.json:
            weights = bool(new.weights) and new.weights == reference.weights
            console.as_json({"layers": [row._asdict() for row in rows], "same_weights": weights})
            return int(self.strict and not same)
        if new.weights != reference.weights:
            console.say("The packs belong to networks with different weights.")
        console.table(
            f"{self.pack} against {self.reference}",
            ["layer", "mean shift", "std ratio", "gamma, beta"],
            [
                [row.layer, f"{row.mean_shift:.3f} std", f"{row.std_ratio:.3f}x", f"{row.affine_change:.2g}"]
                for row in rows
            ],
            right=[1, 2, 3],
        )
        return int(self.strict and not same)


@dataclass(frozen=True)
class PackCommand:
    """Save, apply, list and compare the statistics of a branch, in a small file.

    A domain's statistics are saved once and loaded when they are needed; the weights do not change. A pack of
    another architecture is refused; one made for other weights needs --force.
    """

    action: (
        Annotated[SavePack, tyro.conf.subcommand("save")]
        | Annotated[ApplyPack, tyro.conf.subcommand("apply")]
        | Annotated[ListPacks, tyro.conf.subcommand("list")]
        | Annotated[DiffPacks, tyro.conf.subcommand("diff")]
    )

    def run(self) -> int:
        """Run the command and return its exit code."""
        return self.action.run()


def _described(file: Path, pack: Any) -> dict[str, Any]:
    return {
        "pack": str(file),
        "layers": len(pack.layers),
        "channels": sum(len(layer.mean) for layer in pack.layers.values()),
        "elements": max((layer.elements for layer in pack.layers.values()), default=0),
        "weights": pack.weights,
        "provenance": dict(pack.provenance),
    }
