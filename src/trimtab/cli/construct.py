"""`trimtab construct`: image sets made with a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import tyro

from trimtab.cli.lazy import console, construct, data
from trimtab.cli.options import Count, Device, Json, Model, Number, Place, Seed, Split, first, loaded
from trimtab.types import BadInput, one_of

DECODED = ("AdvBN", "reconstructed")
"""Kinds whose images come from a decoder."""


@dataclass(frozen=True)
class Construct:
    """Make D_R, D_NR, D_rand, D_det, D_conflict or AdvBN images with a model.

    They are an npz for --data npz:PATH. D_R takes a robust model and D_NR a standard one; D_conflict takes
    --data npz:PATH of a D_R. AdvBN decodes images from features whose statistics hurt the model;
    `reconstructed` is its control, the same encoder and decoder without the perturbation. Killed and run
    again, it resumes.
    """

    kind: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="KIND")]
    """D_R, D_NR, D_rand, D_det, D_conflict, AdvBN or reconstructed."""
    model: Model
    data: str = "sample"
    """Images with labels (`trimtab data list`)."""
    split: Split = "train"
    limit: Count = None
    """Only the first N images."""
    steps: Count = None
    """Gradient steps; as in the papers 1000 for D_R and D_NR, 100 for the other D, 6 for AdvBN."""
    eps: Number = 1.1
    """AdvBN: radius of the relative change of every mean and std."""
    step_size: Number = 0.2
    """AdvBN: length of a step."""
    batch: int = 32
    """AdvBN: images that share a perturbation, in the order of the set."""
    cut: str = "layer1"
    """AdvBN: the module of the model after which the encoder ends."""
    decoder: tuple[int, int] = (5000, 6)
    """AdvBN: training images and epochs of the decoder, which is kept next to the set for later ones."""
    out: Place = None
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
        model = loaded(self.model, self.device)
        images = first(data.load(self.data, self.split, input=model.spec), self.limit)
        method = self._method(model)
        with console.progress(f"constructing {self.kind}") as tell:
            out = construct.build(method, model, images, self._out, self.seed, about, tell)
        use = f"use them as --data {quote(f'npz:{out}')}"
        sentence = f"{len(images)} images are in {out}; {use}"
        return console.result(self.json, {**about, "out": out, "n": len(images)}, sentence)

    @property
    def _out(self) -> Path:
        return self.out or Path(f"{self.kind}.npz")

    def _check(self) -> None:
        kinds = (*construct.KINDS, *DECODED)
        one_of(kinds, KIND=self.kind)
        if self.steps is not None and self.steps < 1:
            raise BadInput(
                f"--steps must be 1 or more, found {self.steps}; without a step images stay as they are"
            )
        if self.batch < 1 or min(self.eps, self.step_size) < 0:
            raise BadInput("--batch must be 1 or more, --eps and --step-size must not be negative")
        if min(self.decoder) < 1:
            raise BadInput(
                f"--decoder takes training images and epochs, 1 or more of each; found {self.decoder[0]} and "
                f"{self.decoder[1]}"
            )
        source, _, path = self.data.partition(":")
        missing = source == "npz" and not Path(path).exists()  # loading reports it
        if self.kind == "D_conflict" and not missing and construct.recorded(path).get("kind") != "D_R":
            raise BadInput(
                f"D_conflict starts from a D_R, and {self.data} is not recorded as one; make it with "
                "`trimtab construct D_R` and give --data npz:D_R.npz, or take D_det, the same from any images"
            )

    def _method(self, model: Any) -> Any:
        steps = {} if self.steps is None else {"steps": self.steps}
        if self.kind not in DECODED:
            return construct.construction(self.kind, **steps)
        count, epochs = self.decoder
        with console.progress("training the decoder") as tell:
            known = first(data.load(self.data, "train", input=model.spec), count)
            auto = construct.trained_autoencoder(
                model, self.cut, known, self._out.parent, epochs, self.seed, tell
            )
        control = self.kind == "reconstructed"
        return construct.AdvBNImages(
            auto, self.eps, step=self.step_size, identical=control, batch=self.batch, **steps
        )
