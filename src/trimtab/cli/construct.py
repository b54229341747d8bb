"""`trimtab construct`: build image sets with a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import tyro

from trimtab.cli.lazy import console, construct, data
from trimtab.cli.options import (
    Device,
    FloatOrRatio,
    Json,
    Model,
    OptionalInt,
    OptionalPath,
    Seed,
    Split,
    first,
    load_model,
)
from trimtab.types import BadInput, one_of

DECODED = ("AdvBN", "reconstructed")
"""Kinds whose images come from a decoder."""


@dataclass(frozen=True)
class ConstructCommand:
    """Make D_R, D_NR, D_rand, D_det, D_conflict or AdvBN images with a model.

    The set is written as an npz, to be used with --data npz:PATH. D_R needs a robust model, D_NR a standard
    one, and D_conflict an existing D_R set (--data npz:D_R.npz). AdvBN decodes features whose statistics were
    perturbed adversarially; `reconstructed` is its control, the same encoder and decoder without the
    perturbation. An interrupted run resumes.
    """

    kind: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="KIND")]
    """D_R, D_NR, D_rand, D_det, D_conflict, AdvBN or reconstructed."""
    model: Model
    data: str = "sample"
    """Images with labels (`trimtab data list`)."""
    split: Split = "train"
    limit: OptionalInt = None
    """Only the first N images."""
    steps: OptionalInt = None
    """Gradient steps; the papers' if not given: 1000 for D_R and D_NR, 100 for D_rand, D_det and
    D_conflict, 6 for AdvBN."""
    eps: FloatOrRatio = 1.1
    """AdvBN: largest relative change of every mean and std."""
    step_size: FloatOrRatio = 0.2
    """AdvBN: step size."""
    batch: int = 32
    """AdvBN: number of consecutive images that share a perturbation."""
    cut: str = "layer1"
    """AdvBN: the last module of the encoder."""
    decoder: tuple[int, int] = (5000, 6)
    """AdvBN: training images and epochs of the decoder, which is saved next to the set and reused."""
    out: OptionalPath = None
    """Where to write the set; KIND.npz if not given."""
    seed: Seed = 0
    device: Device = "auto"
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        self._check()
        about = {"kind": self.kind, "source": self.model, "images": f"{self.data} {self.split}"}
        if self.kind in DECODED:
            construct.place_for(about, self._out)  # before a decoder is trained for it
        model = load_model(self.model, self.device)
        images = first(data.load(self.data, self.split, input=model.spec), self.limit)
        method = self._method(model)
        with console.progress(f"constructing {self.kind}") as update:
            out = construct.build(method, model, images, self._out, self.seed, about, update)
        use = f"use them as --data {quote(f'npz:{out}')}"
        sentence = f"{len(images)} images are in {out}; {use}"
        return console.result(self.json, {**about, "out": out, "n": len(images)}, sentence)

    @property
    def _out(self) -> Path:
        return self.out or Path(f"{self.kind}.npz")

    def _check(self) -> None:
        one_of((*construct.KINDS, *DECODED), KIND=self.kind)
        if self.steps is not None and self.steps < 1:
            raise BadInput(
                f"--steps must be 1 or more, found {self.steps}; with 0 steps no image would change"
            )
        if self.batch < 1 or min(self.eps, self.step_size) < 0:
            raise BadInput("--batch must be 1 or more, --eps and --step-size must not be negative")
        if min(self.decoder) < 1:
            raise BadInput(
                f"--decoder takes training images and epochs, 1 or more of each; found {self.decoder[0]} and "
                f"{self.decoder[1]}"
            )
        source, _, path = self.data.partition(":")
        missing = source == "npz" and not Path(path).exists()  # reported when it is loaded
        if self.kind == "D_conflict" and not missing and construct.recorded(path).get("kind") != "D_R":
            raise BadInput(
                f"D_conflict starts from a D_R set, and {self.data} is not recorded as one; make one with "
                "`trimtab construct D_R` and give --data npz:D_R.npz, or use D_det, which takes any images"
            )

    def _method(self, model: Any) -> Any:
        steps = {} if self.steps is None else {"steps": self.steps}
        if self.kind not in DECODED:
            return construct.construction(self.kind, **steps)
        count, epochs = self.decoder
        with console.progress("training the decoder") as update:
            train_images = first(data.load(self.data, "train", input=model.spec), count)
            autoencoder = construct.trained_autoencoder(
                model, self.cut, train_images, self._out.parent, epochs, self.seed, update
            )
        return construct.AdvBNImages(
            autoencoder,
            self.eps,
            step=self.step_size,
            identical=self.kind == "reconstructed",
            batch=self.batch,
            **steps,
        )
