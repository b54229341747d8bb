"""AdvBN: fine-tuning against adversarial feature statistics (Shu et al.; ImageNet, ResNet-50 cut at conv2_3).

AdvBN is compared with the network that it started from and, where corruptions are the question, with the
same fine-tuning without a perturbation; in ADV-1 and ADV-5 also with random statistics. A corruption error
is a fraction of misclassified images, and mCE is relative to the standard network of the same seed. AdvBN
images are made with a network that is not evaluated on them (VGG-19; small: VGG-11), so all are
transferred, as in the paper. ImageNet-Instagram, -Sketch and -Style, and AutoAugment, are not available:
rows that need them are missing.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch

from trimtab import construct, data, train
from trimtab.claims import corruption
from trimtab.claims.bench import Bench, locked, operations
from trimtab.claims.claim import claim
from trimtab.claims.nets import Net, small
from trimtab.claims.power import PerImage, mean
from trimtab.claims.verdicts import Above, Close, Needs
from trimtab.construct.build import load_tensors, save_tensors
from trimtab.data import Images
from trimtab.evaluate import BNMode, BranchMode, Corrupted
from trimtab.runtime.fingerprint import digest

STANDARD = Net("lig-resnet50-paper", given="torchvision:resnet50+IMAGENET1K_V1")
ADVBN = Net("advbn-resnet50-paper", start=STANDARD)
EQUAL = Net("advbn-resnet50-paper", {"objective.steps": 0}, start=STANDARD)
RANDOM = Net("advbn-resnet50-paper", {"objective.attack": "random"}, start=STANDARD)
MAIN, AUX = BranchMode("main"), BranchMode("aux")
SUBJECTS = {
    "standard": (STANDARD, None), "AdvBN": (ADVBN, MAIN), "tuned alike, no perturbation": (EQUAL, MAIN),
    "random statistics": (RANDOM, MAIN),
}  # fmt: skip


@claim(
    "ADV-1",
    "AdvBN fine-tuning lowers the corruption error in 14 of the 15 categories and does not hurt clean "
    "accuracy",
    figures={
        "standard, mCE": "76.7", "AdvBN, mCE": "72.7",
        "standard, clean error": "23.9", "AdvBN, clean error": "23.0",
        "standard, by corruption": "80 82 83 75 89 78 80 78 75 66 57 71 85 77 77",
        "AdvBN, by corruption": "75 76 77 70 85 75 80 74 71 63 54 66 82 71 72",
    },
    tests=[
        Above("standard, mCE", "AdvBN, mCE", paper=0.04),
        Above("tuned alike, no perturbation, mCE", "AdvBN, mCE"),
        Above("fraction of corruptions with a lower error", 0.8, effect=0.0),
        Above("standard, clean error", "AdvBN, clean error", by=-0.01, effect=0.0, paper=0.019),
    ],
    networks=[STANDARD, ADVBN, EQUAL, RANDOM], headline=True,
)  # fmt: skip
def corruption_errors(bench: Bench) -> dict[str, float]:
    """Measure corruption errors and clean errors of AdvBN and its controls."""
    by_network = {
        name: corruption.errors(bench, bench.network(net), state) for name, (net, state) in SUBJECTS.items()
    }
    rows: dict[str, float] = {}
    for name, errors in by_network.items():
        rows[f"{name}, mCE"] = corruption.mce(errors, by_network["standard"])
        rows[f"{name}, mean corruption error"] = corruption.mean_error(errors)
        net, state = SUBJECTS[name]
        rows[f"{name}, clean error"] = 1 - bench.accuracy(bench.network(net), state=state)
    names = [name for name in by_network["standard"] if name != "clean"]
    rows["fraction of corruptions with a lower error"] = fmean(
        by_network["AdvBN"][name] < by_network["standard"][name] for name in names
    )
    for name in names:
        for who in ("standard", "AdvBN"):
            rows[f"{who}, {name.replace('_', ' ')}"] = by_network[who][name]
    return rows


MIXED = {
    "data.augment": lambda s: ["flip", "augmix:3"] if s.name == "smoke" else ["crop", "flip", "augmix:3"]
}
AUGMIX = Net("lig-resnet50-paper", MIXED, given="file:augmix-resnet50.pth.tar@torchvision:resnet50")
AUGMIX_ADVBN = Net("advbn-resnet50-paper", MIXED, start=AUGMIX)
AUGMIX_EQUAL = Net("advbn-resnet50-paper", {**MIXED, "objective.steps": 0}, start=AUGMIX)


@claim(
    "ADV-2",
    "On top of AugMix it lowers the errors of the noise corruptions and raises those of motion and zoom blur",
    figures={
        "AugMix, gaussian noise": "32 40 55 76 94 by severity",
        "AugMix + AdvBN, gaussian noise": "31 37 48 64 84",
        "AugMix, zoom blur": "38 45 49 57 65", "AugMix + AdvBN, zoom blur": "42 51 57 65 73",
    },
    tests=[
        Above("AugMix, noise", "AugMix + AdvBN, noise"),
        Above("AugMix, tuned alike, noise", "AugMix + AdvBN, noise"),
        Above("AugMix + AdvBN, motion and zoom blur", "AugMix, motion and zoom blur"),
        Above("AugMix + AdvBN, motion and zoom blur", "AugMix, tuned alike, motion and zoom blur"),
    ],
    networks=[AUGMIX, AUGMIX_ADVBN, AUGMIX_EQUAL],
)  # fmt: skip
def on_augmix(bench: Bench) -> dict[str, float]:
    """Measure corruption errors of AdvBN fine-tuning of a network trained with AugMix."""
    subjects = {
        "AugMix": (AUGMIX, None), "AugMix + AdvBN": (AUGMIX_ADVBN, MAIN),
        "AugMix, tuned alike": (AUGMIX_EQUAL, MAIN),
    }  # fmt: skip
    rows: dict[str, float] = {}
    groups = {"noise": corruption.NOISE, "motion and zoom blur": ("motion_blur", "zoom_blur"), "all": None}
    for name, (net, state) in subjects.items():
        errors = corruption.errors(bench, bench.network(net), state)
        rows |= {
            f"{name}, {group}": corruption.mean_error(errors, members) for group, members in groups.items()
        }
        rows |= {f"{name}, {kind.replace('_', ' ')}": value for kind, value in errors.items()}
    return rows


def architecture(recipe: str, published: str, ours: str, **changes: Any) -> tuple[Net, Net, Net]:
    """Return a published network or its replacement, fine-tuned with AdvBN, and in the same way without."""
    model = {"model": lambda s: {"smoke": ours.replace("width=16", "width=4"), "laptop": ours}.get(s.tables)}
    start = Net("lig-resnet50-paper", model, given=published)
    how = {**model, **{f"objective.{key}": small(value) for key, value in changes.items()}}
    return start, Net(recipe, how, start=start), Net(recipe, {**how, "objective.steps": 0}, start=start)


OTHERS = {
    "DenseNet-121 (small: VGG-11)": architecture(
        "advbn-densenet121-paper", "torchvision:densenet121+IMAGENET1K_V1", "net:vgg11,width=16",
        cut="features.3", rectify=True, drop=[],
    ),
    "EfficientNet-B0 (small: WRN-10-1)": architecture(
        "advbn-efficientnet-paper", "torchvision:efficientnet_b0+IMAGENET1K_V1", "net:wrn10_1",
        cut="layer2.0.act1",  # after a ReLU: the batch norm after a block there would undo any shift
    ),
}  # fmt: skip


@claim(
    "ADV-3",
    "AdvBN carries over to other architectures",
    figures={
        "DenseNet-121": "mCE 73.4 -> 70.4; Instagram, Sketch, Style up (with AutoAugment)",
        "EfficientNet-B0": "mCE 72.1 -> 68.7; Instagram, Sketch, Style up (with AutoAugment)",
    },
    tests=[
        Above(f"{name}, {other}, mCE", f"{name}, AdvBN, mCE")
        for name in OTHERS
        for other in ("standard", "tuned alike")
    ],
    networks=[net for nets in OTHERS.values() for net in nets],
    needs=[Needs(f"{name}, standard, clean", 0.25) for name in OTHERS],
)  # fmt: skip
def other_architectures(bench: Bench) -> dict[str, float]:
    """Measure corruption errors of AdvBN fine-tuning of other architectures."""
    rows: dict[str, float] = {}
    for name, (start, tuned, alike) in OTHERS.items():
        standard = corruption.errors(bench, bench.network(start))
        for who, net in {"AdvBN": tuned, "tuned alike": alike}.items():
            errors = corruption.errors(bench, bench.network(net), MAIN)
            rows[f"{name}, {who}, mCE"] = corruption.mce(errors, standard)
            rows[f"{name}, {who}, clean error"] = errors["clean"]
        rows[f"{name}, standard, mCE"] = corruption.mce(standard, standard)
        rows[f"{name}, standard, clean"] = 1 - standard["clean"]
    return rows


# ---- AdvBN images ---------------------------------------------------------------------------------------


PAINTER = Net(
    "lig-resnet50-paper",
    {"model": lambda s: {"smoke": "net:vgg11,width=4", "laptop": "net:vgg11,width=16"}.get(s.tables)},
    given="torchvision:vgg19+IMAGENET1K_V1",
)
"""Encoder and attacked classifier of AdvBN images: none of the networks that are evaluated on them."""


def painter_about(bench: Bench) -> dict[str, Any]:
    """Return all that the autoencoder of AdvBN images depends on."""
    at = bench.scale
    cut = "features.20" if at.name == "paper" else "features.3"
    return {
        "encoder": PAINTER.about(at, bench.seed), "behind": cut,
        "data": at.data, "images": at.made, "epochs": at.decoder_epochs, "seed": bench.seed,
    }  # fmt: skip


def painter(bench: Bench) -> construct.Autoencoder:
    """Return the autoencoder of AdvBN images, whose decoder is trained once and cached."""
    about = painter_about(bench)
    auto = construct.Autoencoder.of(bench.network(PAINTER), about["behind"], bench.seed)
    file = bench.folder / "painters" / f"{digest(about)[:16]}.safetensors"
    with locked(file.with_suffix(".lock")):
        cached = load_tensors(file)
        if cached is None:
            images = bench.images("train", bench.scale.made)
            construct.train_decoder(auto, images, bench.scale.decoder_epochs, batch_size=32, seed=bench.seed)
            save_tensors(file, auto.decoder.state_dict())
        else:
            auto.decoder.load_state_dict(cached)
    return auto.eval()


def painted(bench: Bench, identical: bool) -> Images:
    """Return decoded test images, with clean (`identical`) or with adversarial feature statistics."""
    method = construct.AdvBNImages(painter(bench), identical=identical)
    bench.uses(method)
    kind = "reconstructed" if identical else "advbn"
    about = {"painter": painter_about(bench), "images": bench.scale.attacked, "version": method.version}
    place = bench.folder / "sets" / f"{kind}-{digest({**about, 'sorted': True})[:16]}.npz"
    images = bench.images("test", bench.scale.attacked)
    images = images.subset(images.labels.argsort(stable=True))  # a batch has one or two classes
    with locked(place.with_suffix(".lock")):
        construct.build(method, bench.network(PAINTER), images, place, seed=bench.seed)
    return data.load(f"npz:{place}", "test")


def on_images(bench: Bench, net: Net, images: Images, state: BNMode | None) -> float:
    """Return the accuracy of a network on a `painted` set, image by image in the order of the test images."""
    right = bench.correct(bench.network(net), images=images, state=state)
    order = bench.images("test", bench.scale.attacked).labels.argsort(stable=True)
    return PerImage(torch.empty_like(right).index_copy_(0, order.to(right.device), right))


@claim(
    "ADV-4",
    "The main BN serves data near the training domain, the auxiliary BN serves data far from it",
    figures={
        "Sketch": "26.4 main, 27.9 auxiliary", "Style": "9.0, 11.9",
        "Instagram": "69.5, 68.5", "mCE": "72.7, 72.4",
    },
    tests=[
        Above("near, main", "near, auxiliary", effect=0.005),
        Above("far, auxiliary", "far, main", effect=0.005),
    ],
    networks=[STANDARD, ADVBN, PAINTER], version=3,
    changed="batches of AdvBN images are sorted by class, as in the paper; clean accuracy is that of the "
    "images that are corrupted",
)  # fmt: skip
def which_branch(bench: Bench) -> dict[str, float]:
    """Measure both branches near (clean, severity 1) and far (severity 5, AdvBN images) from clean data."""
    model, moved = bench.network(ADVBN), painted(bench, identical=False)
    rows: dict[str, float] = {}
    for name, state in {"main": MAIN, "auxiliary": AUX}.items():
        mild, strong = (
            mean([bench.accuracy(model, Corrupted(kind, s), state=state) for kind in bench.scale.corruptions])
            for s in (1, 5)
        )
        clean = bench.accuracy(model, state=state, n=bench.scale.corrupted)
        images = on_images(bench, ADVBN, moved, state)
        rows |= {f"clean, {name}": clean, f"severity 1, {name}": mild, f"severity 5, {name}": strong}
        rows |= {f"AdvBN images, {name}": images, f"near, {name}": (clean + mild) / 2}
        rows[f"far, {name}"] = (strong + images) / 2
    return rows


@claim(
    "ADV-5",
    "An AdvBN-perturbed data set breaks classifiers far more than plain reconstruction does, and "
    "AdvBN-trained ones are hurt least",
    figures={
        "standard, AdvBN images": "1.6 (top-5 4.7)", "standard, reconstructed": "45.8",
        "ResNet-50 conv2_3 encoder": "0.4 against 65.7", "AdvBN, AdvBN images": "4.7",
        "AugMix + AdvBN": "8.6",
    },
    tests=[
        Above("standard, reconstructed", "standard, AdvBN images", by=0.1, effect=0.0, paper=0.342),
        Above("AdvBN, AdvBN images", "standard, AdvBN images", paper=0.031),
        Above("AdvBN, AdvBN images", "tuned alike, no perturbation, AdvBN images"),
    ],
    networks=[STANDARD, ADVBN, EQUAL, RANDOM, PAINTER], version=2,
    changed="batches of AdvBN images are sorted by class, as in the paper",
)  # fmt: skip
def perturbed_images(bench: Bench) -> dict[str, float]:
    """Measure accuracy on AdvBN images and on reconstructed images; "far more" is more than 0.1.

    Batches are of 32 images, sorted by class. Fine-tuned networks use their auxiliary branch, as in the
    paper; AdvBN's main branch is a further row.
    """
    sets = {"reconstructed": painted(bench, True), "AdvBN images": painted(bench, False)}
    rows: dict[str, float] = {}
    branches = {name: (net, state and AUX) for name, (net, state) in SUBJECTS.items()}
    branches["AdvBN, main branch"] = (ADVBN, MAIN)
    for name, (net, state) in branches.items():
        rows |= {f"{name}, {kind}": on_images(bench, net, images, state) for kind, images in sets.items()}
    return rows


STEPS = (3, 4, 5, 6, 7, 8)


@claim(
    "ADV-6",
    "The cost of training grows linearly in the PGD steps m, and falls as the AdvBN layer moves deeper",
    figures={"m = 3 ... 8": "30 36 43 48 53 59 h", "conv2_3, conv3_4, conv4_6": "48 31 15 h"},
    tests=[
        Close("cost of the last step over that of the first", 1.0, margin=0.05),
        Above("m = 8", "m = 3", effect=0.1),
        Above("after stage 1", "after stage 2", effect=0.1),
    ],
    networks=[STANDARD],
)  # fmt: skip
def cost(bench: Bench) -> dict[str, float]:
    """Measure the operations of a step relative to a standard step; times would not be reproducible."""
    model, batch = bench.network(STANDARD), next(bench.batches(bench.images("train", 32), 32))
    stages = (1, 2, 3) if bench.scale.name == "paper" else (1, 2)
    tried = {f"m = {m}": train.AdvBN(steps=m) for m in STEPS}
    tried |= {f"after stage {n}": train.AdvBN(cut=f"layer{n}") for n in stages}
    plain = operations(train.Standard(), model, batch)
    rows = {name: operations(objective, model, batch) / plain for name, objective in tried.items()}
    first, last = rows["m = 4"] - rows["m = 3"], rows["m = 8"] - rows["m = 7"]
    return rows | {"cost of the last step over that of the first": last / first}
