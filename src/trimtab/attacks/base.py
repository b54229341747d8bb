"""The caller of every attack on images: checks what it is given, guards the model, judges the outcome.

An attack is a frozen dataclass that is called, `x_adv = attack(model, x, y, seed=0, ids=None)`. It
contains only its idea, in `run`. Anything else that maps (model, x, y) to images is an attack, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab import adapt, draws, norm
from trimtab.attacks.geometry import distance
from trimtab.attacks.guard import (
    PROBE,
    bare,
    couples_batch,
    fast,
    guard,
    refuse_stream,
    same_beside_others,
    says_coupled,
)
from trimtab.copies import duplicate
from trimtab.cores import keep_features, spread, workers_for
from trimtab.straight import Straight, proven
from trimtab.types import BadInput, Budget

SCORES = ("last", "any")
PRECISIONS = ("full", "bfloat16")
SLICE = 32
"""Images for each core that work at once: few, so that its cache holds their features; not fewer, since cores
wait for each other, or for Python's lock, between any two operations."""


@dataclass(frozen=True)
class Outcome:
    """What an attack did to each image; of images that were not to be judged, only `x` is told."""

    x: Tensor
    """The adversarial images; where an attack failed, its best try."""
    broken: Tensor
    """Whether the image in `x` is misclassified (bool)."""
    broken_at: Tensor
    """The first iteration whose image was misclassified, 0 for the clean image or start; -1 if none was."""
    marks: dict[int, Tensor] = field(default_factory=dict)
    """If asked for: after this many iterations, was the image of *that* iteration misclassified?"""

    @classmethod
    def empty(cls, x: Tensor) -> Outcome:
        """Of an attack on no image."""
        none = torch.zeros(0, dtype=torch.bool, device=x.device)
        return cls(x, none, none.long())


@dataclass(frozen=True)
class Victim:
    """What an attack runs against: a frozen network, the images, their labels, their sources of chance."""

    net: nn.Module
    x: Tensor
    y: Tensor
    seed: int
    ids: list[int]
    coupled: bool
    """Whether images of a batch influence each other; then none may leave it."""
    judged: bool = True
    """Whether anyone asks what became of each image; if not, a last look at them can be saved."""
    classes: int = 0
    """How many the network tells apart; only an attack that draws targets asks."""

    @property
    def rough(self) -> bool:
        """Whether what the network says along with a gradient is only a guess of what it says."""
        return isinstance(self.net, Rough)

    @property
    def at_once(self) -> int:
        """How many images to work on at a time: few on a CPU, whose caches then hold their features."""
        few = self.x.device.type == "cpu" and not self.coupled
        return SLICE * torch.get_num_threads() if few else len(self.x)


class Attack:
    """Base of the attacks on images. Subclasses are frozen dataclasses with a `budget` and a `run`."""

    version: ClassVar[int] = 1
    """Part of every result's key: raised whenever a change moves numbers."""
    refills: ClassVar[bool] = False
    """Whether `run` itself takes `at_once` images at a time; else it is given so many."""
    joint: ClassVar[bool] = False
    """Whether what becomes of an image depends on the others of its batch, whatever the model."""
    adaptive: ClassVar[bool] = False
    """Whether its images are for the model as it adapts to them, not as it is given."""
    one_by_one: ClassVar[bool] = False
    """Whether it refuses a model that lets images of a batch influence each other."""
    by_gradients: ClassVar[bool] = True
    """Whether it follows gradients; a black-box attack asks for outputs alone."""
    budget: Budget

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0, ids: Tensor | Sequence[int] | None = None
    ) -> Tensor:
        """Adversarial images for `x`, in [0, 1] and within the budget (in half precision up to rounding); the
        model is left as it was."""
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
        """As calling the attack, with what happened to each image (unless it is not to be `judged`)."""
        if not isinstance(self.budget, Budget):
            raise BadInput(f"a budget is attacks.Linf(eps) or attacks.L2(eps), found {self.budget!r}")
        check_call(model, x, y)
        if len(x) == 0:
            return Outcome.empty(x)
        refuse_stream(model)
        model = bare(model)
        with guard(model):
            given = x.detach().clone(memory_format=_form(x))
            net, coupled, classes = ready(model, given, y)
            if coupled and self.one_by_one:
                name = type(self).__name__
                raise BadInput(
                    f"{name} judges images one by one; this model couples a batch, freeze it first"
                )
            # Small steps would be rounded away in half precision: only the network works in it.
            half = x.dtype in (torch.float16, torch.bfloat16)
            net, clean = (InPrecision(net, x.dtype), given.float()) if half else (net, given)
            if getattr(self, "precision", "full") != "full" and not coupled and not half:
                net = Rough(net, clean)
            own = draws.ids_of(x, ids)
            victim = Victim(net, clean, y.long().clone(), seed, own, coupled, judged, classes)
            try:
                found = self.run(victim) if coupled else in_slices(self.run, victim, self.refills)
            except RuntimeError:
                if victim.rough:
                    require_bfloat16(net, clean[:2])
                raise
        _check_budget(found.x, clean, self.budget)
        return replace(found, x=found.x.to(x.dtype))

    def scored(self, coupled: bool) -> str:
        """Which image counts: that of which iterate."""
        return "last iterate" if coupled else f"{getattr(self, 'score', 'any')} iterate"

    def run(self, victim: Victim) -> Outcome:
        raise NotImplementedError


def unusual(attack: Any, *said: str) -> str:
    """The fields of an attack that are not as usual, to be named by it, apart from those already said.

    >>> from trimtab.attacks import AutoAttack
    >>> unusual(AutoAttack(steps=5), "budget")
    ', steps=5'
    """
    usual = {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(attack)
    }
    found = {name: getattr(attack, name) for name in usual if name not in said}
    return "".join(f", {name}={value}" for name, value in found.items() if value != usual[name])


def in_slices(run: Callable[[Victim], Outcome], victim: Victim, refills: bool) -> Outcome:
    """Run an attack on a few images at a time, on all cores. None depends on another, up to rounding."""
    if victim.x.device.type == "cpu":
        keep_features()
    n, workers = len(victim.x), workers_for(victim.net, victim.x)
    many = workers if refills else workers * math.ceil(n / victim.at_once)
    if many == 1:
        return run(victim)
    ends = [n * k // many for k in range(many + 1)]
    slices = [slice(*both) for both in pairwise(ends)]

    def one(net: nn.Module, at: slice) -> Outcome:
        return run(replace(victim, net=net, x=victim.x[at], y=victim.y[at], ids=victim.ids[at]))

    parts = spread(one, victim.net, slices, workers)
    return Outcome(
        torch.cat([part.x for part in parts]),
        torch.cat([part.broken for part in parts]),
        torch.cat([part.broken_at for part in parts]),
        {mark: torch.cat([part.marks[mark] for part in parts]) for mark in parts[0].marks},
    )


class InPrecision(nn.Module):
    """A network that computes in its own precision and is spoken to in float32."""

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.net, self.dtype = net, dtype
        self.cores_each = getattr(net, "cores_each", 1)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x.to(self.dtype)).float()
        return z


class Rough(nn.Module):
    """A network that takes gradients through a bfloat16 copy of itself, and answers for itself without them.

    A gradient only shows an attack the way, where three digits do. Whether an image is misclassified is the
    network's own answer: a pass without gradients.
    """

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.net = net
        rough = duplicate(net).to(torch.bfloat16)
        if isinstance(rough, Straight):
            rough = proven(rough, x.to(torch.bfloat16))
        self.copy = InPrecision(rough, torch.bfloat16)
        self.cores_each = self.copy.cores_each

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = (self.copy if x.requires_grad and torch.is_grad_enabled() else self.net)(x)
        return z


def require_bfloat16(net: nn.Module, x: Tensor) -> None:
    """Refuse a network whose rough copy does not run on x."""
    try:
        with torch.enable_grad():
            z = net(x.detach().requires_grad_(True))
            if z.requires_grad:
                z.sum().backward()
    except RuntimeError as why:
        said = str(why).partition("\n")[0] or "it does not say why"
        raise BadInput(
            f'this model does not run in bfloat16 ({said}); leave the attack\'s precision at "full"'
        ) from why


def check_call(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Whether an attack can be made on this: a module, images and their labels."""
    if not isinstance(model, nn.Module):
        raise BadInput(f"an attack is made on a torch.nn.Module, found a {type(model).__name__}")
    check_images(x, y)


def check_images(x: Tensor, y: Tensor) -> None:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        kinds = f"{type(x).__name__} and {type(y).__name__}"
        raise BadInput(f"images and labels must be torch tensors, found {kinds}; see torch.as_tensor")
    if not x.is_floating_point():
        raise BadInput(f"images must be floating point in [0, 1], found {x.dtype}; divide bytes by 255")
    check_pairs(x, y)
    if len(x) == 0:
        return
    low, high = (float(end) for end in x.detach().aminmax())  # NaN if there is one
    if not (math.isfinite(low) and math.isfinite(high)):
        raise BadInput("the images contain NaN or infinity")
    if low < 0 or high > 1:
        raise BadInput(
            f"pixels must lie in [0, 1], found {low:.3g} to {high:.3g}; put mean and deviation inside the "
            "model (trimtab.models.wrap) and scale bytes by 1/255"
        )


def check_pairs(x: Tensor, y: Tensor) -> None:
    """Whether every image has one label: broadcasting would compare others, too."""
    if y.is_floating_point() or y.dim() != 1:
        raise BadInput(
            f"labels must be class numbers, one integer per image, found {y.dtype} {tuple(y.shape)}"
        )
    if len(x) != len(y):
        raise BadInput(f"{len(x)} images came with {len(y)} labels; give one label per image")


def ready(model: nn.Module, x: Tensor, y: Tensor) -> tuple[nn.Module, bool, int]:
    """The quickest equivalent of a guarded model, whether it couples a batch, and how many classes it knows.

    Mostly one look is enough: if the folded network says of an image, beside others, what the model said of
    it, then folding changed nothing and neighbours do not matter. Narrow formats round too much to tell.
    """
    said = check_labels(model, x, y)
    classes = said.shape[1]
    exact = said.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(x.device.type)
    if exact and len(x) > 1 and norm.is_fixed(model) and not says_coupled(model):
        net = fast(model, x, tried=False)
        if same_beside_others(net, x, said):
            return net, False, classes
    if couples_batch(model, x, said):
        return model, True, classes
    return fast(model, x, said), False, classes


@torch.no_grad()
def check_labels(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Whether images and labels are such as the network knows; what it says of the first few (`PROBE`)."""
    weight = next(net.parameters(), x)
    if weight.is_floating_point() and weight.dtype != x.dtype:
        raise BadInput(f"the images are {x.dtype} and the model is {weight.dtype}; convert one of them")
    z = net(x[:PROBE])
    if not isinstance(z, Tensor) or z.dim() != 2:
        raise BadInput("the model must return logits of shape (N, classes)")
    if bool(z.isnan().any(1).all()):
        raise BadInput("the model answers NaN; look for weights or statistics that are not finite (audit)")
    check_classes(y, z.shape[1])
    return z


def wrong(z: Tensor, y: Tensor) -> Tensor:
    """Which logits do not speak for their label; those with NaN speak for none."""
    return (z.argmax(1) != y) | z.isnan().any(1)


def check_classes(y: Tensor, outputs: int) -> None:
    """Whether a network with so many outputs can know these labels."""
    low, high = int(y.min()), int(y.max())
    if outputs == 1:
        raise BadInput("the model has one output; let it return two logits, such as torch.cat([-z, z], 1)")
    if low < 0 or high >= outputs:
        raise BadInput(f"labels must lie in 0..{outputs - 1} for this model, found {low} to {high}")


def check_rho(model: nn.Module, rho: float) -> None:
    """A model that adapts must adapt as the attack says."""
    if isinstance(model, adapt.PerBatch) and model.rho != rho:
        raise BadInput(f"the model adapts with rho={model.rho:g}, the attack expects rho={rho:g}")


def _check_budget(x: Tensor, centre: Tensor, budget: Budget) -> None:
    far = float(distance(x, centre, budget).max())
    low, high = (float(end) for end in x.aminmax())
    if not (far <= budget.radius + 1e-5 and low >= 0 and high <= 1):  # nor is it NaN
        raise AssertionError(f"an attack left its budget: {far} from the image, {budget} allowed")


def _form(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.contiguous_format
