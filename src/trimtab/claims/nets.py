"""Networks and sets of the claims, defined once and made once.

A `Net` is a shipped recipe of a paper with some keys changed; a scale replaces its data, network and length.
It may be fine-tuned from another `Net`, trained on a `Made` (constructed) set, and have keys that are chosen
on held-out images (`Choice`). Its key is a hash of all this, so claims with the same network share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from trimtab.claims.scales import Scale
from trimtab.runtime.fingerprint import describe, digest
from trimtab.train import Recipe, read_recipe
from trimtab.train.reader import overridden, plain

if TYPE_CHECKING:
    from trimtab.claims.bench import Bench

Changes = Mapping[str, Any]
"""Values, or functions from a scale to values, by dotted key; None leaves the key unchanged."""
Watch = Callable[["Bench"], Callable[[Any], Any]]
"""Returns a training callback; `Bench.history` returns what it measures."""


def small(value: Any) -> Callable[[Scale], Any]:
    """Return a change that applies at the small scales only."""
    return lambda scale: None if scale.name == "paper" else value


@dataclass(frozen=True, eq=False)
class Net:
    """A network that claims train or load."""

    recipe: str
    """Name of the shipped recipe."""
    changes: Changes = field(default_factory=dict)
    """Changed keys of the recipe."""
    start: Net | None = None
    """The trained network that it starts from: it is fine-tuned with the scale's settings."""
    data: Made | None = None
    """The constructed set that it is trained on."""
    given: str | None = None
    """The published network that is used at paper scale instead of training."""
    watch: Watch | None = None
    """What is measured after every epoch."""
    draw: int = 0
    """Selects other initial weights and batches than those of networks with the same seed."""
    choice: Choice | None = None
    """Changes that are chosen on held-out images before it is trained."""
    first: bool = False
    """Whether it is trained with seed 0 for every seed of the claim."""

    def at(self, scale: Scale, seed: int) -> Recipe:
        """Return its recipe at a scale, without the changes of a choice."""
        return replace(_recipe(self, scale), seed=(0 if self.first else seed) + 1000 * self.draw)

    def chooses(self, scale: Scale) -> bool:
        """Return whether it has a choice at a scale."""
        return self.choice is not None and scale.name in self.choice.scales

    def key(self, scale: Scale, seed: int) -> str:
        """Return a hash of all that it depends on."""
        return _key(self, scale, seed)

    def about(self, scale: Scale, seed: int) -> dict[str, Any]:
        """Return all that it depends on, as plain values; the recipe by its differences from the defaults."""
        if self.given and scale.name == "paper":
            return {"given": self.given}
        about = {
            "recipe": describe(self.at(scale, seed)),
            "start": self.start.about(scale, seed) if self.start else None,
            "data": self.data.about(scale, seed) if self.data else None,
            "watch": self.watch.__name__ if self.watch else None,
        } | ({"walked": scale.walked} if self.watch and scale.walked > 1 else {})
        if self.choice is not None and self.chooses(scale):
            about["choice"] = [net.about(scale, 0) for net in self.choice.candidates]
            about["held out"] = self.choice.images
        return about

    def needs(self, scale: Scale) -> Iterator[Net]:
        """Yield the networks that must be trained before it at a scale, in order."""
        if self.choice is not None and self.chooses(scale):
            yield from self.choice.candidates
        for before in (self.start, self.data.source if self.data else None):
            if before is not None:
                yield from before.needs(scale)
                yield before
        if self.data is not None and self.data.of is not None:
            yield from self.data.of.source.needs(scale)
            yield self.data.of.source


@dataclass(frozen=True, eq=False)
class Choice:
    """Alternative changes, of which the most accurate on held-out training images is chosen, with one seed.

    At paper scale nothing is chosen: the recipes are used as shipped.
    """

    net: Net
    """The network that is changed."""
    tried: tuple[Changes, ...]
    """The alternatives; ties go to the first."""
    images: int = 1000
    """Number of held-out images: those after the training images."""
    scales: tuple[str, ...] = ("smoke", "desk")
    """Scales at which the choice is made."""

    @cached_property
    def candidates(self) -> list[Net]:
        """The networks that are compared."""
        return [
            replace(self.net, changes={**self.net.changes, **changes}, first=True) for changes in self.tried
        ]


@dataclass(frozen=True, eq=False)
class Made:
    """A constructed set that networks are trained on."""

    kind: str
    """D_R, D_NR, D_rand, D_det or D_conflict."""
    source: Net
    """The network that it is constructed with."""
    of: Made | None = None
    """The set that it is constructed from; training images if None."""

    def about(self, scale: Scale, seed: int) -> dict[str, Any]:
        """Return all that it depends on, as plain values."""
        of = self.of.about(scale, seed) if self.of else [scale.data, scale.made]
        steps = [scale.match_steps, scale.match_step, scale.label_steps]
        return {"kind": self.kind, "source": self.source.about(scale, seed), "of": of, "steps": steps}


def closure(nets: Sequence[Net], scale: Scale, seed: int) -> dict[str, Net]:
    """Return networks with all that they need, each once, in an order in which they can be trained."""
    by_key: dict[str, Net] = {}
    for net in nets:
        for needed in (*net.needs(scale), net):
            by_key.setdefault(needed.key(scale, seed), needed)
    return by_key


@cache
def _recipe(net: Net, scale: Scale) -> Recipe:
    changes = dict(scale.changes)
    if net.start is not None and scale.name != "paper":
        changes |= {**scale.tuning, "epochs": scale.tuning_epochs}
    shipped = plain(read_recipe(net.recipe))
    if "data.validation" in changes and not changes["data.validation"]:
        shipped.pop("validation", None)  # without held-out images the last epoch is used
    scaled = overridden(shipped, {key: value for key, value in changes.items() if _has(shipped, key)})
    own_changes = {key: value(scale) if callable(value) else value for key, value in net.changes.items()}
    own_changes = {key: value for key, value in own_changes.items() if value is not None}
    return replace(read_recipe(scaled, own_changes), about="")


@cache
def _key(net: Net, scale: Scale, seed: int) -> str:
    return digest(net.about(scale, seed))[:16]


def _has(recipe: Mapping[str, Any], key: str) -> bool:
    """Return whether a recipe has a dotted key; top-level keys, which may be omitted, it always has."""
    *sections, last = key.split(".")
    section: Any = recipe
    for name in sections:
        section = section.get(name)
        if not isinstance(section, Mapping):
            return False
    return not sections or last in section
