"""Models on disk: what is saved comes back, what cannot be used is refused, nothing is unpickled.

Also tests models.guess, models.stored.
"""

import json
import os
import pickle
import resource
from collections import OrderedDict
from contextlib import contextmanager

import pytest
import safetensors.torch
import torch
from torch import nn

import trimtab
from trimtab import adapt, norm
from trimtab.certify.smoothing import statistics_of
from trimtab.models import build, load, save, wrap
from trimtab.types import BadInput, InputSpec

SPEC = InputSpec((32, 32), 3, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def tv():
    return pytest.importorskip("torchvision").models


def timm():
    return pytest.importorskip("timm")


def trained(**arguments):
    """A small network whose every value, running statistics included, is its own."""
    torch.manual_seed(1)
    model = build("resnet8", classes=("cat", "dog", "eel"), input=SPEC, **{"width": 4, **arguments})
    model(torch.rand(8, 3, 32, 32))
    return model.eval()


def assert_same(one, other):
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


@contextmanager
def full_disk(bytes_left):
    """No file of this process may grow further: writing fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- ours -----------------------------------------------------------------------------------------------


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    model = trained(norm="bn", activation="selu")
    save(model, tmp_path / "runs" / "best", {"seed": 3})
    again = load(f"file:{tmp_path}/runs/best").eval()
    assert_same(model, again)
    assert (again.spec, again.classes) == (SPEC, ("cat", "dog", "eel"))
    assert again.origin.source == "net:resnet8"
    assert again.origin.provenance["seed"] == 3
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(again(x), model(x))


def narrow_but_for_its_norms(model):
    model.half()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    return model


WIDTHS = {"double": nn.Module.double, "bfloat16": nn.Module.bfloat16, "mixed": narrow_but_for_its_norms}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_model_comes_back_as_wide_as_it_was_saved(tmp_path, width):
    model = WIDTHS[width](trained())
    save(model, tmp_path)
    again = load(f"file:{tmp_path}")
    assert_same(model, again)
    held, found = model.state_dict(), again.state_dict()
    assert all(held[key].dtype == found[key].dtype for key in held)
    x = torch.rand(2, 3, 32, 32).to(model.normalize.mean)
    assert torch.equal(again(x), model(x))


def test_a_loaded_model_saves_to_the_same_bytes(tmp_path):
    save(trained(), tmp_path / "a")
    save(load(f"file:{tmp_path}/a"), tmp_path / "b")
    for name in ("model.safetensors", "model.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_weights_are_a_plain_state_dict_that_stock_pytorch_loads(tmp_path):
    model = norm.steer(trained())
    save(model, tmp_path)
    stock = build("resnet8", classes=3, width=4).net
    stock.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    assert_same(stock, model.net)


def test_where_frozen_statistics_come_from_is_saved_with_them(tmp_path):
    frozen = adapt.frozen(trained(), torch.rand(16, 3, 32, 32), provenance="test images")
    save(frozen, tmp_path / "a")
    again = load(f"file:{tmp_path}/a")
    assert statistics_of(again) == "frozen on 16 test images (rho=1)"
    assert statistics_of(load(f"file:{tmp_path}/a", input=InputSpec())) == statistics_of(again)
    save(again, tmp_path / "b")
    assert (tmp_path / "a" / "model.json").read_bytes() == (tmp_path / "b" / "model.json").read_bytes()
    save(trained(), tmp_path / "c")
    assert "statistics" not in json.loads((tmp_path / "c" / "model.json").read_text())
    assert statistics_of(load(f"file:{tmp_path}/c")) == "as stored in the model"


def test_where_statistics_come_from_is_saved_of_a_network_of_your_own_and_not_of_one_that_adapts(tmp_path):
    def described(model):
        save(model, tmp_path)
        return json.loads((tmp_path / "model.json").read_text()).get("statistics")

    x = torch.rand(4, 3, 32, 32)
    assert described(adapt.frozen(trained().net, x)) == "frozen on 4 images (rho=1)"
    assert described(adapt.per_batch(trained().net)) is None


def test_what_wraps_a_model_that_knows_its_pixels_is_not_saved_without_them(tmp_path):
    for wrapped in (adapt.per_batch(trained()), adapt.stream(trained()), nn.Sequential(trained())):
        with pytest.raises(BadInput, match="cannot be saved; save that model"):
            save(wrapped, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.filterwarnings("ignore:The default weight init")
def test_what_published_weights_decide_is_saved_with_them(tmp_path, monkeypatch):
    """Torchvision builds GoogLeNet with other inputs and without its heads if it is given weights."""
    torchvision = pytest.importorskip("torchvision")
    made = torchvision.models.get_model("googlenet", init_weights=False, transform_input=True)
    weights = torchvision.models.GoogLeNet_Weights
    monkeypatch.setattr(weights, "get_state_dict", lambda *_, **__: made.state_dict())
    model = load("torchvision:googlenet+pretrained").eval()
    save(model, tmp_path / "a")
    assert_same(load(f"file:{tmp_path}/a"), model)


def test_a_function_of_yours_keeps_where_its_statistics_come_from(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import torch\nfrom trimtab import adapt, load\n"
        "def net(): return adapt.frozen(load('net:resnet8,width=4'), torch.rand(4, 3, 32, 32))\n"
    )
    assert statistics_of(load(f"py:{tmp_path}/own.py:net")) == "frozen on 4 images (rho=1)"


def test_branches_are_rebuilt_on_load(tmp_path):
    model = norm.steer(trained())
    norm.add_branch(model, "adv")
    norm.add_branch(model.layer3, "style", copy_of="adv", affine=False)
    model.train()
    with norm.use(model, branch="adv"):
        model(torch.rand(8, 3, 32, 32))
    save(model.eval(), tmp_path)
    again = load(f"file:{tmp_path}").eval()
    assert_same(model, again)
    x = torch.rand(4, 3, 32, 32)
    for branch in ("main", "adv", "style"):
        with norm.use(model, branch=branch), norm.use(again, branch=branch):
            assert torch.equal(model(x), again(x))
    assert norm.branch_spec(again.net) == norm.branch_spec(model.net)


def test_a_swapped_norm_is_part_of_the_architecture(tmp_path):
    model = load("torchvision:resnet18", classes=3, norm="gn")
    assert not any("BatchNorm" in type(m).__name__ for m in model.modules())
    save(model, tmp_path)
    assert_same(load(f"file:{tmp_path}"), model)


def test_the_file_with_the_weights_is_complete_by_itself(tmp_path):
    model = trained()
    save(model, tmp_path / "saved")
    os.rename(tmp_path / "saved" / "model.safetensors", tmp_path / "moved.safetensors")
    assert_same(load(f"file:{tmp_path}/moved.safetensors"), model)


def test_the_description_is_readable_json(tmp_path):
    save(trained(), tmp_path)
    described = json.loads((tmp_path / "model.json").read_text())
    assert described["source"] == "net:resnet8"
    assert described["arguments"] == {"width": 4, "channels": 3, "classes": 3}
    assert described["input"] == {
        "size": [32, 32],
        "channels": 3,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.3, 0.4],
        "crop_fraction": None,
        "interpolation": "bilinear",
        "crop_mode": "center",
        "resize": None,
    }
    assert described["provenance"]["trimtab"] == trimtab.__version__


def test_channels_last_and_tied_tensors_are_saved(tmp_path):
    model = trained().to(memory_format=torch.channels_last)
    save(model, tmp_path / "a")
    assert_same(load(f"file:{tmp_path}/a"), model)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    save(tied, tmp_path / "b")
    assert len(safetensors.torch.load_file(tmp_path / "b" / "model.safetensors")) == 4


@pytest.mark.parametrize("before", [False, True], ids=["new", "over an old one"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(tmp_path, before):
    old, new = trained(), trained(width=16)
    if before:
        save(old, tmp_path / "model")
    with full_disk(10_000), pytest.raises(BadInput, match="could not be written: ") as refused:
        save(new, tmp_path / "model")
    assert "\n" not in str(refused.value)
    if before:
        assert sorted(os.listdir(tmp_path / "model")) == ["model.json", "model.safetensors"]
        assert_same(load(f"file:{tmp_path}/model"), old)
    else:
        assert os.listdir(tmp_path) == []


def test_a_save_that_dies_between_the_renames_keeps_the_old_model_whole(tmp_path, monkeypatch):
    old = trained()
    save(old, tmp_path)
    rename, done = os.replace, []

    def dies(source, target):
        if done:
            raise KeyboardInterrupt
        done.append(target)
        rename(source, target)

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        save(trained(width=8), tmp_path)
    assert_same(load(f"file:{tmp_path}"), old)
    assert sorted(os.listdir(tmp_path)) == ["model.json", "model.safetensors"]


def test_a_compiled_model_is_saved_as_itself(tmp_path):
    model = trained()
    save(torch.compile(model, backend="eager"), tmp_path)
    assert_same(load(f"file:{tmp_path}"), model)


@pytest.mark.parametrize("part", ["net", "net.layer1"])
def test_a_model_with_a_compiled_part_is_saved_as_itself(tmp_path, part):
    model = trained()
    save(model, tmp_path / "plain")
    parent, _, name = part.rpartition(".")
    inside = torch.compile(model.get_submodule(part), backend="eager")
    setattr(model.get_submodule(parent), name, inside)
    save(model, tmp_path / "compiled")
    for file in ("model.safetensors", "model.json"):
        assert (tmp_path / "compiled" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()


def test_a_wrapper_of_yours_that_answers_for_its_network_is_saved_whole(tmp_path):
    class Scaled(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.scale = inner, nn.Parameter(torch.ones(()))

        def __getattr__(self, name):
            return super().__getattr__(name) if name in ("inner", "scale") else getattr(self.inner, name)

        def forward(self, x):
            return self.scale * self.inner(x)

    save(Scaled(torch.compile(trained().net, backend="eager")), tmp_path)
    assert "scale" in safetensors.torch.load_file(tmp_path / "model.safetensors")


def test_saving_over_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(BadInput, match="it is a file"):
        save(trained(), tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


# ---- other people's -------------------------------------------------------------------------------------

FORMS = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state},
    "with a score": lambda state: {"best": torch.tensor(0.5), "state_dict": state, "epoch": 3},
    "ddp": lambda state: {"model": OrderedDict((f"module.{k}", v) for k, v in state.items())},
    "compiled": lambda state: {f"module._orig_mod.{k}": v for k, v in state.items()},
    "net": lambda state: {"net": {f"module.{k}": v for k, v in state.items()}, "acc": 93.1, "epoch": 3},
    "averaged": lambda state: {"model_ema": state, "epoch": 3},
    "smoothing": lambda state: {"arch": "a", "state_dict": {f"1.module.{k}": v for k, v in state.items()}},
    "robustbench": lambda state: {
        **{f"normalize.{name}": torch.rand(1, 3, 1, 1) + 0.1 for name in ("mean", "std")},
        **{f"model.{k}": v for k, v in state.items()},
    },
    "robustbench's wide ResNets": lambda state: {
        **{f"module.{name}": torch.rand(1, 3, 1, 1) + 0.1 for name in ("mu", "sigma")},
        **{f"module.{k}": v for k, v in state.items()},
    },
    "robustness": lambda state: {
        "model": {
            **{f"module.{holder}.new_{name}": torch.rand(3, 1, 1)
               for holder in ("normalizer", "attacker.normalize") for name in ("mean", "std")},
            **{f"module.model.{k}": v for k, v in state.items()},
            **{f"module.attacker.model.{k}": v for k, v in state.items()},
        },
        "epoch": 3,
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_stock_checkpoint_loads_with_its_architecture(tmp_path, form):
    model = trained()
    torch.save(FORMS[form](model.net.state_dict()), tmp_path / "best@epoch3.pt")
    again = load(f"file:{tmp_path}/best@epoch3.pt@net:resnet8,width=4", input=SPEC)
    assert_same(again, model)  # three classes, read off the weights
    assert again.origin.provenance["weights"].endswith("best@epoch3.pt")


def test_the_mean_and_std_that_a_wrapper_applied_are_the_models(tmp_path):
    model = trained()
    constants = {"mean": torch.tensor([0.1, 0.2, 0.3]), "std": torch.tensor([0.4, 0.5, 0.75])}
    state = {f"module.model.{k}": v for k, v in model.net.state_dict().items()}
    state |= {f"module.normalizer.new_{name}": value.view(3, 1, 1) for name, value in constants.items()}
    torch.save({"model": state}, tmp_path / "a.pt")
    again = load(f"file:{tmp_path}/a.pt@net:resnet8,width=4")
    assert again.spec.mean == pytest.approx((0.1, 0.2, 0.3))
    assert again.spec.std == pytest.approx((0.4, 0.5, 0.75))
    x = torch.rand(2, 3, 32, 32)
    expected = model.net((x - constants["mean"].view(3, 1, 1)) / constants["std"].view(3, 1, 1))
    assert torch.allclose(again(x), expected, atol=1e-5)
    assert load(f"file:{tmp_path}/a.pt@net:resnet8,width=4", input=SPEC).spec == SPEC


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_tensors_that_were_saved_on_a_gpu_load_without_one(tmp_path, monkeypatch, zipped):
    model = trained()
    with monkeypatch.context() as on_gpu:  # what torch writes there is the name of the device
        on_gpu.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        state = model.net.state_dict()
        torch.save({"state_dict": state}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(tmp_path / "a.pt", weights_only=True)
    assert_same(load(f"file:{tmp_path}/a.pt@net:resnet8,width=4"), model)


def test_stock_safetensors_and_the_old_torch_format_load_as_well(tmp_path):
    model = trained()
    safetensors.torch.save_file(model.net.state_dict(), tmp_path / "a.safetensors")
    torch.save(model.net.state_dict(), tmp_path / "b.pth", _use_new_zipfile_serialization=False)
    for name in ("a.safetensors", "b.pth"):
        assert_same(load(f"file:{tmp_path}/{name}@net:resnet8,width=4"), model)


def test_other_peoples_weights_take_the_width_of_the_network(tmp_path):
    state = trained().net.half().state_dict()
    torch.save(state, tmp_path / "a.pt")
    again = load(f"file:{tmp_path}/a.pt@net:resnet8,width=4")
    assert {p.dtype for p in again.parameters()} == {torch.float32}


def test_torchvisions_metadata_serve_a_checkpoint_of_its_architecture(tmp_path):
    made = load("torchvision:resnet18", classes=4)
    torch.save(made.net.state_dict(), tmp_path / "a.pth")
    again = load(f"file:{tmp_path}/a.pth@torchvision:resnet18", classes=4)
    assert_same(again, made)
    assert again.spec == InputSpec((224, 224), 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), resize=256)


def test_a_model_saved_without_a_source_needs_to_be_told_how_to_build_it(tmp_path, monkeypatch):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    save(wrap(net, InputSpec((2, 2), mean=(0.1,) * 3)), tmp_path / "saved")
    with pytest.raises(BadInput, match="network of your own"):
        load(f"file:{tmp_path}/saved")
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2))\n"
    )
    again = load(f"file:{tmp_path}/saved@py:{tmp_path}/mine.py:make")
    assert_same(again.net, net)
    assert again.spec == InputSpec((2, 2), mean=(0.1,) * 3)


# ---- what is refused ------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def a_web_page(path):
    path.write_text("\n<!DOCTYPE html>\n<html><body>404</body></html>")


def a_pickle(path):
    path.write_bytes(pickle.dumps({"weights": [1.0, 2.0]}))


def an_evil_pickle(path):
    path.write_bytes(pickle.dumps(Evil()))


def an_evil_checkpoint(path):
    torch.save({"state_dict": {"conv1.weight": torch.ones(1)}, "trainer": Evil()}, path)


def a_whole_model(path):
    torch.save(build("resnet8").net, path)


def a_cut_checkpoint(path):
    torch.save(build("resnet8").net.state_dict(), path)
    path.write_bytes(path.read_bytes()[:20_000])


def a_cut_old_checkpoint(path):
    torch.save(build("resnet8").net.state_dict(), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:20_000])


def cut_safetensors(path):
    safetensors.torch.save_file(build("resnet8").net.state_dict(), path)
    path.write_bytes(path.read_bytes()[:20_000])


def nothing(path):
    path.write_bytes(b"")


def a_pointer(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def an_image(path):
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))


def a_list(path):
    torch.save([torch.ones(2)], path)


def settings_only(path):
    torch.save({"lr": 0.1, "epoch": 3}, path)


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (a_web_page, "web page"),
        (a_pickle, "Python objects"),
        (an_evil_pickle, "Python objects"),
        (an_evil_checkpoint, "Python objects"),
        (a_whole_model, "Python objects"),
        (a_cut_checkpoint, "cut short"),
        (a_cut_old_checkpoint, "cut short"),
        (cut_safetensors, "cut short"),
        (nothing, "empty"),
        (a_pointer, "Git LFS"),
        (an_image, "no checkpoint"),
        (a_list, "no state dict"),
        (settings_only, "no state dict"),
    ],
)
def test_what_is_no_checkpoint_is_named_and_nothing_in_it_runs(tmp_path, monkeypatch, write, complaint):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ("a.safetensors" if "safetensors" in write.__name__ else "a.pt")
    write(path)
    with pytest.raises(BadInput, match=complaint) as refused:
        load(f"file:{path}@net:resnet8")
    assert "\n" not in str(refused.value)
    assert os.listdir(tmp_path) == [path.name]


def test_weights_without_an_architecture_ask_for_one(tmp_path):
    torch.save(build("resnet8").net.state_dict(), tmp_path / "a.pt")
    with pytest.raises(BadInput, match=r"tensors are those of net:resnet8: file:.*a\.pt@net:resnet8"):
        load(f"file:{tmp_path}/a.pt")
    torch.save({"own.weight": torch.rand(3, 4)}, tmp_path / "b.pt")
    with pytest.raises(BadInput, match="say for which network, as in file:"):
        load(f"file:{tmp_path}/b.pt")


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (lambda: build("resnet56", width=8, classes=7).net, "net:resnet56,width=8"),
        (lambda: build("wrn28_10", classes=4, width=2).net, "net:wrn28_10,width=2"),
        (lambda: tv().mobilenet_v2(num_classes=5), "torchvision:mobilenet_v2"),
        (lambda: tv().densenet121(), "torchvision:densenet121"),
        (lambda: timm().create_model("resnet26", num_classes=9), "timm:resnet26"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_state_dict_with_the_wrong_architecture_names_the_right_one(tmp_path, make, source):
    net = make()
    torch.save({"state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, tmp_path / "a.pt")
    wrong = r"does not fit the architecture: .*; its tensors are those of "
    with pytest.raises(BadInput, match=f"{wrong}{source}$") as refused:
        load(f"file:{tmp_path}/a.pt@net:resnet8")
    assert "\n" not in str(refused.value)
    assert_same(load(f"file:{tmp_path}/a.pt@{source}").net, net)


@pytest.mark.parametrize("suffix", ["@net:resnet8,width=4,classes=7", "@net:resnet8,width=4", ""])
def test_another_number_of_classes_than_expected_is_refused(tmp_path, suffix):
    model = trained()
    save(model, tmp_path / "saved")
    torch.save(model.net.state_dict(), tmp_path / "a.pt")
    path = tmp_path / ("a.pt" if suffix else "saved")
    with pytest.raises(BadInput, match="3 classes, not for 7"):
        load(f"file:{path}{suffix}", classes=7)


def test_weights_of_another_architecture_are_refused_with_what_differs(tmp_path):
    torch.save(build("resnet20").net.state_dict(), tmp_path / "a.pt")
    with pytest.raises(BadInput, match=r"72 are not its own \(layer1\.1\.conv1\.weight, .*, \.\.\.\)"):
        load(f"file:{tmp_path}/a.pt@net:resnet8")
    with pytest.raises(BadInput, match="are missing"):
        load(f"file:{tmp_path}/a.pt@net:resnet32")
    with pytest.raises(BadInput, match="another shape"):
        load(f"file:{tmp_path}/a.pt@net:resnet20,width=8")


def test_a_file_cannot_make_code_run_by_naming_it_as_its_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loot.py").write_text("import os\nos.mkdir('pwned')\ndef make():\n    pass\n")
    model = trained()
    save(model, "saved")
    file = tmp_path / "saved" / "model.safetensors"
    described = json.loads((tmp_path / "saved" / "model.json").read_text()) | {"source": "py:loot:make"}
    file.write_bytes(safetensors.torch.save(model.net.state_dict(), {"trimtab": json.dumps(described)}))
    with pytest.raises(BadInput, match="was saved from py:loot:make"):
        load("file:saved")
    assert not (tmp_path / "pwned").exists()


def test_a_bit_that_changed_in_a_saved_model_is_noticed(tmp_path):
    save(trained(), tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadInput, match="not those that were saved"):
        load(f"file:{tmp_path}/saved")


def test_a_later_format_is_refused(tmp_path):
    state = build("resnet8").net.state_dict()
    safetensors.torch.save_file(state, tmp_path / "a.safetensors", {"trimtab": json.dumps({"format": 2})})
    with pytest.raises(BadInput, match="format 2"):
        load(f"file:{tmp_path}/a.safetensors")


def test_missing_files_and_empty_folders_are_named(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        load(f"file:{tmp_path}/nowhere.pt@net:resnet8")
    with pytest.raises(BadInput, match=r"without model\.safetensors"):
        load(f"file:{tmp_path}")
