"""Networks in the layout of the Hugging Face hub: written by timm and read by us, and the other way round."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

import trimtab
from trimtab import adapt, norm
from trimtab.models import load, to_timm
from trimtab.types import BadInput, InputSpec

RECORD = {
    "input_size": (3, 64, 64), "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "crop_pct": 0.8,
    "interpolation": "bilinear", "crop_mode": "squash",
}  # fmt: skip
SPEC = InputSpec((64, 64), 3, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 0.8, "bilinear", "squash")
NAMES = ["cat", "dog", "eel"]


def trained(name: str = "resnet18", **arguments: object) -> nn.Module:
    """A network of timm with a record and statistics of its own."""
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=3, pretrained_cfg_overlay=RECORD, **arguments)
    net(torch.rand(4, 3, 64, 64))
    return net.eval()


def written(folder: Path, net: nn.Module, safe: object = True, **arguments: object) -> Path:
    """The folder as timm itself writes it."""
    config = {"label_names": NAMES}
    timm.models.save_for_hf(net, folder, config, model_args=arguments, safe_serialization=safe)
    return folder


def logits(net: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return net.eval()(torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("safe", [True, False, "both"], ids=["safetensors", "pickle", "both"])
@pytest.mark.parametrize(
    ("scheme", "ending"),
    [("file:", ""), ("timm:local-dir:", ""), ("timm:local-dir:", "+pretrained")],
)
def test_a_folder_that_timm_wrote_loads_with_its_record(
    tmp_path: Path, safe: object, scheme: str, ending: str
) -> None:
    net = trained()
    model = load(f"{scheme}{written(tmp_path / 'net', net, safe)}{ending}")
    assert not model.training
    assert (model.spec, model.classes) == (SPEC, tuple(NAMES))
    assert torch.equal(logits(model.net), logits(net))


def test_arguments_of_the_constructor_are_those_of_the_config(tmp_path: Path) -> None:
    net = trained("efficientnet_lite0", act_layer="relu")
    model = load(f"file:{written(tmp_path, net, act_layer='relu')}")
    assert torch.equal(logits(model.net), logits(net))


def test_a_network_of_the_hub_saves_and_comes_back_without_its_folder(tmp_path: Path) -> None:
    net = trained()
    trimtab.save(load(f"file:{written(tmp_path / 'hub', net)}"), tmp_path / "ours")
    again = load(f"file:{tmp_path}/ours")
    assert (again.spec, again.classes) == (SPEC, tuple(NAMES))
    assert torch.equal(logits(again.net), logits(net))


def test_weights_of_a_folder_serve_another_description_of_the_network(tmp_path: Path) -> None:
    folder = written(tmp_path, trained())
    assert load(f"file:{folder}@timm:resnet18").spec.mean == (0.485, 0.456, 0.406)
    with pytest.raises(BadInput, match="3 classes, not for 7"):
        load(f"file:{folder}", classes=7)


def damaged(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architecture": None}, "names no architecture of timm"),
        (
            {"architecture": None, "model_type": "vit"},
            "names no architecture of timm but a vit of transformers",
        ),
        ({"architecture": "resnet34"}, "does not fit the architecture"),
        ({"model_args": {"checkpoint_path": "/etc/passwd"}}, r"asks for another file \(checkpoint_path\)"),
        ({"model_args": {"no_such": 1}}, "describes a network that cannot be built"),
        ({"model_args": 3}, "is not the config of a network"),
    ],
)
def test_a_config_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    damaged(written(tmp_path, trained()), **changes)
    with pytest.raises(BadInput, match=complaint) as refused:
        load(f"file:{tmp_path}")
    assert "\n" not in str(refused.value)


def test_a_folder_without_weights_or_without_json_is_refused(tmp_path: Path) -> None:
    written(tmp_path, trained())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"no weights; they are called model.safetensors or pytorch_model.bin"):
        load(f"file:{tmp_path}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"<html>")
    with pytest.raises(BadInput, match="no checkpoint but a web page"):
        load(f"file:{tmp_path}")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(BadInput, match="is not the config of a network"):
        load(f"file:{tmp_path}")


# ---- fetched ---------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """The hub's part that downloads need, with one network: the address that huggingface_hub is told."""
    folder = written(tmp_path / "published", trained(), safe=True)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            file = folder / self.path.rpartition("/")[2]
            found = "/owner/net/resolve/" in self.path and file.is_file()
            content = file.read_bytes() if found else b""
            self.send_response(200 if found else 404)
            if found:
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", "a" * 40)
            else:
                self.send_header(
                    "X-Error-Code", "EntryNotFound" if "/owner/net/" in self.path else "RepoNotFound"
                )
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.content = content

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(self.content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


FETCH = """
import sys
from trimtab.models import load, save
from trimtab.types import BadInput
try:
    save(load(sys.argv[1]), sys.argv[2])
except BadInput as problem:
    print(problem)
"""


def fetch(source: str, to: Path, address: str, **settings: str) -> str:
    """What a process of its own, which asks this hub, prints."""
    told = {"HF_ENDPOINT": address, "HF_HOME": str(to / "cache"), "HF_HUB_DISABLE_XET": "1", **settings}
    command = [sys.executable, "-c", FETCH, source, str(to / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **told})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_network_is_fetched_from_the_hub_by_its_name_and_then_from_the_cache(
    tmp_path: Path, hub: str
) -> None:
    assert fetch("timm:hf-hub:owner/net+pretrained", tmp_path, hub) == ""
    model = load(f"file:{tmp_path}/saved")
    assert (model.spec, model.classes) == (SPEC, tuple(NAMES))
    assert torch.equal(logits(model.net), logits(trained()))
    assert fetch("timm:hf-hub:owner/net+pretrained", tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1") == ""


def test_a_network_that_the_hub_does_not_have_is_one_sentence(tmp_path: Path, hub: str) -> None:
    said = fetch("timm:hf-hub:nobody/nothing+pretrained", tmp_path, hub)
    assert "timm:hf-hub:nobody/nothing could not be fetched" in said
    assert "\n" not in said


def test_nothing_is_fetched_unless_the_name_says_so() -> None:
    with pytest.raises(BadInput, match=r"write timm:hf-hub:owner/net\+pretrained"):
        load("timm:hf-hub:owner/net")


# ---- written ---------------------------------------------------------------------------------------------


def test_timm_loads_what_is_written_for_it_and_transforms_images_as_recorded(tmp_path: Path) -> None:
    model = load(f"file:{written(tmp_path / 'in', trained())}")
    folder = to_timm(model, tmp_path / "out")
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert torch.equal(logits(theirs), logits(model.net))
    assert list(theirs.pretrained_cfg["label_names"]) == NAMES
    data = timm.data.resolve_data_config(model=theirs)
    told = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    assert {key: told[key] for key in RECORD} == RECORD
    assert load(f"file:{folder}").spec == SPEC


def test_an_adapted_network_of_torchvision_is_written_under_the_name_that_timm_has_for_it(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model = load("torchvision:resnet18", classes=4)
    frozen = adapt.frozen(norm.steer(model.eval()), torch.rand(8, 3, 64, 64))
    theirs = timm.create_model(f"local-dir:{to_timm(frozen, tmp_path / 'out')}", pretrained=True)
    assert torch.allclose(logits(theirs), logits(frozen.net), rtol=1e-4, atol=1e-5)
    assert theirs.pretrained_cfg["mean"] == [0.485, 0.456, 0.406]


def test_the_branch_that_is_asked_for_is_written_and_the_model_keeps_all(tmp_path: Path) -> None:
    model = norm.steer(load(f"file:{written(tmp_path / 'in', trained())}"))
    norm.add_branch(model, "adv")
    with norm.use(model, branch="adv"):
        model.train()(torch.rand(8, 3, 64, 64) ** 2)
        adv = logits(model.net)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for branch, expected in (("main", logits(model.net)), ("adv", adv)):
        folder = to_timm(model, tmp_path / branch, branch=branch)
        theirs = timm.create_model(f"local-dir:{folder}", pretrained=True)
        assert torch.allclose(logits(theirs), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits(model.net), adv, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_what_timm_cannot_load_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    refused = {
        "resnet8 is no architecture of timm": (load("net:resnet8"), None),
        "another norm": (load("timm:resnet18", norm="gn"), None),
        "has no name in timm": (nn.Sequential(nn.Conv2d(3, 4, 3)), None),
        "does not fit the architecture": (load("timm:resnet18"), "resnet34"),
        "computes other logits": (load("timm:tf_efficientnet_lite0"), "efficientnet_lite0"),
    }
    for complaint, (model, architecture) in refused.items():
        with pytest.raises(BadInput, match=complaint):
            to_timm(model.eval(), tmp_path / "out", architecture=architecture)
    assert not (tmp_path / "out").exists()
