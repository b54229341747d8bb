"""Four scales of each study: the paper's own, two small ones, and a smoke test.

A study is written once, over the paper's shipped recipes. A scale replaces their data, network, length,
optimizer and attack steps (`changes`, by dotted key), and sets how much is measured; a study may replace
more. Claims and tests are the same at each scale.

    smoke    the embedded sample, a network of a few thousand weights, seconds
    laptop   CIFAR-10, ResNet-8 of width 16, two CPU cores; measured there: standard training 1,900 images
             per second, PGD-7 training 350 to 500, input gradients 2,200
    desk     the second edition: all of CIFAR-10, and for APART 5,000 images that a PreAct-ResNet-18 fits;
             about two days of two cores for the claims of `WAVE1`
    paper    the recipes as shipped, for GPUs; missing data that cannot be downloaded are named
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab.data import CORRUPTIONS
from trimtab.types import BadInput

NAMES = ("smoke", "laptop", "desk", "paper")


@dataclass(frozen=True, eq=False)
class Scale:
    """What a study trains and measures at one scale."""

    name: str
    """One of `NAMES`."""
    data: str
    """The image set, by its name for `data.load`."""
    network: str
    """The paper's main network, or its replacement."""
    deeper: tuple[str, ...] = ()
    """Deeper networks, for claims about depth."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Replaced keys of the recipes."""
    tuning: Mapping[str, Any] = field(default_factory=dict)
    """The same for fine-tuning."""
    tuning_epochs: int = 1
    """Epochs of fine-tuning."""
    weak_steps: int = 10
    """Attack steps of weak adversarial training."""
    running_epochs: int = 10
    """Number of last epochs with running statistics."""
    test: int | None = None
    """Test images for accuracy; all if None."""
    attacked: int | None = None
    """Test images under attack."""
    marks: tuple[int, ...] = (10, 20, 100, 500, 2000)
    """Iterations of the evaluation attack at which accuracy is measured; the last is its length."""
    steps: int = 20
    """Steps of shorter attacks."""
    long_steps: int = 100
    """Steps of attacks on adaptive classifiers."""
    corruptions: tuple[str, ...] = CORRUPTIONS
    """The corruptions."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Their severities."""
    corrupted: int | None = None
    """Test images under each corruption and severity."""
    batch: int = 512
    """Images per batch of adaptive BN."""
    batches: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    """Batch sizes, for claims about them."""
    noise: float = 0.5
    """Std of the noise that adaptation is tested under."""
    sigmas: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Stds of the smoothing noise."""
    draws: int = 100_000
    """Noise samples per certificate."""
    certified: int = 500
    """Certified images."""
    made: int | None = None
    """Images of a constructed set; all training images if None."""
    match_steps: int = 1000
    """Steps of D_R and D_NR."""
    match_step: float = 0.1
    """Length (l2) of their steps."""
    label_steps: int = 100
    """Steps of D_rand, D_det and D_conflict."""
    decoder_epochs: int = 2
    """Training epochs of the decoder of AdvBN images."""
    watched: int = 1000
    """Test images that are measured after every epoch."""
    walked: int = 1
    """Training batches that the loss landscape is averaged over, after every epoch."""
    seeds: int = 3
    """Seeds of other claims."""
    headline: int = 5
    """Seeds of headline claims."""

    @property
    def tables(self) -> str:
        """The name under which claims look up constants of their own: desk uses those of laptop."""
        return "laptop" if self.name == "desk" else self.name


SMOKE = Scale(
    "smoke", "sample", "net:resnet8,width=4", ("net:resnet14,width=4",),
    changes={
        "data.name": "sample", "data.images": 64, "data.augment": ["flip"], "data.validation": 0, "epochs": 1,
        "batch_size": 32, "precision": "32-true", "model": "net:resnet8,width=4",
        "optimizer": {"lr": 0.02}, "schedule": {"kind": "constant"},
        "objective.attack.steps": 2, "objective.attack.step_size": "8/255",
    },
    tuning={"optimizer": {"lr": 0.01}, "schedule": {"kind": "constant"}},
    weak_steps=1, running_epochs=1, test=32, attacked=16, marks=(1, 2), steps=2, long_steps=2,
    severities=(3,), corrupted=16, batch=16, batches=(8, 16), noise=0.25, sigmas=(0.25, 0.5), draws=40,
    certified=4, made=64, match_steps=2, label_steps=2, decoder_epochs=1, watched=16, seeds=2, headline=2,
)  # fmt: skip

LAPTOP = Scale(
    "laptop", "cifar10", "net:resnet8,width=16", ("net:resnet14,width=16",),
    changes={
        "data.name": "cifar10", "data.images": 10_000, "data.augment": ["crop", "flip"], "data.validation": 0,
        "epochs": 8, "batch_size": 128, "precision": "32-true", "model": "net:resnet8,width=16",
        "optimizer": {"lr": 0.2, "nesterov": True, "weight_decay": 2e-4}, "schedule": {"kind": "one-cycle"},
        "objective.attack.steps": 7, "objective.attack.step_size": None,
        "objective.attack.precision": "bfloat16",
    },
    tuning={"optimizer": {"lr": 0.01}, "schedule": {"kind": "cosine"}},
    tuning_epochs=2, weak_steps=2, running_epochs=2, test=5000, attacked=500, marks=(10, 20, 50),
    steps=20, long_steps=50, severities=(1, 3, 5), corrupted=250, batch=250,
    batches=(8, 16, 32, 64, 128, 256), noise=0.25, sigmas=(0.12, 0.25, 0.5), draws=2000,
    certified=200, made=5000, match_steps=50, match_step=0.4, label_steps=30, decoder_epochs=4, watched=250,
)  # fmt: skip

DESK = replace(
    LAPTOP, name="desk",
    changes={
        **LAPTOP.changes, "data.images": None, "epochs": 16,
        "objective.attack.precision": "full",  # the ledger may be continued on any CPU
    },
    tuning_epochs=8, test=None, attacked=1000, severities=(1, 2, 3, 4, 5), corrupted=1000, batch=500,
    batches=(8, 16, 32, 64, 128, 256, 500), noise=0.5, sigmas=(0.25, 0.5, 0.75), certified=300, watched=1000,
    seeds=3, headline=3,
)  # fmt: skip
"""All of CIFAR-10, ResNet-8: the smallest settings on two cores that could refute a claim."""
ADVERSARIAL_EPOCHS = 9
"""Epochs of networks that are trained under PGD-7, at scale desk."""

PAPER = Scale("paper", "cifar10", "net:resnet50_cifar", ("net:resnet101_cifar",), attacked=10_000)

_IMAGENET = {"data": "imagenet:imagenet@224", "corrupted": None, "attacked": 50_000}
_MIX = {"data.images": 5000, "objective.attack.step_size": "3/255"}
BY_PAPER: dict[str, dict[str, Scale]] = {
    "smoke": {},
    "laptop": {
        "mix": replace(LAPTOP, changes={**LAPTOP.changes, **_MIX}),
        "lig": replace(LAPTOP, changes={**LAPTOP.changes, "optimizer": {"lr": 0.1, "weight_decay": 5e-4}}),
    },
    "desk": {
        "mix": replace(
            DESK,
            changes={
                **DESK.changes,
                "epochs": ADVERSARIAL_EPOCHS,
                "objective.attack.step_size": "3/255",
                "accumulate": 4,  # statistics and attacks of 32 images, as on each GPU of the paper
            },
        ),
        "lig": replace(
            DESK,
            changes={**DESK.changes, "epochs": 30, "optimizer": {"lr": 0.1, "weight_decay": 5e-4}},
            walked=20,
        ),
        "apa": replace(
            DESK,
            network="net:preact18,width=16",
            changes={
                **DESK.changes,
                "model": "net:preact18,width=16",
                "data.images": 5000,
                "epochs": 100,
                "optimizer": {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
                "schedule": {"kind": "step", "milestones": [50, 75], "gamma": 0.1},
            },
            headline=8,
        ),
    },
    "paper": {
        "mix": replace(
            PAPER,
            network="net:resnet152",
            deeper=("net:resnet200", "net:resnet338"),
            **_IMAGENET,  # type: ignore[arg-type]
        ),
        "adv": replace(PAPER, network="net:resnet50", **_IMAGENET),  # type: ignore[arg-type]
        "ada": replace(PAPER, network="net:resnet50", **{**_IMAGENET, "attacked": 2000}),  # type: ignore[arg-type]
        "apa": replace(PAPER, data="cifar100", network="net:wrn40_2", seeds=5),
    },
}
"""Settings of single papers that differ from the scale's."""


def scale_of(name: str, paper: str) -> Scale:
    """Return the scale of a name, with the settings of a paper's studies."""
    scales = {"smoke": SMOKE, "laptop": LAPTOP, "desk": DESK, "paper": PAPER}
    if name not in scales:
        raise BadInput(f"there is no scale {name!r}; there are {', '.join(NAMES)}")
    return BY_PAPER[name].get(paper, scales[name])


@dataclass(frozen=True)
class Wave:
    """Claims that share networks, and their planned cost."""

    ids: tuple[str, ...]
    """The claims."""
    hours: float
    """Hours on two cores."""


WAVE1 = (
    Wave(("ADA-1", "ADA-6", "ADA-7", "ADA-8", "ADA-9", "ADA-10", "LIG-13"), 4),
    Wave(("ADA-2", "ADA-3", "ADA-4", "ADA-5"), 2),
    Wave(("APA-1", "APA-7"), 9),
    Wave(("MIX-4", "MIX-9", "MIX-6", "MIX-8", "MIX-10"), 9),
    Wave(("ADV-1", "ADV-4", "ADV-5"), 2),
    Wave(("LIG-1", "LIG-6", "LIG-8"), 11),
    Wave(("LIG-2", "LIG-14"), 1),
    Wave(("MIX-1", "MIX-15"), 4),
    Wave(("APA-2", "APA-5", "APA-6"), 4),
)
"""The desk's first wave, headlines first."""
ROW_OF = {id: row for row in WAVE1 for id in row.ids}
"""The row of each claim of the first wave, in its order."""
_FAILING = "it needs mixed training to lose its robustness, which the paper does not expect on CIFAR-10"
OUT_OF_REACH = {
    "MIX-2": _FAILING,
    "MIX-14": f"first part: {_FAILING}",
    "LIG-3": "FGSM looks robust only on networks of full width that are fitted to zero loss",
}
"""Claims that no setting of two cores can test, with the reason; the paper's scale can."""
