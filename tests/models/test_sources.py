"""The grammar that names models.

Also tests models.grammar.
"""

import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import timm
import torch
import torchvision
from torch import nn

from trimtab.models import Pixels, grammar, load, parse, save
from trimtab.types import BadInput, InputSpec

IMAGENET = InputSpec((224, 224), 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    ("text", "scheme", "name", "weights", "arguments"),
    [
        ("net:resnet8", "net", "resnet8", None, {}),
        ("net:resnet8,norm=gn,width=32", "net", "resnet8", None, {"norm": "gn", "width": 32}),
        (
            "net:wrn16_2,dropout=0.3,shortcut=False",
            "net",
            "wrn16_2",
            None,
            {"dropout": 0.3, "shortcut": False},
        ),
        ("timm:resnet50.a1_in1k+pretrained", "timm", "resnet50.a1_in1k", "pretrained", {}),
        ("torchvision:resnet50+IMAGENET1K_V1", "torchvision", "resnet50", "IMAGENET1K_V1", {}),
        ("py:my.models:make", "py", "my.models:make", None, {}),
        ("zoo:small", "zoo", "small", None, {}),
        ("file:runs/a+b,c.pt", "file", "runs/a+b,c.pt", None, {}),
    ],
)
def test_a_source_is_taken_apart(text, scheme, name, weights, arguments):
    found = parse(text)
    assert (found.scheme, found.name, found.weights, found.arguments) == (scheme, name, weights, arguments)


def test_an_architecture_follows_the_last_at_sign_that_a_scheme_follows():
    found = parse("file:me@home/best@3.pt@py:models.py:make,width=2")
    assert found.name == "me@home/best@3.pt"
    assert str(found.architecture) == "py:models.py:make"
    assert found.architecture.arguments == {"width": 2}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("resnet50", "names no model"),
        ("hub:resnet50", "names no model"),
        ("nets.py", "such as py:nets.py:function"),
        ("mine/nets.py:make", "such as py:mine/nets.py:make"),
        ("net:", "names no model"),
        ("net:resnet8,gn", "no argument"),
        ("timm:resnet19", "timm has no model 'resnet19'; did you mean resnet1"),
        ("torchvision:resnet19", "torchvision has no model 'resnet19'; did you mean resnet1"),
        ("torchvision:fasterrcnn_resnet50_fpn", "no model"),
        ("torchvision:resnet18+V3", "no weights 'V3'; it has IMAGENET1K_V1"),
        ("timm:resnet18+a1", "timm names weights"),
        ("timm:resnet18,color=3", "cannot be built so"),
        ("net:resnet8+pretrained", "untrained"),
        ("zoo:nothing", "zoo has no 'nothing'"),
        ("py:math", "names no function"),
        ("py:math:floor", "failed with TypeError"),
        ("py:os:getcwd", "must return a torch.nn.Module, found str"),
        ("py:os:nothing", "no function 'nothing'"),
        ("py:os:listdirs", r"no function 'listdirs' \(did you mean listdir\?\)"),
        ("py:nowhere_at_all:make", "importing nowhere_at_all failed with ModuleNotFoundError"),
        ("py:nowhere.py:make", "no file nowhere.py"),
        ("file:x.pt,classes=3", "cannot read"),
    ],
)
def test_what_names_no_model_is_refused_in_one_sentence(text, complaint):
    with pytest.raises(BadInput, match=complaint) as refused:
        load(text)
    assert "\n" not in str(refused.value)


def test_timm_gives_its_architecture_with_its_recorded_input():
    model = load("timm:resnet18", classes=5)
    assert isinstance(model, Pixels)
    assert model.spec == replace(IMAGENET, crop_fraction=0.95, interpolation="bicubic")
    x = torch.rand(2, 3, 64, 64)
    assert model.eval()(x).shape == (2, 5)
    assert load("timm:resnet10t,in_chans=1,classes=2")(torch.rand(2, 1, 64, 64)).shape == (2, 2)


def test_torchvision_gives_its_architecture_with_its_recorded_input():
    model = load("torchvision:efficientnet_b1", classes=5)
    assert model.spec == InputSpec((240, 240), 3, IMAGENET.mean, IMAGENET.std, resize=255)
    assert model.classes is None  # those of the weights would not be this network's
    assert load("torchvision:resnet18", input=InputSpec()).spec == InputSpec()


@pytest.fixture
def fetches(monkeypatch):
    """What is fetched, without a network."""
    fetched = []
    resnet18 = torchvision.models.resnet18().state_dict()
    monkeypatch.setattr(
        torchvision.models.WeightsEnum,
        "get_state_dict",
        lambda self, *a, **k: fetched.append(str(self)) or resnet18,
    )
    real = timm.create_model

    def create_model(name, pretrained=False, **arguments):
        if pretrained:
            fetched.append(name)
        return real(name, **arguments)

    monkeypatch.setattr(timm, "create_model", create_model)
    return fetched


def test_nothing_is_fetched_unless_asked(fetches):
    load("timm:resnet10t")
    load("torchvision:resnet18")
    assert fetches == []
    load("timm:resnet10t.c3_in1k+pretrained")
    load("timm:resnet10t", pretrained=True)
    model = load("torchvision:resnet18+IMAGENET1K_V1")
    load("torchvision:resnet18+pretrained", classes=1000)
    assert fetches == ["resnet10t.c3_in1k", "resnet10t", *["ResNet18_Weights.IMAGENET1K_V1"] * 2]
    assert len(model.classes) == 1000
    assert model.origin.provenance == {"weights": "torchvision:resnet18+IMAGENET1K_V1"}


@pytest.mark.parametrize("text", ["timm:resnet10t+pretrained", "torchvision:resnet18+pretrained"])
def test_pretrained_weights_are_for_their_own_classes(fetches, text):
    with pytest.raises(BadInput, match="1000 classes, not for 10"):
        load(text, classes=10)
    assert fetches == []


def test_a_download_that_fails_is_one_sentence(monkeypatch):
    def fails(*args, **kwargs):
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(timm, "create_model", fails)
    with pytest.raises(BadInput, match=r"weights could not be fetched \(ConnectionError: no route to host\)"):
        load("timm:resnet10t+pretrained")


MINE = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn
from parts import channels

@dataclass
class Plan:
    classes: int = 4

def make(width=channels):
    pool, last = nn.AdaptiveAvgPool2d(1), nn.Linear(width, Plan().classes)
    return nn.Sequential(nn.Conv2d(3, width, 3), pool, nn.Flatten(), last)
"""


@pytest.mark.parametrize("source", ["py:late:build", "py:late.py:build"])
def test_what_ones_own_code_imports_later_is_found(source, tmp_path, monkeypatch):
    """In the function, in a forward pass, and by another process that unpickles the network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "late_parts.py").write_text("import torch\nclass Net(torch.nn.Flatten):\n    pass\n")
    (tmp_path / "late.py").write_text(
        "def build():\n    from late_parts import Net\n    return Net()\n"
        "import torch\nclass Lazy(torch.nn.Flatten):\n    def forward(self, x):\n        import late_parts\n"
        "        return super().forward(x)\n"
    )
    for name in ("late", "late_parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert type(load(source).net).__name__ == "Net"
    lazy = load(source.replace("build", "Lazy"))
    assert lazy(torch.rand(2, 3, 4, 4)).shape == (2, 48)
    (tmp_path / "lazy.pickle").write_bytes(pickle.dumps(lazy))
    code = f"import sys, pickle; sys.path = {sys.path}; pickle.load(open('lazy.pickle', 'rb'))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("how", ["module", "file", "arguments"])
def test_a_function_of_ones_own_is_called(tmp_path, monkeypatch, how):
    (tmp_path / "my_own_models.py").write_text(MINE)
    (tmp_path / "parts.py").write_text("channels = 8\n")
    monkeypatch.delitem(sys.modules, "my_own_models", raising=False)
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    if how == "module":
        monkeypatch.chdir(tmp_path)
    source = {
        "module": "py:my_own_models:make",
        "file": f"py:{tmp_path}/my_own_models.py:make",
        "arguments": f"py:{tmp_path}/my_own_models.py:make,width=6",
    }[how]
    path = list(sys.path)
    monkeypatch.setattr(sys, "path", list(path))
    model = load(source, classes=4)
    assert model(torch.rand(2, 3, 8, 8)).shape == (2, 4)
    assert model.net[0].out_channels == (6 if how == "arguments" else 8)
    assert sys.path == [*path, str(tmp_path)]  # behind all else: it hides nobody's modules
    with pytest.raises(BadInput, match="4 classes, not for 5"):
        load(source, classes=5)


def test_a_function_may_return_a_model_in_pixel_space(tmp_path):
    (tmp_path / "wrapped.py").write_text(
        "from torch import nn\nfrom trimtab.models import Pixels\nfrom trimtab.types import InputSpec\n"
        "def make():\n    return Pixels(nn.Flatten(), InputSpec(mean=(0.5,) * 3), ('a', 'b'))\n"
    )
    model = load(f"py:{tmp_path}/wrapped.py:make")
    assert model.spec.mean == (0.5,) * 3
    assert model.classes == ("a", "b")
    assert isinstance(model.net, nn.Flatten)


def test_the_zoo_lists_and_loads_what_is_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(grammar, "ZOO", tmp_path)
    with pytest.raises(BadInput, match="no networks yet"):
        load("zoo:tiny")
    save(load("net:resnet8,width=4"), tmp_path / "tiny")
    assert load("zoo:tiny").origin.source == "net:resnet8"
    with pytest.raises(BadInput, match="it has tiny"):
        load("zoo:huge")


def test_any_architecture_takes_another_norm():
    model = load("timm:resnet10t,norm=ln,classes=2")
    assert not any("BatchNorm" in type(m).__name__ for m in model.modules())
    assert model.origin.arguments == {"norm": "ln", "classes": 2}


GRAY = InputSpec((28, 28), 1, (0.3,), (0.35,))


@pytest.mark.parametrize("text", ["net:resnet8,width=4", "timm:resnet10t"])
def test_an_input_with_one_channel_builds_a_network_for_one_channel(text):
    assert load(text, classes=2, input=GRAY)(torch.rand(2, 1, 28, 28)).shape == (2, 2)


def test_an_input_that_the_network_cannot_take_is_refused(tmp_path):
    save(load("net:resnet8,width=4"), tmp_path)
    for text in ("torchvision:resnet18", f"file:{tmp_path}"):
        with pytest.raises(BadInput, match="3 channels, not 1"):
            load(text, input=GRAY)


def test_two_numbers_of_classes_are_refused():
    with pytest.raises(BadInput, match="5 classes, not for 10"):
        load("net:resnet8,classes=5", classes=10)


def test_networks_that_fold_positions_into_channels_still_take_three():
    assert load("timm:tresnet_m", classes=2).spec.channels == 3


def test_what_comes_with_weights_is_ready_to_be_asked(tmp_path):
    assert not load("zoo:sample-standard").training
    save(load("net:resnet8,width=4"), tmp_path / "mine")
    assert not any(module.training for module in load(tmp_path / "mine").modules())
    assert load("net:resnet8,width=4").training


def test_loading_does_not_decide_the_size_of_a_lazy_network(tmp_path):
    (tmp_path / "lazy.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4))\n"
    )
    model = load(f"py:{tmp_path}/lazy.py:make", classes=4)
    assert model(torch.rand(2, 3, 9, 9)).shape == (2, 4)
