"""Three scales of one definition: the paper's own setting, a laptop's, and one that only proves that it runs.

A study is written once, over the paper's shipped recipes. A scale says what is put in place of their data,
network, length, optimiser and attack steps (`changes`, by dotted key), and how much is measured; a study may
put its own in place of more. Claims and tests are the same at each. What is less than was planned for the
scale (`PLANNED`) the ledger's page says.

    smoke    the embedded sample, a network of a few thousand weights, seconds
    laptop   CIFAR-10, ResNet-8 of width 16, two CPU cores; measured there: standard training 1,900 images a
             second, PGD-7 training 350 to 500, input gradients 2,200
    paper    the recipes as shipped, for GPUs; data that must be had from elsewhere are asked for by name
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab.data import CORRUPTIONS
from trimtab.types import BadInput

NAMES = ("smoke", "laptop", "paper")


@dataclass(frozen=True, eq=False)
class Scale:
    name: str
    data: str
    """The set, as `data.load` names it."""
    network: str
    """The paper's main network, or its stand-in."""
    deeper: tuple[str, ...] = ()
    """Deeper ones, where depth is the question."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What takes the place of a recipe's keys."""
    tuning: Mapping[str, Any] = field(default_factory=dict)
    """The same for fine-tuning."""
    tuning_epochs: int = 1
    weak_steps: int = 10
    """Attack steps of weak adversarial training."""
    running_epochs: int = 10
    """Last epochs with running statistics."""
    test: int | None = None
    """Test images for accuracy; all if None."""
    attacked: int | None = None
    """Test images under attack."""
    marks: tuple[int, ...] = (10, 20, 100, 500, 2000)
    """Iterations of the judging attack at which it is read; the last is its length."""
    steps: int = 20
    """Steps of shorter attacks."""
    long_steps: int = 100
    """Steps of attacks on adaptive classifiers."""
    corruptions: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    corrupted: int | None = None
    """Test images under each corruption and severity."""
    batch: int = 512
    """Images of a batch that adapts."""
    batches: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    """The same, where their size is the question."""
    noise: float = 0.5
    """Deviation of the noise that adaptation is tested under."""
    sigmas: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Noise of smoothing."""
    draws: int = 100_000
    """Of noise, per certificate."""
    certified: int = 500
    """Images with certificates."""
    made: int | None = None
    """Images of a constructed set; all training images if None."""
    match_steps: int = 1000
    """Steps of D_R and D_NR."""
    match_step: float = 0.1
    """Their length (l2)."""
    label_steps: int = 100
    """Steps of D_rand, D_det and D_conflict."""
    decoder_epochs: int = 2
    """Of the decoder that paints AdvBN images."""
    watched: int = 1000
    """Test images that are looked at after every epoch."""
    seeds: int = 3
    headline: int = 5
    """Seeds of headline claims."""


SMOKE = Scale(
    "smoke", "sample", "net:resnet8,width=4", ("net:resnet14,width=4",),
    changes={
        "data.name": "sample", "data.images": 64, "data.augment": ["flip"], "data.validation": 0, "epochs": 1,
        "batch_size": 32, "precision": "32-true", "model": "net:resnet8,width=4",
        "optimiser": {"lr": 0.02}, "schedule": {"kind": "constant"},
        "objective.attack.steps": 2, "objective.attack.step_size": "8/255",
    },
    tuning={"optimiser": {"lr": 0.01}, "schedule": {"kind": "constant"}},
    weak_steps=1, running_epochs=1, test=32, attacked=16, marks=(1, 2), steps=2, long_steps=2,
    severities=(3,), corrupted=16, batch=16, batches=(8, 16), noise=0.25, sigmas=(0.25, 0.5), draws=40,
    certified=4, made=64, match_steps=2, label_steps=2, decoder_epochs=1, watched=16, seeds=2, headline=2,
)  # fmt: skip

LAPTOP = Scale(
    "laptop", "cifar10", "net:resnet8,width=16", ("net:resnet14,width=16",),
    changes={
        "data.name": "cifar10", "data.images": 10_000, "data.augment": ["crop", "flip"], "data.validation": 0,
        "epochs": 8, "batch_size": 128, "precision": "32-true", "model": "net:resnet8,width=16",
        "optimiser": {"lr": 0.2, "nesterov": True, "weight_decay": 2e-4}, "schedule": {"kind": "one-cycle"},
        "objective.attack.steps": 7, "objective.attack.step_size": None,
        "objective.attack.precision": "bfloat16",
    },
    tuning={"optimiser": {"lr": 0.01}, "schedule": {"kind": "cosine"}},
    tuning_epochs=2, weak_steps=2, running_epochs=2, test=5000, attacked=500, marks=(10, 20, 50),
    steps=20, long_steps=50, severities=(1, 3, 5), corrupted=250, batch=250,
    batches=(8, 16, 32, 64, 128, 256), noise=0.25, sigmas=(0.12, 0.25, 0.5), draws=2000,
    certified=200, made=5000, match_steps=50, match_step=0.4, label_steps=30, decoder_epochs=4, watched=250,
)  # fmt: skip

PAPER = Scale("paper", "cifar10", "net:resnet50_cifar", ("net:resnet101_cifar",), attacked=10_000)

_IMAGENET = {"data": "imagenet:imagenet@224", "corrupted": None, "attacked": 50_000}
_MIX = {"data.images": 5000, "objective.attack.step_size": "3/255"}
BY_PAPER: dict[str, dict[str, Scale]] = {
    "smoke": {},
    "laptop": {
        "mix": replace(LAPTOP, changes={**LAPTOP.changes, **_MIX}),
        "lig": replace(LAPTOP, changes={**LAPTOP.changes, "optimiser": {"lr": 0.1, "weight_decay": 5e-4}}),
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
"""Where a paper's setting differs from the others at the same scale."""


def scale_of(name: str, paper: str) -> Scale:
    """The scale of that name, as one paper's studies use it."""
    plain = {"smoke": SMOKE, "laptop": LAPTOP, "paper": PAPER}
    if name not in plain:
        raise BadInput(f"there is no scale {name!r}; there are {', '.join(NAMES)}")
    return BY_PAPER[name].get(paper, plain[name])


PLANNED = {
    "laptop": {
        ("mix", "training images"): 10_000,
        ("ada", "draws of noise for a certificate"): 10_000,
        ("ada", "images with certificates"): 200,
        ("lig", "images of a constructed set"): 10_000,
    }
}
"""What was planned before studies were fitted into a day on two cores."""


def amounts(scale: Scale) -> dict[str, int | str | None]:
    """How much a scale trains and measures, in words; None is all there is, or as the papers' recipes say."""
    changes = scale.changes
    return {
        "training images": changes.get("data.images"),
        "epochs": changes.get("epochs"),
        "attack steps in training": changes.get("objective.attack.steps"),
        "precision of their gradients": changes.get("objective.attack.precision"),
        "epochs of fine-tuning": scale.tuning_epochs if changes else None,
        "test images": scale.test,
        "images under attack": scale.attacked,
        "steps of targeted PGD (MIX)": scale.marks[-1],
        "steps of other attacks": scale.steps,
        "steps of attacks on adaptive classifiers": scale.long_steps,
        "images under each corruption": scale.corrupted,
        "severities": " ".join(map(str, scale.severities)),
        "images of a batch that adapts": scale.batch,
        "images with certificates": scale.certified,
        "draws of noise for a certificate": scale.draws,
        "images of a constructed set": scale.made,
        "steps of D_R and D_NR": scale.match_steps,
        "their length (l2)": f"{scale.match_step:g}",
        "steps of D_rand and D_conflict": scale.label_steps,
        "images that LIGS is averaged over": scale.watched,
        "seeds (headline claims)": f"{scale.seeds} ({scale.headline})",
    }
