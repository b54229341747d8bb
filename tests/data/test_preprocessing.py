"""Image files become pixels as timm and torchvision make them, whatever the set is called."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn
from torchvision import transforms

import trimtab
from published_files import LITE0, PHOTOGRAPHS, needs_lite0, needs_published
from trimtab import data, evaluate, models
from trimtab.data.folder import FolderSet
from trimtab.types import BadInput, InputSpec

SIZES = [(90, 70), (64, 121), (75, 75), (41, 53), (200, 64)]
CLASSES = ("n01440764", "n01443537")
CONFIGS = [
    {"interpolation": how, "crop_pct": fraction, "crop_mode": mode}
    for how in ("bilinear", "bicubic")
    for fraction in (0.875, 0.95, 1.0)
    for mode in ("center", "squash", "border")
] + [{"interpolation": "bicubic", "crop_pct": 1.15, "crop_mode": "center"}]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smooth pictures of several sizes as JPEG and PNG, in two class folders."""
    root = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for k, size in enumerate(SIZES * 2):
        folder = root / CLASSES[k % 2]
        folder.mkdir(exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / f"{k}.{'jpg' if k < 5 else 'png'}")
    return root


def expected(images: FolderSet, transform: object) -> Tensor:
    """What timm's (or torchvision's) transform makes of the set's files, in the set's order."""
    opened = [Image.open(images.root / file).convert("RGB") for file in images.files]
    pixels = torch.stack([transform(image) for image in opened])  # type: ignore[operator]
    return pixels / 255 if pixels.dtype == torch.uint8 else pixels


def timm_net(size: int = 64, **config: object) -> models.Pixels:
    net = timm.create_model("resnet10t", num_classes=10)
    net.pretrained_cfg = {**net.pretrained_cfg, "input_size": (3, size, size), **config}
    return models.wrap(net).eval()


def theirs(model: models.Pixels, normalize: bool = False) -> object:
    return create_transform(**resolve_data_config({}, model=model.net), normalize=normalize)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: "-".join(map(str, c.values())))
def test_files_become_what_timms_own_transform_makes_of_them(photographs: Path, config: dict) -> None:
    model = timm_net(**config)
    for name in (f"imagenet:{photographs}", f"folder:{photographs}", f"folder:{photographs}@64"):
        images = data.load(name, input=model.spec, decoded=False)
        assert isinstance(images, FolderSet)
        assert torch.equal(next(images.batches(99)).x, expected(images, theirs(model))), name


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "efficientnet_b0"])
def test_files_become_what_torchvisions_own_transform_makes_of_them(photographs: Path, name: str) -> None:
    record = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    how = transforms.Compose([
        transforms.Resize(record.resize_size, record.interpolation),
        transforms.CenterCrop(record.crop_size),
        transforms.ToTensor(),
    ])  # fmt: skip
    images = data.load(f"folder:{photographs}", input=trimtab.load(f"torchvision:{name}").spec, decoded=False)
    assert isinstance(images, FolderSet)
    assert torch.equal(next(images.batches(99)).x, expected(images, how))


@pytest.mark.parametrize("config", [{}, {"crop_pct": None, "interpolation": "", "crop_mode": None}])
def test_what_timm_leaves_out_of_a_record_is_as_timm_resolves_it(config: dict) -> None:
    model = timm_net(**config)
    resolved = resolve_data_config({}, model=model.net)
    spec = model.spec
    assert (spec.crop_fraction, spec.interpolation, spec.crop_mode) == tuple(
        resolved[name] for name in ("crop_pct", "interpolation", "crop_mode")
    )


def test_predictions_do_not_depend_on_what_the_data_are_called(photographs: Path) -> None:
    torch.manual_seed(0)
    model = timm_net(interpolation="bicubic", crop_pct=0.8)
    names = [f"{kind}:{photographs}{size}" for kind in ("imagenet", "folder") for size in ("", "@64")]
    sets = [data.as_set(name, input=model.spec) for name in names]
    sets += [data.as_set(data.load(name), input=model.spec) for name in names if name != names[2]]
    with torch.no_grad():
        logits = [model(next(images.batches(99)).x) for images in sets]
        alone = torch.stack([model.net(image[None])[0] for image in expected(
            data.load(names[0], input=model.spec), theirs(model, normalize=True))])  # type: ignore[arg-type]  # fmt: skip
    assert all(torch.equal(logits[0], other) for other in logits)
    torch.testing.assert_close(logits[0], alone)


def test_an_evaluation_prepares_files_as_the_network_records_and_says_so(
    photographs: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = timm_net(interpolation="bicubic", crop_pct=0.8)
    torch.nn.init.normal_(model.net.fc.weight)
    # Classes by what timm's own pixels are classified as: every other preparation may get some wrong.
    images = data.load(f"folder:{photographs}", input=model.spec)
    with torch.no_grad():
        right = model(expected(data.load(f"imagenet:{photographs}", input=model.spec), theirs(model)))  # type: ignore[arg-type]
    share = float((right.argmax(1) == images.labels).float().mean())
    cards = {
        name: evaluate.run(model, source, [evaluate.Clean()], tmp_path / "store.sqlite", examine=False)
        for name, source in {
            "name": f"folder:{photographs}@64",
            "loaded before": data.load(f"folder:{photographs}@64"),
            "a part": data.load(f"folder:{photographs}@64").subset(slice(0, 10)),
        }.items()
    }
    for card in cards.values():
        assert card.rows[0].accuracy == pytest.approx(share)
        used = InputSpec.from_json(card.provenance["preprocessing"])
        assert used == model.spec
    assert len({card.rows[0].key for card in cards.values()}) <= 2  # held in memory, or read from the files


def test_a_part_of_a_set_keeps_its_images_when_it_is_prepared_for_a_network(photographs: Path) -> None:
    spec = timm_net(crop_pct=0.8).spec
    whole = data.load(f"folder:{photographs}", input=spec)
    part = data.load(f"folder:{photographs}@48").subset([7, 2, 4]).subset([2, 0]).prepared_for(spec)
    assert part.ids.tolist() == whole.ids[[4, 7]].tolist()
    assert part.take(torch.arange(2)).x.shape == (2, 3, 48, 48)  # the size that the name asked for
    part = data.load(f"imagenet:{photographs}").subset([7, 2, 4]).prepared_for(spec)
    assert torch.equal(part.take(torch.arange(3)).x, whole.take(torch.tensor([7, 2, 4])).x)


def test_a_set_loaded_for_one_network_is_not_prepared_again_for_another(photographs: Path) -> None:
    images = data.load(f"folder:{photographs}", input=timm_net(crop_pct=0.8).spec)
    assert images.prepared_for(timm_net(crop_pct=1.0).spec) is images


def test_without_a_record_images_are_taken_as_their_name_says(photographs: Path) -> None:
    plain = models.wrap(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), InputSpec((2, 2))).spec
    imagenet = data.load(f"imagenet:{photographs}", input=plain)
    how = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()])
    assert isinstance(imagenet, FolderSet)
    assert torch.equal(next(imagenet.batches(99)).x, expected(imagenet, how))
    with pytest.raises(BadInput, match="mixed size"):
        data.load(f"folder:{photographs}", input=plain)


def test_digests_tell_preparations_apart(photographs: Path) -> None:
    spec = timm_net().spec
    others = [
        spec,
        replace(spec, interpolation="bilinear"),
        replace(spec, crop_fraction=1.0),
        replace(spec, crop_mode="squash"),
        replace(spec, size=(32, 32)),
    ]
    sets = [data.load(f"folder:{photographs}", input=one, decoded=False) for one in others]
    assert len({images.digest for images in sets}) == len(sets)


def test_a_saved_model_keeps_how_its_images_are_prepared(tmp_path: Path) -> None:
    spec = InputSpec((64, 48), 3, (0.5,) * 3, (0.2,) * 3, 0.9, "lanczos", "squash")
    trimtab.save(trimtab.load("net:resnet8", input=spec), tmp_path / "net")
    assert trimtab.load(f"file:{tmp_path}/net").spec == spec
    assert json.loads((tmp_path / "net" / "model.json").read_text())["input"]["crop_fraction"] == 0.9


def test_a_model_saved_before_images_were_prepared_takes_them_as_they_are() -> None:
    old = {"size": [32, 32], "channels": 1, "mean": [0.5], "std": [0.25]}
    assert InputSpec.from_json(old) == InputSpec((32, 32), 1, (0.5,), (0.25,))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"crop_fraction": 0.0}, "crop fraction"),
        ({"interpolation": "cubic"}, "no interpolation 'cubic'; choose one of nearest"),
        ({"crop_mode": "middle"}, "no crop mode 'middle'"),
        ({"resize": -3}, "1 pixel or more"),
    ],
)
def test_a_preparation_that_cannot_be_is_refused(wrong: dict, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        InputSpec(**wrong)


# ---- published networks and photographs ---------------------------------------------------------------


def shrunk(root: Path, short: int | None) -> Path:
    """The photographs in a folder for each class; copies with another short side are saved anew."""
    for path in sorted(PHOTOGRAPHS.iterdir()):
        folder = root / path.name.split("_")[1]
        folder.mkdir(parents=True, exist_ok=True)
        if short is None:
            (folder / path.name).symlink_to(path)
        else:
            image = Image.open(path).convert("RGB")
            sides = [round(side * short / min(image.size)) for side in image.size]
            image.resize(sides, Image.Resampling.LANCZOS).save(folder / path.name, quality=92)
    return root


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_published
@needs_lite0
@pytest.mark.parametrize("short", [None, 320, 500])
def test_efficientnet_lite0_classifies_photographs_as_in_timm(tmp_path: Path, short: int | None) -> None:
    root = shrunk(tmp_path, short)
    model = trimtab.load(f"file:{LITE0}@timm:tf_efficientnet_lite0")
    reference = timm.create_model("tf_efficientnet_lite0").eval()
    reference.load_state_dict(model.net.state_dict())
    named = [
        data.load(name, input=model.spec)
        for name in (f"imagenet:{root}", f"folder:{root}", f"folder:{root}@224")
    ]
    own = create_transform(**resolve_data_config({}, model=reference))
    assert isinstance(named[0], FolderSet)
    correct, files = 0, iter(named[0].files)
    for batches in zip(*(images.batches(50) for images in named), strict=True):
        paths = [named[0].root / file for file in islice(files, len(batches[0].y))]
        pictures = [Image.open(path).convert("RGB") for path in paths]
        with torch.no_grad():
            predicted = reference(torch.stack([own(picture) for picture in pictures])).argmax(1)
            for batch in batches:
                assert torch.equal(model(batch.x).argmax(1), predicted)
        correct += int((predicted == batches[0].y).sum())
    assert (
        correct / len(named[0]) > 0.8
    )  # 0.715 of 200 photographs without TensorFlow's padding, 0.87 with it


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_published
@pytest.mark.parametrize("short", [None, 320, 500])
def test_photographs_become_the_pixels_of_timms_transform(tmp_path: Path, short: int | None) -> None:
    root = shrunk(tmp_path, short)
    for how in ("bilinear", "bicubic"):
        for fraction in (0.875, 1.0):
            model = timm_net(224, interpolation=how, crop_pct=fraction)
            for kind in ("imagenet", "folder"):
                images = data.load(f"{kind}:{root}", input=model.spec, decoded=False).subset(range(0, 700, 7))
                assert isinstance(images, FolderSet)
                assert torch.equal(images.take(torch.arange(100)).x, expected(images, theirs(model)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_published
@pytest.mark.parametrize(("depth", "name", "accuracy"), [
    (20, "resnet20-12fca82f.th", 0.917), (44, "resnet44-014dd654.th", 0.931),
])  # fmt: skip
def test_published_cifar_resnets_have_their_published_accuracy(
    depth: int, name: str, accuracy: float
) -> None:
    if not data.available()["cifar10"]:
        pytest.skip("CIFAR-10 was not fetched")
    spec = InputSpec((32, 32), 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    model = trimtab.load(f"file:{PHOTOGRAPHS.parent / name}@net:resnet{depth}", input=spec)
    images = data.load("cifar10")
    correct = 0
    with torch.no_grad():
        for x, y, _ in images.batches(250):
            correct += int((model(x).argmax(1) == y).sum())
    assert abs(correct / len(images) - accuracy) <= 0.001
