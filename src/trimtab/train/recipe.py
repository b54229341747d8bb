"""A training run as one frozen value: network, data, objective, optimiser, schedule, policies.

A recipe is a YAML file that is read strictly (see `reader`): an unknown key is named with its nearest match,
numbers may be written 8/255 or 1e-3, and any key can be overridden by its dotted name.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from trimtab import attacks
from trimtab.train.advbn import AdvBN
from trimtab.train.adversarial import Adversarial
from trimtab.train.apart import Apart
from trimtab.train.base import Objective
from trimtab.train.gaussian import Gaussian
from trimtab.train.ligs import LIGS
from trimtab.train.mixture import AdvProp, Mixture
from trimtab.train.reader import Kinds, overridden, parsed, plain, read
from trimtab.train.sam import SAM
from trimtab.train.standard import Standard
from trimtab.types import BadInput

OBJECTIVES: dict[str, type] = {
    "standard": Standard, "gaussian": Gaussian, "adversarial": Adversarial, "mixture": Mixture,
    "advprop": AdvProp, "advbn": AdvBN, "apart": Apart, "sam": SAM, "ligs": LIGS,
}  # fmt: skip
ATTACKS: dict[str, type] = {"pgd": attacks.PGD, "fgsm": attacks.FGSM, "cw": attacks.CW, "apgd": attacks.APGD}
BUDGETS: dict[str, type] = {"linf": attacks.Linf, "l2": attacks.L2}
KINDS = Kinds(objective=OBJECTIVES, attack=ATTACKS, budget=BUDGETS)


def _at_least(least: int, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise BadInput(f"{name} must be at least {least}, found {value:g}")


@dataclass(frozen=True)
class Data:
    name: str = "cifar10"
    """A set that `data.load` knows."""
    augment: tuple[str, ...] = ("crop", "flip")
    """What happens to training images, in order (`data.AUGMENT` lists the names)."""
    images: int | None = None
    """Train on the first so many images only."""
    validation: int = 1000
    """Training images held out, the last ones of the set, to choose checkpoints by."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "augment", tuple(self.augment))
        _at_least(0, validation=self.validation)
        _at_least(1, images=self.images)


@dataclass(frozen=True)
class Optimiser:
    kind: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"] = "sgd"
    lr: float = 0.1
    """Learning rate, at its highest."""
    momentum: float = 0.9
    """Of sgd and rmsprop; beta_1 of adam and adamw."""
    nesterov: bool = False
    """Of sgd."""
    weight_decay: float = 5e-4
    decay: Literal["all", "weights"] = "all"
    """What decays: all parameters, or weights only (not norm parameters and biases)."""

    def __post_init__(self) -> None:
        _at_least(0, lr=self.lr, weight_decay=self.weight_decay)
        if not 0 <= self.momentum < 1:
            raise BadInput(f"momentum lies from 0 to below 1, found {self.momentum:g}")
        if self.nesterov and not self.momentum:
            raise BadInput("nesterov needs a momentum above 0")


@dataclass(frozen=True)
class Schedule:
    kind: Literal["constant", "step", "cosine", "one-cycle", "exponential"] = "one-cycle"
    milestones: tuple[float, ...] = ()
    """step: the epochs after which the rate is multiplied by gamma."""
    gamma: float = 0.1
    """step and exponential: the factor."""
    every: float = 1.0
    """exponential: epochs per factor."""
    warmup: float = 0.0
    """Epochs of linear growth from 0 at the start."""
    peak: float = 0.3
    """one-cycle: the share of the run in which the rate rises."""

    def __post_init__(self) -> None:
        _at_least(0, warmup=self.warmup, gamma=self.gamma)
        if self.every <= 0:
            raise BadInput(f"every must be above 0 epochs, found {self.every:g}")
        if not 0 <= self.peak <= 1:
            raise BadInput(f"peak is a share between 0 and 1, found {self.peak:g}")


@dataclass(frozen=True)
class Norm:
    """How normalisation layers are trained."""

    running_epochs: int = 0
    """In the last so many epochs normalise with running statistics (Mixture BN paper, section 4.3)."""
    running_learn: bool = False
    """Whether running statistics go on learning in those epochs."""
    frozen: bool = False
    """Keep norm layers as they are, parameters and running statistics."""
    only: bool = False
    """Train norm parameters and nothing else: BN fine-tuning."""
    synchronise: bool = True
    """Over several processes, take batch statistics over all of them."""

    def __post_init__(self) -> None:
        _at_least(0, running_epochs=self.running_epochs)


@dataclass(frozen=True)
class Validation:
    every: int = 1
    """Epochs between validations; the last epoch always has one."""
    attack: attacks.Attack | None = None
    """Measure robust accuracy, too, against this."""
    images: int | None = None
    """Attack the first so many held-out images only."""
    branch: str = "main"
    """The norm branch that is measured."""
    choose: Literal["last", "clean", "robust"] = "last"
    """Which epoch's network is the result: the last, or the one with the best accuracy."""
    patience: int | None = None
    """Stop after so many validations without a better one; what is better, `choose` says."""

    def __post_init__(self) -> None:
        _at_least(1, every=self.every, images=self.images, patience=self.patience)
        if self.patience is not None and self.choose == "last":
            raise BadInput("patience waits for a better accuracy: choose clean or robust instead of last")


@dataclass(frozen=True)
class Recipe:
    model: str = "net:resnet8"
    """The network, in the grammar of `models.load`; for the data set's number of classes."""
    data: Data = field(default_factory=Data)
    objective: Objective = field(default_factory=Standard)
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    norm: Norm = field(default_factory=Norm)
    validation: Validation = field(default_factory=Validation)
    epochs: int = 10
    batch_size: int = 128
    """Images per step, over all processes."""
    accumulate: int = 1
    """Parts that a step's batch is processed in: each has its own batch statistics, and SAM and AdvBN climb
    in each; APART's groups and samples are shared out among them."""
    clip: float | None = None
    """Largest l2 norm of the gradient."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights; its norm statistics are recalibrated."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    compile: str | None = None
    """Compile the network, with this backend of torch.compile: inductor for speed."""
    seed: int = 0
    checkpoint_steps: int | None = None
    """Also save within an epoch, every so many steps."""
    about: str = ""
    """A sentence for people: where the numbers come from."""

    @property
    def digest(self) -> str:
        """A hash of all that it asks for."""
        return hashlib.sha256(write_recipe(replace(self, about="")).encode()).hexdigest()

    def __post_init__(self) -> None:
        _at_least(1, epochs=self.epochs, batch_size=self.batch_size, accumulate=self.accumulate)
        _at_least(1, checkpoint_steps=self.checkpoint_steps)
        if not -(2**63) <= self.seed < 2**63:
            raise BadInput(f"a seed has at most 64 bits, found {self.seed}")
        if self.clip is not None and self.clip <= 0:
            raise BadInput(f"clip, the largest norm of the gradient, must be above 0, found {self.clip:g}")
        if self.batch_size % self.accumulate:
            raise BadInput(
                f"a batch of {self.batch_size} cannot be processed in {self.accumulate} equal parts"
            )
        if self.precision == "16-mixed" and self.objective.reads_gradients:
            kind = type(self.objective).__name__
            raise BadInput(
                f"{kind} reads gradients, which fp16 scales; take bf16-mixed or 32-true as precision"
            )
        running = bool(self.norm.running_epochs) or self.norm.frozen
        for one in self.objective.in_parts(self.accumulate).nested():
            one.check(self.batch_size // self.accumulate, running, self.compile is not None)
        schedule = self.schedule
        if schedule.kind == "step" and any(not 0 < at < self.epochs for at in schedule.milestones):
            listed = ", ".join(f"{at:g}" for at in schedule.milestones)
            raise BadInput(f"schedule.milestones lie within the {self.epochs} epochs, found {listed}")
        if schedule.warmup and schedule.warmup >= self.epochs:
            raise BadInput(f"schedule.warmup of {schedule.warmup:g} epochs takes all {self.epochs} of them")
        if self.validation.attack is not None and not self.data.validation:
            raise BadInput("validation.attack needs images, but data.validation holds out none; raise it")
        if self.norm.frozen and self.norm.running_learn:
            raise BadInput("norm.frozen keeps statistics as they are; it does not go with norm.running_learn")
        if self.norm.frozen and self.norm.only:
            raise BadInput("norm.frozen and norm.only leave nothing to train; take one of them")
        if self.validation.choose == "robust" and self.validation.attack is None:
            raise BadInput("to choose by robust accuracy, validation needs an attack")
        if self.validation.choose != "last" and not self.data.validation:
            how = self.validation.choose
            raise BadInput(
                f"to choose by {how} accuracy takes images, but data.validation holds out none; raise it, or "
                "choose last"
            )
        if self.ema is not None and not 0 < self.ema < 1:
            raise BadInput(f"the decay of an average lies between 0 and 1, found ema={self.ema}")


def shipped() -> list[str]:
    """The names of the recipes that come with trimtab."""
    return sorted(f.name.removesuffix(".yaml") for f in _home().iterdir() if f.name.endswith(".yaml"))


def read_recipe(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from a YAML file, from a shipped one by its name, or from a mapping.

    `overrides` maps dotted names to values: {"objective.attack.steps": 10}.
    """
    given = dict(source) if isinstance(source, Mapping) else _parse(source)
    recipe = read(Recipe, overridden(given, overrides or {}), KINDS)
    assert isinstance(recipe, Recipe)
    return recipe


def write_recipe(recipe: Recipe) -> str:
    """The recipe as YAML that `read_recipe` reads."""
    return yaml.safe_dump(plain(recipe, KINDS), sort_keys=False, allow_unicode=True)


def _parse(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise BadInput(f"{source} is no recipe: it is not even text") from None
    elif str(source) in shipped():
        text = (_home() / f"{source}.yaml").read_text()
    else:
        near = difflib.get_close_matches(str(source), shipped(), 1)
        advice = (
            f"did you mean {near[0]!r}?" if near else f"give a YAML file or one of {', '.join(shipped())}"
        )
        raise BadInput(f"there is no recipe {str(source)!r}; {advice}")
    given = parsed(text, str(source))
    if not isinstance(given, dict):
        raise BadInput(f"{source} must hold keys and values, found {type(given).__name__}")
    return given


def _home() -> Any:
    return resources.files("trimtab") / "recipes"
