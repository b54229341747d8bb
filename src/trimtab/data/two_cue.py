"""A synthetic set whose robust and non-robust features are known by construction.

Each image carries two cues, and each can be read alone:

- the **robust cue**: a large shape whose form and color belong to a class, at a random place, of random
  size and brightness, on a gray ground with noise. No change within 8/255 makes one color or form another.
- the **faint cue**: stripes or a chequerboard, one pixel wide, of +-`amplitude` levels of 255 (4 unless
  given), in one of four mixtures of color signs, the same in each image of a class. A shift or a mirror
  image changes only its sign, so convolutions can read it.

Adding `pattern[j] - pattern[i]` turns the faint cue of class i into that of class j exactly and changes no
pixel by more than 2 * amplitude / 255. So *no* classifier that reads only the faint cue resists an l_inf
attack of 8/255, and one that reads only the robust cue can. Pixels stay clear of 0 and 255, so nothing is
clipped.

What a cue shows is a choice: the label, the next class (the cues conflict), a class at random (the cue is
noise), or nothing. The idea follows the constructed sets of Ilyas et al. (2019) and the conflicting ones of
Benz et al., which are made with networks, so that their two kinds of feature are known only approximately.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from trimtab import rng
from trimtab.data.sets import ImageSet, from_arrays
from trimtab.types import BadInput

Shows: TypeAlias = Literal["label", "next", "random", "nothing"]

MOST_CLASSES = 12  # there are as many faint patterns
_LABEL, _ROBUST, _FAINT, _X, _Y, _RADIUS, _VALUE, _GROUND, _NOISE = range(9)  # what each draw is for


class Cued(NamedTuple):
    """A set, and what each of its cues shows (-1 where it shows nothing)."""

    images: ImageSet
    robust: Tensor
    faint: Tensor


@dataclass(frozen=True)
class TwoCue:
    """How the images are made; the same values and ids make the same images."""

    robust: Shows = "label"
    """What the shape shows."""
    faint: Shows = "label"
    """What the pattern shows."""
    classes: int = 10
    size: int = 32
    """Height and width, even."""
    amplitude: int = 4
    """Of the pattern, in levels of 255."""
    noise: float = 4.0
    """Std of the ground's noise, in levels of 255."""
    seed: int = 0

    def __post_init__(self) -> None:
        for shows in (self.robust, self.faint):
            if shows not in ("label", "next", "random", "nothing"):
                raise BadInput(f"a cue shows 'label', 'next', 'random' or 'nothing', not {shows!r}")
        if not 2 <= self.classes <= MOST_CLASSES:
            raise BadInput(f"the two-cue set has 2 to {MOST_CLASSES} classes, not {self.classes}")
        if self.size < 16 or self.size % 2:
            raise BadInput(f"the size must be even and at least 16, not {self.size}")
        if not 0 < self.amplitude <= 16:
            raise BadInput(f"the amplitude must be 1 to 16 levels of 255, not {self.amplitude}")

    def __call__(self, split: str = "test", count: int | None = None) -> Cued:
        """`count` images of a split (8,000 of train, 2,000 of test unless given)."""
        if split not in ("train", "test"):
            raise BadInput(f"the two-cue set has no split {split!r}; it has train and test")
        count = count or {"train": 8000, "test": 2000}[split]
        seed, ids = rng.key(self.seed, split == "test"), torch.arange(count)
        labels = _class(seed, ids, _LABEL, self.classes)
        robust = self._shown(self.robust, labels, _class(seed, ids, _ROBUST, self.classes))
        faint = self._shown(self.faint, labels, _class(seed, ids, _FAINT, self.classes))
        scene = shapes(robust, self.classes, self.size, seed, ids)  # (N, 3, S, S), levels
        scene += self.noise * rng.normal(scene, seed, ids.tolist(), _NOISE)
        base = scene.round().clamp(self.amplitude, 255 - self.amplitude)
        pattern = patterns(self.size)[faint] * (faint >= 0)[:, None, None, None]
        seen = (base + self.amplitude * pattern).to(torch.uint8)
        names = [f"class {k}" for k in range(self.classes)]
        return Cued(from_arrays(seen, labels, names, "two-cue"), robust, faint)

    def _shown(self, shows: Shows, labels: Tensor, drawn: Tensor) -> Tensor:
        shown = {
            "label": labels,
            "next": (labels + 1) % self.classes,
            "random": drawn,
            "nothing": torch.full_like(labels, -1),
        }
        return shown[shows]


def patterns(size: int) -> Tensor:
    """The faint cues, +-1, (12, 3, size, size)."""
    ones, stripes = torch.ones(size), 1.0 - 2 * (torch.arange(size) % 2)
    forms = [torch.outer(ones, stripes), torch.outer(stripes, ones), torch.outer(stripes, stripes)]
    signs = [(1, 1, 1), (1, 1, -1), (1, -1, 1), (-1, 1, 1)]  # of red, green, blue: none is another's negative
    return torch.stack([torch.tensor(sign)[:, None, None] * form for sign in signs for form in forms])


def shapes(shown: Tensor, classes: int, size: int, seed: int, ids: Tensor) -> Tensor:
    """Levels of 255: a disc, square, diamond or cross in the color of its class on a gray ground."""

    def drawn(draw: int, low: float, high: float) -> Tensor:
        return (low + (high - low) * rng.scalars(seed, ids, draw).float())[:, None, None]

    radius = size * drawn(_RADIUS, 0.25, 0.34)
    steps = torch.arange(size, dtype=torch.float32) + 0.5
    room = size / 2 - radius
    across = (steps[None, None, :] - size / 2 - room * drawn(_X, -1, 1)) / radius  # (N, 1, S), -1..1 inside
    down = (steps[None, :, None] - size / 2 - room * drawn(_Y, -1, 1)) / radius
    far, near = torch.maximum(across.abs(), down.abs()), torch.minimum(across.abs(), down.abs())
    forms = torch.stack(
        [across**2 + down**2 <= 1, far <= 0.85, far + near <= 1.2, (far <= 1) & (near <= 0.4)]
    )
    inside = forms[shown % 4, torch.arange(len(shown))] & (shown >= 0)[:, None, None]  # (N, S, S)
    hues = torch.tensor([colorsys.hsv_to_rgb(k / classes, 1.0, 1.0) for k in range(classes)])
    color = 255 * drawn(_VALUE, 0.7, 0.9) * hues[shown.clamp(min=0)][:, None]  # (N, 1, 3)
    ground = 255 * drawn(_GROUND, 0.35, 0.55)
    pixels = torch.where(inside[..., None], color[:, None], ground[..., None])  # (N, S, S, 3)
    return pixels.permute(0, 3, 1, 2).contiguous()


def _class(seed: int, ids: Tensor, draw: int, classes: int) -> Tensor:
    return (rng.scalars(seed, ids, draw) * classes).long()
