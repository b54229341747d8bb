"""Published weights under other people's names, on untrained networks of the same shape."""

import pytest
import timm
import torch

from published_files import FOLDER, LITE0, needs_lite0, needs_published
from trimtab.models import load
from trimtab.types import BadInput

# timm's names -> those of EfficientNet-PyTorch, written out from that code's model.py
_ENDS = {
    "conv_stem": "_conv_stem",
    "bn1": "_bn0",
    "conv_head": "_conv_head",
    "bn2": "_bn1",
    "classifier": "_fc",
}
_FIRST = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
_LATER = {"conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1",
          "conv_pwl": "_project_conv", "bn3": "_bn2"}  # fmt: skip
_SQUEEZE = {"conv_reduce": "_se_reduce", "conv_expand": "_se_expand"}


def theirs(net):
    """The state dict of timm's network under EfficientNet-PyTorch's names."""
    blocks = [(s, i) for s, stage in enumerate(net.blocks) for i in range(len(stage))]
    state = {}
    for key, value in net.state_dict().items():
        parts = key.split(".")
        if parts[0] != "blocks":
            state[".".join([_ENDS[parts[0]], *parts[1:]])] = value
            continue
        number = blocks.index((int(parts[1]), int(parts[2])))
        if parts[3] == "se":
            state[f"_blocks.{number}.{_SQUEEZE[parts[4]]}.{parts[5]}"] = value
        else:
            names = _FIRST if parts[1] == "0" else _LATER
            state[f"_blocks.{number}.{names[parts[3]]}.{parts[4]}"] = value
    return state


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "tf_efficientnet_b0"])
def test_efficientnets_of_another_library_compute_what_they_did(tmp_path, name):
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=7).eval()
    torch.save(theirs(net), tmp_path / "net.pth")
    x = torch.rand(2, 3, 64, 64)
    again = load(f"file:{tmp_path}/net.pth@timm:{name}")
    with torch.no_grad():
        assert torch.equal(again.net(x), net(x))


def test_efficientnets_warn_without_the_padding_that_they_were_trained_with(tmp_path):
    torch.save(theirs(timm.create_model("efficientnet_lite0", num_classes=7)), tmp_path / "net.pth")
    with pytest.warns(UserWarning, match="@timm:tf_efficientnet_lite0"):
        load(f"file:{tmp_path}/net.pth@timm:efficientnet_lite0")


@pytest.mark.parametrize("wrapped", [False, True])
def test_cifar_resnets_of_another_library_load_without_batch_counters(tmp_path, wrapped):
    """As pytorch_resnet_cifar10 saves them: `linear`, `module.`, no counters, the format before torch 1.6."""
    torch.manual_seed(0)
    model = load("net:resnet8").eval()
    state = {
        "module." + key.replace("fc.", "linear."): value
        for key, value in model.net.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    saved = {"state_dict": state, "best_prec1": 91.7} if wrapped else state
    torch.save(saved, tmp_path / "net.th", _use_new_zipfile_serialization=False)
    again = load(f"file:{tmp_path}/net.th@net:resnet8")
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    assert all(int(value) == 0 for key, value in again.state_dict().items() if "batches_tracked" in key)


def test_a_layout_that_lacks_a_tensor_is_refused_by_the_name_in_the_network(tmp_path):
    state = theirs(timm.create_model("tf_efficientnet_lite0", num_classes=7))
    del state["_conv_head.weight"]
    torch.save(state, tmp_path / "net.pth")
    with pytest.raises(BadInput, match="does not fit the architecture"):
        load(f"file:{tmp_path}/net.pth@timm:tf_efficientnet_lite0")


@needs_published
@pytest.mark.parametrize("name", ["resnet20-12fca82f.th", "resnet44-014dd654.th"])
def test_published_cifar_resnets_name_their_architecture(name):
    depth = name[6:8]
    with pytest.raises(BadInput, match=f"its tensors are those of net:resnet{depth}: file:"):
        load(f"file:{FOLDER / name}")
    assert load(f"file:{FOLDER / name}@net:resnet{depth}").origin.source == f"net:resnet{depth}"


@needs_lite0
def test_the_published_efficientnet_lite0_names_its_architecture_and_loads():
    with pytest.raises(BadInput, match="its tensors are those of timm:tf_efficientnet_lite0"):
        load(f"file:{LITE0}@net:resnet8")
    assert load(f"file:{LITE0}@timm:tf_efficientnet_lite0").spec.size == (224, 224)
