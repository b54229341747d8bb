"""Usefulness, robustness and LIGS: "Batch normalization increases adversarial vulnerability" (CIFAR-10).

PGD: l2 of 0.25, 20 steps of 2.5 eps / 20; CW is the same with Carlini and Wagner's margin. LIGS is the mean
cosine of the input gradients at x and at x + nu, nu ~ N(0, .01^2). "none" is the same network with nothing in
place of its norm layers, at the same learning rate; ResNets, whose convolutions have no biases, then
have none, as in the paper. Values over training are measured after every epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from statistics import fmean
from typing import Any

import torch
from torch import nn

from trimtab import attacks, construct, measure
from trimtab.attacks import CW, FGSM, L2, PGD, Linf
from trimtab.claims import corruption
from trimtab.claims.bench import Bench
from trimtab.claims.claim import claim
from trimtab.claims.nets import Made, Net, Watch
from trimtab.claims.power import PerImage
from trimtab.claims.scales import DESK, Scale
from trimtab.claims.verdicts import Above, Close, Needs
from trimtab.data import Images
from trimtab.evaluate import PerBatchMode
from trimtab.train import Callback, Event

NORMS = {"BN": "bn", "IN": "in", "LN": "ln", "GN": "gn"}
VGG = {"smoke": "net:vgg11,width=4", "laptop": "net:vgg11,width=16", "paper": "net:vgg16"}
EPS = L2(0.25)
LEAST = 0.25
"""Precondition: smallest accuracy of a trained network (at random: 0.1)."""
LOST = 0.15
"""Precondition: smallest loss of accuracy of a static network under corruptions."""
SIMILAR = 0.1
"""Precondition: largest difference of the clean accuracies of networks whose robustness is compared."""
WALKED = ("loss range", "gradient change", "beta")
"""Measurements of the loss landscape."""
LARGEST = 1e6
"""Upper bound of landscape measurements, which may diverge."""


def ligs_over_training(bench: Bench) -> Callback:
    """Return a callback that measures accuracy and LIGS on test images after every epoch."""
    return measure.usefulness(bench.images("test", bench.scale.watched), seed=bench.seed)


def over_training(bench: Bench) -> Callback:
    """Return a callback that measures accuracy, LIGS and the loss landscape after every epoch."""
    accuracy_and_ligs = ligs_over_training(bench)
    batches = list(bench.images("train", 128 * bench.scale.walked).batches(128))

    def callback(event: Event) -> dict[str, float] | None:
        """Measure after an epoch."""
        if event.kind != "epoch":
            return None
        measured: dict[str, list[float]] = {what: [] for what in WALKED}
        for x, y, _ in (batch.to_model(event.model) for batch in batches):
            landscape = measure.landscape(event.model, x, y)
            low, high = landscape.loss_range
            values = (high - low, landscape.gradient_change, landscape.beta)
            for what, value in zip(WALKED, values, strict=True):
                measured[what].append(LARGEST if math.isnan(value) else min(value, LARGEST))
        return {
            **(accuracy_and_ligs(event) or {}),
            **{what: fmean(values) for what, values in measured.items()},
        }

    return callback


@cache
def standard(
    norm: str = "bn", family: str = "resnet", watch: Watch | None = over_training, **arguments: Any
) -> Net:
    """Return a ResNet or VGG with one kind of normalization, by standard training."""

    def model(scale: Scale) -> str:
        """Return the model's name at a scale."""
        named = {} if norm == "bn" else {"norm": norm}
        given = "".join(f",{key}={value}" for key, value in {**named, **arguments}.items())
        return (scale.network if family == "resnet" else VGG[scale.tables]) + given

    fixup = {"optimizer.small_lr": lambda s: 0.1 if s.name == "paper" else None} if norm == "fixup" else {}
    return Net("lig-resnet50-paper", {"model": model, **fixup}, watch=watch)


def tuned(**changes: Any) -> Net:
    """Return a network of standard training with changed recipe keys (`__` stands for a dot)."""
    return Net("lig-resnet50-paper", {key.replace("__", "."): value for key, value in changes.items()})


BN, NONE = standard(), standard("none")
FAMILIES = {
    f"{family} {name}": standard(norm, family.lower(), watch)
    for family, watch in {"VGG": ligs_over_training, "ResNet": over_training}.items()
    for name, norm in {"BN": "bn", "none": "none"}.items()
}
"""The paper's two families, with and without BN."""
BY_NORM = {"none": NONE, **{name: standard(norm) for name, norm in NORMS.items()}}
"""The same ResNet with each normalization."""
ADV_BN = Net("lig-adversarial-paper", watch=over_training)
ADV_NONE = Net("lig-adversarial-paper", {"model": lambda s: f"{s.network},norm=none"}, watch=over_training)


UNEQUAL = "largest difference of clean accuracies"


def largest_difference(rows: Mapping[str, float]) -> float:
    """Return the largest difference of the clean accuracies among rows."""
    clean = [float(value) for name, value in rows.items() if name.endswith(", clean")]
    return max(clean) - min(clean)


def tried(bench: Bench) -> dict[str, Any]:
    """Return the conditions of the paper: clean, PGD and CW, with the steps of the scale."""
    return {"clean": None, "PGD": PGD(EPS, steps=bench.scale.steps), "CW": CW(EPS, steps=bench.scale.steps)}


def clean_and_pgd(bench: Bench) -> dict[str, Any]:
    """Return the conditions clean and PGD."""
    return {"clean": None, "PGD": PGD(EPS, steps=bench.scale.steps)}


def ligs(bench: Bench, net: Net, probe: str = "gaussian") -> float:
    """Return LIGS averaged over test images; those with a zero gradient count as the mean of the others."""
    model, batches = bench.network(net), bench.batches(bench.images("test", bench.scale.watched), 250)
    similar = torch.cat([measure.ligs(model, x, y, probe, seed=bench.seed, ids=ids) for x, y, ids in batches])
    similar = similar.double().cpu()
    return PerImage(torch.where(similar.isfinite(), similar, similar[similar.isfinite()].mean()))


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
    networks=list(FAMILIES.values()),
    needs=[
        need for family in ("VGG", "ResNet")
        for need in (Needs(f"{family} none, clean", LEAST), Needs(f"{family}, {UNEQUAL}", most=SIMILAR))
    ],
    headline=True, changed="a precondition was added",
)  # fmt: skip
def vulnerability(bench: Bench) -> dict[str, float]:
    """Measure clean and robust accuracy with and without BN."""
    l_inf = PGD(Linf("1/255"), steps=bench.scale.steps)
    rows = bench.table(FAMILIES, {**tried(bench), "PGD l_inf 1/255": l_inf})
    for family in ("VGG", "ResNet"):
        of_family = {name: value for name, value in rows.items() if name.startswith(family)}
        rows[f"{family}, {UNEQUAL}"] = largest_difference(of_family)
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
    networks=list(BY_NORM.values()),
    needs=[Needs("none, clean", LEAST), Needs(UNEQUAL, most=SIMILAR)], changed="a precondition was added",
)  # fmt: skip
def other_norms(bench: Bench) -> dict[str, float]:
    """Measure clean and robust accuracy with each normalization."""
    rows = bench.table(BY_NORM, tried(bench))
    return rows | {UNEQUAL: largest_difference(rows)}


@claim(
    "LIG-3",
    "Under FGSM at 4/255 the order is reversed: BN looks more robust",
    figures={"VGG none, FGSM": "23.26", "VGG BN, FGSM": "51.28"},
    tests=[Above("VGG BN, FGSM", "VGG none, FGSM"), Above("ResNet BN, FGSM", "ResNet none, FGSM")],
    networks=list(FAMILIES.values()),
    needs=[Needs("VGG none, clean", LEAST), Needs("ResNet none, clean", LEAST)],
)  # fmt: skip
def single_step(bench: Bench) -> dict[str, float]:
    """Measure accuracy under FGSM and PGD at 4/255."""
    four = Linf("4/255")
    several = PGD(four, steps=bench.scale.steps)
    return bench.table(FAMILIES, {"clean": None, "FGSM": FGSM(four), "PGD 4/255": several})


LOW = ("fog", "contrast")


@claim(
    "LIG-4",
    "Under corruptions a network without normalization is better on noise and worse on fog and contrast, "
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
    networks=[*BY_NORM.values(), ADV_BN],
    needs=[Needs("none, clean", LEAST), Needs("adversarially trained, clean", LEAST)],
)  # fmt: skip
def corruptions(bench: Bench) -> dict[str, float]:
    """Measure the fraction of clean accuracy that is kept under corruptions.

    The paper's networks have similar clean accuracies, small ones do not; plain accuracy would reflect that.
    """
    groups = {"noise": corruption.NOISE, "fog and contrast": LOW, "all corruptions": None}
    rows: dict[str, float] = {}
    for name, net in {**BY_NORM, "adversarially trained": ADV_BN}.items():
        errors = corruption.errors(bench, bench.network(net))
        for group, members in groups.items():
            rows[f"{name}, {group}"] = 1 - corruption.mean_error(errors, members)
            rows[f"{name}, kept under {group}"] = rows[f"{name}, {group}"] / (1 - errors["clean"])
        rows[f"{name}, clean"] = 1 - errors["clean"]
    return rows


@claim(
    "LIG-5",
    "Features extracted from un-normalized networks transfer better, and those of robust networks best",
    figures={"all": "table 3: 8 sources, 8 targets"},
    tests=[
        Above("from none", "from BN", effect=0.02),
        Above("from adversarially trained", "from none", effect=0.02),
    ],
    networks=[BN, NONE, ADV_BN, FAMILIES["VGG BN"], FAMILIES["VGG none"]],
    needs=[
        Needs("none, clean", LEAST), Needs("VGG none, clean", LEAST),
        Needs("from adversarially trained", LEAST),  # where no features transfer, none transfer better
    ], version=3,
    changed="targets were scored against true labels; they are scored against the source's predictions",
)  # fmt: skip
def transfer(bench: Bench) -> dict[str, float]:
    """Measure how often targets agree with the source's own prediction on the images that it constructed.

    Targets are of the other family, so that no source is its own target.
    """
    sources = {"BN": BN, "none": NONE, "adversarially trained": ADV_BN}
    targets = {name: FAMILIES[name] for name in ("VGG BN", "VGG none")}
    features = construct.FeatureMatch(bench.scale.match_steps, bench.scale.match_step, label="network")
    bench.uses(features)
    table = construct.transfer(
        {name: bench.network(net) for name, net in sources.items()},
        {name: bench.network(net) for name, net in targets.items()},
        bench.images("test", bench.scale.attacked),
        features,
        seed=bench.seed,
    )
    rows = {f"from {row['source']} to {row['target']}": float(row["accuracy"]) for row in table}
    means = {f"from {s}": fmean(rows[f"from {s} to {t}"] for t in targets) for s in sources}
    return means | rows | bench.table({**sources, **targets}, {"clean": None})


@claim(
    "LIG-6",
    "LIGS falls during standard training and is lower with BN, IN, LN and GN, whatever the probe",
    figures={"all": "figures 2, 4, 10, 11: only curves are printed"},
    tests=[
        Above("BN, after the first epoch", "BN, gaussian", effect=0.02),
        *(Above("none, gaussian", f"{name}, gaussian", effect=0.02) for name in NORMS),
        *(Above(f"none, {probe}", f"BN, {probe}", effect=0.02) for probe in ("uniform", "fgsm", "pgd")),
    ],
    networks=list(BY_NORM.values()),
    needs=[Needs("none, clean", LEAST), Needs(UNEQUAL, most=SIMILAR)], headline=True,
    changed="FGSM and PGD probes were clipped, and PGD started at random; the paper does neither; a "
    "precondition was added",
)  # fmt: skip
def similarity(bench: Bench) -> dict[str, float]:
    """Measure LIGS with each normalization and probe."""
    rows: dict[str, float] = {}
    for name, net in BY_NORM.items():
        rows |= {f"{name}, {probe}": ligs(bench, net, probe) for probe in measure.PROBES}
        rows[f"{name}, after the first epoch"] = bench.history(net)[0]["ligs"]
    rows |= bench.table(BY_NORM, {"clean": None})
    for name in NORMS:
        rows |= at_equal_accuracy(bench, name)
    return rows | {UNEQUAL: largest_difference(rows)}


def at_equal_accuracy(bench: Bench, name: str) -> dict[str, float]:
    """Return LIGS with and without a norm at the epochs where both are as accurate as the worse one ends."""
    histories = {which: bench.history(BY_NORM[which]) for which in ("none", name)}
    target = min(history[-1]["usefulness"] for history in histories.values())
    rows: dict[str, float] = {}
    for which, history in histories.items():
        nearest = min(history, key=lambda epoch: abs(epoch["usefulness"] - target))
        rows[f"{which}, LIGS where none and {name} are equally accurate"] = nearest["ligs"]
    return rows


@claim(
    "LIG-7",
    "Under adversarial training LIGS stays near 1 and BN has little influence",
    figures={"all": "figure 4: only curves are printed"},
    tests=[
        Close("adversarial, BN, lowest over training", 1.0, margin=0.05),
        Above("adversarial, BN", "standard, BN", effect=0.02),
        Close("adversarial, BN", "adversarial, none", margin=0.025),
        Close("adversarial, BN, PGD", "adversarial, none, PGD", margin=0.05),
    ],
    networks=[ADV_BN, ADV_NONE, BN, NONE],
    needs=[
        Needs(f"adversarial, {norm}, {what}", LEAST) for norm in ("BN", "none") for what in ("clean", "PGD")
    ], version=2,
    changed="robust accuracy is measured, too: the paper says that BN does not influence it",
)  # fmt: skip
def under_adversarial_training(bench: Bench) -> dict[str, float]:
    """Measure LIGS and robust accuracy under adversarial training.

    "Near" is nearer than standard training here (0.92). "Little" is half of BN's effect on LIGS in standard
    training (0.05), and less than 0.05 of robust accuracy; the paper states both for figure 4.
    """
    nets = {
        "adversarial, BN": ADV_BN,
        "adversarial, none": ADV_NONE,
        "standard, BN": BN,
        "standard, none": NONE,
    }
    rows = {name: ligs(bench, net) for name, net in nets.items()}
    rows |= bench.table(nets, clean_and_pgd(bench))
    for name, net in nets.items():
        rows[f"{name}, lowest over training"] = min(epoch["ligs"] for epoch in bench.history(net))
    return rows


REGULARIZED = Net("lig-regularizer-paper", watch=ligs_over_training)
REGULARIZED_3 = Net("lig-regularizer-paper", {"objective.weight": 3.0}, watch=ligs_over_training)
PLAIN = Net("lig-regularizer-paper", {"objective": {"kind": "standard"}}, watch=over_training)


def weights(scale: Scale) -> dict[str, Net]:
    """Return networks with and without the regularizer; at scale desk also of another weight."""
    more = {"regularized, weight 3": REGULARIZED_3} if scale.name == "desk" else {}
    return {"regularized": REGULARIZED, "standard": PLAIN, **more}


@claim(
    "LIG-8",
    "Regularizing LIGS raises robust accuracy a lot and hardly changes clean accuracy",
    figures={"all": "figure 5: only curves are printed"},
    tests=[
        Above("regularized, PGD", "standard, PGD", by=0.05, effect=0.0),
        Close("regularized, clean", "standard, clean", margin=0.05),
    ],
    networks=lambda s: list(weights(s).values()), needs=[Needs("standard, clean", LEAST)], headline=True,
)  # fmt: skip
def regularizer(bench: Bench) -> dict[str, float]:
    """Measure the regularizer 1 - LIGS; "a lot" is more than 0.05.

    The paper states no weight: weight 1 is tested, another one is context.
    """
    nets = weights(bench.scale)
    rows = bench.table(nets, {**tried(bench), "FGSM 1/255": FGSM(Linf("1/255"))})
    return rows | {f"{name}, LIGS": ligs(bench, net) for name, net in nets.items()}


STUDENT = "net:resnet18_cifar"
"""What the paper trains on constructed sets."""
D_R, D_NR, D_RAND = Made("D_R", ADV_BN), Made("D_NR", BN), Made("D_rand", BN)
D_CONFLICT = Made("D_conflict", BN, of=D_R)


def on(made: Made, norm: str = "bn", watch: Watch = ligs_over_training, **changes: Any) -> Net:
    """Return a network trained on a constructed set, longer where that is small.

    Its initial weights differ from those of the network that constructed the set, which could otherwise
    recognize features that no other network can.
    """
    more: dict[str, Any] = {
        "epochs": lambda s: {"smoke": 2, "laptop": 30}.get(s.tables),
        "data.images": lambda s: s.made,
        **changes,
    }
    if norm != "bn":
        more["model"] = lambda s: f"{STUDENT if s.name == 'paper' else s.network},norm={norm}"
    return Net("lig-constructed-paper", more, data=made, watch=watch, draw=1)


def read(bench: Bench, made: Made) -> float:
    """Return how often the source predicts the same for a constructed image and for its reference image."""
    model, n = bench.network(made.source), bench.scale.attacked
    both = [bench.made(made).subset(slice(0, n)), bench.images("train", n)]
    with attacks.guard(model), torch.no_grad():
        pairs = zip(*(bench.batches(images, 250) for images in both), strict=True)
        agree = [model(made.x).argmax(1) == model(reference.x).argmax(1) for made, reference in pairs]
    return float(torch.cat(agree).double().mean())


VERY_LOW = 0.3
"""LIGS below this is "very low": a third of the 0.9 that is claimed for D_R."""
READ = 0.7
"""Precondition: least agreement of the source on constructed and reference images."""


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
        Above(VERY_LOW, "D_rand, LIGS", effect=0.0),
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
    headline=True,
    changed="an absolute test of a very low LIGS on D_rand was added; D_R starts from images of other labels",
)  # fmt: skip
def constructed(bench: Bench) -> dict[str, float]:
    """Measure LIGS and accuracy of networks trained on constructed sets."""
    rows = bench.table({"none": NONE}, {"clean": None}) | bench.table(ON, clean_and_pgd(bench))
    rows |= {f"{made.kind}, read by its source": read(bench, made) for made in (D_R, D_NR)}
    for name, net in ON.items():
        history = [epoch["ligs"] for epoch in bench.history(net)]
        rows[f"{name}, LIGS"] = ligs(bench, net)
        rows[f"{name}, LIGS after the first epoch"] = history[0]
        rows[f"{name}, highest LIGS over training"] = max(history)
    return rows


KINDS = ("robust-aligned", "non-robust-aligned")


def alignment(model: nn.Module, images: Images) -> dict[str, float]:
    """Return the accuracy against y + 1 (the label of robust features) and against y."""
    robust = other = n = 0
    with attacks.guard(model), torch.no_grad():
        for x, y, _ in (batch.to_model(model) for batch in images.batches(250)):
            predicted = model(x).argmax(1)
            robust += int((predicted == (y + 1) % len(images.classes)).sum())
            other += int((predicted == y).sum())
            n += len(y)
    return dict(zip(KINDS, (robust / n, other / n), strict=True))


def aligned(bench: Bench) -> Callback:
    """Return a callback that measures `alignment` on test images after every epoch."""
    images = bench.images("test", bench.scale.watched)
    return lambda event: alignment(event.model, images) if event.kind == "epoch" else None


AS_STATED = {"data.augment": [], "optimizer.lr": lambda s: None if s.name == "smoke" else 0.1}
"""D_conflict is trained on without augmentation and, at paper scale, at another learning rate."""
CONFLICT = {
    "BN": on(D_CONFLICT, "bn", aligned, **AS_STATED),
    "none": on(D_CONFLICT, "none", aligned, **AS_STATED),
}


@claim(
    "LIG-10",
    "On conflicting data (robust cues of t, non-robust cues of t + 1) a BN network learns the robust ones "
    "first and then forgets them; without BN it keeps to them",
    figures={"all": "figures 7, 13: only curves are printed"},
    tests=[
        Above("BN, early, robust-aligned", "BN, early, non-robust-aligned", effect=0.02),
        Above("BN, early, robust-aligned", "BN, at the end, robust-aligned", effect=0.02),
        Above("BN, at the end, non-robust-aligned", "BN, at the end, robust-aligned", effect=0.02),
        Above("none, at the end, robust-aligned", "none, at the end, non-robust-aligned", effect=0.02),
    ],
    networks=[ADV_BN, BN, *CONFLICT.values()],
    needs=[*(Needs(f"{name}, learned", 0.2) for name in CONFLICT), Needs("D_R, read by its source", READ)],
    changed="D_R starts from images of other labels",
)  # fmt: skip
def conflict(bench: Bench) -> dict[str, float]:
    """Measure alignment early and at the end of training; "early" is the mean over the first third."""
    rows = {"D_R, read by its source": read(bench, D_R)}
    for name, net in CONFLICT.items():
        history = bench.history(net)
        early = history[: math.ceil(len(history) / 3)]
        end = alignment(bench.network(net), bench.images("test", bench.scale.test))
        for kind in KINDS:
            rows[f"{name}, early, {kind}"] = fmean(epoch[kind] for epoch in early)
            rows[f"{name}, at the end, {kind}"] = end[kind]
        rows[f"{name}, learned"] = max(max(epoch[kind] for epoch in history) for kind in KINDS)
    return rows


NARROW = {
    "smoke": "net:resnet8,width=2",
    "laptop": "net:resnet8,width=8",
    "paper": "net:resnet50_cifar,width=32",
}
VARIANTS = {
    "narrower": lambda s: tuned(model=NARROW[s.tables]),
    "deeper": lambda s: tuned(model=s.deeper[-1]),
    "leaky ReLU": lambda s: standard(watch=None, activation="leaky"),
    "SELU": lambda s: standard(watch=None, activation="selu"),
    "no weight decay": lambda s: tuned(optimizer__weight_decay=0.0),
    "a third of the rate": lambda s: tuned(optimizer__lr={"smoke": 0.007}.get(s.name, 0.033)),
    "Adam": lambda s: tuned(optimizer__kind="adam", optimizer__lr=0.003, optimizer__weight_decay=5e-4),
    "Adagrad": lambda s: tuned(optimizer__kind="adagrad", optimizer__lr=0.03, optimizer__weight_decay=5e-4),
}


@claim(
    "LIG-11",
    "Width, depth, activation, weight decay, learning rate and optimizer move LIGS little; SELU raises it",
    figures={"all": "figure 8: only curves are printed"},
    tests=[
        *(Close(f"{name}, LIGS", "as it is, LIGS", margin=0.05) for name in VARIANTS if name != "SELU"),
        Above("SELU, LIGS", "as it is, LIGS", effect=0.005),
    ],
    networks=lambda s: [BN, NONE, *(variant(s) for variant in VARIANTS.values())],
    needs=[
        Needs("LIGS that BN takes", 0.05),
        *(Needs(f"{name}, clean", LEAST) for name in ("as it is", *VARIANTS)),
    ],
    changed="SELU is tested to be higher, as the paper says, no longer to be equal",
)  # fmt: skip
def other_factors(bench: Bench) -> dict[str, float]:
    """Measure LIGS of variants of the network; "little" is less than the effect of BN."""
    nets = {"as it is": BN, **{name: variant(bench.scale) for name, variant in VARIANTS.items()}}
    taken = {"LIGS that BN takes": ligs(bench, NONE) - ligs(bench, BN)}
    rows = {f"{name}, LIGS": ligs(bench, net) for name, net in nets.items()}
    return {**taken, **rows} | bench.table(nets, {"clean": None})


DECADES = 0.1
"""Smallest effect of interest on logarithms (base 10): a factor of 1.26."""
SHORTCUTS = {"BN without shortcuts": standard(shortcut=False), "Fixup": standard("fixup")}


@claim(
    "LIG-12",
    "Shortcuts hardly matter; Fixup trains as well as BN, with a higher LIGS and less stable gradients",
    figures={"all": "figures 9, 17: only curves are printed"},
    tests=[
        Close("BN without shortcuts, LIGS", "BN, LIGS", margin=0.1),
        Close("Fixup, clean", "BN, clean", margin=0.05),
        Above("Fixup, LIGS", "BN, LIGS", effect=0.02),
        Above("Fixup, gradient change", "BN, gradient change", effect=DECADES),
    ],
    networks=[BN, NONE, *SHORTCUTS.values()],
    needs=[Needs(f"{name}, clean", LEAST) for name in ("BN", "BN without shortcuts")],
)  # fmt: skip
def shortcuts(bench: Bench) -> dict[str, float]:
    """Measure networks without shortcuts and with Fixup initialization."""
    nets = {"BN": BN, "none": NONE, **SHORTCUTS}
    rows = {f"{name}, LIGS": ligs(bench, net) for name, net in nets.items()}
    return rows | bench.table(nets, clean_and_pgd(bench)) | landscapes(bench, nets)


def standard_networks(scale: Scale) -> dict[str, Net]:
    """Return both families with BN; at scale desk those of the other claims about adaptation."""
    if scale.name != "desk":
        return {family: FAMILIES[f"{family} BN"] for family in ("VGG", "ResNet")}
    shorter = {what: DESK.changes[what] for what in ("epochs", "optimizer")}
    return {"VGG": tuned(**shorter, model=VGG["laptop"]), "ResNet": tuned(**shorter)}


@claim(
    "LIG-13",
    "Adapting BN statistics helps a standard network on corrupted images",
    figures={
        "VGG": "71.9 -> 79.4 (VGG-16, CIFAR-10-C)", "ResNet": "73.9 -> 82.3 (ResNet-18)",
    },
    tests=[
        Above("VGG, adapted", "VGG, static", paper=0.075),
        Above("ResNet, adapted", "ResNet, static", paper=0.084),
    ],
    networks=lambda s: list(standard_networks(s).values()),
    needs=[Needs(f"{name}, lost to corruptions", LOST) for name in ("VGG", "ResNet")],
    changed="a precondition was added",
)  # fmt: skip
def adapted(bench: Bench) -> dict[str, float]:
    """Measure corruption errors of static and adapted standard networks."""
    rows: dict[str, float] = {}
    for name, net in standard_networks(bench.scale).items():
        for way, state in {"static": None, "adapted": PerBatchMode()}.items():
            errors = corruption.errors(bench, bench.network(net), state)
            rows[f"{name}, {way}"] = 1 - corruption.mean_error(errors)
            rows[f"{name}, {way}, clean"] = 1 - errors["clean"]
        rows[f"{name}, lost to corruptions"] = rows[f"{name}, static, clean"] - rows[f"{name}, static"]
    return rows


def landscapes(bench: Bench, nets: Mapping[str, Net]) -> dict[str, float]:
    """Return log10 of loss range, gradient change and smoothness of networks, averaged over training."""
    return {
        f"{name}, {what}": fmean(math.log10(max(epoch[what], 1e-6)) for epoch in bench.history(net))
        for name, net in nets.items()
        for what in WALKED
    }


@claim(
    "LIG-14",
    "BN smooths the optimization landscape (loss range, gradient change, smoothness along the step); IN, "
    "LN and GN do so much less",
    figures={"all": "figures 14 to 17: only curves are printed"},
    tests=[
        *(Above(f"none, {what}", f"BN, {what}", effect=DECADES) for what in WALKED),
        *(Above(f"{name}, beta", "BN, beta", effect=DECADES) for name in ("IN", "LN", "GN")),
    ],
    networks=list(BY_NORM.values()),
    needs=[Needs("none, clean", LEAST), Needs(UNEQUAL, most=SIMILAR)], changed="a precondition was added",
)  # fmt: skip
def landscape(bench: Bench) -> dict[str, float]:
    """Measure the loss landscape with each normalization."""
    rows = bench.table(BY_NORM, {"clean": None})
    return landscapes(bench, BY_NORM) | rows | {UNEQUAL: largest_difference(rows)}
