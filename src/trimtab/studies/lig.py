"""Usefulness, robustness and LIGS: "Batch normalisation increases adversarial vulnerability" (CIFAR-10).

PGD: l2 of 0.25, 20 steps of 2.5 eps / 20; CW is the same with Carlini and Wagner's margin. LIGS is the mean
cosine of the input gradients at x and at x + nu, nu ~ N(0, .01^2). "none" is the same network with nothing in
place of its norm layers, at the same learning rate; in ResNets, whose convolutions have no biases, that
leaves none, as in the paper. Numbers over training are noted after every epoch.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import fmean
from typing import Any

import torch
from torch import nn

from trimtab import attacks, construct, measure
from trimtab.attacks import CW, FGSM, L2, PGD, Linf
from trimtab.data import Images
from trimtab.evaluate import PerBatch
from trimtab.studies import corruption
from trimtab.studies.bench import Bench
from trimtab.studies.claim import claim
from trimtab.studies.nets import Made, Net, Watch
from trimtab.studies.scales import Scale
from trimtab.studies.verdicts import Above, Close, Needs
from trimtab.train.watch import Callback, Event

NORMS = {"BN": "bn", "IN": "in", "LN": "ln", "GN": "gn"}
VGG = {"smoke": "net:vgg11,width=4", "laptop": "net:vgg11,width=16", "paper": "net:vgg16"}
EPS = L2(0.25)
LEAST = 0.25
"""A network that has learnt less than this (chance: 0.1) tells nothing of what its norm layers do."""
LARGEST = 1e6
"""Where a walk leaves all bounds, its numbers are cut here."""


def ligs_over_training(bench: Bench) -> Callback:
    """After every epoch: accuracy and LIGS on test images."""
    return measure.usefulness(bench.images("test", bench.scale.watched), seed=bench.seed)


def over_training(bench: Bench) -> Callback:
    """After every epoch: accuracy and LIGS on test images, the landscape along a step on a training batch."""
    look = ligs_over_training(bench)
    batch = next(iter(bench.images("train", 128).batches(128)))

    def told(event: Event) -> dict[str, float] | None:
        if event.kind != "epoch":
            return None
        x, y, _ = batch.beside(event.model)
        found = measure.landscape(event.model, x, y)
        low, high = found.loss_range
        walked = {"loss range": high - low, "gradient change": found.gradient_change, "beta": found.beta}
        bounded = {name: min(value, LARGEST) if value == value else LARGEST for name, value in walked.items()}
        return {**(look(event) or {}), **bounded}

    return told


@cache
def standard(
    norm: str = "bn", family: str = "resnet", watch: Watch | None = over_training, **arguments: Any
) -> Net:
    """Standard training of a ResNet or VGG with one kind of normalisation."""

    def model(scale: Scale) -> str:
        named = {} if norm == "bn" else {"norm": norm}
        given = "".join(f",{key}={value}" for key, value in {**named, **arguments}.items())
        return (scale.network if family == "resnet" else VGG[scale.name]) + given

    return Net("lig-resnet50-paper", {"model": model}, watch=watch)


def tuned(**changes: Any) -> Net:
    return Net("lig-resnet50-paper", {key.replace("__", "."): value for key, value in changes.items()})


BN, NONE = standard(), standard("none")
ADV_BN = Net("lig-adversarial-paper", watch=over_training)
ADV_NONE = Net("lig-adversarial-paper", {"model": lambda s: f"{s.network},norm=none"}, watch=over_training)


def pgd(bench: Bench) -> PGD:
    return PGD(EPS, steps=bench.scale.steps)


def ligs(bench: Bench, net: Net, probe: str = "gaussian") -> float:
    """Averaged over test images; an image without a gradient has none."""
    total, model = measure.Average(), bench.network(net)
    for x, y, ids in bench.batches(bench.images("test", bench.scale.watched), 250):
        total += measure.Average.of(measure.ligs(model, x, y, probe, seed=bench.seed, ids=ids))
    return total.mean


@claim(
    "LIG-1",
    "BN raises clean accuracy and lowers PGD and CW accuracy, for VGG and for ResNet, on CIFAR-10 (the paper "
    "also has SVHN and ImageNet: not tested)",
    figures={
        "VGG, none": "91.89 clean, 34.01 PGD l2 (VGG16, CIFAR-10)", "VGG, BN": "93.7 clean, 28.61 PGD l2",
    },
    tests=[
        test
        for family in ("VGG", "ResNet")
        for test in (
            Above(f"{family} BN, clean", f"{family} none, clean", effect=0.005),
            Above(f"{family} none, PGD", f"{family} BN, PGD"),
            Above(f"{family} none, CW", f"{family} BN, CW"),
        )
    ],
    networks=[standard(norm, family) for family in ("vgg", "resnet") for norm in ("bn", "none")],
    needs=[Needs("VGG none, clean", LEAST), Needs("ResNet none, clean", LEAST)], headline=True, minutes=3,
)  # fmt: skip
def vulnerability(bench: Bench) -> dict[str, float]:
    rows: dict[str, float] = {}
    steps = bench.scale.steps
    tried = {
        "PGD": pgd(bench),
        "CW": CW(EPS, steps=steps),
        "PGD l_inf 1/255": PGD(Linf("1/255"), steps=steps),
    }
    for family in ("VGG", "ResNet"):
        for name, norm in {"BN": "bn", "none": "none"}.items():
            model = bench.network(standard(norm, family.lower()))
            rows[f"{family} {name}, clean"] = bench.accuracy(model)
            rows |= {f"{family} {name}, {way}": bench.accuracy(model, one) for way, one in tried.items()}
    return rows


@claim(
    "LIG-2",
    "IN, LN and GN do the same as BN, and IN is usually the least robust",
    figures={"all": "table 2: 3 networks, 4 norms, SVHN, CIFAR-10 and ImageNet"},
    tests=[
        *(Above("none, PGD", f"{name}, PGD") for name in ("IN", "LN", "GN")),
        *(Above(f"{name}, clean", "none, clean", effect=0.005) for name in ("IN", "LN", "GN")),
        *(Above(f"{name}, PGD", "IN, PGD") for name in ("BN", "LN", "GN")),
    ],
    networks=[standard(norm) for norm in ("none", *NORMS.values())], needs=[Needs("none, clean", LEAST)],
    minutes=2,
)  # fmt: skip
def other_norms(bench: Bench) -> dict[str, float]:
    rows: dict[str, float] = {}
    for name, norm in {"none": "none", **NORMS}.items():
        model = bench.network(standard(norm))
        rows |= {f"{name}, clean": bench.accuracy(model), f"{name}, PGD": bench.accuracy(model, pgd(bench))}
        rows[f"{name}, CW"] = bench.accuracy(model, CW(EPS, steps=bench.scale.steps))
    return rows


@claim(
    "LIG-3",
    "Under FGSM at 4/255 the order is reversed: BN looks more robust",
    figures={"VGG none, FGSM": "23.26", "VGG BN, FGSM": "51.28"},
    tests=[Above("VGG BN, FGSM", "VGG none, FGSM"), Above("ResNet BN, FGSM", "ResNet none, FGSM")],
    networks=[standard(norm, family) for family in ("vgg", "resnet") for norm in ("bn", "none")],
    needs=[Needs("VGG none, clean", LEAST), Needs("ResNet none, clean", LEAST)], minutes=0.5,
)  # fmt: skip
def single_step(bench: Bench) -> dict[str, float]:
    rows: dict[str, float] = {}
    four = Linf("4/255")
    for family in ("VGG", "ResNet"):
        for name, norm in {"BN": "bn", "none": "none"}.items():
            model = bench.network(standard(norm, family.lower()))
            rows[f"{family} {name}, clean"] = bench.accuracy(model)
            rows[f"{family} {name}, FGSM"] = bench.accuracy(model, FGSM(four))
            rows[f"{family} {name}, PGD 4/255"] = bench.accuracy(model, PGD(four, steps=bench.scale.steps))
    return rows


LOW = ("fog", "contrast")


@claim(
    "LIG-4",
    "Under corruptions a network without normalisation is better on noise and worse on fog and contrast, "
    "adversarial training mirrors it, and BN is the worst of the norms",
    figures={"all": "figure 1 and section 5: no numbers"},
    tests=[
        Above("none, kept under noise", "BN, kept under noise"),
        Above("BN, kept under fog and contrast", "none, kept under fog and contrast"),
        Above("adversarially trained, kept under noise", "BN, kept under noise"),
        Above("BN, kept under fog and contrast", "adversarially trained, kept under fog and contrast"),
        *(
            Above(f"{name}, kept under all corruptions", "BN, kept under all corruptions")
            for name in ("IN", "LN", "GN")
        ),
    ],
    networks=[*(standard(norm) for norm in ("none", *NORMS.values())), ADV_BN],
    needs=[Needs("none, clean", LEAST), Needs("adversarially trained, clean", LEAST)], minutes=4,
)  # fmt: skip
def corruptions(bench: Bench) -> dict[str, float]:
    """Judged by the share of its clean accuracy that a network keeps: the paper's networks have learnt alike,
    small ones have not, and the plain accuracy of the less learnt would tell of that alone."""
    nets = {name: standard(norm) for name, norm in {"none": "none", **NORMS}.items()}
    rows: dict[str, float] = {}
    for name, net in {**nets, "adversarially trained": ADV_BN}.items():
        found = corruption.errors(bench, bench.network(net))
        for group, members in {
            "noise": corruption.NOISE,
            "fog and contrast": LOW,
            "all corruptions": None,
        }.items():
            rows[f"{name}, {group}"] = 1 - corruption.mean_error(found, members)
            rows[f"{name}, kept under {group}"] = rows[f"{name}, {group}"] / (1 - found["clean"])
        rows[f"{name}, clean"] = 1 - found["clean"]
    return rows


@claim(
    "LIG-5",
    "Features extracted from un-normalised networks transfer better, and those of robust networks best",
    figures={"all": "table 3: 8 sources, 8 targets"},
    tests=[
        Above("from none", "from BN", effect=0.02),
        Above("from adversarially trained", "from none", effect=0.02),
    ],
    networks=[BN, NONE, ADV_BN, standard("bn", "vgg"), standard("none", "vgg")],
    needs=[
        Needs("none, clean", LEAST), Needs("VGG none, clean", LEAST),
        Needs("from adversarially trained", LEAST),  # where nobody reads anything, nothing transfers better
    ], minutes=3, version=2,
)  # fmt: skip
def transfer(bench: Bench) -> dict[str, float]:
    """Targets are of the other family, so that no source reads its own features."""
    sources = {"BN": BN, "none": NONE, "adversarially trained": ADV_BN}
    targets = {"VGG BN": standard("bn", "vgg"), "VGG none": standard("none", "vgg")}
    features = construct.FeatureMatch(bench.scale.match_steps, bench.scale.match_step)
    bench.uses(features)
    found = construct.transfer(
        {name: bench.network(net) for name, net in sources.items()},
        {name: bench.network(net) for name, net in targets.items()},
        bench.images("test", bench.scale.attacked),
        features,
        seed=bench.seed,
    )
    rows = {f"from {row['source']} to {row['target']}": float(row["accuracy"]) for row in found}
    for name, net in {**sources, **targets}.items():
        rows[f"{name}, clean"] = bench.accuracy(bench.network(net))
    return {f"from {s}": fmean(rows[f"from {s} to {t}"] for t in targets) for s in sources} | rows


@claim(
    "LIG-6",
    "LIGS falls during standard training and is lower with BN, IN, LN and GN, whatever the probe",
    figures={"all": "figures 2, 4, 10, 11: only curves are printed"},
    tests=[
        Above("BN, after the first epoch", "BN, gaussian", effect=0.02),
        *(Above("none, gaussian", f"{name}, gaussian", effect=0.02) for name in NORMS),
        *(Above(f"none, {probe}", f"BN, {probe}", effect=0.02) for probe in ("uniform", "fgsm", "pgd")),
    ],
    networks=[standard(norm) for norm in ("none", *NORMS.values())], needs=[Needs("none, clean", LEAST)],
    headline=True, minutes=1,
)  # fmt: skip
def similarity(bench: Bench) -> dict[str, float]:
    rows: dict[str, float] = {}
    for name, norm in {"none": "none", **NORMS}.items():
        net = standard(norm)
        rows |= {f"{name}, {probe}": ligs(bench, net, probe) for probe in measure.PROBES}
        rows[f"{name}, after the first epoch"] = bench.history(net)[0]["ligs"]
        rows[f"{name}, clean"] = bench.accuracy(bench.network(net))
    return rows


@claim(
    "LIG-7",
    "Under adversarial training LIGS stays near 1 and BN has little influence",
    figures={"all": "figure 4: only curves are printed"},
    tests=[
        Close("adversarial, BN, lowest over training", 1.0, margin=0.05),
        Above("adversarial, BN", "standard, BN", effect=0.02),
        Close("adversarial, BN", "adversarial, none", margin=0.025),
    ],
    networks=[ADV_BN, ADV_NONE, BN, NONE],
    needs=[Needs(f"{name}, clean", LEAST) for name in ("adversarial, BN", "adversarial, none")], minutes=0.3,
)  # fmt: skip
def under_adversarial_training(bench: Bench) -> dict[str, float]:
    """Near: nearer than standard training here (0.92). Little: half of what BN takes there (0.05)."""
    nets = {
        "adversarial, BN": ADV_BN,
        "adversarial, none": ADV_NONE,
        "standard, BN": BN,
        "standard, none": NONE,
    }
    rows = {name: ligs(bench, net) for name, net in nets.items()}
    rows |= {f"{name}, clean": bench.accuracy(bench.network(net)) for name, net in nets.items()}
    return rows | {
        f"{name}, lowest over training": min(e["ligs"] for e in bench.history(net))
        for name, net in nets.items()
    }


REGULARISED = Net("lig-regulariser-paper", watch=over_training)
PLAIN = Net("lig-regulariser-paper", {"objective": {"kind": "standard"}}, watch=over_training)


@claim(
    "LIG-8",
    "Regularising LIGS raises robust accuracy a lot and hardly changes clean accuracy",
    figures={"all": "figure 5: only curves are printed"},
    tests=[
        Above("regularised, PGD", "standard, PGD", by=0.05, effect=0.0),
        Close("regularised, clean", "standard, clean", margin=0.05),
    ],
    networks=[REGULARISED, PLAIN], needs=[Needs("standard, clean", LEAST)], headline=True, minutes=1.5,
)  # fmt: skip
def regulariser(bench: Bench) -> dict[str, float]:
    """A lot: more than 0.05. The paper does not state the regulariser: 1 - LIGS with weight 1 is ours."""
    rows: dict[str, float] = {}
    for name, net in {"regularised": REGULARISED, "standard": PLAIN}.items():
        model = bench.network(net)
        rows |= {f"{name}, clean": bench.accuracy(model), f"{name}, PGD": bench.accuracy(model, pgd(bench))}
        rows |= {
            f"{name}, LIGS": ligs(bench, net),
            f"{name}, FGSM 1/255": bench.accuracy(model, FGSM(Linf("1/255"))),
        }
        rows[f"{name}, CW"] = bench.accuracy(model, CW(EPS, steps=bench.scale.steps))
    return rows


D_R, D_NR, D_RAND = Made("D_R", ADV_BN), Made("D_NR", BN), Made("D_rand", BN)
D_CONFLICT = Made("D_conflict", BN, of=D_R)


def on(made: Made, norm: str = "bn", watch: Watch = ligs_over_training, **changes: Any) -> Net:
    """Trained on a constructed set, longer where that is small, and from other weights than the network that
    made it: a twin could read what no other network can."""
    more: dict[str, Any] = {
        "epochs": lambda s: {"smoke": 2, "laptop": 30}.get(s.name),
        "data.images": lambda s: s.made,
        **changes,
    }
    if norm != "bn":
        more["model"] = lambda s: f"{s.network},norm={norm}"
    return Net("lig-constructed-paper", more, data=made, watch=watch, draw=1)


def read(bench: Bench, made: Made) -> float:
    """How often the source says of a constructed image what it says of the one whose features it took."""
    model, n = bench.network(made.source), bench.scale.attacked
    sets = [bench.made(made).subset(slice(0, n)), bench.images("train", n)]
    with attacks.guard(model), torch.no_grad():
        pairs = zip(*(bench.batches(images, 250) for images in sets), strict=True)
        agree = [model(shown.x).argmax(1) == model(meant.x).argmax(1) for shown, meant in pairs]
    return float(torch.cat(agree).double().mean())


READ = 0.7
"""A set is made if its source reads at least so many of its images as meant."""


ON = {
    "D_R": on(D_R), "D_NR": on(D_NR), "D_rand": on(D_RAND),
    "D_rand, none": on(D_RAND, "none"), "D_NR, none": on(D_NR, "none"),
}  # fmt: skip


@claim(
    "LIG-9",
    "Trained on robust features (D_R) LIGS is above 0.9, on non-robust ones (D_rand) it ends very low, on "
    "D_NR between; without BN D_rand does not train",
    figures={
        "all": "figures 6, 12: only curves", "D_R, clean": "86.8 (and 49.9 under PGD)",
        "D_NR, clean": "84.4 (0)", "D_rand, clean": "67.8 (0)",
    },
    tests=[
        Above("D_R, LIGS", 0.9, effect=0.0),
        Above("D_R, LIGS", "D_NR, LIGS", effect=0.02),
        Above("D_NR, LIGS", "D_rand, LIGS", effect=0.02),
        Close("D_rand, none, clean", 0.1, margin=0.05),
        Above("D_rand, clean", "D_rand, none, clean", effect=0.02),
    ],
    networks=[ADV_BN, BN, NONE, *ON.values()],
    needs=[
        *(Needs(f"{name}, read by its source", READ) for name in ("D_R", "D_NR")),
        Needs("none, clean", LEAST), Needs("D_R, clean", 0.2), Needs("D_NR, clean", 0.2),
        Needs("D_rand, clean", 0.15),
        Needs("D_NR, none, clean", 0.2),  # the control: without BN other such sets do train
    ],
    headline=True, minutes=11,  # of which 10 make the sets
)  # fmt: skip
def constructed(bench: Bench) -> dict[str, float]:
    rows = {"none, clean": bench.accuracy(bench.network(NONE))}
    rows |= {f"{made.kind}, read by its source": read(bench, made) for made in (D_R, D_NR)}
    for name, net in ON.items():
        model, history = bench.network(net), [epoch["ligs"] for epoch in bench.history(net)]
        rows |= {f"{name}, LIGS": ligs(bench, net), f"{name}, clean": bench.accuracy(model)}
        rows[f"{name}, PGD"] = bench.accuracy(model, pgd(bench))
        rows[f"{name}, LIGS after the first epoch"] = history[0]
        rows[f"{name}, highest LIGS over training"] = max(history)
    return rows


KINDS = ("robust-aligned", "non-robust-aligned")


def alignment(model: nn.Module, images: Images) -> dict[str, float]:
    """Accuracy against y + 1 (what robust cues were taught as) and against y."""
    robust = other = n = 0
    with attacks.guard(model), torch.no_grad():
        for x, y, _ in (batch.beside(model) for batch in images.batches(250)):
            says = model(x).argmax(1)
            robust += int((says == (y + 1) % len(images.classes)).sum())
            other += int((says == y).sum())
            n += len(y)
    return dict(zip(KINDS, (robust / n, other / n), strict=True))


def aligned(bench: Bench) -> Callback:
    """After every epoch: alignment on test images."""
    images = bench.images("test", bench.scale.watched)
    return lambda event: alignment(event.model, images) if event.kind == "epoch" else None


AS_STATED = {"data.augment": [], "optimiser.lr": lambda s: None if s.name == "smoke" else 0.1}
"""D_conflict is learnt without augmentation and, at paper scale, at another rate than the other sets."""
CONFLICT = {
    "BN": on(D_CONFLICT, "bn", aligned, **AS_STATED),
    "none": on(D_CONFLICT, "none", aligned, **AS_STATED),
}


@claim(
    "LIG-10",
    "On conflicting data (robust cues say t, non-robust cues t + 1) a BN network learns the robust ones "
    "first and then forgets them; without BN it keeps to them",
    figures={"all": "figures 7, 13: only curves are printed"},
    tests=[
        Above("BN, early, robust-aligned", "BN, early, non-robust-aligned", effect=0.02),
        Above("BN, early, robust-aligned", "BN, at the end, robust-aligned", effect=0.02),
        Above("BN, at the end, non-robust-aligned", "BN, at the end, robust-aligned", effect=0.02),
        Above("none, at the end, robust-aligned", "none, at the end, non-robust-aligned", effect=0.02),
    ],
    networks=[ADV_BN, BN, *CONFLICT.values()], minutes=2,
    needs=[*(Needs(f"{name}, learnt", 0.2) for name in CONFLICT), Needs("D_R, read by its source", READ)],
)  # fmt: skip
def conflict(bench: Bench) -> dict[str, float]:
    """Labels of the set are t + 1. Early: the whole first third of training, so that no peak is picked."""
    rows = {"D_R, read by its source": read(bench, D_R)}
    for name, net in CONFLICT.items():
        history = bench.history(net)
        early = history[: math.ceil(len(history) / 3)]
        end = alignment(bench.network(net), bench.images("test", bench.scale.test))
        for kind in KINDS:
            rows[f"{name}, early, {kind}"] = fmean(epoch[kind] for epoch in early)
            rows[f"{name}, at the end, {kind}"] = end[kind]
        rows[f"{name}, learnt"] = max(max(epoch[kind] for epoch in history) for kind in KINDS)
    return rows


NARROW = {
    "smoke": "net:resnet8,width=2",
    "laptop": "net:resnet8,width=8",
    "paper": "net:resnet50_cifar,width=32",
}
VARIANTS = {
    "narrower": lambda s: tuned(model=NARROW[s.name]),
    "deeper": lambda s: tuned(model=s.deeper[-1]),
    "leaky ReLU": lambda s: standard(watch=None, activation="leaky"),
    "SELU": lambda s: standard(watch=None, activation="selu"),
    "no weight decay": lambda s: tuned(optimiser__weight_decay=0.0),
    "a third of the rate": lambda s: tuned(optimiser__lr={"smoke": 0.007}.get(s.name, 0.033)),
    "Adam": lambda s: tuned(optimiser__kind="adam", optimiser__lr=0.003, optimiser__weight_decay=5e-4),
    "Adagrad": lambda s: tuned(optimiser__kind="adagrad", optimiser__lr=0.03, optimiser__weight_decay=5e-4),
}


@claim(
    "LIG-11",
    "Width, depth, activation, weight decay, learning rate and optimiser move LIGS little",
    figures={"all": "figure 8: only curves are printed"},
    tests=[Close(f"{name}, LIGS", "as it is, LIGS", margin=0.05) for name in VARIANTS],
    networks=lambda s: [BN, NONE, *(variant(s) for variant in VARIANTS.values())],
    needs=[
        Needs("LIGS that BN takes", 0.05),
        *(Needs(f"{name}, clean", LEAST) for name in ("as it is", *VARIANTS)),
    ],
    minutes=0.6,
)  # fmt: skip
def other_factors(bench: Bench) -> dict[str, float]:
    """Little: less than what BN itself takes."""
    nets = {"as it is": BN, **{name: variant(bench.scale) for name, variant in VARIANTS.items()}}
    taken = {"LIGS that BN takes": ligs(bench, NONE) - ligs(bench, BN)}
    rows = {f"{name}, LIGS": ligs(bench, net) for name, net in nets.items()}
    return {**taken, **rows} | {
        f"{name}, clean": bench.accuracy(bench.network(net)) for name, net in nets.items()
    }


SHORTCUTS = {"BN without shortcuts": standard(shortcut=False), "Fixup": standard("fixup")}


@claim(
    "LIG-12",
    "Shortcuts hardly matter; Fixup trains as well as BN, with a higher LIGS and less stable gradients",
    figures={"all": "figures 9, 17: only curves are printed"},
    tests=[
        Close("BN without shortcuts, LIGS", "BN, LIGS", margin=0.1),
        Close("Fixup, clean", "BN, clean", margin=0.05),
        Above("Fixup, LIGS", "BN, LIGS", effect=0.02),
        Above("Fixup, gradient change", "BN, gradient change"),
    ],
    networks=[BN, NONE, *SHORTCUTS.values()],
    needs=[Needs(f"{name}, clean", LEAST) for name in ("BN", "BN without shortcuts")], minutes=0.4,
)  # fmt: skip
def shortcuts(bench: Bench) -> dict[str, float]:
    rows: dict[str, float] = {}
    for name, net in {"BN": BN, "none": NONE, **SHORTCUTS}.items():
        model = bench.network(net)
        rows |= {f"{name}, LIGS": ligs(bench, net), f"{name}, clean": bench.accuracy(model)}
        rows |= {f"{name}, {what}": value for what, value in landscape_of(bench, net).items()}
        rows[f"{name}, PGD"] = bench.accuracy(model, pgd(bench))
    return rows


@claim(
    "LIG-13",
    "Adapting BN statistics helps a standard network on corrupted images",
    figures={
        "VGG": "71.9 -> 79.4 (VGG-16, CIFAR-10-C)", "ResNet": "73.9 -> 82.3 (ResNet-18)",
    },
    tests=[Above("VGG, adapted", "VGG, static"), Above("ResNet, adapted", "ResNet, static")],
    networks=[BN, standard("bn", "vgg")], minutes=2,
)  # fmt: skip
def adapted(bench: Bench) -> dict[str, float]:
    rows: dict[str, float] = {}
    for name, net in {"VGG": standard("bn", "vgg"), "ResNet": BN}.items():
        for way, state in {"static": None, "adapted": PerBatch()}.items():
            found = corruption.errors(bench, bench.network(net), state)
            rows[f"{name}, {way}"] = 1 - corruption.mean_error(found)
            rows[f"{name}, {way}, clean"] = 1 - found["clean"]
    return rows


def landscape_of(bench: Bench, net: Net) -> dict[str, float]:
    """Averages over training of the logarithms (base 10) of loss range, gradient change and smoothness."""
    history = bench.history(net)
    names = ("loss range", "gradient change", "beta")
    return {name: fmean(math.log10(max(epoch[name], 1e-6)) for epoch in history) for name in names}


@claim(
    "LIG-14",
    "BN smooths the optimisation landscape (loss range, gradient change, smoothness along the step); IN, "
    "LN and GN do so much less",
    figures={"all": "figures 14 to 17: only curves are printed"},
    tests=[
        *(Above(f"none, {what}", f"BN, {what}") for what in ("loss range", "gradient change", "beta")),
        *(Above(f"{name}, beta", "BN, beta") for name in ("IN", "LN", "GN")),
    ],
    networks=[standard(norm) for norm in ("none", *NORMS.values())], minutes=0.1,
)  # fmt: skip
def landscape(bench: Bench) -> dict[str, float]:
    rows: dict[str, float] = {}
    for name, norm in {"none": "none", **NORMS}.items():
        found = landscape_of(bench, standard(norm))
        rows |= {f"{name}, {what}": value for what, value in found.items()}
    return rows
