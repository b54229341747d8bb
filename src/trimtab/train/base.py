"""The caller of every objective: checks what it is given, then lets the objective run its passes.

An objective is a frozen dataclass that is called, `parts = objective(model, x, y, seed=0)`. It *adds* to
`.grad` as `backward()` does and returns its losses; stepping is the caller's business. It contains only
its idea, in `run`, and what the network needs before an optimiser sees it, in `prepare`.

`backward(loss, last)` says how to run a backward pass, if not by `loss.backward()`. After one that is not the
`last` of its call the objective reads gradients (a sign, a norm): over several processes they must have been
averaged by then. Averaging twice changes nothing, so it may be done after each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import attacks, draws, norm
from trimtab.attacks.base import check_classes
from trimtab.layout import gradients_laid_out
from trimtab.norm.steering import innermost
from trimtab.types import BadInput

Backward = Callable[[Tensor, bool], None]
Parts = dict[str, Tensor]
"""Losses by name, detached. "loss" is the objective's own; of two passes (SAM, APART) that of the first."""


class Passes(NamedTuple):
    """What one call costs, in passes of the whole batch through the whole network."""

    forward: float
    backward: float

    def plus(self, both: float) -> Passes:
        """With so many forward and backward passes more."""
        return Passes(self.forward + both, self.backward + both)

    def twice_but(self, once: Passes) -> Passes:
        """Two times, apart from what is done only once."""
        return Passes(2 * self.forward - once.forward, 2 * self.backward - once.backward)


@dataclass(frozen=True)
class Step:
    """One call of an objective."""

    model: nn.Module
    x: Tensor
    y: Tensor
    """Class numbers (N,), or probabilities (N, classes) where labels were mixed."""
    backward: Backward
    seed: int
    ids: list[int]
    crafted: dict[int, Tensor] = field(default_factory=dict)
    """The images of each attack: one that wraps another objective runs it twice, and attacks once."""

    @property
    def bare(self) -> nn.Module:
        """The network itself, without wrappers: what attacks and cuts work on."""
        return innermost(self.model)

    @property
    def labels(self) -> Tensor:
        """Class numbers; of mixed labels, the class with the largest share."""
        return self.y.argmax(1) if self.y.is_floating_point() else self.y


class Objective:
    """Base of the objectives. Subclasses are frozen dataclasses with a `run`."""

    reads_gradients: ClassVar[bool] = False
    """Whether gradients are read within a call: then they must not be scaled to fit a narrow format."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Steer the model and give it the branches needed, in place, once, before its optimiser is made."""
        return norm.steer(model)

    def in_parts(self, parts: int) -> Objective:
        """The same for each of so many equal parts that a step's batch is processed in."""
        return self

    def nested(self) -> Iterator[Objective]:
        """This objective and those that it wraps."""
        yield self

    def check(self, batch: int, running: bool, compiled: bool) -> None:
        """Refuse what it does not go with: the size of a batch, running statistics, a compiled model."""

    def passes(self, batch: int) -> Passes:
        """The cost of a call with a batch of so many images."""
        return Passes(1, 1)

    def crafting(self) -> Passes:
        """How much of it makes adversarial images."""
        return Passes(0, 0)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        backward: Backward | None = None,
        seed: int = 0,
        ids: Tensor | Sequence[int] | None = None,
    ) -> Parts:
        """Add this objective's gradient to `.grad` and return its losses.

        All that is random in it is a function of `seed` and `ids`: give every step another seed.
        """
        if len(x) != len(y) or len(x) == 0:
            raise BadInput(
                f"{len(x)} images came with {len(y)} labels; give at least one image, each with one label"
            )
        norm.steer(model)
        step = Step(model, x, y, backward or _plain_backward, seed, draws.ids_of(x, ids))
        with gradients_laid_out(model):
            return {name: value.detach() for name, value in self.run(step).items()}

    def run(self, step: Step) -> Parts:
        raise NotImplementedError


def _plain_backward(loss: Tensor, last: bool) -> None:
    loss.backward()


def cross_entropy(logits: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean over the batch, of class numbers or of probabilities."""
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise BadInput(f"the model must return logits of shape (N, classes), found {found}")
    if not y.is_floating_point() and y.device.type == "cpu":  # elsewhere a look would hold the pass up
        check_classes(y, logits.shape[1])
    return F.cross_entropy(logits, y, label_smoothing=smoothing)


def attacked(attack: Any, step: Step) -> Tensor:
    """Adversarial images from any callable (model, x, y) -> x_adv, crafted on the network itself, once."""
    if id(attack) not in step.crafted:
        own = {"seed": step.seed, "ids": step.ids} if isinstance(attack, attacks.Attack) else {}
        step.crafted[id(attack)] = attack(step.bare, step.x, step.labels, **own)
    return step.crafted[id(attack)]


def attack_passes(attack: Any) -> Passes:
    steps, restarts = getattr(attack, "steps", 1), getattr(attack, "restarts", 1)
    looks = (
        3 * restarts - 2 if restarts > 1 else 0
    )  # one at the end of each, two to compare it with the worst
    return Passes(steps * restarts + looks, steps * restarts)


def check_smoothing(share: float) -> None:
    if not 0 <= share <= 1:
        raise BadInput(f"label_smoothing is a share between 0 and 1, found {share:g}")


def quiet(model: nn.Module) -> AbstractContextManager[None]:
    """Running statistics do not learn inside: the first pass over a batch has taught them already."""
    return norm.use(model, update=False) if norm.layers(model) else nullcontext()


@contextmanager
def own_gradients(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Inside, `.grad` is this call's alone; what was there before is added back at the end."""
    trained = [p for p in model.parameters() if p.requires_grad]
    before = [p.grad for p in trained]
    for p in trained:
        p.grad = None
    try:
        yield trained
    finally:
        for p, grad in zip(trained, before, strict=True):
            if grad is not None:
                p.grad = grad if p.grad is None else grad.add_(p.grad)
