"""Detect drift of the normalization statistics during ordinary inference.

At a few normalization layers, spread over the depth, each image's channel means and stds are compared with
those of held-out reference images. Two scores per layer,

    location   mean over channels of ((m_c - mu_c) / sd_c)^2
    scale      mean over channels of (s_c - mu'_c) / sd'_c

each update a conformal test martingale; an alarm is raised when their average reaches 1/alarm_rate. On a
stream that is exchangeable with the reference the probability that it is *ever* raised is at most
`alarm_rate`.

    monitor = adapt.Monitor(model, reference)       # held-out clean images, not the training images
    monitor.calibrate(labeled, corruptions=...)     # optional: enables the accuracy estimate
    logits = monitor(x)                             # the same as model(x)
    monitor.status()                                # alarm, evidence, moved layers and channels, advice

Subsampling: only a fraction of the images of each batch, evenly spaced, is observed (`fraction`, default
1/4). The detection delay grows by its inverse; the guarantee stays.

Accuracy: a ridge regression on confidence, entropy and the scores' averages over the last `window` images,
fitted on corrupted labeled images; its error is measured on kinds of corruption left out of the fit.

Cost: one forward pass, and the moments of a few features. Norm knobs: none; the model is not steered.
Does not help: a change of the class balance raises an alarm, too, and images that an attacker made to look
ordinary raise none. Training images have other statistics than new images: as the reference they cause
false alarms on clean data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimtab import norm, rng
from trimtab._mode import evaluation_mode
from trimtab.adapt._estimate import AccuracyModel, fit_accuracy
from trimtab.adapt._evidence import Martingale, log_mean
from trimtab.norm.sensors import ImageMoments, image_moments, sensor_layers
from trimtab.types import BadInput

_TIES = rng.purpose("adapt.monitor")
FEWEST = 100
"""Reference images that a monitor needs at least."""


@dataclass(frozen=True)
class Status:
    """What a monitor has observed so far."""

    images: int
    """Images that passed through the model."""
    observed: int
    """How many of them the monitor observed."""
    evidence: float
    """Capital of the test martingale: 1 at the start, alarm at 1/alarm_rate."""
    alarm: bool
    """Whether the evidence ever reached 1/alarm_rate."""
    alarm_at: int | None
    """Images that had passed through the model at the alarm; None without one."""
    layers: tuple[tuple[str, float], ...]
    """Layers by how far their channel means moved lately: root mean square shift in reference stds."""
    channels: tuple[tuple[str, int, float], ...]
    """The channels that moved most lately: layer, index, shift in reference stds."""
    accuracy: float | None
    """Estimated accuracy over the last window; None before `calibrate`."""
    accuracy_error: float | None
    """Mean absolute error of such estimates on kinds of corruption left out of the calibration."""
    advice: str
    """What to do, in one sentence."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, such as for a line of a log."""
        return asdict(self)


class Monitor(nn.Module):
    """A model that monitors its own normalization statistics.

    Args:
        model: Any classifier with batch-norm layers; it is not modified.
        reference: Held-out clean images: batches of images, or tuples that start with them.
        alarm_rate: Upper bound on the probability of ever raising a false alarm.
        layers: How many layers to observe, spread evenly over the depth.
        fraction: Fraction of each batch's images to observe.
        window: Images that the moving averages extend over.
        seed: Seed of the random numbers that break ties between scores.
    """

    def __init__(
        self,
        model: nn.Module,
        reference: Iterable[Any],
        *,
        alarm_rate: float = 0.01,
        layers: int = 4,
        fraction: float = 0.25,
        window: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < alarm_rate < 1 or not 0 < fraction <= 1:
            raise BadInput(
                f"alarm_rate and fraction lie between 0 and 1, found {alarm_rate:g} and {fraction:g}"
            )
        self.model = model
        self.alarm_rate, self.fraction, self.window, self.seed = alarm_rate, fraction, window, seed
        self.names = sensor_layers(model, layers)
        moments, logits = self._observe(reference)
        if len(logits) < FEWEST:
            raise BadInput(f"a monitor needs at least {FEWEST} reference images, found {len(logits)}")
        half = len(logits) // 2
        # The first half standardizes; new scores are ranked among those of the second half.
        self.centers = {name: _center(m, slice(0, half)) for name, m in moments.items()}
        standardized = self._standardize({n: _rows(m, slice(half, None)) for n, m in moments.items()})
        self.martingales = [Martingale(column.tolist()) for column in _scores(standardized).T]
        self.estimator: AccuracyModel | None = None
        """Set by `calibrate`."""
        self.images = self.observed = 0
        self.alarm_at: int | None = None
        self._average: Tensor | None = None  # of `_features` over about `window` images
        self._shift = {name: torch.zeros_like(c.mean[0]) for name, c in self.centers.items()}

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's logits; the monitor observes some of the images."""
        step = max(1, round(1 / self.fraction))
        rows = slice((-self.images) % step, None, step)
        with image_moments(self.model, self.names, rows) as moments:
            logits: Tensor = self.model(x)
        self.images += len(x)
        if len(logits[rows]):
            self._update(moments, logits.detach()[rows])
        return logits

    @torch.no_grad()
    def _update(self, moments: dict[str, ImageMoments], logits: Tensor) -> None:
        standardized = self._standardize(moments)
        scores = _scores(standardized)  # (n, sensors)
        u = rng.scalars(self.seed, range(self.observed, self.observed + len(scores)), _TIES).tolist()
        for row, tie in zip(scores.tolist(), u, strict=True):
            for martingale, score in zip(self.martingales, row, strict=True):
                martingale.update(score, tie)
            if self.alarm_at is None and self._log_evidence() >= -math.log(self.alarm_rate):
                self.alarm_at = self.images
        self.observed += len(scores)
        keep = (
            (1 - 1 / self.window) ** len(scores)
            if self.observed > self.window
            else (1 - len(scores) / self.observed)
        )
        features = _features(scores, logits).mean(0)
        self._average = features if self._average is None else torch.lerp(features, self._average, keep)
        for name, (location, _) in standardized.items():
            self._shift[name] = torch.lerp(location.mean(0), self._shift[name], keep)

    def _log_evidence(self) -> float:
        return log_mean([martingale.log_capital for martingale in self.martingales])

    @torch.no_grad()
    def _observe(self, batches: Iterable[Any]) -> tuple[dict[str, ImageMoments], Tensor]:
        """Return moments and logits of all images, with the model in eval mode."""
        seen: dict[str, list[ImageMoments]] = {name: [] for name in self.names}
        logits = []
        with evaluation_mode(self.model):
            for batch in batches:
                with image_moments(self.model, self.names) as moments:
                    logits.append(self.model(norm.images_for(self.model, batch)))
                for name in self.names:
                    seen[name].append(moments[name])
        if not logits:
            raise BadInput("a monitor needs reference images, found none")
        joined = {
            name: ImageMoments(torch.cat([m.mean for m in parts]), torch.cat([m.std for m in parts]))
            for name, parts in seen.items()
        }
        return joined, torch.cat(logits)

    def _standardize(self, moments: Mapping[str, ImageMoments]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return each image's channel means and stds in units of the reference, (n, C) each."""
        return {
            name: (
                (m.mean - self.centers[name].mean[0]) / self.centers[name].mean[1],
                (m.std - self.centers[name].std[0]) / self.centers[name].std[1],
            )
            for name, m in moments.items()
        }

    def calibrate(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        corrupt: Callable[[Tensor, str, int], Tensor],
        kinds: Iterable[str],
        severities: Iterable[int] = (1, 3, 5),
    ) -> Monitor:
        """Learn to estimate the accuracy, from labeled images under known corruptions.

        Args:
            batches: (images, labels), held out from training; a few hundred images are enough.
            corrupt: `corrupt(x, kind, severity)`, such as `trimtab.data.corrupt`.
            kinds: The kinds of corruption to learn from.
            severities: Severities of each kind; clean images are always included.
        """
        labeled = [(x, y) for x, y, *_ in batches]
        labels = torch.cat([y for _, y in labeled])
        rows, accuracy, groups = [], [], []
        for kind, severity in [("clean", 0), *((k, s) for k in kinds for s in severities)]:
            images = [x if kind == "clean" else corrupt(x, kind, severity) for x, _ in labeled]
            moments, logits = self._observe(images)
            rows.append(_features(_scores(self._standardize(moments)), logits).mean(0).double().cpu().numpy())
            accuracy.append(float((logits.argmax(1).cpu() == labels.cpu()).double().mean()))
            groups.append(kind)
        self.estimator = fit_accuracy(np.stack(rows), np.array(accuracy), groups)
        return self

    def status(self) -> Status:
        """Return what was observed so far."""
        shifts = {name: shift.cpu() for name, shift in self._shift.items()}
        layers = sorted(
            ((n, float(s.square().mean().sqrt())) for n, s in shifts.items()), key=lambda p: -p[1]
        )
        moved = [
            (name, c, float(s[c])) for name, s in shifts.items() for c in s.abs().topk(min(3, len(s))).indices
        ]
        channels = [(name, int(c), shift) for name, c, shift in sorted(moved, key=lambda p: -abs(p[2]))[:5]]
        estimate = None
        if self.estimator is not None and self._average is not None:
            estimate = self.estimator(self._average.double().cpu().numpy())
        return Status(
            images=self.images,
            observed=self.observed,
            evidence=math.exp(min(self._log_evidence(), 700.0)),
            alarm=self.alarm_at is not None,
            alarm_at=self.alarm_at,
            layers=tuple(layers),
            channels=tuple(channels[:5]),
            accuracy=estimate,
            accuracy_error=None if self.estimator is None else self.estimator.error,
            advice=_advice(self.alarm_at, layers),
        )

    def get_extra_state(self) -> dict[str, Any]:
        """Return what `state_dict` keeps besides the model: what a restarted process needs."""
        return {
            "images": torch.tensor(
                [self.images, self.observed, -1 if self.alarm_at is None else self.alarm_at]
            ),
            "scores": [torch.tensor(m.scores, dtype=torch.float64) for m in self.martingales],
            "capital": [torch.tensor(m.state()[1], dtype=torch.float64) for m in self.martingales],
            "average": self._average,
            "shift": self._shift,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from the value of `get_extra_state()`."""
        self.images, self.observed, alarm_at = state["images"].tolist()
        self.alarm_at = None if alarm_at < 0 else alarm_at
        for martingale, scores, numbers in zip(
            self.martingales, state["scores"], state["capital"], strict=True
        ):
            martingale.restore(scores.tolist(), numbers.tolist())
        self._average, self._shift = state["average"], state["shift"]


def _center(moments: ImageMoments, rows: slice) -> ImageMoments:
    """Return mean and std over images of channel means, and of channel stds: two (2, C) tensors."""

    def mean_and_std(values: Tensor) -> Tensor:
        std, mean = torch.std_mean(values[rows], 0)
        return torch.stack([mean, std.clamp(min=1e-6)])

    return ImageMoments(mean_and_std(moments.mean), mean_and_std(moments.std))


def _rows(moments: ImageMoments, rows: slice) -> ImageMoments:
    return ImageMoments(moments.mean[rows], moments.std[rows])


def _scores(standardized: Mapping[str, tuple[Tensor, Tensor]]) -> Tensor:
    """Return the location and scale score of each image at each layer, (n, 2 layers)."""
    columns = []
    for location, scale in standardized.values():
        columns += [location.square().mean(1).log1p(), scale.mean(1)]
    return torch.stack(columns, 1)


def _features(scores: Tensor, logits: Tensor) -> Tensor:
    """Return the inputs of the accuracy estimate, (n, features): the scores, confidence and entropy."""
    p = logits.float().softmax(1)
    return torch.cat([scores, p.amax(1, keepdim=True), torch.special.entr(p).sum(1, keepdim=True)], 1)


def _advice(alarm_at: int | None, layers: list[tuple[str, float]]) -> str:
    if alarm_at is None:
        return "no drift detected"
    name, shift = layers[0]
    return (
        f"drift detected after {alarm_at} images, most at {name} ({shift:.2f} reference stds): re-estimate "
        "the statistics (adapt.per_batch, norm.repair), or load the pack of this domain"
    )
