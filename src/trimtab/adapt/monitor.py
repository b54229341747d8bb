"""Detect drift of the normalization statistics during ordinary inference.

At a few normalization layers, spread over the depth, each image's channel means and stds are compared with
those of held-out reference images. Two scores per layer,

    location   mean over channels of ((m_c - mu_c) / sd_c)^2
    scale      mean over channels of (s_c - mu'_c) / sd'_c

each update a conformal test martingale; an alarm is raised when their average reaches 1/alarm_rate. On a
stream that is exchangeable with the reference the probability that it is *ever* raised is at most
`alarm_rate`.

    monitor = adapt.Monitor(model, reference)       # held-out clean images, not the training images
    monitor.calibrate(labeled, corrupt, kinds)      # optional: enables the accuracy estimate
    logits = monitor(x)                             # the same as model(x)
    monitor.status()                                # alarm, evidence, moved layers and channels, advice
    monitor.save("state.safetensors")               # Monitor.load(model, "state.safetensors") continues

Subsampling: only a fraction of each batch, evenly spaced, is observed (`fraction`, default 1/4). Detection
takes 1/fraction times as many images; the bound on false alarms is the same.

Accuracy: a ridge regression on confidence, entropy and the scores' averages over the last `window` images,
fitted on corrupted labeled images; its error is measured on kinds of corruption left out of the fit.

Models: any with batch norm whose features have the batch in dimension 0, detectors and segmentation
networks included. The accuracy is estimated only for logits (N, classes) or (N, classes, ...).

Cost: one forward pass, and the moments of a few features. Norm knobs: none; the model is not steered.
Limits: a change of the class balance raises an alarm, too, and images that an attacker gave ordinary
statistics raise none. Do not use training images as the reference: their statistics differ from those of
new images, which causes false alarms on clean data. Measured: docs/results/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab._mode import evaluation_mode
from trimtab.adapt import _drift
from trimtab.adapt._estimate import fit_accuracy
from trimtab.io import reading
from trimtab.norm.sensors import ImageMoments, image_moments, sensor_layers
from trimtab.types import BadInput

MIN_REFERENCE = 100
"""Smallest number of reference images."""
Forward = Callable[[nn.Module, Any], Any]


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
    """Layer and root mean square shift of its recent channel means in reference stds, largest first."""
    channels: tuple[tuple[str, int, float], ...]
    """The channels with the largest recent shifts: layer, index, shift in reference stds."""
    accuracy: float | None
    """Estimated accuracy over the last window; None before `calibrate`."""
    accuracy_lost: float | None
    """Accuracy on the clean images of the calibration minus this estimate."""
    accuracy_error: float | None
    """Mean absolute error of such estimates on kinds of corruption left out of the calibration."""
    pack: str | None
    """The pack whose statistics are nearest to the stream's; None if the reference is nearer."""
    advice: str
    """What to do, in one sentence."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON values."""
        return asdict(self)


class Monitor(nn.Module):
    """A model that monitors its own normalization statistics.

    Args:
        model: Any model with batch-norm layers; it is not modified.
        reference: Batches of held-out clean images: tensors, tuples that start with the images, or whatever
            `forward` takes.
        forward: `forward(model, batch)` for reference batches of models that do not take one tensor.
        alarm_rate: Upper bound on the probability of ever raising a false alarm.
        layers: How many layers to observe, spread evenly over the depth.
        fraction: Fraction of each batch's images to observe.
        window: Number of images in the moving averages.
        packs: Packs of other domains or their files, by name; the status names the one that fits.
        seed: Seed of the random numbers that break ties between scores.
    """

    def __init__(
        self,
        model: nn.Module,
        reference: Iterable[Any],
        forward: Forward | None = None,
        *,
        alarm_rate: float = 0.01,
        layers: int = 4,
        fraction: float = 0.25,
        window: int = 512,
        packs: Mapping[str, norm.Pack | str | Path] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < alarm_rate < 1 or not 0 < fraction <= 1:
            raise BadInput(
                f"alarm_rate and fraction lie between 0 and 1, found {alarm_rate:g} and {fraction:g}"
            )
        self._set(model, fraction, packs)
        self.names = sensor_layers(model, layers)
        moments, _ = self._observe(reference, forward)
        images = len(moments[self.names[0]].mean)
        if images < MIN_REFERENCE:
            raise BadInput(f"a monitor needs at least {MIN_REFERENCE} reference images, found {images}")
        # A layer in a detector's second stage has one row per region, not per image: leave it out.
        self.names = [name for name in self.names if len(moments[name].mean) == images]
        self.drift = _drift.fitted({n: moments[n] for n in self.names}, alarm_rate, window, seed)

    def _set(
        self, model: nn.Module, fraction: float, packs: Mapping[str, norm.Pack | str | Path] | None
    ) -> None:
        self.model, self.fraction = model, fraction
        read = {n: p if isinstance(p, norm.Pack) else norm.read_pack(p) for n, p in (packs or {}).items()}
        self.packs: dict[str, norm.Pack] = read

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns; the monitor observes some of the images."""
        step = max(1, round(1 / self.fraction))
        rows = slice((-self.drift.images) % step, None, step)
        with image_moments(self.model, self.names, rows) as moments:
            output = self.model(*args, **kwargs)
        self.drift.images += moments.images
        if moments:
            logits = _logits(output, moments.images)
            self.drift.update(moments, None if logits is None else logits[rows])
        return output

    @torch.no_grad()
    def _observe(
        self, batches: Iterable[Any], forward: Forward | None = None
    ) -> tuple[dict[str, ImageMoments], Tensor | None]:
        """Run all batches in eval mode; return the moments, and the logits if every output is logits."""
        collected: dict[str, list[ImageMoments]] = {name: [] for name in self.names}
        logits = []
        with evaluation_mode(self.model):
            for batch in batches:
                with image_moments(self.model, self.names) as moments:
                    if forward is None:
                        output = self.model(norm.images_for(self.model, batch))
                    else:
                        output = forward(self.model, batch)
                logits.append(_logits(output, moments.images))
                for name, part in moments.items():
                    collected[name].append(part)
        if not logits:
            raise BadInput("a monitor needs reference images, found none")
        joined = {
            name: ImageMoments(torch.cat([m.mean for m in parts]), torch.cat([m.std for m in parts]))
            for name, parts in collected.items()
        }
        known = [part for part in logits if part is not None]
        return joined, torch.cat(known) if len(known) == len(logits) else None

    def calibrate(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        corrupt: Callable[[Tensor, str, int], Tensor],
        kinds: Iterable[str],
        severities: Iterable[int] = (1, 3, 5),
    ) -> Monitor:
        """Fit the accuracy estimate on labeled images under known corruptions; return the monitor.

        Args:
            batches: Batches (images, labels), held out from training; a few hundred images are enough.
            corrupt: `corrupt(x, kind, severity)`, such as `trimtab.data.corrupt`.
            kinds: The kinds of corruption to learn from.
            severities: Severities of each kind; clean images are always included.
        """
        labeled = [(x, y) for x, y, *_ in batches]
        labels = torch.cat([y for _, y in labeled]).cpu()
        rows, accuracy, groups = [], [], []
        for kind, severity in [("clean", 0), *((k, s) for k in kinds for s in severities)]:
            images = [x if kind == "clean" else corrupt(x, kind, severity) for x, _ in labeled]
            moments, logits = self._observe(images)
            if logits is None:
                raise BadInput("the accuracy can be estimated only for a model that returns logits")
            features = self.drift.features({n: moments[n] for n in self.names}, logits)
            rows.append(features.double().cpu().numpy())
            accuracy.append(float((logits.argmax(1).cpu() == labels).double().mean()))
            groups.append(kind)
        fitted = fit_accuracy(np.stack(rows), np.array(accuracy), groups)
        self.drift.estimator = replace(fitted, clean=accuracy[0])
        return self

    def status(self) -> Status:
        """Return what was observed so far."""
        drift = self.drift
        shifts = {name: shift.cpu() for name, shift in drift.shift.items()}
        layers = sorted(
            ((n, float(s.square().mean().sqrt())) for n, s in shifts.items()), key=lambda p: -p[1]
        )
        moved = [
            (name, int(c), float(s[c]))
            for name, s in shifts.items()
            for c in s.abs().topk(min(3, len(s))).indices
        ]
        accuracy, estimator = drift.accuracy(), drift.estimator
        pack = drift.nearest(self.packs) if self.packs and drift.observed else None
        return Status(
            images=drift.images,
            observed=drift.observed,
            evidence=math.exp(min(drift.log_evidence, 700.0)),
            alarm=drift.alarm_at is not None,
            alarm_at=drift.alarm_at,
            layers=tuple(layers),
            channels=tuple(sorted(moved, key=lambda p: -abs(p[2]))[:5]),
            accuracy=accuracy,
            accuracy_lost=None if accuracy is None or estimator is None else estimator.clean - accuracy,
            accuracy_error=None if estimator is None else estimator.error,
            pack=pack,
            advice=_advice(drift.alarm_at, layers, pack),
        )

    def save(self, path: str | Path) -> Path:
        """Write the state, without the model; `Monitor.load` continues from it.

        Args:
            path: The safetensors file to write, replaced atomically.
        """
        about = {
            "model": _digest(self.model), "fraction": self.fraction, "alarm_rate": self.drift.alarm_rate,
            "window": self.drift.window, "seed": self.drift.seed,
        }  # fmt: skip
        _drift.write(self.drift, Path(path), about)
        return Path(path)

    @classmethod
    def load(
        cls,
        model: nn.Module,
        path: str | Path,
        packs: Mapping[str, norm.Pack | str | Path] | None = None,
    ) -> Monitor:
        """Return a monitor that continues from a saved state, without the reference images.

        Args:
            model: The model that the state was saved for.
            path: The file that `save` wrote.
            packs: As for a new monitor.
        """
        about, tensors, numbers = _drift.read(Path(path))
        with reading(Path(path), "a monitor's state"):
            if about["model"] != _digest(model):
                raise BadInput(f"{path} is the state of a monitor of another model; start a new one")
            monitor = cls.__new__(cls)
            nn.Module.__init__(monitor)
            monitor._set(model, float(about["fraction"]), packs)
            device = next((p.device for p in model.parameters()), torch.device("cpu"))
            monitor.names = list(numbers["names"])
            settings = (float(about["alarm_rate"]), int(about["window"]), int(about["seed"]))
            monitor.drift = _drift.restored(tensors, numbers, *settings, device)
        return monitor


def _logits(output: Any, images: int) -> Tensor | None:
    """Return a model's output if it is logits, (N, classes) or (N, classes, ...), else None."""
    is_logits = isinstance(output, Tensor) and output.dim() >= 2 and len(output) == images
    return output.detach() if is_logits else None


def _digest(model: nn.Module) -> str:
    """Hash all tensors of a model; the reference moments are valid only for these."""
    return norm.state_digest({k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)})


def _advice(alarm_at: int | None, layers: list[tuple[str, float]], pack: str | None) -> str:
    if alarm_at is None:
        return "no drift detected"
    name, shift = layers[0]
    drift = f"drift detected after {alarm_at} images, most at {name} ({shift:.2f} reference stds)"
    if pack is not None:
        return f"{drift}: load the pack {pack!r}, whose statistics are nearest (norm.load_pack)"
    return (
        f"{drift}: re-estimate the statistics, once on recent images (trimtab repair, adapt.frozen) or, if "
        "the domain keeps changing, on every batch (adapt.per_batch)"
    )
