"""Base class of the objectives: checks the arguments of a call, then runs the objective's passes.

An objective is a frozen dataclass that is called, `parts = objective(model, x, y, seed=step)`. It *adds* to
`.grad` as `backward()` does and returns its losses; the caller steps the optimizer. A subclass contains only
its idea, in `run`, and what the network needs before the optimizer is made, in `setup`.

`backward(loss, last)` runs a backward pass in place of `loss.backward()`. After a pass that is not the `last`
of its call the objective reads gradients (a sign, a norm): with several processes they must be averaged
before. Averaging twice changes nothing, so it may be done after each pass. If no `backward` is given, the
gradients of an unwrapped model in a process group are averaged after every pass but the last.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trimtab import attacks, norm, rng
from trimtab.norm.steering import innermost
from trimtab.norm.synchronize import average, first_process, rank, world_size
from trimtab.runtime import check_classes, require_logits, require_usable
from trimtab.types import BadInput, fraction

Backward = Callable[[Tensor, bool], None]
Loss = Callable[[Tensor, Tensor], Tensor]
"""A loss given by the user: (logits, labels) -> the mean over the batch."""


class Parts(dict[str, Tensor]):
    """Detached losses of one call, by name; "loss" is the objective's (with two passes, of the first).

    Args:
        losses: The losses by name.
        logits: Logits of the batch in the first training pass: of the clean images if the objective computes
            them separately (Mixture, AdvBN, TRADES), else of the images that were trained on.
        loss_weights: Weights of the parts in the loss whose gradient was added to `.grad`.
    """

    logits: Tensor | None
    loss_weights: dict[str, float]

    def __init__(
        self,
        losses: Mapping[str, Tensor],
        logits: Tensor | None = None,
        loss_weights: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__({name: value.detach() for name, value in losses.items()})
        self.logits = None if logits is None else logits.detach()
        self.loss_weights = dict(loss_weights or {"loss": 1.0})

    @property
    def descended(self) -> dict[str, float]:
        """Deprecated: the old name of `loss_weights`."""
        warnings.warn("Parts.descended is now Parts.loss_weights", DeprecationWarning, stacklevel=2)
        return self.loss_weights


class Passes(NamedTuple):
    """The cost of one call, in passes of the whole batch through the whole network."""

    forward: float
    backward: float

    def plus(self, both: float) -> Passes:
        """Add passes.

        Args:
            both: Number of forward, and of backward passes.
        """
        return Passes(self.forward + both, self.backward + both)

    def doubled_except(self, once: Passes) -> Passes:
        """Double the cost.

        Args:
            once: Passes that run only once.
        """
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
    ids: Sequence[int]
    user_loss: Loss | None = None
    attack_cache: dict[int, Tensor] = field(default_factory=dict)
    """The images of each attack: an objective that runs another one twice attacks only once."""

    @property
    def unwrapped(self) -> nn.Module:
        """The network without wrappers such as DistributedDataParallel, for attacks and cuts."""
        return innermost(self.model)

    @property
    def labels(self) -> Tensor:
        """Class numbers (N,); for mixed labels, the class with the largest probability."""
        return self.y.argmax(1) if self.y.is_floating_point() else self.y

    def adversarial(self, attack: Any) -> Tensor:
        """Return the adversarial images of any attack (model, x, y) -> x_adv, computed once per step.

        The attack is called on the unwrapped network.

        Args:
            attack: One of trimtab's attacks, or any other.
        """
        if id(attack) not in self.attack_cache:
            randomness = {"seed": self.seed, "ids": self.ids} if isinstance(attack, attacks.Attack) else {}
            self.attack_cache[id(attack)] = attack(self.unwrapped, self.x, self.labels, **randomness)
        return self.attack_cache[id(attack)]

    def loss(self, logits: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the user's loss if one was given, else the mean cross-entropy."""
        if self.user_loss is None:
            return cross_entropy(logits, y, smoothing)
        if smoothing:
            raise BadInput("label_smoothing is for the cross-entropy; leave it out if you give a loss")
        value = self.user_loss(logits, y)
        if not isinstance(value, Tensor) or value.dim() != 0:
            raise BadInput("loss must return the mean over the batch, a tensor without dimensions")
        return value


class Objective:
    """Base class of the objectives: subclasses are frozen dataclasses that define `run`."""

    reads_gradients: ClassVar[bool] = False
    """Whether gradients are read within a call, so that they must not be scaled as in fp16 training."""

    def __post_init__(self) -> None:
        fraction(label_smoothing=getattr(self, "label_smoothing", 0.0))

    def prepare(self, model: nn.Module, optimizer: Optimizer | None = None) -> nn.Module:
        """Steer the model and add the branches that the objective needs, in place; return the model.

        Args:
            model: The network to train.
            optimizer: An optimizer of the model, if there is one: parameters that are new join the group of
                their layer.
        """
        self.setup(model)
        if optimizer is not None:
            _add_new_parameters(optimizer, model)
        return model

    def setup(self, model: nn.Module) -> nn.Module:
        """Add what the objective needs to the model, in place; return the model.

        Args:
            model: The network to train.
        """
        return norm.steer(model)

    def in_parts(self, parts: int) -> Objective:
        """Return the objective for each part of a batch that a step processes in equal parts.

        Args:
            parts: Number of parts.
        """
        return self

    def nested(self) -> Iterator[Objective]:
        """Iterate over this objective and the objectives that it wraps."""
        yield self

    def check(self, batch: int, running: bool, compiled: bool) -> None:
        """Raise BadInput if the objective cannot train this way.

        Args:
            batch: Images per call.
            running: Whether norm layers normalize with running statistics.
            compiled: Whether the model is compiled.
        """

    def passes(self, batch: int) -> Passes:
        """Return the cost of a call.

        Args:
            batch: Images per call.
        """
        return Passes(1, 1)

    def attack_passes(self) -> Passes:
        """Return the part of the cost that makes adversarial images: of the field `attack`, if it is one."""
        attack = getattr(self, "attack", None)
        return attack_passes(attack) if callable(attack) else Passes(0, 0)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        backward: Backward | None = None,
        seed: int | None = None,
        ids: Tensor | Sequence[int] | None = None,
        loss: Loss | None = None,
    ) -> Parts:
        """Add this objective's gradient to `.grad` and return its losses.

        Args:
            model: The network, prepared, in train mode.
            x: Images (N, ...).
            y: Class numbers (N,), or probabilities (N, classes).
            backward: Runs a backward pass in place of `loss.backward()`; see the docstring of this module.
            seed: Seed of all randomness, together with `ids`; give every step another one. If None, it is
                drawn from torch's global generator, which `torch.manual_seed` seeds.
            ids: Indices of the images in their set; if None, positions in the batch over all processes.
            loss: Replaces the cross-entropy: (logits, y) -> the mean loss. Attacks keep their loss.

        Returns:
            The losses by name, detached, with the logits.
        """
        if len(x) != len(y) or len(x) == 0:
            raise BadInput(
                f"found {len(x)} images and {len(y)} labels; give at least one image, each with one label"
            )
        require_usable(model, x)
        norm.steer(model)
        if seed is None:
            seed = int(first_process(torch.randint(2**62, (1,)).to(x.device)))
        first = rank() * len(x)
        ids = range(first, first + len(x)) if ids is None else rng.ids_of(x, ids)
        step = Step(model, x, y, backward or _backward_of(model), seed, ids, loss)
        parts = self.run(step)
        if not model.training:
            warnings.warn(
                "the model is in eval mode, so it trains without dropout and with running statistics; call "
                "model.train() first",
                stacklevel=2,
            )
        return parts

    def run(self, step: Step) -> Parts:
        """Run the passes of one call; `__call__` has checked its arguments.

        Args:
            step: The model, images, labels, seed and backward pass of the call.
        """
        raise NotImplementedError


def _backward_of(model: nn.Module) -> Backward:
    alone = world_size() == 1 or isinstance(model, DistributedDataParallel)

    def backward(loss: Tensor, last: bool) -> None:
        loss.backward()
        if not (last or alone):
            average([p.grad for p in model.parameters() if p.grad is not None])

    return backward


def _add_new_parameters(optimizer: Optimizer, model: nn.Module) -> None:
    """Add the parameters that the optimizer lacks; those of a branch join the group of their layer."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    for name, p in named.items():
        if p.requires_grad and id(p) not in groups:
            layer, _, rest = name.partition(".branches.")
            sibling = named.get(f"{layer}.{rest.rpartition('.')[2]}")
            group = groups.get(id(sibling), optimizer.param_groups[0])
            group["params"].append(p)


def cross_entropy(logits: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy over the batch.

    Args:
        logits: Logits (N, classes).
        y: Class numbers (N,), or probabilities (N, classes).
        smoothing: Fraction of each label that is spread evenly over all classes.
    """
    require_logits(logits)
    if not y.is_floating_point() and y.device.type == "cpu":  # on a GPU the check would wait for the pass
        check_classes(y, logits.shape[1])
    return F.cross_entropy(logits, y, label_smoothing=smoothing)


def attack_passes(attack: Any) -> Passes:
    """Return the cost of an attack: its steps and, with restarts, the passes that judge each restart."""
    steps, restarts = getattr(attack, "steps", 1), getattr(attack, "restarts", 1)
    judged = 3 * restarts - 2 if restarts > 1 else 0  # one at each end, two to compare with the worst so far
    return Passes(steps * restarts + judged, steps * restarts)


def keep_statistics(model: nn.Module) -> AbstractContextManager[None]:
    """Do not update running statistics inside: the first pass over the batch has done so already."""
    return norm.use(model, update=False) if norm.layers(model) else nullcontext()


@contextmanager
def isolated_gradients(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Start with empty `.grad` inside, and add the previous gradients back at the end.

    Yields:
        The parameters that train.
    """
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
