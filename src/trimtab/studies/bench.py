"""What a study may ask for: trained networks, images, constructed sets, and measurements that are kept.

Everything lands in one folder, so that nothing is made twice and a killed run goes on:

    networks/KEY/     runs of `train.fit`, by a hash of all they depend on
    sets/KEY.npz      constructed sets
    store.sqlite      measurements, image by image (`evaluate.Store`)
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trimtab import construct, data, models, norm, train
from trimtab.data import Batch, Images
from trimtab.evaluate import Clean, Condition, NormState, Running, Store
from trimtab.evaluate.conditions import Columns, as_condition
from trimtab.evaluate.engine import Cell, Subject, measure
from trimtab.keys import digest
from trimtab.models.files import WEIGHTS
from trimtab.studies.methods import used
from trimtab.studies.nets import Made, Net
from trimtab.studies.scales import Scale
from trimtab.train.watch import Callback, Event
from trimtab.types import BadInput

Tell = Callable[[str, float], None]
"""Told what is being made, and how far it is (0 to 1)."""


ONE = train.Engine(devices=1)
"""A network is trained on one device; a grid takes many of them by the Ray engine."""


def device() -> torch.device:
    """Where networks are measured: on a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(eq=False)
class Bench:
    scale: Scale
    seed: int
    folder: Path
    allowed: Sequence[Net] | None = None
    """The networks that the claim declared; None allows any."""
    tell: Tell | None = None
    methods: dict[str, int] = field(default_factory=dict)
    """The versions of the attacks, conditions and constructions that were used."""
    _held: dict[str, nn.Module] = field(default_factory=dict)
    _sets: dict[tuple[str, str], Images] = field(default_factory=dict)

    # ---- networks ----------------------------------------------------------------------------------

    def network(self, net: Net) -> nn.Module:
        """The trained network: read if it is there, trained (or trained on) if not. Do not change it."""
        key = net.key(self.scale, self.seed)
        if self.allowed is not None and key not in {one.key(self.scale, self.seed) for one in self.allowed}:
            raise AssertionError(f"the claim does not declare the network {net.recipe} {dict(net.changes)}")
        if key not in self._held:
            self._held[key] = self._made(net)
        return self._held[key]

    def history(self, net: Net) -> list[dict[str, Any]]:
        """What was noted after every epoch of its training."""
        self.network(net)
        return train.Run(self._place(net), net.at(self.scale, self.seed)).metrics()

    def _place(self, net: Net) -> Path:
        return self.folder / "networks" / net.key(self.scale, self.seed)

    def _made(self, net: Net) -> nn.Module:
        if net.given and self.scale.name == "paper":
            return norm.steer(models.load(net.given)).eval().to(device())
        place = self._place(net)
        with only_one(place.with_suffix(".lock")):
            if not (place / WEIGHTS).exists():
                self._train(net, place)
        return norm.steer(models.load(f"file:{place}")).eval().to(device())

    def _train(self, net: Net, place: Path) -> None:
        recipe = net.at(self.scale, self.seed)
        bench = Bench(self.scale, self.seed, self.folder, None, self.tell)
        start = bench.network(net.start) if net.start else None
        images = bench.made(net.data) if net.data else None
        callbacks: list[Callback] = [self._progress(f"training {net.recipe}")]
        if net.watch is not None:
            callbacks.append(net.watch(bench))
        run = train.Run(place, recipe)
        if run.last.exists():
            train.resume(place, model=start, data=images, callbacks=callbacks, engine=ONE)
        else:
            train.fit(start, images, recipe, folder=place, callbacks=callbacks, engine=ONE)

    def _progress(self, words: str) -> Callable[[Event], None]:
        def told(event: Event) -> None:
            if self.tell is not None and (event.kind == "epoch" or event.step % 20 == 0):
                self.tell(words, event.step / max(event.steps, 1))

        return told

    # ---- images ------------------------------------------------------------------------------------

    def images(self, split: str = "test", n: int | None = None, of: Net | None = None) -> Images:
        """The first n images of a split, all if None; `of` a network that was trained on another set."""
        name = of.at(self.scale, self.seed).data.name if of else self.scale.data
        if (name, split) not in self._sets:
            self._sets[name, split] = data.load(name, split)
        whole = self._sets[name, split]
        return whole if n is None or n >= len(whole) else whole.subset(slice(0, n))

    def batches(self, images: Images, size: int) -> Iterator[Batch]:
        """Batches where the networks are."""
        at = device()
        return (Batch(x.to(at), y.to(at), ids) for x, y, ids in images.batches(size))

    def made(self, made: Made) -> Images:
        """A constructed set; built in chunks that survive a kill."""
        place = self.folder / "sets" / f"{digest(made.about(self.scale, self.seed))[:16]}.npz"
        how: dict[str, Any] = {"steps": self.scale.label_steps}
        if made.kind in ("D_R", "D_NR"):
            how = {"steps": self.scale.match_steps, "step": self.scale.match_step}
        source = Bench(self.scale, self.seed, self.folder, None, self.tell).network(made.source)
        images = self.made(made.of) if made.of else self.images("train", self.scale.made)
        place.parent.mkdir(parents=True, exist_ok=True)
        with only_one(place.with_suffix(".lock")):
            method = construct.construction(made.kind, **how)
            self.uses(method)
            tell = None
            if self.tell is not None:
                say = self.tell

                def tell(done: int, total: int) -> None:
                    say(f"making {made.kind}", done / total)

            construct.build(method, source, images, place, seed=self.seed, progress=tell)
        return data.load(f"npz:{place}", "train")

    def uses(self, *methods: Any) -> None:
        """Note what is used without the bench's help."""
        for method in methods:
            self.methods |= used(method)

    # ---- measurements ------------------------------------------------------------------------------

    def columns(
        self,
        model: nn.Module,
        condition: Condition | Any = None,
        state: NormState | None = None,
        n: int | None = None,
        images: Images | None = None,
        batch: int | None = None,
    ) -> Columns:
        """One value per image of the first n test images, kept in the store; `batch` where it matters."""
        images = images if images is not None else self.images()
        chunk = batch or (self.scale.batch if state is not None and state.couples else 256)
        subject = Subject(model, images, Store(self.folder / "store.sqlite"), chunk=chunk)
        count = min(n or len(images), len(images))
        asked = as_condition(condition) if condition is not None else Clean()
        self.uses(asked, state or Running())
        return measure(Cell(subject, asked, state or Running(), self.seed, count))

    def correct(self, model: nn.Module, condition: Condition | Any = None, **how: Any) -> torch.Tensor:
        """Which images are right, as 0 and 1 (float64): a column for tests over images."""
        return self.columns(model, condition, **self._sized(condition, how))["correct"].double()

    def accuracy(self, model: nn.Module, condition: Condition | Any = None, **how: Any) -> float:
        """The share of images that are right: test images as they are, or under a condition or an attack."""
        return float(self.correct(model, condition, **how).mean())

    def _sized(self, condition: Any, how: dict[str, Any]) -> dict[str, Any]:
        kind = getattr(as_condition(condition), "kind", "clean") if condition is not None else "clean"
        sizes = {"attack": self.scale.attacked, "corruption": self.scale.corrupted}
        return {"n": sizes.get(kind, self.scale.test), **how}


def operations(objective: train.Objective, model: nn.Module, batch: Batch) -> int:
    """Floating-point operations of a training step: unlike seconds, they repeat."""
    with torch.random.fork_rng(), FlopCounterMode(display=False) as counted:
        objective(objective.prepare(norm.copied(model)).train(), batch.x, batch.y)
    return int(counted.get_total_flops())


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Only one process at a time makes a thing; the others wait, and find it made."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as problem:
            raise BadInput(
                f"{lock} cannot be locked ({problem.strerror}); take a folder on another disk"
            ) from None
        yield
