"""Values that every part of trimtab speaks in: numbers as people write them, budgets, what a model expects.

Pixels are in [0, 1] everywhere: budgets, noise levels and step sizes are in pixel units, and a
model's mean and std live inside the model, recorded in its `InputSpec`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from html import escape
from numbers import Integral
from typing import Any, TypeVar

Returned = TypeVar("Returned")
_Class = TypeVar("_Class", bound=type)


class BadInput(ValueError):
    """Something the user gave cannot be used. The message is one sentence: what was wrong, what to do."""


def number(value: float | int | str) -> float:
    """Read `8/255`, `1e-3` or a plain number.

    >>> number("8/255") == 8 / 255, number("1e-3"), number(2)
    (True, 0.001, 2.0)
    """
    try:
        if isinstance(value, str) and "/" in value:
            above, below = value.split("/")
            result = float(above) / float(below)
        else:
            result = float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise BadInput(f"{_short(value)} is not a number; write it like 0.03, 1e-3 or 8/255") from None
    if not math.isfinite(result):
        raise BadInput(f"{_short(value)} is not a finite number; write it like 0.03, 1e-3 or 8/255")
    return result


def whole(value: object, what: str) -> int:
    """A count, refused by its name if it is none.

    >>> whole(20, "steps")
    20
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadInput(f"{what} must be a whole number, found {value!r}")
    return int(value)


def at_least(least: float, **values: float | None) -> None:
    """Refuse numbers below a bound, by their names; None is no number.

    >>> at_least(1, epochs=3, patience=None)
    """
    for name, value in values.items():
        if value is not None and not value >= least:
            raise BadInput(f"{name} must be {least:g} or more, found {value:g}")


def counts(**values: object) -> None:
    """Refuse what is not a whole number of 1 or more, by its name; None is no number.

    >>> counts(n0=100, n=1000, limit=None)
    """
    at_least(1, **{name: whole(value, name) for name, value in values.items() if value is not None})


def fraction(**values: float) -> None:
    """Refuse what is not between 0 and 1, by its name.

    >>> fraction(clean=0.5)
    """
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise BadInput(f"{name} is a fraction between 0 and 1, found {value:g}")


def one_of(choices: Iterable[str], **values: str) -> None:
    """Refuse what is not among the choices, by its name.

    >>> one_of(("sign", "random"), attack="sign")
    """
    for name, value in values.items():
        if value not in (known := tuple(choices)):
            raise BadInput(f"{name} must be one of {', '.join(known)}, found {value!r}")


def nearest(word: str, known: Iterable[Any]) -> str:
    """Return a hint at the most similar known name, for an error message; empty if none is similar.

    >>> nearest("cifr10", ["sample", "cifar10"]), nearest("x", ["sample"])
    (' (did you mean cifar10?)', '')
    """
    close = difflib.get_close_matches(word, [str(name) for name in known], 1)
    return f" (did you mean {close[0]}?)" if close else ""


def listed(items: Iterable[Any]) -> str:
    """Write several things as people say them.

    >>> listed("abc")
    'a, b and c'
    """
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _short(value: object) -> str:
    words = repr(value) if isinstance(value, str | float | int) else f"a {type(value).__name__}"
    return words if len(words) < 60 else f"{words[:50]}..."


def pretty(value: float) -> str:
    """Write a pixel value the way people say it.

    >>> pretty(8 / 255), pretty(0.5)
    ('8/255', '0.5')
    """
    levels = Fraction(value * 255).limit_denominator(4)
    if value and value != round(value, 3) and abs(float(levels) / 255 - value) < 1e-9:
        return f"{float(levels):g}/255"
    return f"{value:g}"


@dataclass(frozen=True)
class _Ball:
    """Base of the budgets: the images within a distance of the original."""

    eps: float | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", radius(self.eps))

    @property
    def radius(self) -> float:
        """The radius, in pixels."""
        return float(self.eps)


@dataclass(frozen=True)
class Linf(_Ball):
    """All images within `eps` of the original in every pixel.

    Args:
        eps: The radius, in pixels: 8/255, 0.03 or 1e-3, as a number or a string.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius > 1:
            raise BadInput(
                f"an l_inf radius of {self.radius:g} exceeds the pixel range [0, 1]; did you mean "
                f"{self.radius:g}/255?"
            )

    def __str__(self) -> str:
        return f"l_inf {pretty(self.radius)}"


@dataclass(frozen=True)
class L2(_Ball):
    """All images within Euclidean distance `eps` of the original.

    Args:
        eps: The radius, in pixels: 0.5 or 128/255, as a number or a string.
    """

    def __str__(self) -> str:
        return f"l_2 {pretty(self.radius)}"


Budget = Linf | L2


def radius(eps: float | str) -> float:
    """Read the radius of a ball, refused if it is negative."""
    value = number(eps)
    if value < 0:
        raise BadInput(f"a radius must not be negative, found {value:g}")
    return value


CROP_MODES = ("center", "squash", "border")
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
MOST_CHANNELS = 65_536


@dataclass(frozen=True)
class InputSpec:
    """What a classifier expects: pixels in [0, 1] of this size, made from photographs in this way.

    mean and std are applied inside the model. The other fields say how an image file becomes pixels, as timm
    and torchvision record it with their weights; images that are arrays already are taken as they are.

    Args:
        size: Height and width in pixels.
        mean: Subtracted inside the model, one value per channel; zeros if not given.
        std: Divided by inside the model, one value per channel; ones if not given.
        crop_fraction: Side of the crop divided by the shorter side of the resized image (timm's crop_pct;
            beyond 1 the border is black); None: image files are neither resized nor cropped.
        interpolation: How image files are resized: nearest, box, bilinear, hamming, bicubic or lanczos.
        crop_mode: center resizes the shorter side and crops the center; squash resizes both sides,
            whatever the aspect; border resizes the longer side and pads the shorter one with the mean.
        resize: Length of the shorter side before the crop; floor(size / crop_fraction) if not given.
    """

    size: tuple[int, int] = (32, 32)
    channels: int = 3
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop_fraction: float | None = None
    interpolation: str = "bilinear"
    crop_mode: str = "center"
    resize: int | None = None

    def __post_init__(self) -> None:
        if whole(self.channels, "channels") > MOST_CHANNELS:  # before a value per channel is made
            raise BadInput(f"an InputSpec has at most {MOST_CHANNELS} channels, found {self.channels}")
        object.__setattr__(self, "mean", tuple(self.mean) or (0.0,) * self.channels)
        object.__setattr__(self, "std", tuple(self.std) or (1.0,) * self.channels)
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise BadInput(
                f"an InputSpec with {self.channels} channels needs {self.channels} means and stds, "
                f"found {len(self.mean)} and {len(self.std)}"
            )
        if min(self.std) <= 0:
            raise BadInput(f"stds must be positive, found {self.std}")
        if self.interpolation not in INTERPOLATIONS:
            known = ", ".join(INTERPOLATIONS)
            raise BadInput(f"there is no interpolation {self.interpolation!r}; choose one of {known}")
        if self.crop_mode not in CROP_MODES:
            known = ", ".join(CROP_MODES)
            raise BadInput(f"there is no crop mode {self.crop_mode!r}; choose one of {known}")
        if self.resize and self.crop_fraction is None:
            object.__setattr__(self, "crop_fraction", min(self.size) / self.resize)
        if self.resize is not None and self.resize < 1:
            raise BadInput(f"images are resized to 1 pixel or more, found {self.resize}")
        if self.crop_fraction is not None and not 0 < self.crop_fraction <= 2:
            raise BadInput(f"a crop fraction must be in (0, 2], found {self.crop_fraction:g}")

    @property
    def resized(self) -> tuple[int, int] | None:
        """Height and width that contain the crop, to which image files are resized; None: not at all.

        >>> InputSpec((224, 224), crop_fraction=0.875).resized
        (256, 256)
        """
        if self.crop_fraction is None:
            return None
        if self.resize is None:
            height, width = (math.floor(side / self.crop_fraction) for side in self.size)
        else:
            height, width = (self.resize * side // min(self.size) for side in self.size)
        return height, width

    @property
    def preparation(self) -> str:
        """How image files become pixels, as text; empty where they are taken as they are.

        >>> InputSpec((224, 224), crop_fraction=0.875, interpolation="bicubic").preparation
        'resized to 256 pixels (bicubic, center) and cropped to 224 x 224'
        """
        if self.resized is None:
            return ""
        how, (height, width) = f"{self.interpolation}, {self.crop_mode}", self.size
        return f"resized to {min(self.resized)} pixels ({how}) and cropped to {height} x {width}"

    def at_size(self, size: int) -> InputSpec:
        """The same for square images of another size.

        >>> InputSpec((224, 224), resize=232).at_size(448).resized
        (464, 464)
        """
        resize = None if self.resize is None else round(self.resize * size / min(self.size))
        return replace(self, size=(size, size), resize=resize)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InputSpec:
        """The InputSpec that `to_json` wrote, also before image files were part of it."""
        try:
            (height, width), channels = map(int, value["size"]), int(value["channels"])
            mean, std = (tuple(map(float, value[name])) for name in ("mean", "std"))
            fraction, resize = value.get("crop_fraction"), value.get("resize")
            fraction, resize = fraction and float(fraction), resize and int(resize)
            names = {name: str(value[name]) for name in ("interpolation", "crop_mode") if name in value}
            if min(height, width, channels) < 1:
                raise ValueError
            return cls((height, width), channels, mean, std, fraction, resize=resize, **names)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise BadInput(f"this is not what a model can expect as its input: {value}") from None


def renamed_arguments(**new_names: str) -> Callable[[Callable[..., Returned]], Callable[..., Returned]]:
    """Let a function take old argument names (`old="new"`), each with a DeprecationWarning."""

    def decorate(function: Callable[..., Returned]) -> Callable[..., Returned]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Returned:
            for old in new_names.keys() & kwargs.keys():
                message = f"{function.__name__}({old}=...) is now {new_names[old]}=..."
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                kwargs[new_names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapper

    return decorate


def method_card(text: str | None) -> Callable[[_Class], _Class]:
    """Append a method card, the docstring of its module, to the docstring of a class.

    So `help` of a method shows both.

    Args:
        text: The method card, the module's `__doc__`.
    """

    def extend(cls: _Class) -> _Class:
        card = textwrap.indent(text or "", "    ").rstrip()
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\nMethod card:\n{card}\n"
        return cls

    return extend


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML, for notebooks.

    Args:
        caption: What it shows.
        header: A name for each column.
        rows: The cells.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    parts = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<table>{parts}</table>"
