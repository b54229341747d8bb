"""What a monitor knows of its reference and has observed since, as values that survive a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from trimtab import norm, rng
from trimtab.adapt._estimate import AccuracyModel
from trimtab.adapt._evidence import Martingale, log_mean
from trimtab.io import atomic_write, reading
from trimtab.norm.sensors import ImageMoments
from trimtab.types import BadInput

_TIES = rng.purpose("adapt.monitor")
_KEY = "trimtab-monitor"
FORMAT = 1
Standardized = Mapping[str, tuple[Tensor, Tensor]]
"""Each image's channel means and stds by layer, in units of the reference: (n, C) each."""


class Drift:
    """Test martingales and moving averages over the moments of images.

    Args:
        centers: Per layer mean and std over reference images of channel means, and of channel stds.
        domain: Mean and variance of each layer's input over the reference images, (2, C).
        alarm_rate: Upper bound on the probability of ever raising a false alarm.
        window: Images that the moving averages extend over.
        seed: Seed of the random numbers that break ties between scores.
    """

    def __init__(
        self,
        centers: dict[str, ImageMoments],
        domain: dict[str, Tensor],
        alarm_rate: float,
        window: int,
        seed: int,
    ) -> None:
        self.centers, self.domain = centers, domain
        self.alarm_rate, self.window, self.seed = alarm_rate, window, seed
        self.martingales = [Martingale([]) for _ in range(2 * len(centers))]
        self.estimator: AccuracyModel | None = None
        self.images = self.observed = 0
        self.alarm_at: int | None = None
        self.average: Tensor | None = None
        """Of the inputs of the accuracy estimate, over about `window` images."""
        self.shift = {name: torch.zeros_like(c.mean[0]) for name, c in centers.items()}
        self.stream = {name: torch.zeros_like(values) for name, values in domain.items()}
        """Like `domain`, of the stream lately; the second row holds the mean square."""

    def standardize(self, moments: Mapping[str, ImageMoments]) -> Standardized:
        """Return each image's channel means and stds in units of the reference."""
        return {
            name: (
                (m.mean - self.centers[name].mean[0]) / self.centers[name].mean[1],
                (m.std - self.centers[name].std[0]) / self.centers[name].std[1],
            )
            for name, m in moments.items()
        }

    def features(self, moments: Mapping[str, ImageMoments], logits: Tensor | None) -> Tensor:
        """Return the inputs of the accuracy estimate, averaged over the images: (features,)."""
        return features(scores(self.standardize(moments)), logits).mean(0)

    @torch.no_grad()
    def update(self, moments: Mapping[str, ImageMoments], logits: Tensor | None) -> None:
        """Add the moments of some images, in order."""
        standardized = self.standardize(moments)
        table = scores(standardized)  # (n, sensors)
        u = rng.scalars(self.seed, range(self.observed, self.observed + len(table)), _TIES).tolist()
        for row, tie in zip(table.tolist(), u, strict=True):
            for martingale, score in zip(self.martingales, row, strict=True):
                martingale.update(score, tie)
            if self.alarm_at is None and self.log_evidence >= -math.log(self.alarm_rate):
                self.alarm_at = self.images
        self.observed += len(table)
        keep = 1 - len(table) / self.observed
        if self.observed > self.window:
            keep = (1 - 1 / self.window) ** len(table)
        averaged = features(table, logits).mean(0)
        self.average = averaged if self.average is None else torch.lerp(averaged, self.average, keep)
        for name, (location, _) in standardized.items():
            m = moments[name]
            seen = torch.stack([m.mean.mean(0), (m.mean**2 + m.std**2).mean(0)])
            self.shift[name] = torch.lerp(location.mean(0), self.shift[name], keep)
            self.stream[name] = torch.lerp(seen, self.stream[name], keep)

    @property
    def log_evidence(self) -> float:
        """Log of the average capital of the test martingales."""
        return log_mean([martingale.log_capital for martingale in self.martingales])

    def accuracy(self) -> float | None:
        """Return the estimated accuracy over the last window; None without an estimator."""
        if self.estimator is None or self.average is None:
            return None
        return self.estimator(self.average.double().cpu().numpy())

    def nearest(self, packs: Mapping[str, norm.Pack]) -> str | None:
        """Name the pack that describes the stream best; None if the reference does.

        By the KL divergence of the first layer's input, which no other layer's statistics change.
        """
        at = next(iter(self.domain))
        mean, square = self.stream[at].cpu()
        domains: dict[str | None, Any] = {None: self.domain[at].cpu()}
        domains |= {name: p.layers[at][2:4] for name, p in packs.items() if at in p.layers}

        def distance(name: str | None) -> float:
            return float(norm.divergence(mean, (square - mean**2).clamp(min=0), *domains[name]))

        return min(domains, key=distance)

    # ---- files ------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return everything but a few numbers, which are in `numbers`."""
        values: dict[str, Tensor] = {}
        for k, martingale in enumerate(self.martingales):
            values[f"scores.{k}"] = torch.tensor(martingale.scores, dtype=torch.float64)
            values[f"capital.{k}"] = torch.tensor(martingale.numbers, dtype=torch.float64)
        for name, center in self.centers.items():
            values |= {f"{name}:mean": center.mean, f"{name}:std": center.std}
            values |= {f"{name}:domain": self.domain[name], f"{name}:stream": self.stream[name]}
            values[f"{name}:shift"] = self.shift[name]
        if self.average is not None:
            values["average"] = self.average
        if self.estimator is not None:
            values |= {f"estimator.{key}": torch.from_numpy(v) for key, v in self.estimator.arrays.items()}
        return {name: value.detach().cpu().contiguous() for name, value in values.items()}

    def numbers(self) -> dict[str, Any]:
        """Return the plain values of the state."""
        estimator = None if self.estimator is None else self.estimator.errors
        counts = {"images": self.images, "observed": self.observed, "alarm_at": self.alarm_at}
        return {"names": list(self.centers), **counts, "estimator": estimator}


def fitted(reference: Mapping[str, ImageMoments], alarm_rate: float, window: int, seed: int) -> Drift:
    """Make the state before the first image, from the moments of held-out reference images.

    The first half of them standardizes; new scores are ranked among those of the second half.
    """
    half = len(next(iter(reference.values())).mean) // 2
    centers = {name: _center(m, slice(0, half)) for name, m in reference.items()}
    drift = Drift(centers, {name: _domain(m) for name, m in reference.items()}, alarm_rate, window, seed)
    ranked = {n: ImageMoments(m.mean[half:], m.std[half:]) for n, m in reference.items()}
    drift.martingales = [Martingale(c.tolist()) for c in scores(drift.standardize(ranked)).T]
    return drift


def restored(
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
    alarm_rate: float,
    window: int,
    seed: int,
    device: torch.device,
) -> Drift:
    """Make the state that `tensors()` and `numbers()` describe."""
    at = {key: value.to(device) for key, value in tensors.items()}
    names = [str(name) for name in numbers["names"]]
    centers = {n: ImageMoments(at[f"{n}:mean"], at[f"{n}:std"]) for n in names}
    drift = Drift(centers, {n: at[f"{n}:domain"] for n in names}, alarm_rate, window, seed)
    drift.shift, drift.stream = ({n: at[f"{n}:{kind}"] for n in names} for kind in ("shift", "stream"))
    for k, martingale in enumerate(drift.martingales):
        martingale.restore(tensors[f"scores.{k}"].tolist(), tensors[f"capital.{k}"].tolist())
    drift.average = at.get("average")
    drift.images, drift.observed, drift.alarm_at = (numbers[k] for k in ("images", "observed", "alarm_at"))
    if numbers["estimator"] is not None:
        center, scale, weights = (tensors[f"estimator.{k}"].numpy() for k in ("center", "scale", "weights"))
        drift.estimator = AccuracyModel(center, scale, weights, **numbers["estimator"])
    return drift


def write(drift: Drift, path: Path, about: Mapping[str, Any]) -> None:
    """Write a state with what else a monitor needs; the file is replaced whole or not at all."""
    header = {"format": FORMAT, "about": dict(about), "numbers": drift.numbers()}
    content = safetensors.torch.save(drift.tensors(), {_KEY: json.dumps(header)})
    with atomic_write(path) as part:
        part.write_bytes(content)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """Return what else a monitor needs, and the state's tensors and numbers."""
    with reading(path, "a monitor's state"), safe_open(path, "pt") as file:
        header = json.loads((file.metadata() or {})[_KEY])
        if header["format"] != FORMAT:
            raise BadInput(f"{path} is a monitor's state of another format; start a new one")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return header["about"], tensors, header["numbers"]


def scores(standardized: Standardized) -> Tensor:
    """Return the location and scale score of each image at each layer, (n, 2 layers)."""
    columns = []
    for location, scale in standardized.values():
        columns += [location.square().mean(1).log1p(), scale.mean(1)]
    return torch.stack(columns, 1)


def features(table: Tensor, logits: Tensor | None) -> Tensor:
    """Return the inputs of the accuracy estimate, (n, features): scores and, of logits, the confidence."""
    if logits is None:
        return table
    p = logits.float().softmax(1)
    confidence = [p.amax(1), torch.special.entr(p).sum(1)]  # (n,), or (n, positions) of dense outputs
    return torch.cat([table, *(c.reshape(len(c), -1).mean(1, keepdim=True) for c in confidence)], 1)


def _center(moments: ImageMoments, rows: slice) -> ImageMoments:
    """Return mean and std over images of channel means, and of channel stds: two (2, C) tensors."""

    def mean_and_std(values: Tensor) -> Tensor:
        std, mean = torch.std_mean(values[rows], 0)
        return torch.stack([mean, std.clamp(min=1e-6)])

    return ImageMoments(mean_and_std(moments.mean), mean_and_std(moments.std))


def _domain(moments: ImageMoments) -> Tensor:
    mean = moments.mean.mean(0)
    return torch.stack([mean, (moments.mean**2 + moments.std**2).mean(0) - mean**2])
