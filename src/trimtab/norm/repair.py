"""Repair a network whose weights changed after its statistics were estimated.

Pruning, quantizing, averaging checkpoints and changing the input resolution all change the activations;
the running statistics still describe the old ones. Re-estimating them often restores most of the
accuracy without a gradient step or a label.

    audit -> re-estimate (cumulative, over all images given) -> audit, and compare on the same images

`repair` compares before and after: where re-estimated statistics do not help, the report says so and the
original statistics are kept.

Re-estimate on images as the network was trained on them, with the same augmentation (`estimate_on`): a
network trained on zero-padded random crops has the statistics of padded crops, and plain images lower
its accuracy (published CIFAR-10 ResNet-20, intact: 91.7 % as it is, 88.8 % on plain images, 91.4 % on padded
crops).

Cost: one forward pass over the images for the statistics and two for the comparison.
Norm knobs: source="batch", update=False while estimating.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from trimtab._mode import evaluation_mode
from trimtab.norm.audit import Audit, audit
from trimtab.norm.setting import MAIN
from trimtab.norm.state import images_for, recalibrate, restore, snapshot
from trimtab.norm.steering import layers, use
from trimtab.norm.surgery import steer
from trimtab.types import BadInput

Forward = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Score:
    """Accuracy and entropy of a network on some images."""

    images: int
    """Number of images."""
    accuracy: float | None
    """Fraction classified correctly, of positions where the output is dense; None without labels."""
    interval: tuple[float, float] | None
    """95 % interval of the accuracy: Clopper-Pearson, or normal over images where the output is dense."""
    entropy: float | None
    """Mean entropy of the predicted distribution in nats; None where the output is no logits."""


ADVICE = "give images as the network was trained on them, with the same augmentation"


@dataclass(frozen=True)
class Repair:
    """The effect of re-estimating the statistics; prints as a short report."""

    audit_before: Audit
    """Audit with the original statistics."""
    audit_after: Audit
    """Audit with the new statistics."""
    before: Score
    """Score with the original statistics."""
    after: Score
    """Score with the new statistics."""
    agreement: float | None
    """Fraction of images with the same predicted class before and after."""
    layers: tuple[str, ...]
    """The layers that were re-estimated."""
    helps: bool
    """Whether accuracy (without labels: confidence) did not fall."""
    kept: bool
    """Whether the new statistics were kept."""
    p_value: float | None
    """Of McNemar's exact test that accuracy did not change; None without labels, or for dense outputs."""

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} layers re-estimated, compared on {self.before.images} images"]
        for name, score in (("before", self.before), ("after", self.after)):
            if score.interval is not None and score.accuracy is not None:
                low, high = score.interval
                lines.append(f"{name:<7}accuracy {score.accuracy:.1%} [{low:.1%}, {high:.1%}]")
            elif score.entropy is not None:
                lines.append(f"{name:<7}mean entropy {score.entropy:.3f} nats")
        if self.agreement is not None:
            lines.append(f"the same class is predicted on {self.agreement:.1%} of the images")
        if not self.helps:
            kept = "the new statistics are kept all the same" if self.kept else "the original ones are kept"
            lines.append(f"re-estimating does not help here: {kept}; {ADVICE}")
        elif self.p_value is not None and self.p_value > 0.05:
            lines.append(f"the gain is not significant (p = {self.p_value:.2f})")
        return "\n".join(lines)


def repair(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Forward | None = None,
    *,
    estimate_on: Iterable[Any] | None = None,
    only: Collection[str] | None = None,
    branch: str = MAIN,
    always: bool = False,
) -> Repair:
    """Re-estimate a model's running statistics in place, and keep them if they help.

    Args:
        model: The model; its batch-norm layers are steered if they are not yet.
        batches: A sequence or loader that can be iterated several times: (images, labels), images,
            or whatever `forward` takes.
        forward: `forward(model, batch)` for models that do not map one tensor to logits. What it returns
            is scored if it is a tensor of logits (N, classes) or (N, classes, ...).
        estimate_on: Batches to re-estimate on, such as augmented training images; `batches` if None, which
            then are only compared on.
        only: Names of the layers to re-estimate; all if None.
        branch: The branch whose statistics are re-estimated.
        always: Keep the new statistics even where they do not help.

    Returns:
        A `Repair` that prints as a short report.
    """
    if isinstance(batches, Iterator):
        raise BadInput(
            "repair passes over the images three times; give a list or a DataLoader, not a generator"
        )
    steer(model)
    original, audit_before = snapshot(model), audit(model)
    first = _predict(model, batches, forward, branch)
    try:
        recalibrate(model, batches if estimate_on is None else estimate_on, branch, forward, only)
        second = _predict(model, batches, forward, branch)
    except BaseException:
        restore(model, original)
        raise
    helps = _helps(first, second)
    report = Repair(
        audit_before=audit_before,
        audit_after=audit(model),
        before=first.score,
        after=second.score,
        agreement=_agreement(first, second),
        layers=tuple(name for name in layers(model) if only is None or name in only),
        helps=helps,
        kept=always or helps,
        p_value=_mcnemar(first, second),
    )
    if not report.kept:
        restore(model, original)
    return report


@dataclass(frozen=True)
class _Predictions:
    """What a network predicts for all images, in the order of the loader."""

    images: int
    classes: list[Tensor]
    """Predicted classes (n, ...) of each batch; empty where the output is no logits."""
    correct: Tensor | None
    """(N,) fraction of correct positions, 0 or 1 where each image has one label; None without labels."""
    entropy: float | None
    """Mean, in nats."""

    @property
    def score(self) -> Score:
        if self.correct is None:
            return Score(self.images, None, None, self.entropy)
        return Score(self.images, float(self.correct.mean()), _interval(self.correct), self.entropy)


def _interval(correct: Tensor) -> tuple[float, float]:
    n, mean = len(correct), float(correct.mean())
    if bool(((correct == 0) | (correct == 1)).all()):
        exact = stats.binomtest(int(correct.sum()), n).proportion_ci(0.95)
        return float(exact.low), float(exact.high)
    half = 1.96 * float(correct.std()) / n**0.5 if n > 1 else 1.0
    return max(mean - half, 0.0), min(mean + half, 1.0)


@torch.no_grad()
def _predict(model: nn.Module, batches: Iterable[Any], forward: Forward | None, branch: str) -> _Predictions:
    images, classes, correct, entropy = 0, [], [], []
    with evaluation_mode(model), use(model, branch=branch, source="running", update=False):
        for batch in batches:
            z = forward(model, batch) if forward else model(images_for(model, batch))
            if not isinstance(z, Tensor) or z.dim() < 2:
                images += 1  # a batch, of unknown size
                continue
            images += len(z)
            classes.append(z.argmax(1).cpu())
            entropy.append(_per_image(torch.special.entr(z.softmax(1)).sum(1)).cpu())
            if (labels := _labels(batch, classes[-1])) is not None:
                correct.append(_per_image(classes[-1] == labels.cpu()))
    labeled = len(correct) == len(classes) > 0
    return _Predictions(
        images,
        classes,
        torch.cat(correct) if labeled else None,
        float(torch.cat(entropy).mean()) if entropy else None,
    )


def _per_image(values: Tensor) -> Tensor:
    """Average (n, ...) values over the positions of each image, if there are some: (n,)."""
    return values.double().reshape(len(values), -1).mean(1)


def _labels(batch: Any, classes: Tensor) -> Tensor | None:
    """The labels of an (images, labels) batch, if it is one."""
    if not isinstance(batch, list | tuple) or len(batch) < 2:
        return None
    labels = batch[1]
    is_labels = (
        isinstance(labels, Tensor) and labels.shape == classes.shape and not labels.is_floating_point()
    )
    return labels if is_labels else None


def _agreement(first: _Predictions, second: _Predictions) -> float | None:
    pairs = zip(first.classes, second.classes, strict=True)
    same = [_per_image(before == after) for before, after in pairs]
    return float(torch.cat(same).mean()) if same else None


def _helps(first: _Predictions, second: _Predictions) -> bool:
    """Whether accuracy did not fall; without labels, whether predictions became more confident."""
    if first.correct is not None and second.correct is not None:
        return float(second.correct.sum()) >= float(first.correct.sum())
    if first.entropy is not None and second.entropy is not None:
        return second.entropy <= first.entropy
    return True


def _mcnemar(first: _Predictions, second: _Predictions) -> float | None:
    """Exact two-sided McNemar test on the images that only one of the two classifies correctly."""
    if first.correct is None or second.correct is None:
        return None
    change = second.correct - first.correct
    if not bool((change == change.round()).all()):
        return None
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    return float(stats.binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
