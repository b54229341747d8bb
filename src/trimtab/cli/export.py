"""`trimtab export`: a model for elsewhere, checked before it is put in place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

import trimtab
from trimtab.cli.lazy import adapt, console, data, models
from trimtab.cli.options import AS_RECORDED, Json, Model, Preprocessing, Split, first, parse_int
from trimtab.types import BadInput

SUFFIXES = {"stock": ".safetensors", "timm": "-timm", "torch.export": ".pt2", "onnx": ".onnx"}


@dataclass(frozen=True)
class ExportCommand:
    """Write a state dict, timm folder, torch.export program or ONNX graph.

    Graphs take pixels in [0, 1]: mean and std are inside. Each is run by its own runtime and compared with
    the model before it replaces an older file. With --statistics-as-inputs the graph also takes the tensors
    of a pack (`trimtab pack save`), so one graph serves all packs.

      export zoo:cifar10-standard --to onnx
      export zoo:cifar10-mixture --state branch:adv --to stock
      export zoo:cifar10-standard --state frozen:512 --data folder:fog --to onnx --out foggy.onnx
    """

    model: Model
    to: str = "onnx"
    """stock, timm (a folder for timm.create_model), torch.export or onnx."""
    state: str = "running"
    """The statistics: running, branch:NAME, or frozen:N, re-estimated on the first N images of --data."""
    statistics_as_inputs: tyro.conf.FlagCreatePairsOff[bool] = False
    """Take the statistics as further inputs, by the names in a pack's file."""
    data: str = "sample"
    """Images for --state frozen:N (`trimtab data list`)."""
    split: Split = "train"
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")] = None
    """The file to write; model.safetensors, model-timm, model.pt2 or model.onnx if not given."""
    preprocessing: Preprocessing = AS_RECORDED
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        if self.to not in SUFFIXES:
            raise BadInput(f"--to takes {', '.join(SUFFIXES)}, found {self.to!r}")
        kind, _, value = self.state.partition(":")
        if kind not in ("running", "branch", "frozen") or (kind == "running") != (not value):
            raise BadInput(f"--state takes running, branch:NAME or frozen:N, found {self.state!r}")
        from trimtab.models.export import TOLERANCE

        out = self.out or Path(f"model{SUFFIXES[self.to]}")
        model = self.preprocessing.apply_to(trimtab.load(self.model))
        if kind == "frozen":
            model = self._frozen(model, parse_int(value, "--state frozen"))
        branch = value if kind == "branch" else "main"
        models.export(model, out, self.to, branch, self.statistics_as_inputs)
        size = sum(file.stat().st_size for file in (out.iterdir() if out.is_dir() else [out]))
        about = {"model": self.model, "to": self.to, "state": self.state, "out": out, "bytes": size}
        about |= {"mean": model.spec.mean, "std": model.spec.std}
        if self.to == "stock":
            mean, std = (", ".join(f"{v:g}" for v in values) for values in (model.spec.mean, model.spec.std))
            note = f"A plain state dict: normalize pixels in [0, 1] with mean {mean} and std {std} yourself."
        elif self.to == "timm":
            note = f'timm.create_model("local-dir:{out}", pretrained=True) gives the same logits.'
        else:
            note = f"Checked against the model to {TOLERANCE:g}; it takes pixels in [0, 1]."
        sentence = f"{self.model}, {self.state}: {out} ({size / 2**20:.2f} MB)."
        return console.result(self.json, about, sentence, note)

    def _frozen(self, model: Any, count: int) -> Any:
        if count < 2:
            raise BadInput(f"--state frozen:N needs 2 images or more, found {count}")
        images = first(data.load(self.data, self.split, input=model.spec), count)
        return adapt.frozen(
            model, next(images.batches(count)).x, provenance=f"{self.split} images of {self.data}"
        )
