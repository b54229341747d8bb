"""A training run as a frozen dataclass: network, data, objective, optimizer, schedule, validation.

A recipe is a YAML file that is read strictly (see `reader`): an unknown key is an error that names the
nearest known key, numbers may be written 8/255 or 1e-3, and any key can be overridden by its dotted name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from trimtab import attacks
from trimtab.runtime import fingerprint
from trimtab.train.base import Objective
from trimtab.train.reader import advice, overridden, parsed, plain, read
from trimtab.train.standard import Standard
from trimtab.types import BadInput, at_least, fraction


@dataclass(frozen=True)
class Data:
    """The images to train on.

    Args:
        name: A data set, as in `data.load`.
        augment: Augmentations of training images, in order (`data.AUGMENT` lists the names).
        images: Train on the first N images only.
        validation: Number of training images held out, the last of the set, to choose checkpoints by.
    """

    name: str = "cifar10"
    augment: tuple[str, ...] = ("crop", "flip")
    images: int | None = None
    validation: int = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "augment", tuple(self.augment))
        at_least(0, validation=self.validation)
        at_least(1, images=self.images)


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its parameter groups.

    Args:
        kind: sgd, adam, adamw, adagrad or rmsprop.
        lr: Highest learning rate.
        momentum: Momentum of sgd and rmsprop; beta_1 of adam and adamw.
        nesterov: Use Nesterov momentum (sgd).
        weight_decay: Weight decay.
        decay: Parameters that decay: "all", or "weights" only (without norm parameters and biases).
        small_lr: Factor of the learning rate for one-dimensional parameters (scales, biases); Fixup: 0.1.
    """

    kind: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    decay: Literal["all", "weights"] = "all"
    small_lr: float = 1.0

    def __post_init__(self) -> None:
        at_least(0, lr=self.lr, weight_decay=self.weight_decay, small_lr=self.small_lr)
        if not 0 <= self.momentum < 1:
            raise BadInput(f"momentum must be at least 0 and below 1, found {self.momentum:g}")
        if self.nesterov and not self.momentum:
            raise BadInput("nesterov needs a momentum above 0")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the run.

    Args:
        kind: constant, step, cosine, one-cycle or exponential.
        milestones: step: epochs after which the rate is multiplied by gamma.
        gamma: step and exponential: the factor.
        every: exponential: epochs per factor.
        warmup: Epochs in which the rate increases linearly from 0.
        peak: one-cycle: fraction of the run in which the rate increases.
    """

    kind: Literal["constant", "step", "cosine", "one-cycle", "exponential"] = "one-cycle"
    milestones: tuple[float, ...] = ()
    gamma: float = 0.1
    every: float = 1.0
    warmup: float = 0.0
    peak: float = 0.3

    def __post_init__(self) -> None:
        at_least(0, warmup=self.warmup, gamma=self.gamma)
        if self.every <= 0:
            raise BadInput(f"every must be above 0 epochs, found {self.every:g}")
        fraction(peak=self.peak)


@dataclass(frozen=True)
class Norm:
    """How normalization layers are trained.

    Args:
        running_epochs: Normalize with running statistics in the last N epochs (Mixture BN paper, 4.3).
        running_learn: Keep updating the running statistics in those epochs.
        frozen: Freeze norm layers, parameters and running statistics.
        only: Train norm parameters only: BN fine-tuning.
        synchronize: With several processes, compute batch statistics over all of them.
    """

    running_epochs: int = 0
    running_learn: bool = False
    frozen: bool = False
    only: bool = False
    synchronize: bool = True

    def __post_init__(self) -> None:
        at_least(0, running_epochs=self.running_epochs)


@dataclass(frozen=True)
class Validation:
    """Accuracy on held-out images during training, and the choice of the checkpoint.

    Args:
        every: Epochs between validations; the last epoch is always validated.
        attack: Also measure robust accuracy with this attack.
        images: Attack the first N held-out images only.
        branch: Norm branch that is validated.
        choose: Which epoch's network is the result: the "last", or the one with the best "clean" or "robust"
            accuracy.
        patience: Stop after N validations without a better accuracy, of the kind that `choose` names.
    """

    every: int = 1
    attack: attacks.Attack | None = None
    images: int | None = None
    branch: str = "main"
    choose: Literal["last", "clean", "robust"] = "last"
    patience: int | None = None

    def __post_init__(self) -> None:
        at_least(1, every=self.every, images=self.images, patience=self.patience)
        if self.patience is not None and self.choose == "last":
            raise BadInput("patience waits for a better accuracy; choose clean or robust instead of last")


@dataclass(frozen=True)
class Recipe:
    """A training run as a value; every key of a YAML recipe is a field of it.

    The keys of a section are explained by `help(trimtab.train.recipe.Data)`, in the same way those of
    `OptimizerConfig`, `Schedule`, `Norm` and `Validation`; those of an objective by its class, for
    example `help(trimtab.train.APART)`.

    Args:
        model: The network, as in `models.load`, with as many classes as the data set.
        data: The images, see `Data`.
        objective: The objective: standard, gaussian, adversarial, mixture, advprop, advbn, apart, sam, ligs,
            trades, awp.
        optimizer: The optimizer, see `OptimizerConfig`.
        schedule: The learning rate, see `Schedule`.
        norm: How normalization layers are trained, see `Norm`.
        validation: Validation and the choice of the checkpoint, see `Validation`.
        epochs: Number of epochs.
        batch_size: Images per step, over all processes.
        accumulate: Number of parts in which a step processes its batch. Each part has its own statistics and
            its own ascent (SAM, AdvBN); APART divides its groups and samples among them.
        clip: Largest l2 norm of the gradient.
        ema: Decay of an exponential moving average of the weights; its norm statistics are recalibrated.
        precision: 32-true, bf16-mixed or 16-mixed.
        compile: Backend of torch.compile for the network; inductor is the usual one.
        seed: Seed of all randomness, with the step and the image.
        checkpoint_steps: Also save every N steps within an epoch.
        about: A sentence for readers: where the numbers come from.
    """

    model: str = "net:resnet8"
    data: Data = field(default_factory=Data)
    objective: Objective = field(default_factory=Standard)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: Schedule = field(default_factory=Schedule)
    norm: Norm = field(default_factory=Norm)
    validation: Validation = field(default_factory=Validation)
    epochs: int = 10
    batch_size: int = 128
    accumulate: int = 1
    clip: float | None = None
    ema: float | None = None
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    compile: str | None = None
    seed: int = 0
    checkpoint_steps: int | None = None
    about: str = ""

    @property
    def digest(self) -> str:
        """A hash of the fields that are not defaults, without `about`."""
        return fingerprint.digest(fingerprint.describe(replace(self, about="")))

    def __post_init__(self) -> None:
        at_least(1, epochs=self.epochs, batch_size=self.batch_size, accumulate=self.accumulate)
        at_least(1, checkpoint_steps=self.checkpoint_steps)
        if not -(2**63) <= self.seed < 2**63:
            raise BadInput(f"a seed has at most 64 bits, found {self.seed}")
        self._check_gradients()
        self._check_objective()
        self._check_schedule()
        self._check_norm()
        self._check_validation()

    def _check_gradients(self) -> None:
        if self.clip is not None and self.clip <= 0:
            raise BadInput(f"clip, the largest norm of the gradient, must be above 0, found {self.clip:g}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise BadInput(f"the decay of an average must be between 0 and 1, found ema={self.ema}")
        if self.batch_size % self.accumulate:
            raise BadInput(
                f"a batch of {self.batch_size} cannot be processed in {self.accumulate} equal parts"
            )
        if self.precision == "16-mixed" and self.objective.reads_gradients:
            kind = type(self.objective).__name__
            raise BadInput(
                f"{kind} reads gradients, which fp16 scales; use precision bf16-mixed or 32-true instead"
            )

    def _check_objective(self) -> None:
        running = bool(self.norm.running_epochs) or self.norm.frozen
        for objective in self.objective.in_parts(self.accumulate).nested():
            objective.check(self.batch_size // self.accumulate, running, self.compile is not None)

    def _check_schedule(self) -> None:
        schedule = self.schedule
        if schedule.kind == "step" and any(not 0 < epoch < self.epochs for epoch in schedule.milestones):
            milestones = ", ".join(f"{epoch:g}" for epoch in schedule.milestones)
            raise BadInput(f"schedule.milestones lie within the {self.epochs} epochs, found {milestones}")
        if schedule.warmup and schedule.warmup >= self.epochs:
            raise BadInput(f"schedule.warmup of {schedule.warmup:g} epochs takes all {self.epochs} of them")

    def _check_norm(self) -> None:
        if self.norm.frozen and self.norm.running_learn:
            raise BadInput("norm.frozen keeps statistics unchanged, but norm.running_learn updates them")
        if self.norm.frozen and self.norm.only:
            raise BadInput("norm.frozen and norm.only leave nothing to train; set one of them")

    def _check_validation(self) -> None:
        attack, choose = self.validation.attack, self.validation.choose
        if attack is not None and not self.data.validation:
            raise BadInput("validation.attack needs images, but data.validation holds out none; raise it")
        if choose == "robust" and attack is None:
            raise BadInput("to choose by robust accuracy, validation needs an attack")
        if choose != "last" and not self.data.validation:
            raise BadInput(
                f"to choose by {choose} accuracy takes images, but data.validation holds out none; raise it, "
                "or choose last"
            )


def shipped() -> list[str]:
    """Return the names of the recipes that come with trimtab."""
    return sorted(f.name.removesuffix(".yaml") for f in _folder().iterdir() if f.name.endswith(".yaml"))


def read_recipe(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe.

    Args:
        source: Path of a YAML file, name of a shipped recipe, or a mapping.
        overrides: New values by dotted name: {"objective.attack.steps": 10}.
    """
    values = dict(source) if isinstance(source, Mapping) else _parse(source)
    recipe: Recipe = read(Recipe, overridden(values, overrides or {}))
    return recipe


def write_recipe(recipe: Recipe) -> str:
    """Return a recipe as YAML text, which `read_recipe` reads.

    Args:
        recipe: The recipe.
    """
    return yaml.safe_dump(plain(recipe), sort_keys=False, allow_unicode=True)


def _parse(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise BadInput(f"{source} is not a recipe: it is not a text file") from None
    elif str(source) in shipped():
        text = (_folder() / f"{source}.yaml").read_text()
    else:
        raise BadInput(f"there is no recipe {str(source)!r}; {advice(str(source), shipped())}")
    values = parsed(text, str(source))
    if not isinstance(values, dict):
        raise BadInput(f"{source} must contain keys and values, found {type(values).__name__}")
    return values


def _folder() -> Any:
    return resources.files("trimtab") / "recipes"
