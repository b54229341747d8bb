"""What a claim measures with: trained networks, images, constructed sets, and cached measurements.

Everything is stored in one folder, so nothing is computed twice and an interrupted run resumes. A file PAUSE
in it asks a run to stop.

    networks/KEY/     runs of `train.fit`, by a hash of all that they depend on
    sets/KEY.npz      constructed sets
    store.sqlite      measurements, image by image (`evaluate.Store`)
"""

from __future__ import annotations

import fcntl
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trimtab import construct, data, models, norm, train
from trimtab.claims.methods import used
from trimtab.claims.nets import Choice, Made, Net
from trimtab.claims.power import PerImage
from trimtab.claims.scales import Scale
from trimtab.data import Batch, Images
from trimtab.evaluate import BNMode, Clean, Condition, RunningMode, Store
from trimtab.evaluate.cells import Cell, Subject
from trimtab.evaluate.conditions import Columns, as_condition
from trimtab.evaluate.engine import measure
from trimtab.measure import Accuracy
from trimtab.models.files import WEIGHTS
from trimtab.runtime.fingerprint import digest
from trimtab.train import Callback, Event, Stopped
from trimtab.types import BadInput

Subjects = Mapping[str, Net | tuple[Net, BNMode | None]]
"""Networks by name, those in a BN mode as (network, mode)."""
StudyProgress = Callable[[str, float], None]
"""Called with a description of the current work, and the fraction that is done."""

STOP_EVERY = 20
"""Training steps between two checks whether to stop."""
ONE = train.Engine(devices=1)
"""The engine that trains a network: one device. Several networks are trained in parallel by Ray."""


def device() -> torch.device:
    """Return the device on which networks are measured: a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(eq=False)
class Bench:
    """Networks, sets and measurements of a study at one scale and seed."""

    scale: Scale
    """Sizes of the data and networks, and lengths of the training."""
    seed: int
    """The seed of networks and measurements."""
    folder: Path
    """Where everything is stored."""
    allowed: Sequence[Net] | None = None
    """The networks that the claim declared; None allows any."""
    progress: StudyProgress | None = None
    """Called while networks are trained and sets are made."""
    published: Path | None = None
    """Folder of networks that were published with the results: they are loaded, not trained again."""
    methods: dict[str, int] = field(default_factory=dict)
    """The versions of the attacks, conditions and constructions that were used."""
    until: float = math.inf
    """Time (`time.monotonic`) at which training or measuring stops, its state saved."""
    _networks: dict[str, nn.Module] = field(default_factory=dict)
    _sets: dict[tuple[str, str], Images] = field(default_factory=dict)

    # ---- networks ----------------------------------------------------------------------------------

    def network(self, net: Net) -> nn.Module:
        """Return a trained network: loaded if it exists, else trained (or resumed). Do not modify it."""
        key = net.key(self.scale, self.seed)
        if self.allowed is not None and key not in {
            other.key(self.scale, self.seed) for other in self.allowed
        }:
            raise AssertionError(f"the claim does not declare the network {net.recipe} {dict(net.changes)}")
        if key not in self._networks:
            self._networks[key] = self._loaded(net)
        return self._networks[key]

    def history(self, net: Net) -> list[dict[str, Any]]:
        """Return what was logged after every epoch of a network's training."""
        self.network(net)
        path = self._path(net.key(self.scale, self.seed))
        return train.Run(path, net.at(self.scale, self.seed)).metrics()

    def trained(self, key: str) -> bool:
        """Return whether the network of a key was trained, in this folder or as a published one."""
        return (self._path(key) / WEIGHTS).exists()

    def _path(self, key: str) -> Path:
        if self.published is not None and (self.published / key / WEIGHTS).exists():
            return self.published / key
        return self.folder / "networks" / key

    def _loaded(self, net: Net) -> nn.Module:
        if net.given and self.scale.name == "paper":
            return norm.steer(models.load(net.given)).eval().to(device())
        key = net.key(self.scale, self.seed)
        with locked(self.folder / "networks" / f"{key}.lock"):
            if not self.trained(key):
                self._train(net, self._path(key))
        return norm.steer(models.load(f"file:{self._path(key)}")).eval().to(device())

    def held_out(self, choice: Choice) -> dict[Net, PerImage]:
        """Return the accuracy of each candidate on held-out images, those that follow its training images."""
        accuracies, bench = {}, self._without_restrictions()
        for net in choice.candidates:
            whole, n_train = self.images("train", of=net), net.at(self.scale, 0).data.images
            if n_train is None or n_train >= len(whole):
                raise BadInput(
                    f"no training images are left to choose by: {net.recipe} trains on all of them"
                )
            images = whole.subset(slice(n_train, n_train + choice.images))
            accuracies[net] = PerImage(bench.correct(bench.network(net), images=images, n=len(images)))
        return accuracies

    def decided(self, net: Net) -> Net:
        """Return a network with its choice made; itself if it has no choice at this scale."""
        if net.choice is None or not net.chooses(self.scale):
            return net
        accuracies = self.held_out(net.choice)
        best = max(accuracies, key=accuracies.__getitem__)  # ties go to the first
        changes = net.choice.tried[net.choice.candidates.index(best)]
        return replace(net, changes={**net.changes, **changes}, choice=None)

    def _train(self, net: Net, path: Path) -> None:
        final, bench = self.decided(net), self._without_restrictions()
        recipe, key = final.at(self.scale, self.seed), final.key(self.scale, self.seed)
        if final is not net and self.trained(key):  # the choice fell on a network that exists
            part = path.with_suffix(".part")
            shutil.copytree(self._path(key), part, dirs_exist_ok=True)
            part.rename(path)
            return
        start = bench.network(net.start) if net.start else None
        images = bench.made(net.data) if net.data else None
        callbacks: list[Callback] = [partial(self._while_training, net)]
        if net.watch is not None:
            callbacks.append(net.watch(bench))
        run = train.Run(path, recipe)
        if run.last.exists():
            train.resume(path, model=start, data=images, callbacks=callbacks, engine=ONE)
        else:
            train.fit(start, images, recipe, folder=path, callbacks=callbacks, engine=ONE)

    def _without_restrictions(self) -> Bench:
        """A bench for networks and sets that the claim depends on but does not declare."""
        return replace(self, allowed=None, methods={})

    def _while_training(self, net: Net, event: Event) -> None:
        if event.kind == "step" and event.step % STOP_EVERY == 0:
            self._report(f"training {net.recipe}", event.step, event.steps)
            if self.must_stop:
                signal.raise_signal(signal.SIGTERM)  # the loop saves and raises `Stopped`

    def _stop_after_chunk(self, cell: Cell, new: int, count: Accuracy) -> None:
        if new and self.must_stop:  # the chunk is stored
            raise Stopped(128 + signal.SIGTERM, self.folder)

    @property
    def must_stop(self) -> bool:
        """Whether work is to be stopped: a file PAUSE asks for it, or the time is up."""
        return paused(self.folder) or time.monotonic() > self.until

    def _report(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done / max(total, 1))

    # ---- images ------------------------------------------------------------------------------------

    def images(self, split: str = "test", n: int | None = None, of: Net | None = None) -> Images:
        """Return the first n images of a split (all if None), of the scale's set or of a network's (`of`)."""
        name = of.at(self.scale, self.seed).data.name if of else self.scale.data
        if (name, split) not in self._sets:
            self._sets[name, split] = data.load(name, split)
        whole = self._sets[name, split]
        return whole if n is None or n >= len(whole) else whole.subset(slice(0, n))

    def batches(self, images: Images, size: int) -> Iterator[Batch]:
        """Return batches on the networks' device."""
        where = device()
        return (Batch(x.to(where), y.to(where), ids) for x, y, ids in images.batches(size))

    def made(self, made: Made) -> Images:
        """Return a constructed set; it is built if it does not exist."""
        path = self.folder / "sets" / f"{digest(made.about(self.scale, self.seed))[:16]}.npz"
        options: dict[str, Any] = {"steps": self.scale.label_steps}
        if made.kind in ("D_R", "D_NR"):
            options = {"steps": self.scale.match_steps, "step": self.scale.match_step}
        source = self._without_restrictions().network(made.source)
        images = self.made(made.of) if made.of else self.images("train", self.scale.made)
        path.parent.mkdir(parents=True, exist_ok=True)
        report = partial(self._report, f"making {made.kind}")
        with locked(path.with_suffix(".lock")):
            method = construct.construction(made.kind, **options)
            self.uses(method)
            construct.build(method, source, images, path, seed=self.seed, progress=report)
        return data.load(f"npz:{path}", "train")

    def uses(self, *methods: Any) -> None:
        """Record the versions of methods that a claim calls directly."""
        for method in methods:
            self.methods |= used(method)

    # ---- measurements ------------------------------------------------------------------------------

    def columns(
        self,
        model: nn.Module,
        condition: Condition | Any = None,
        state: BNMode | None = None,
        n: int | None = None,
        images: Images | None = None,
        batch: int | None = None,
    ) -> Columns:
        """Measure one value per test image; measurements are cached in the store.

        Args:
            model: The model.
            condition: A condition or an attack; clean images if None.
            state: The BN mode; running statistics if None.
            n: Number of images, the first ones of the set; all if None.
            images: The set; by default the scale's test images.
            batch: Images per batch, where predictions depend on it; by default the scale's.
        """
        images = images if images is not None else self.images()
        chunk = batch or (self.scale.batch if state is not None and state.couples else 256)
        subject = Subject(model, images, Store(self.folder / "store.sqlite"), chunk=chunk)
        count = min(n or len(images), len(images))
        condition = as_condition(condition) if condition is not None else Clean()
        self.uses(condition, state or RunningMode())
        cell = Cell(subject, condition, state or RunningMode(), self.seed, count)
        return measure(cell, self._stop_after_chunk)

    def correct(self, model: nn.Module, condition: Condition | Any = None, **how: Any) -> torch.Tensor:
        """Return which images are classified correctly, as 0 and 1 (float64); arguments as in `columns`."""
        return self.columns(model, condition, **self._sized(condition, how))["correct"].double()

    def accuracy(self, model: nn.Module, condition: Condition | Any = None, **how: Any) -> float:
        """Return the accuracy on test images, with its per-image outcomes; arguments as in `columns`."""
        return PerImage(self.correct(model, condition, **how))

    def table(self, subjects: Subjects, conditions: Mapping[str, Any]) -> dict[str, float]:
        """Return the accuracy of every subject under every condition, as rows "SUBJECT, CONDITION".

        Args:
            subjects: What is measured, by name.
            conditions: Conditions and attacks by name; None is clean images.
        """
        rows: dict[str, float] = {}
        for name, subject in subjects.items():
            net, state = subject if isinstance(subject, tuple) else (subject, None)
            model = self.network(net)
            for what, condition in conditions.items():
                rows[f"{name}, {what}"] = self.accuracy(model, condition, state=state)
        return rows

    def _sized(self, condition: Any, how: dict[str, Any]) -> dict[str, Any]:
        kind = getattr(as_condition(condition), "kind", "clean") if condition is not None else "clean"
        sizes = {"attack": self.scale.attacked, "corruption": self.scale.corrupted}
        return {"n": sizes.get(kind, self.scale.test), **how}


def paused(folder: Path) -> bool:
    """Return whether a file PAUSE next to the store asks a run to stop."""
    return (folder / "PAUSE").exists()


def operations(objective: train.Objective, model: nn.Module, batch: Batch) -> int:
    """Return the floating-point operations of a training step, which are reproducible, unlike seconds."""
    with torch.random.fork_rng(), FlopCounterMode(display=False) as counter:
        objective(objective.prepare(norm.clone(model)).train(), batch.x, batch.y)
    return int(counter.get_total_flops())


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold a file lock: other processes wait until it is released."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as problem:
            raise BadInput(
                f"{lock} cannot be locked ({problem.strerror}); take a folder on another disk"
            ) from None
        yield
