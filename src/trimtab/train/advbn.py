"""AdvBN: training against adversarial statistics of one feature map.

Idea      the network is cut into a front and a tail. The channel means and deviations of the feature z
          between them are moved, for the whole batch alike, to where the tail errs most (see
          `attacks.feature`); the tail then trains on both: loss = CE(z) + CE(z')
Paper     Shu et al., "Encoding robustness to image style via adversarial feature perturbations" (AdvBN):
          pretrained ResNet-50 cut behind conv2_3, 6 steps of 0.2, eps 1.1; 20 epochs of fine-tuning
Norm      the tail's layers get an auxiliary branch for z' (a copy of main); the ascent runs on it with
          running statistics; branch = [(main, N), (aux, N)] in the training pass. Neither weights nor
          statistics of the front learn
Cost      one forward pass of the front, `steps` passes of the tail, and one of the tail over 2N images:
          linear in the steps, and falling as the cut moves deeper
Changed   over several processes mean and ascent are those of the whole batch (there: of each GPU)
Controls  `attack="random"` draws the statistics evenly from the cube; steps = 0 trains on z twice
Beware    which branch serves which data was chosen per data set with its labels in the paper; a channel
          whose mean is near 0 cannot be moved by a factor; compare with fine-tuning of equal length.
          A cut right before a batch norm (behind a block of a pre-activation network) trains nothing: by
          batch statistics that layer undoes every shift of z'. Cut behind its activation instead
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trimtab import draws, norm
from trimtab.attacks import guard
from trimtab.attacks.feature import ascend, perturbed
from trimtab.models.cut import cut, same_in_both_modes
from trimtab.norm.steering import innermost
from trimtab.train.base import Objective, Parts, Passes, Step, check_smoothing, cross_entropy
from trimtab.train.mixture import ensure_branch, require_branch
from trimtab.train.processes import average
from trimtab.types import BadInput

_RANDOM = 14  # what the random draw is for


@dataclass(frozen=True)
class AdvBN(Objective):
    cut: str = "layer1"
    """Name of the module behind which the feature lies (`models.cuts(model)` lists good places)."""
    eps: float = 1.1
    """How far mean and deviation may move, relative to themselves; above 1 a scale may change its sign."""
    steps: int = 6
    """Steps of the ascent."""
    step_size: float = 0.2
    """Length of a step."""
    branch: str = "aux"
    """Name of the branch that perturbed features are normalised by."""
    attack: str = "ascent"
    """How statistics are found: by "ascent", or at "random" as a control."""
    rectify: bool | None = None
    """Clip perturbed features at 0; done if the feature itself is nowhere negative, unless said here."""
    freeze_front: bool = True
    """Train the tail only, as the paper does."""
    label_smoothing: float = 0.0
    """Share of each label spread evenly over all classes."""
    _cuts: WeakKeyDictionary[nn.Module, tuple[nn.Module, nn.Module]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)
        if self.eps < 0 or self.steps < 0 or self.step_size < 0:
            found = f"{self.eps}, {self.steps}, {self.step_size}"
            raise BadInput(f"eps, steps and step_size must not be negative, found {found}")
        if self.attack not in ("ascent", "random"):
            raise BadInput(f'attack must be "ascent" or "random", found {self.attack!r}')

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles find the halves of their networks anew."""
        return {name: value for name, value in vars(self).items() if name != "_cuts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _cuts=WeakKeyDictionary())

    def prepare(self, model: nn.Module) -> nn.Module:
        norm.steer(model)
        if not same_in_both_modes(innermost(model)):
            raise BadInput(
                "AdvBN works on the halves of a network, and this one runs other steps in training than in "
                "evaluation; make what differs a layer, such as nn.Dropout"
            )
        front, tail = self.halves(model)
        if not norm.layers(tail):
            raise BadInput(
                f"behind {self.cut!r} there is no batch-norm layer to give a branch to; cut earlier"
            )
        ensure_branch(tail, self.branch)
        if self.freeze_front:
            front.requires_grad_(False)
        return model

    def check(self, batch: int, running: bool, compiled: bool) -> None:
        if compiled:
            raise BadInput("AdvBN runs a network in two halves of its own making; leave compile out")

    def passes(self, batch: int) -> Passes:
        """At most: all but one forward pass are of the tail, and a frozen front has no backward pass."""
        steps = self.steps if self.attack == "ascent" else 0
        return Passes(2 + steps, 2 + steps)

    def halves(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """Front and tail; traced once per model."""
        model = innermost(model)
        if model not in self._cuts:
            self._cuts[model] = cut(model, self.cut)
        return self._cuts[model]

    def run(self, step: Step) -> Parts:
        if isinstance(step.model, DistributedDataParallel):
            raise BadInput(
                "AdvBN runs the network in two parts, which DistributedDataParallel does not see; give it "
                "the bare model and average the gradients, as train.fit does"
            )
        require_branch(step.model, self.branch)
        front, tail = self.halves(step.model)
        z, *others = self._feature(front, step.x)
        z_adv = perturbed(z, *self._moves(tail, z.detach(), [o.detach() for o in others], step))
        n = len(z)
        both = [torch.cat([z, z_adv]), *(torch.cat([o, o]) for o in others)]
        with norm.use(tail, branch=[("main", n), (self.branch, n)]):
            z_clean, z_hurt = _run(tail, both).split(n)
            clean = cross_entropy(z_clean, step.y, self.label_smoothing)
            hurt = cross_entropy(z_hurt, step.y, self.label_smoothing)
            step.backward(clean + hurt, True)
        return {"loss": clean + hurt, "clean": clean, "adv": hurt}

    def _feature(self, front: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        """The named feature, and what else crosses the cut."""
        if self.freeze_front:
            with guard(front), torch.no_grad():
                z = front(x)
        else:
            z = front(x)
        return z if isinstance(z, tuple) else (z,)

    def _moves(
        self, tail: nn.Module, z: Tensor, others: list[Tensor], step: Step
    ) -> tuple[Tensor, Tensor, bool, Tensor]:
        """Where the feature's statistics hurt: what `perturbed` takes. No gradient flows through them."""
        rectify = bool((z >= 0).all()) if self.rectify is None else self.rectify
        mu = z.mean([axis for axis in range(z.dim()) if axis != 1])
        average([mu])
        if self.attack == "random":
            u = draws.uniform(z.new_empty(2, z.shape[1]), step.seed, [0, 1], _RANDOM)
            d_mu, d_sigma = self.eps * (2 * u - 1)
        else:
            with norm.use(tail, branch=self.branch), guard(tail):
                d_mu, d_sigma = ascend(
                    lambda moved: _run(tail, [moved, *others]),
                    z, step.labels, self.eps, self.steps, self.step_size, rectify, mu, average,
                )  # fmt: skip
        return d_mu, d_sigma, rectify, mu


def _run(tail: nn.Module, crossing: list[Tensor]) -> Any:
    return tail(crossing[0] if len(crossing) == 1 else tuple(crossing))
