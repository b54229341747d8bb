"""Segmentation, detection, features, sequences and volumes: any module, called as it is."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import trimtab
from nets import season
from trimtab import adapt, norm

SIDE = 48


class Task(NamedTuple):
    """A network and how it is called on a batch (n, C, ...)."""

    net: nn.Module
    shape: tuple[int, ...]
    forward: Callable[[nn.Module, Any], Any]


def on_tensor(model: nn.Module, batch: Tensor) -> Any:
    return model(batch)


def on_list(model: nn.Module, batch: Tensor) -> Any:
    return model(list(batch))


def deeplab() -> Task:
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    net = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    return Task(net, (3, SIDE, SIDE), on_tensor)


def fcn() -> Task:
    from torchvision.models.segmentation import fcn_resnet50

    return Task(fcn_resnet50(weights=None, weights_backbone=None, num_classes=4), (3, SIDE, SIDE), on_tensor)


def _backbone() -> Any:
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    return resnet_fpn_backbone(backbone_name="resnet18", weights=None)  # its layers are FrozenBatchNorm2d


def retinanet() -> Task:
    from torchvision.models.detection import RetinaNet

    net = RetinaNet(_backbone(), num_classes=3, min_size=SIDE, max_size=SIDE, detections_per_img=5)
    return Task(net, (3, SIDE, SIDE), on_list)


def faster_rcnn() -> Task:
    from torchvision.models.detection import FasterRCNN

    sizes: dict[str, Any] = {
        "min_size": SIDE,
        "max_size": SIDE,
        "rpn_pre_nms_top_n_test": 3,
        "rpn_post_nms_top_n_test": 4,
    }
    return Task(FasterRCNN(_backbone(), num_classes=3, **sizes), (3, SIDE, SIDE), on_list)


def features() -> Task:
    timm = pytest.importorskip("timm")
    net = timm.create_model("resnet18", pretrained=False, features_only=True)
    return Task(net, (3, SIDE, SIDE), on_tensor)


def sequences() -> Task:
    body = [nn.Conv1d(2, 6, 5), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 4, 5, 2), nn.BatchNorm1d(4)]
    return Task(nn.Sequential(*body, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)), (2, 40), on_tensor)


def volumes() -> Task:
    body = [nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.Conv3d(4, 6, 3), nn.BatchNorm3d(6)]
    pool = [nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 3)]
    return Task(nn.Sequential(*body, *pool), (1, 8, 12, 12), on_tensor)


TASKS = [fcn, deeplab, retinanet, faster_rcnn, features, sequences, volumes]


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Greedy non-maximum suppression, for a torchvision without its compiled operators."""
    from torchvision.ops import box_iou

    overlap, kept, left = box_iou(boxes, boxes), [], scores.argsort(descending=True)
    while len(left):
        kept.append(left[0])
        left = left[1:][overlap[left[0], left[1:]] <= iou_threshold]
    return torch.stack(kept) if kept else left


@pytest.fixture(autouse=True)
def python_nms(monkeypatch):
    boxes = pytest.importorskip("torchvision.ops.boxes")
    monkeypatch.setattr(boxes, "nms", nms)
    align = importlib.import_module("torchvision.ops.roi_align")  # its name is also that of a function
    monkeypatch.setattr(align, "lazy_compile", lambda **options: lambda function: function, raising=False)
    monkeypatch.setattr(align, "_roi_align", inspect.unwrap(align._roi_align))  # compiling takes minutes


def made(build: Callable[[], Task]) -> Task:
    torch.manual_seed(0)
    task = build()
    task.net.eval()
    with torch.no_grad():
        task.forward(task.net, torch.rand(2, *task.shape))
    return task._replace(net=frozen_too(season(task.net)))


def frozen_too(net: nn.Module) -> nn.Module:
    rng = torch.Generator().manual_seed(2)
    for module in net.modules():
        if "Frozen" in type(module).__name__:
            for value, low, high in (
                (module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5),
                (module.running_mean, -0.3, 0.3), (module.running_var, 0.5, 2.0),
            ):  # fmt: skip
                value.uniform_(low, high, generator=rng)
    return net


def images(task: Task, n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, *task.shape, generator=torch.Generator().manual_seed(seed))


def leaves(output: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("build", TASKS)
def test_statistics_are_gathered_merged_and_swapped_whatever_the_task(build, tmp_path):
    """Oracle: the inputs of the stock network's layers, kept by hooks."""
    net, _, forward = task = made(build)
    inputs: dict[str, list[Tensor]] = {}
    kinds = [(name, m) for name, m in net.named_modules() if hasattr(m, "running_mean")]
    handles = [
        m.register_forward_pre_hook(lambda _, x, name=name: inputs.setdefault(name, []).append(x[0]))
        for name, m in kinds
    ]
    batches = images(task, 5).split(2)
    with torch.no_grad():
        stock = [leaves(forward(net, batch)) for batch in batches]
    for handle in handles:
        handle.remove()

    trimtab.steer(net)
    with torch.no_grad():
        for batch, expected in zip(batches, stock, strict=True):
            assert all(map(torch.equal, leaves(forward(net, batch)), expected))
    whole = norm.gather(net, batches, forward, source="running")
    assert whole.layers.keys() == dict(kinds).keys() == inputs.keys()
    for name, layer in whole.layers.items():
        x = torch.cat([part.transpose(0, 1).flatten(1) for part in inputs[name]], 1).double()
        torch.testing.assert_close(layer.mean, x.mean(1).float(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.var, x.var(1).float(), rtol=1e-4, atol=1e-6)

    merged = norm.merge([norm.gather(net, [b], forward, source="running") for b in batches])
    for name, layer in merged.layers.items():
        torch.testing.assert_close(layer.var, whole.layers[name].var, rtol=1e-4, atol=1e-6)
    norm.save_pack(merged, tmp_path / "new.safetensors")
    norm.load_pack(net, tmp_path / "new.safetensors")
    assert all(torch.equal(m.mean, merged.layers[n].mean) for n, m in norm.running(net).items())


@pytest.mark.parametrize("build", TASKS)
def test_repair_restores_statistics_whatever_the_task(build):
    task = made(build)
    net, batches = trimtab.steer(task.net), images(task, 6).split(3)
    norm.recalibrate(net, batches, forward=task.forward)
    expected = norm.running(net)
    with torch.no_grad():
        for layer in norm.layers(net).values():
            layer.running_mean.add_(1)
            layer.running_var.mul_(3)
    report = norm.repair(net, batches, task.forward, always=True)
    assert report.kept
    assert set(report.layers) == expected.keys()
    for name, now in norm.running(net).items():
        torch.testing.assert_close(now.mean, expected[name].mean)
        torch.testing.assert_close(now.var, expected[name].var)


@pytest.mark.parametrize("build", [deeplab, faster_rcnn, sequences, volumes])
def test_drift_is_found_whatever_the_task(build):
    task = made(build)
    known, new = images(task, 120), images(task, 40, seed=1)
    monitor = adapt.Monitor(task.net, known.split(40), task.forward, fraction=1.0, layers=2)
    with torch.no_grad():
        expected = leaves(task.forward(task.net, new))
        assert all(map(torch.equal, leaves(task.forward(monitor, new)), expected))
        assert not monitor.status().alarm
        task.forward(monitor, images(task, 40, seed=2) * 0.2)
    assert monitor.status().images == 80
    assert monitor.status().alarm


class FrozenBatchNorm2d(nn.Module):
    """As DETR's: eps is not an attribute."""

    def __init__(self, n: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((n,), value))

    def forward(self, x):
        scale = self.weight.view(1, -1, 1, 1) * (self.running_var.view(1, -1, 1, 1) + 1e-5).rsqrt()
        return x * scale + self.bias.view(1, -1, 1, 1) - self.running_mean.view(1, -1, 1, 1) * scale


def frozen_network(kind: str) -> nn.Module:
    from torchvision import ops

    layer = ops.FrozenBatchNorm2d(4) if kind == "torchvision" else FrozenBatchNorm2d(4)
    torch.manual_seed(0)
    return frozen_too(nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.ReLU(), nn.Conv2d(4, 2, 3)))


@pytest.mark.parametrize("kind", ["torchvision", "DETR"])
def test_a_frozen_layer_stays_frozen_in_train_mode_and_takes_every_knob(kind):
    net, x = frozen_network(kind), torch.rand(4, 3, 8, 8)
    layer, before = net[1], {name: value.clone() for name, value in net.state_dict().items()}
    expected = net(x)
    trimtab.steer(net.train())
    assert torch.equal(net(x), expected)
    assert net.state_dict().keys() == before.keys()
    with trimtab.use(net, source="batch", update=False):
        y = net[:2](x)
    z = net[0](x)
    affine = [v.view(1, -1, 1, 1) for v in (layer.weight, layer.bias)]
    by_hand = (z - z.mean((0, 2, 3), keepdim=True)) / (z.var((0, 2, 3), False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(y, by_hand * affine[0] + affine[1], rtol=1e-4, atol=1e-5)
    with trimtab.use(net, source="running", update=0.5):
        net(x)
    torch.testing.assert_close(layer.running_mean, (before["1.running_mean"] + z.mean((0, 2, 3))) / 2)


@pytest.mark.parametrize("kind", ["torchvision", "DETR"])
def test_a_frozen_layer_has_branches_folds_and_is_released(kind):
    net, x = trimtab.steer(frozen_network(kind)).eval(), torch.rand(4, 3, 8, 8)
    stock, expected = type(frozen_network(kind)[1]), net(x)
    torch.testing.assert_close(norm.fold(net, x)(x), expected, rtol=1e-4, atol=1e-5)
    trimtab.add_branch(net, "fog")
    norm.load_pack(net, norm.gather(net, [x + 1]), branch="fog")
    with trimtab.use(net, branch="fog"):
        fog = net(x)
    assert torch.equal(net(x), expected)
    assert not torch.allclose(fog, expected)
    trimtab.release(net, branch="fog")
    assert type(net[1]) is stock
    assert net.state_dict().keys() == frozen_network(kind).state_dict().keys()
    torch.testing.assert_close(net(x), fog, rtol=1e-4, atol=1e-5)
