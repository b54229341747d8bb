"""Networks and sets that studies ask for, named once and made once.

A `Net` is one of the shipped recipes of the papers with some of its keys changed; a scale then puts its own
data, network and length in their place. It may start from another `Net` and be trained on a `Made` set, one
that was constructed with a third. Its key is a hash of all that: claims that ask for the same network share
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from trimtab.keys import digest
from trimtab.studies.scales import Scale
from trimtab.train import Recipe, read_recipe
from trimtab.train.reader import overridden, plain
from trimtab.train.recipe import KINDS

if TYPE_CHECKING:
    from trimtab.studies.bench import Bench

Changes = Mapping[str, Any]
"""Values by dotted key; a function gives its value at the scale, and None leaves the key alone."""
Watch = Callable[["Bench"], Callable[[Any], Any]]
"""Makes a training callback, whose numbers `Bench.history` gives back."""


def small(value: Any) -> Callable[[Scale], Any]:
    """A change at the small scales; the paper's recipe keeps its own."""
    return lambda scale: None if scale.name == "paper" else value


RATE = 1900.0
"""Images a second of standard training, ResNet-8 of width 16, two cores of a laptop."""
ATTACK_PASS = 0.45
"""What a step of an attack costs beside a step of standard training: weights need no gradient."""


@dataclass(frozen=True, eq=False)
class Net:
    recipe: str
    """Name of the shipped recipe."""
    changes: Changes = field(default_factory=dict)
    start: Net | None = None
    """The trained network that it starts from: a fine-tuning, with the scale's settings for one."""
    data: Made | None = None
    """The constructed set that it is trained on."""
    given: str | None = None
    """At paper scale it is not trained: it is this published network."""
    watch: Watch | None = None
    """What to note after every epoch."""
    draw: int = 0
    """Other weights to start from, and other batches, than networks of the same seed have."""

    def at(self, scale: Scale, seed: int) -> Recipe:
        """The recipe in force."""
        return replace(_recipe(self, scale), seed=seed + 1000 * self.draw)

    def key(self, scale: Scale, seed: int) -> str:
        """What it is made of, as a hash."""
        return _key(self, scale, seed)

    def about(self, scale: Scale, seed: int) -> dict[str, Any]:
        if self.given and scale.name == "paper":
            return {"given": self.given}
        return {
            "recipe": plain(self.at(scale, seed), KINDS),
            "start": self.start.about(scale, seed) if self.start else None,
            "data": self.data.about(scale, seed) if self.data else None,
            "watch": self.watch.__name__ if self.watch else None,
        }

    def needs(self) -> Iterator[Net]:
        """The networks that must be there first."""
        for before in (self.start, self.data.source if self.data else None):
            if before is not None:
                yield from before.needs()
                yield before
        if self.data is not None and self.data.of is not None:
            yield from self.data.of.source.needs()
            yield self.data.of.source

    def seconds(self, scale: Scale) -> float:
        """A guess of its training time at laptop scale, without what it starts from."""
        recipe = self.at(scale, 0)
        passes = recipe.objective.passes(recipe.batch_size)
        steps = getattr(getattr(recipe.objective, "attack", None), "steps", 0)
        cost = (passes.forward + 2 * passes.backward) / 3 - steps * (1 - ATTACK_PASS)
        images = min(recipe.data.images or 50_000, (scale.made or 50_000) if self.data else 50_000)
        return images * recipe.epochs * max(cost, 1.0) * _size(recipe.model) / RATE


@dataclass(frozen=True, eq=False)
class Made:
    kind: str
    """D_R, D_NR, D_rand, D_det or D_conflict."""
    source: Net
    """The network it is made with."""
    of: Made | None = None
    """Made from the images of this set, else from training images."""

    def about(self, scale: Scale, seed: int) -> dict[str, Any]:
        of = self.of.about(scale, seed) if self.of else [scale.data, scale.made]
        steps = [scale.match_steps, scale.match_step, scale.label_steps]
        return {"kind": self.kind, "source": self.source.about(scale, seed), "of": of, "steps": steps}


def closure(nets: Mapping[str, Net] | list[Net], scale: Scale, seed: int) -> dict[str, Net]:
    """Networks with all that they need, each once, in an order in which they can be trained."""
    found: dict[str, Net] = {}
    for net in nets.values() if isinstance(nets, Mapping) else nets:
        for one in (*net.needs(), net):
            found.setdefault(one.key(scale, seed), one)
    return found


@cache
def _recipe(net: Net, scale: Scale) -> Recipe:
    shrunk = dict(scale.changes)
    if net.start is not None and scale.name != "paper":
        shrunk |= {**scale.tuning, "epochs": scale.tuning_epochs}
    given = plain(read_recipe(net.recipe), KINDS)
    small = overridden(given, {key: value for key, value in shrunk.items() if _has(given, key)})
    own = {key: value(scale) if callable(value) else value for key, value in net.changes.items()}
    kept = {key: value for key, value in own.items() if value is not None}
    return replace(read_recipe(small, kept), about="")


@cache
def _key(net: Net, scale: Scale, seed: int) -> str:
    return digest(net.about(scale, seed))[:16]


def _has(given: Mapping[str, Any], key: str) -> bool:
    """Whether a recipe has the place that a change is for (an attack, say)."""
    head, _, rest = key.partition(".")
    if not rest:
        return True
    inner = given.get(head)
    return isinstance(inner, Mapping) and (
        ("." not in rest and rest in inner) or ("." in rest and _has(inner, rest))
    )


def _size(model: str) -> float:
    """How many times the work of ResNet-8 of width 16, roughly: deeper in proportion, wider in its square."""
    from trimtab.models import parse

    source = parse(model)
    digits = "".join(c for c in source.name.split("_")[0] if c.isdigit())
    plain = 16 if source.name.startswith(("resnet", "wrn")) else 64
    wide = float(source.arguments.get("width", plain)) / 16
    return max(int(digits or 8) / 8, 0.5) * wide**2
