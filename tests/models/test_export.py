"""Exported graphs compute what the model computes, one serves all packs, a failed check leaves no file.

Also tests norm.inputs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

import trimtab
from trimtab import data, models, norm
from trimtab.models.export import TOLERANCE, export
from trimtab.types import BadInput

onnxruntime = pytest.importorskip("onnxruntime")
MODEL = "zoo:sample-mixture"


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def images(n: int = 7):
    return next(iter(data.load("sample", "test").batches(n))).x


def close(found, expected):
    expected = expected.detach().numpy()
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("branch", ["main", "adv"])
def test_onnx_runtime_and_torch_export_return_the_branchs_logits_from_pixels(tmp_path, branch):
    net, x = trimtab.load(MODEL), images()
    with torch.no_grad(), trimtab.use(net, branch=branch):
        expected = net(x)
    export(net, tmp_path / "net.onnx", "onnx", branch)
    (logits,) = session(tmp_path / "net.onnx").run(None, {"pixels": x.numpy()})
    close(logits, expected)
    export(net, tmp_path / "net.pt2", "torch.export", branch)
    close(torch.export.load(tmp_path / "net.pt2").module()(x).detach().numpy(), expected)


def test_one_graph_serves_all_packs_by_the_names_in_their_files(tmp_path):
    from safetensors.numpy import load_file

    net, x = trimtab.load(MODEL), images()
    export(net, tmp_path / "net.onnx", statistics_as_inputs=True)
    graph = session(tmp_path / "net.onnx")
    for branch in ("main", "adv"):
        norm.save_pack(net, tmp_path / "pack.safetensors", branch)
        (logits,) = graph.run(None, {"pixels": x.numpy(), **load_file(tmp_path / "pack.safetensors")})
        with torch.no_grad(), trimtab.use(net, branch=branch):
            close(logits, net(x))


def test_exporting_leaves_the_model_as_it_was(tmp_path):
    net = trimtab.load(MODEL).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    export(net, tmp_path / "net.pt2", "torch.export")
    assert net.training
    assert norm.branches(net) == ("main", "adv")
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("name", ["stock.safetensors", "stock.pt"])
def test_a_stock_state_dict_is_loaded_without_trimtab(tmp_path, name):
    from safetensors.torch import load_file

    net, x = trimtab.load(MODEL), images()
    export(net, tmp_path / name, "stock", "adv")
    path = tmp_path / name
    state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    stock = trimtab.load("zoo:sample-standard").net
    stock.load_state_dict(state)
    with torch.no_grad(), trimtab.use(net, branch="adv"):
        torch.testing.assert_close(stock.eval()(net.normalize(x)), net(x))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, x):
        y = self.body(x)
        return {"mean": y.mean((2, 3)), "map": y}


def test_a_network_with_several_outputs_is_exported(tmp_path):
    net = TwoOutputs().eval()
    export(net, tmp_path / "two.onnx", statistics_as_inputs=True)
    x = torch.rand(3, 3, 32, 32)
    statistics = {name: value.numpy() for name, value in norm.pack(trimtab.steer(net)).tensors.items()}
    # A network without a record is wrapped to take pixels: its layers are below net.
    outputs = session(tmp_path / "two.onnx").run(
        None, {"pixels": x.numpy(), **{f"net.{name}": value for name, value in statistics.items()}}
    )
    for found, expected in zip(outputs, net(x).values(), strict=True):
        close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["timm:resnet18", "timm:efficientnet_b0", "torchvision:mobilenet_v3_small", "torchvision:densenet121",
     "net:preact18"],
)  # fmt: skip
def test_five_architectures_return_the_same_in_onnx_runtime_and_torch_export(tmp_path, name):
    torch.manual_seed(0)
    net = trimtab.load(name, classes=10)
    x = torch.rand(3, 3, *net.spec.size)
    with torch.no_grad():
        net.train()(x)  # statistics that are not the initial ones
        expected = net.eval()(x)
    export(net, tmp_path / "net.onnx", statistics_as_inputs=True)
    statistics = {key: value.numpy() for key, value in norm.pack(trimtab.steer(net)).tensors.items()}
    close(session(tmp_path / "net.onnx").run(None, {"pixels": x.numpy(), **statistics})[0], expected)
    export(net, tmp_path / "net.pt2", "torch.export")
    close(torch.export.load(tmp_path / "net.pt2").module()(x).detach().numpy(), expected)


def test_a_graph_that_differs_from_the_model_is_not_put_in_place(tmp_path, monkeypatch):
    path = tmp_path / "net.pt2"
    path.write_text("old")
    module = sys.modules["trimtab.models.export"]
    write = module._write_program

    def wrong(program, part):
        run = write(program, part)
        return lambda x, statistics: [y + 1e-3 * y.abs().max() for y in run(x, statistics)]

    monkeypatch.setattr(module, "_write_program", wrong)
    with pytest.raises(BadInput, match="differs from the model by 1"):
        export(trimtab.load(MODEL), path, "torch.export")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["net.pt2"]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.norm(x)
        return y if float(y.sum()) > 0 else -y


@pytest.mark.parametrize(
    ("net", "words", "options"),
    [
        (Branching(), "cannot trace this network", {}),
        (nn.Conv2d(3, 2, 3), "no batch-norm layer", {"statistics_as_inputs": True}),
        (nn.BatchNorm2d(3), "has no inputs", {"to": "stock", "statistics_as_inputs": True}),
        (nn.BatchNorm2d(3), "exported to stock, timm, torch.export, onnx", {"to": "caffe"}),
        (nn.BatchNorm2d(3), "no branch 'fog'", {"branch": "fog"}),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(tmp_path, net, words, options):
    with pytest.raises(BadInput, match=words) as refused:
        export(net.eval(), tmp_path / "x", **{"to": "torch.export", **options})
    assert "\n" not in str(refused.value)
    assert not any(tmp_path.iterdir())


WRITER = """
import sys, torch, trimtab
from trimtab.models.export import export
net = trimtab.load("zoo:sample-mixture")
export(net, sys.argv[1], "torch.export")
print("ready", flush=True)
while True:
    export(net, sys.argv[1], "torch.export", "adv")
"""


def test_kill_9_while_an_export_is_written_leaves_a_whole_one(tmp_path):
    path, x, net = tmp_path / "net.pt2", images(2), trimtab.load(MODEL)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while not any(file.suffix == ".tmp" for file in tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.001)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    logits = torch.export.load(path).module()(x)
    expected = []
    for branch in ("main", "adv"):
        with torch.no_grad(), trimtab.use(net, branch=branch):
            expected.append(net(x))
    assert any(torch.allclose(logits, each, atol=1e-4) for each in expected)
    assert models.export(net, path, "stock") == path
    assert [file.name for file in tmp_path.iterdir()] == ["net.pt2"]
