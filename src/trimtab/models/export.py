"""Models for elsewhere: a stock state dict, a folder for timm, a torch.export program, or an ONNX graph.

    export(model, "model.safetensors", to="stock", branch="adv")    plain state dict of one branch
    export(model, "folder", to="timm")                              timm.create_model("local-dir:folder")
    export(model, "model.pt2", to="torch.export")                   torch.export.load("model.pt2").module()
    export(model, "model.onnx", to="onnx")                          pixels in [0, 1] -> logits
    export(model, "model.onnx", to="onnx", statistics_as_inputs=True)

Graphs take pixels in [0, 1], any number of images of the model's size: mean and std are inside. With
`statistics_as_inputs` the graph's other inputs are the tensors of a statistics pack, by their names in the
pack's file (`layer1.0.bn1.mean` ...), so one graph serves every pack of the network, and a device without
PyTorch swaps a domain's statistics by reading another file of kilobytes.

Every file is checked before it replaces an older one: it is loaded by the program that will run it (ONNX
Runtime for ONNX), and its outputs on images, in batches of other sizes than the traced one and under other
statistics than the traced ones, must equal the model's to `TOLERANCE` of their largest value.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from trimtab import norm
from trimtab._clone import deep_clone
from trimtab.io import atomic_write
from trimtab.models.hub import to_timm
from trimtab.models.pixels import Pixels, wrap
from trimtab.norm.inputs import StatisticsAsInputs
from trimtab.types import BadInput

TOLERANCE = 1e-5
"""Largest difference of an exported graph's output, as a fraction of the largest output."""
FORMATS = ("stock", "timm", "torch.export", "onnx")

Statistics = Sequence[Tensor]
Run = Callable[[Tensor, Statistics], Sequence[Tensor]]
"""Runs an exported graph on images and, where they are inputs, statistics; returns its outputs."""


def export(
    model: nn.Module,
    path: str | Path,
    to: str = "onnx",
    branch: str = "main",
    statistics_as_inputs: bool = False,
) -> Path:
    """Write a model for use without trimtab, checked before an older file is replaced.

    Args:
        model: Any model, steered or not; it is not changed.
        path: The file to write; a folder for timm.
        to: "stock", "timm", "torch.export" or "onnx".
        branch: The branch to export; others are dropped.
        statistics_as_inputs: Whether the graph takes the tensors of a pack as further inputs.
    """
    if to not in FORMATS:
        raise BadInput(f"models are exported to {', '.join(FORMATS)}, found {to!r}")
    if to in ("stock", "timm"):
        if statistics_as_inputs:
            raise BadInput("a state dict has no inputs; export to onnx or torch.export for that")
        return (to_timm if to == "timm" else _to_stock)(model, Path(path), branch)
    if to == "onnx":
        missing = [
            name for name in ("onnx", "onnxscript", "onnxruntime") if not importlib.util.find_spec(name)
        ]
        if missing:
            raise BadInput(f"exporting to ONNX needs {missing[0]}: pip install 'trimtab[onnx]'")
    pixels = wrap(norm.steer(deep_clone(model)).cpu().float().eval())
    net: nn.Module = norm.release(pixels, branch)
    names: list[str] = []
    example: Statistics = []
    if statistics_as_inputs:
        if not norm.layers(norm.steer(deep_clone(pixels))):
            raise BadInput("this model has no batch-norm layer whose statistics could be inputs")
        net = StatisticsAsInputs(pixels)
        names, example = list(net.example), list(net.example.values())
    images = _images(pixels)
    args = (images[:2], example) if names else (images[:2],)
    program = _traced(net, args)
    with atomic_write(Path(path)) as part:
        run = _write_onnx(program, part, names) if to == "onnx" else _write_program(program, part)
        _check(pixels, run, images, names, example)
    return Path(path)


def _to_stock(model: nn.Module, path: Path, branch: str) -> Path:
    """Write a branch as the plain state dict of the network without its pixel wrapper."""
    released = norm.release(norm.steer(deep_clone(model)), branch)
    net = released.net if isinstance(released, Pixels) else released
    state = {key: value.detach().cpu().contiguous().clone() for key, value in net.state_dict().items()}
    with atomic_write(path) as part:
        if path.suffix == ".safetensors":
            part.write_bytes(safetensors.torch.save(state))
        else:
            torch.save(state, part)
    return path


def _images(model: Pixels) -> Tensor:
    """Five images of the model's size, from black to white with noise in between."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(5, model.spec.channels, *model.spec.size, generator=generator)
    images[3], images[4] = 0, images[4] * 0.1 + 0.9
    return images


def _traced(net: nn.Module, args: tuple[Any, ...]) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    shapes: list[Any] = [{0: batch}]
    if len(args) > 1:
        shapes.append([None] * len(args[1]))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(net, args, dynamic_shapes=tuple(shapes))
    except Exception as problem:  # whatever a network does that no graph can express
        first = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise BadInput(f"torch.export cannot trace this network: {first[:200]}") from None


def _write_program(program: torch.export.ExportedProgram, part: Path) -> Run:
    with open(part, "wb") as file:
        torch.export.save(program, file)
    module = torch.export.load(BytesIO(part.read_bytes())).module()

    def run(x: Tensor, statistics: Statistics) -> Sequence[Tensor]:
        return list(tree_leaves(module(x, list(statistics)) if statistics else module(x)))

    return run


def _write_onnx(program: torch.export.ExportedProgram, part: Path, names: list[str]) -> Run:
    import onnxruntime

    outputs = len(program.graph_signature.user_outputs)
    output_names = ["logits"] if outputs == 1 else [f"output{k}" for k in range(outputs)]
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        graph = torch.onnx.export(
            program, input_names=["pixels", *names], output_names=output_names, dynamo=True, verbose=False
        )
        assert graph is not None
        graph.save(part, external_data=False)
    session = onnxruntime.InferenceSession(part.read_bytes(), providers=["CPUExecutionProvider"])

    def run(x: Tensor, statistics: Statistics) -> Sequence[Tensor]:
        inputs = dict(zip(["pixels", *names], (x, *statistics), strict=True))
        values = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        return [torch.from_numpy(value) for value in values]

    return run


@torch.no_grad()
def _check(model: Pixels, run: Run, images: Tensor, names: list[str], statistics: Statistics) -> None:
    """Compare a written graph with the model, in batches of other sizes and under other statistics."""
    cases = [statistics]
    reference = StatisticsAsInputs(model) if names else None
    if names:  # statistics as of another domain, so that an input that the graph ignores is noticed
        kinds = [name.rpartition(".")[2] for name in names]
        cases.append([_moved(v, kind) for v, kind in zip(statistics, kinds, strict=True)])
    for values in cases:
        for x in (images, images[:1]):
            expected = tree_leaves(reference(x, values) if reference else model(x))
            for output, y in zip(run(x, values), expected, strict=True):
                error = float((output - y).abs().max() / y.abs().max().clamp(min=1e-3))
                if not error <= TOLERANCE:
                    raise BadInput(
                        f"the exported graph differs from the model by {error:.1e} of its largest output "
                        f"(at most {TOLERANCE:g}); nothing was written"
                    )


def _moved(value: Tensor, kind: str) -> Tensor:
    return value * 1.5 if kind in ("var", "weight") else value + 0.1 * value.abs().mean() + 0.01
