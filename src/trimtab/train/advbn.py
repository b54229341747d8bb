"""AdvBN: training against adversarial statistics of one feature map.

Idea      the network is cut into a front and a tail. The channel means and stds of the feature z between
          them are perturbed, equally for the whole batch, to maximize the loss (see `attacks.feature`); the
          tail trains on both features: loss = CE(z) + CE(z')
Paper     Shu et al., "Encoding robustness to image style via adversarial feature perturbations" (AdvBN):
          pretrained ResNet-50 cut after conv2_3, 6 steps of 0.2, eps 1.1; 20 epochs of fine-tuning
Norm      the tail's layers get an auxiliary branch for z' (a copy of main); the ascent uses it with running
          statistics; branch = [(main, N), (aux, N)] in the training pass. Neither weights nor statistics of
          the front are trained
Cost      one forward pass of the front, `steps` passes of the tail, and one of the tail over 2N images:
          linear in the steps, and less the deeper the cut; plus two forward passes of the tail per model for
          the check below
Changed   with several processes mean and ascent use the whole batch (public code: the batch of each GPU)
Checked   a batch norm right after the cut normalizes with batch statistics, which undoes every perturbation
          of z' that keeps the signs of the scales: such a cut trains nothing. The first call on a model
          changes every statistic by 50 % and measures, with batch statistics, by how many of their stds the
          logits change; below 0.02 the cut is refused, below 0.08 a warning is given. Untrained ResNet-50
          after layer1: 1.1; DenseNet-121 after its first block: 0.006; as the authors cut it (after
          transition1, without the next batch norm: `drop`): 0.8
Controls  `attack="random"` draws the statistics uniformly from the cube; steps = 0 trains on z twice
Beware    the paper chose the branch for each test set with its labels; a mean near 0 hardly changes, since
          the perturbation is relative; compare with fine-tuning of equal length. With steps of 0.2 many
          rectified features lie exactly on the kink of the clamp, so rounding decides the signs of later
          steps
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trimtab import norm, rng
from trimtab.attacks import guard
from trimtab.attacks.feature import ascend, perturbed
from trimtab.models.cut import cut, drop_norm, same_in_both_modes
from trimtab.norm.steering import innermost
from trimtab.norm.synchronize import average
from trimtab.train.base import Objective, Parts, Passes, Step
from trimtab.train.mixture import ensure_branch, require_branch
from trimtab.types import BadInput, at_least, method_card, one_of, radius

_RANDOM = 14  # purpose of the random control's numbers
_PROBE = 0.5
"""Relative perturbation with which a cut is checked: no scale changes its sign, so a batch norm undoes it."""
_UNDONE, _WEAK = 0.02, 0.08


@method_card(__doc__)
@dataclass(frozen=True)
class AdvBN(Objective):
    """AdvBN: train the tail of a network on features whose channel statistics are perturbed adversarially.

    Args:
        cut: Name of the module after which the network is cut (`models.cuts(model)` lists good places).
        eps: Radius of the relative perturbation of mean and std; above 1 a scale may change its sign.
        steps: Steps of the ascent.
        step_size: Length of a step.
        branch: Name of the branch that normalizes perturbed features.
        attack: How the statistics are chosen: by gradient "ascent", or at "random" as a control.
        rectify: Clip perturbed features at 0; if None, where the feature has no negative value.
        freeze_front: Train the tail only, as the paper does.
        label_smoothing: Fraction of each label that is spread evenly over all classes.
        drop: Names of batch-norm layers that `prepare` removes: one right after the cut would undo the shift.
    """

    cut: str = "layer1"
    eps: float | str = 1.1
    steps: int = 6
    step_size: float | str = 0.2
    branch: str = "aux"
    attack: str = "ascent"
    rectify: bool | None = None
    freeze_front: bool = True
    label_smoothing: float = 0.0
    drop: tuple[str, ...] = ()
    _cuts: WeakKeyDictionary[nn.Module, tuple[nn.Module, nn.Module]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )
    _checked: WeakKeyDictionary[nn.Module, float] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "drop", (self.drop,) if isinstance(self.drop, str) else tuple(self.drop))
        for name in ("eps", "step_size"):
            object.__setattr__(self, name, radius(getattr(self, name)))
        at_least(0, steps=self.steps)
        one_of(("ascent", "random"), attack=self.attack)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached cuts: a copy cuts its network again."""
        return {name: value for name, value in vars(self).items() if name not in ("_cuts", "_checked")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _cuts=WeakKeyDictionary(), _checked=WeakKeyDictionary())

    def setup(self, model: nn.Module) -> nn.Module:
        """Drop what `drop` names, give the tail its branch and freeze the front, in place, once."""
        drop_norm(innermost(model), self.drop)
        norm.steer(model)
        if not same_in_both_modes(innermost(model)):
            raise BadInput(
                "AdvBN cuts a network in two, and this one runs other steps in training than in evaluation; "
                "move what differs into a layer, such as nn.Dropout"
            )
        front, tail = self.halves(model)
        if not norm.layers(tail):
            raise BadInput(
                f"after {self.cut!r} there is no batch-norm layer to give a branch to; cut earlier"
            )
        ensure_branch(tail, self.branch)
        if self.freeze_front:
            front.requires_grad_(False)
        return model

    def check(self, batch: int, running: bool, compiled: bool) -> None:
        if compiled:
            raise BadInput(
                "AdvBN cuts the network in two, which a compiled model does not allow; leave compile out"
            )

    def passes(self, batch: int) -> Passes:
        """Return an upper bound: most passes run the tail only, and a frozen front has no backward pass."""
        steps = self.steps if self.attack == "ascent" else 0
        return Passes(2 + steps, 2 + steps)

    def halves(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """Return front and tail of the network, traced once per model.

        Args:
            model: The network, wrapped or not.
        """
        model = innermost(model)
        if model not in self._cuts:
            self._cuts[model] = cut(model, self.cut)
        return self._cuts[model]

    def run(self, step: Step) -> Parts:
        if isinstance(step.model, DistributedDataParallel):
            raise BadInput(
                "AdvBN runs the network in two parts, which DistributedDataParallel does not see; give it "
                "the unwrapped model and average the gradients, as train.fit does"
            )
        require_branch(step.model, self.branch)
        front, tail = self.halves(step.model)
        z, *others = self._feature(front, step.x)
        feature = [value.detach() for value in (z, *others)]
        self._check_cut(step, tail, feature)
        z_adv = perturbed(z, *self._perturbation(tail, feature, step))
        n = len(z)
        both = [torch.cat([z, z_adv]), *(torch.cat([o, o]) for o in others)]
        with norm.use(tail, branch=[("main", n), (self.branch, n)]):
            logits, logits_adv = _run(tail, both).split(n)
            clean = step.loss(logits, step.y, self.label_smoothing)
            adv = step.loss(logits_adv, step.y, self.label_smoothing)
            step.backward(clean + adv, True)
        return Parts({"loss": clean + adv, "clean": clean, "adv": adv}, logits)

    def _feature(self, front: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        """Return the feature after the cut, followed by other tensors that cross the cut."""
        if self.freeze_front:
            with guard(front), torch.no_grad():
                z = front(x)
        else:
            z = front(x)
        return z if isinstance(z, tuple) else (z,)

    def _check_cut(self, step: Step, tail: nn.Module, feature: list[Tensor]) -> None:
        """Refuse a cut whose perturbation the tail undoes; once per model, only if features are perturbed."""
        model = step.unwrapped
        if model not in self._checked and _is_compiled(step.model):
            warnings.warn(
                "AdvBN cuts the network in two, so the compiled model runs uncompiled",
                stacklevel=5,
            )
        if model in self._checked or self.eps == 0 or (self.attack == "ascent" and self.steps == 0):
            self._checked.setdefault(model, 1.0)
            return
        change = self._checked[model] = surviving(tail, feature, self.branch, self._rectifies(feature[0]))
        effect = f"a change of every statistic by 50 % changes the logits by {change:.3f} of their std"
        if change < _UNDONE:
            raise BadInput(
                f"the tail undoes the perturbation of {self.cut!r}: {effect} with batch statistics; cut "
                "after an activation, or drop the batch norm that follows (`drop`)"
            )
        if change < _WEAK:
            message = f"the tail undoes most of the perturbation of {self.cut!r}: {effect}"
            warnings.warn(message, stacklevel=5)

    def _rectifies(self, z: Tensor) -> bool:
        return bool((z >= 0).all()) if self.rectify is None else self.rectify

    def _perturbation(
        self, tail: nn.Module, feature: list[Tensor], step: Step
    ) -> tuple[Tensor, Tensor, bool, Tensor]:
        """Return the statistics with the highest loss, as arguments of `perturbed`, without gradient."""
        z, *others = feature
        rectify = self._rectifies(z)
        mu = _mean(z)
        if self.attack == "random":
            u = rng.uniform(z.new_empty(2, z.shape[1]), step.seed, [0, 1], _RANDOM)
            d_mu, d_sigma = float(self.eps) * (2 * u - 1)
        else:
            with norm.use(tail, branch=self.branch), guard(tail):
                d_mu, d_sigma = ascend(
                    lambda z_adv: _run(tail, [z_adv, *others]),
                    z, step.labels, float(self.eps), self.steps, float(self.step_size), rectify, mu, average,
                )  # fmt: skip
        return d_mu, d_sigma, rectify, mu


def surviving(tail: nn.Module, feature: list[Tensor], branch: str, rectify: bool) -> float:
    """Return by how many of their stds the logits change, with batch statistics, for a change of 50 %."""
    z, *others = feature
    signs = torch.where(rng.uniform(z.new_empty(2, z.shape[1]), 0, [0, 1], _RANDOM) < 0.5, -1.0, 1.0).to(z)
    d_mu, d_sigma = _PROBE * signs
    steering = norm.use(tail, branch=branch, source="batch", update=False)
    with torch.no_grad(), guard(tail, running=False), steering:
        clean = _run(tail, [z, *others])
        shifted = _run(tail, [perturbed(z, d_mu, d_sigma, rectify, _mean(z)), *others])
    sizes = torch.stack([(shifted - clean).abs().mean(), clean.std(0, correction=0).mean()])
    average([sizes])
    return float(sizes[0] / sizes[1].clamp(min=torch.finfo(sizes.dtype).tiny))


def _mean(z: Tensor) -> Tensor:
    """Return the mean of each channel over all processes."""
    mu = z.mean([axis for axis in range(z.dim()) if axis != 1])
    average([mu])
    return mu


def _is_compiled(model: nn.Module) -> bool:
    """Return whether torch.compile wrapped the model, or compiles it or a part of it."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _run(tail: nn.Module, crossing: list[Tensor]) -> Any:
    return tail(crossing[0] if len(crossing) == 1 else tuple(crossing))
