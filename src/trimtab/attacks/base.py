"""The caller of every attack on images: checks its input, guards the model, judges the outcome.

An attack is a frozen dataclass that is called, `x_adv = attack(model, x, y, seed=0, ids=None)`. It contains
only its idea, in `run`. Any other callable that maps (model, x, y) to images is an attack, too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab import adapt, rng
from trimtab._accel import accelerate, note, recall
from trimtab.attacks.geometry import distance
from trimtab.attacks.precision import Bf16Gradients, CastTo, require_bf16_copy
from trimtab.runtime import (
    check_call,
    check_classes,
    check_labels,
    couples_batch,
    declares_coupling,
    guard,
    images_within,
    require_bfloat16,
    require_dtype,
    require_usable,
    unwrap,
)
from trimtab.types import BadInput, Budget, html_table

SLICE = 32
"""Images per core that are attacked at a time: few, so that its cache holds their features."""
MEMORY = 2 << 30
"""Bytes within which the process stays where images are large, if one image at a time does."""
LARGE = 3 * 64 * 64
"""Values of an image from which a network may keep so much of it that `SLICE` images are too many."""


@dataclass(frozen=True)
class Outcome:
    """What an attack did to each image; of images that were not to be judged, only `x` is set.

    Args:
        x: The adversarial images; where the attack failed, its best attempt.
        success: Whether the image in `x` is misclassified (bool).
        success_at: The first iteration whose image was misclassified (0: the clean image or start); -1 if
            none was.
        marks: Per requested number of iterations: whether the image of *that* iteration is misclassified.
    """

    x: Tensor
    success: Tensor
    success_at: Tensor
    marks: dict[int, Tensor] = field(default_factory=dict)

    def _summary(self) -> list[tuple[str, str]]:
        """What was attacked, how often it succeeded, and how soon."""
        n, broken = len(self.success), int(self.success.sum())
        lines = [("images", f"{n}, each {tuple(self.x.shape[1:])}")]
        lines += [("misclassified", f"{broken} ({broken / n:.1%})" if n else "0")]
        if broken:
            at = self.success_at[self.success].float()
            lines += [("first misclassified", f"iteration {float(at.median()):g} (median)")]
        lines += [(f"at iteration {k}", f"{int(hit.sum())} misclassified") for k, hit in self.marks.items()]
        return lines

    def __repr__(self) -> str:
        return f"Outcome({'; '.join(f'{name}: {value}' for name, value in self._summary())})"

    def _repr_html_(self) -> str:
        return html_table("Outcome of an attack", ("", ""), self._summary())

    @classmethod
    def empty(cls, x: Tensor) -> Outcome:
        """Return the outcome of an attack on no image."""
        none = torch.zeros(0, dtype=torch.bool, device=x.device)
        return cls(x, none, none.long())

    @property
    def broken(self) -> Tensor:
        """Deprecated name of `success`."""
        warnings.warn("Outcome.broken is now Outcome.success", DeprecationWarning, stacklevel=2)
        return self.success

    @property
    def broken_at(self) -> Tensor:
        """Deprecated name of `success_at`."""
        warnings.warn("Outcome.broken_at is now Outcome.success_at", DeprecationWarning, stacklevel=2)
        return self.success_at


@dataclass(frozen=True)
class AttackTask:
    """What an attack runs against: a frozen network, images, labels, and the seeds of their randomness."""

    net: nn.Module
    x: Tensor
    y: Tensor
    seed: int
    ids: list[int]
    coupled: bool
    """Whether images of a batch influence each other; then none may leave it."""
    judged: bool = True
    """Whether the caller asks which images are misclassified; if not, a forward pass is saved."""
    classes: int = 0
    """Number of classes of the network; only attacks with random targets need it."""
    fit: int | None = None
    """How many images fit into a CPU's memory at a time, if that was found out."""

    @property
    def approximate(self) -> bool:
        """Whether logits that come with a gradient only approximate the network's."""
        return isinstance(self.net, Bf16Gradients)

    @property
    def at_once(self) -> int:
        """How many images to attack at a time: few on a CPU, whose caches then hold their features."""
        few = self.x.device.type == "cpu" and not self.coupled
        return min(self.fit or len(self.x), SLICE * torch.get_num_threads()) if few else len(self.x)


class Attack:
    """Base of the attacks on images. Subclasses are frozen dataclasses with a `budget` and a `run`."""

    version: ClassVar[int] = 1
    """Part of every result's key: raised whenever a change moves numbers."""
    refills: ClassVar[bool] = False
    """Whether `run` itself takes `at_once` images at a time; else it is given that many."""
    joint: ClassVar[bool] = False
    """Whether an image's result depends on the others in its batch, whatever the model."""
    adaptive: ClassVar[bool] = False
    """Whether it attacks the model as it adapts to the batch, not as it is given."""
    one_by_one: ClassVar[bool] = False
    """Whether it refuses a model whose predictions depend on the other images in the batch."""
    by_gradients: ClassVar[bool] = True
    """Whether it follows gradients; a black-box attack only uses logits."""
    budget: Budget

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0, ids: Tensor | Sequence[int] | None = None
    ) -> Tensor:
        """Return adversarial images for `x`, in [0, 1] and within the budget; the model is left as it was.

        Args:
            model: Any classifier that returns logits (N, classes).
            x: Images (N, C, H, W) with pixels in [0, 1].
            y: Labels (N,).
            seed: Seed of all randomness.
            ids: The images' indices in their set, 0..N-1 if not given; each image has its own randomness.
        """
        return self.outcome(model, x, y, seed, ids, judged=False).x

    def outcome(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        seed: int = 0,
        ids: Tensor | Sequence[int] | None = None,
        judged: bool = True,
    ) -> Outcome:
        """Attack as by calling, and return what happened to each image.

        Args:
            model: Any classifier that returns logits (N, classes).
            x: Images (N, C, H, W) with pixels in [0, 1].
            y: Labels (N,).
            seed: Seed of all randomness.
            ids: The images' indices in their set, 0..N-1 if not given; each image has its own randomness.
            judged: Whether to find out which images are misclassified; if not, a forward pass is saved.
        """
        if not isinstance(self.budget, Budget):
            raise BadInput(f"a budget is attacks.Linf(eps) or attacks.L2(eps), found {self.budget!r}")
        check_call(model, x, y)
        if len(x) == 0:
            return Outcome.empty(x)
        attack, model = self.resolve(model, x, y, seed, ids)
        if attack is not self:
            return attack.outcome(model, x, y, seed, ids, judged)
        refuse_stream(model)
        require_usable(model, x)
        model = unwrap(model)
        with guard(model):
            images = x.detach().clone(memory_format=_memory_format(x))
            with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
                net, coupled, classes, fit = prepare(model, images, y)
            if coupled and self.one_by_one:
                name = type(self).__name__
                raise BadInput(
                    f"{name} judges images one by one; this model couples a batch, freeze it first"
                )
            # Small steps would be rounded away in half precision: only the network computes in it.
            half = x.dtype in (torch.float16, torch.bfloat16)
            net, clean = (CastTo(net, x.dtype), images.float()) if half else (net, images)
            if getattr(self, "precision", "full") != "full" and not coupled and not half:
                if x.device.type == "cpu":
                    require_bfloat16()
                net = Bf16Gradients(net)
            ids = rng.ids_of(x, ids)
            task = AttackTask(net, clean, y.long().clone(), seed, ids, coupled, judged, classes, fit)
            try:
                result = self.run(task) if coupled else in_slices(self.run, task, self.refills)
            except RuntimeError:
                if task.approximate:
                    require_bf16_copy(net, clean[:2])
                raise
        _check_budget(result.x, clean, self.budget)
        return replace(result, x=result.x.to(x.dtype))

    def resolve(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int, ids: Tensor | Sequence[int] | None
    ) -> tuple[Attack, nn.Module]:
        """Return the attack to make and the model to make it on: another for attacks that wrap one.

        Args:
            model: The model that is attacked.
            x: Clean images (N, C, H, W) in [0, 1].
            y: Their labels (N,).
            seed: Seed of random choices.
            ids: The images' indices in their set; 0..N-1 if None.
        """
        return self, model

    def scored(self, coupled: bool) -> str:
        """Return which iterate counts: "last iterate", or the first misclassified one ("early stopping").

        Args:
            coupled: Whether images of a batch influence each other, so that none can stop early.
        """
        return "last iterate" if coupled or not getattr(self, "early_stop", True) else "early stopping"

    def run(self, task: AttackTask) -> Outcome:
        """Attack the images of a task; called with the model guarded.

        Args:
            task: The network, the clean images and their labels.
        """
        raise NotImplementedError


def non_default(attack: Any, *named: str) -> str:
    """Return as text the fields of an attack that differ from their defaults, except those `named`.

    >>> from trimtab.attacks import AutoAttack
    >>> non_default(AutoAttack(steps=5), "budget")
    ', steps=5'
    """
    text = ""
    for item in fields(attack):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if item.name not in named and (value := getattr(attack, item.name)) != default:
            text += f", {item.name}={value}"
    return text


def in_slices(run: Callable[[AttackTask], Outcome], task: AttackTask, refills: bool) -> Outcome:
    """Run an attack on a few images at a time. No image depends on another, up to rounding."""
    n = len(task.x)
    count = 1 if refills else math.ceil(n / task.at_once)
    if count == 1:
        return run(task)
    slices = [slice(a, b) for a, b in pairwise(n * k // count for k in range(count + 1))]
    parts = [run(replace(task, x=task.x[at], y=task.y[at], ids=task.ids[at])) for at in slices]
    return Outcome(
        torch.cat([part.x for part in parts]),
        torch.cat([part.success for part in parts]),
        torch.cat([part.success_at for part in parts]),
        {t: torch.cat([part.marks[t] for part in parts]) for t in parts[0].marks},
    )


def retry_survivors(
    task: AttackTask, before: Outcome, attack: Callable[[AttackTask, Outcome], Outcome]
) -> Outcome:
    """Attack the images that are not yet misclassified once more; the others keep their result."""
    rows = (~before.success).nonzero()[:, 0]
    if len(rows) == 0:
        return before
    rest = replace(task, x=task.x[rows], y=task.y[rows], ids=[task.ids[i] for i in rows.tolist()])
    after = attack(rest, Outcome(before.x[rows], before.success[rows], before.success_at[rows]))
    x, success, success_at = before.x.clone(), before.success.clone(), before.success_at.clone()
    x[rows], success[rows], success_at[rows] = after.x, after.success, after.success_at
    return Outcome(x, success, success_at)


def prepare(model: nn.Module, x: Tensor, y: Tensor) -> tuple[nn.Module, bool, int, int | None]:
    """Return the network to attack, whether it couples a batch, its classes, and how many images fit at once.

    A guarded model that couples its batch is attacked as it is, any other as its accelerated equivalent. What
    was found out about a model is used again until it changes.
    """
    if (known := recall(model, x)) is not None and not declares_coupling(model):
        net, (classes, fit) = known
        require_dtype(model, x)
        check_classes(y, classes)
        return net, False, classes, fit
    logits = check_labels(model, x, y)
    classes = logits.shape[1]
    if couples_batch(model, x, logits):
        return model, True, classes, None
    net = accelerate(model, x, logits)
    large = x.device.type == "cpu" and x[:1].numel() > LARGE
    fit = images_within(MEMORY, net, x, gradients=True) if large else None
    if len(x) > 1:  # or coupling could not show
        note(model, (classes, fit))
    return net, False, classes, fit


def refuse_stream(model: nn.Module) -> None:
    """Raise BadInput for a model that adapts as a stream."""
    for module in model.modules():
        if isinstance(module, adapt.Stream):
            raise BadInput(
                "a stream adapts to its input and passes no gradient; use adapt.frozen or adapt.per_batch"
            )


def check_rho(model: nn.Module, rho: float) -> None:
    """Raise BadInput if the model adapts with another rho than the attack expects."""
    if isinstance(model, adapt.PerBatch) and model.rho != rho:
        raise BadInput(f"the model adapts with rho={model.rho:g}, the attack expects rho={rho:g}")


def _check_budget(x: Tensor, center: Tensor, budget: Budget) -> None:
    far = float(distance(x, center, budget).max())
    low, high = (float(end) for end in x.aminmax())
    if not (far <= budget.radius + 1e-5 and low >= 0 and high <= 1):  # nor is it NaN
        raise AssertionError(f"an attack left its budget: {far} from the image, {budget} allowed")


def _memory_format(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.contiguous_format
