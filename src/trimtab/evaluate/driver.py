"""`run`: measure a suite, examine what was measured, and return the card.

A run that was killed resumes when it is called again, and the card is the same to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import trimtab
from trimtab.certify.smoothing import statistics_of
from trimtab.data import as_set
from trimtab.evaluate import trust
from trimtab.evaluate.bn_modes import BNMode, BranchMode, RunningMode, mode_record
from trimtab.evaluate.card import Card, Flag, Row
from trimtab.evaluate.cells import CHUNK, Cell, Subject
from trimtab.evaluate.conditions import Attacked, Columns, Condition
from trimtab.evaluate.engine import measure
from trimtab.evaluate.processes import in_processes
from trimtab.evaluate.progress import Meter, Notify
from trimtab.evaluate.records import ImagesRecord
from trimtab.evaluate.request import Request, name_of, seeds_of
from trimtab.evaluate.store import DEFAULT, Store
from trimtab.evaluate.stored_images import preprocessing
from trimtab.evaluate.suites import suite_of
from trimtab.measure.accuracy import Accuracy
from trimtab.models.pixels import spec_of
from trimtab.runtime.fingerprint import describe
from trimtab.types import BadInput, Budget, InputSpec, counts, renamed_arguments

if TYPE_CHECKING:
    from lightning_fabric import Fabric


RUNNING = RunningMode()
FRACTION, FEWEST = 0.15, 64
"""Of a suite without attacks: what the checks before it may add to its cost, on how many images at least."""


@renamed_arguments(states="bn_modes", insist="force")
def run(
    model: nn.Module,
    data: Any,
    suite: str | Iterable[Any] = "quick",
    store: Store | str | Path | None = None,
    progress: Notify | None = None,
    limit: int | None = None,
    seed: int | Sequence[int] = 0,
    bn_modes: Sequence[BNMode] | BNMode = RUNNING,
    linf: Budget | None = None,
    l2: Budget | None = None,
    batch_size: int = CHUNK,
    chunk: int = CHUNK,
    keep_images: bool = False,
    examine: bool = True,
    force: bool = False,
    processes: int = 1,
    fabric: Fabric | None = None,
    name: str | None = None,
    command: str | None = None,
) -> Card:
    """Measure a suite on the first `limit` images, in every BN mode and with every seed, and examine it.

    Args:
        model: any classifier of pixels in [0, 1]; it is left as it was.
        data: one of our sets, or any DataLoader of (image, label).
        suite: "quick", "standard", "full" or "corruptions", or a list of conditions and attacks.
        store: where results are kept and resumed from.
        progress: called with an `EvaluationStatus` after each chunk.
        limit: only the first images of the data.
        seed: decides all random numbers; several seeds give several rows.
        bn_modes: which statistics normalize, such as `RunningMode()` and `PerBatchMode()`.
        linf: the l_inf budget of the suite's attacks, 8/255 if not given.
        l2: their l_2 budget, 0.5 if not given.
        batch_size: images that go through the model at once; changes no result.
        chunk: images that are committed at once, and the batch where images influence each other.
        keep_images: store adversarial images as well (see `rescore`).
        examine: run the probing attacks of the trust card; without them it rests on the suite alone.
        force: attack even where the trust card finds that robust accuracies will be meaningless, because
            pixels are normalized wrongly or no gradient reaches them.
        processes: start this many on this machine (model and data must then be picklable).
        fabric: in a program that is launched by Fabric or torchrun; every process returns the card.
        name: what the card calls the model.
        command: how to make the card again, for the card.
    """
    counts(chunk=chunk, batch_size=batch_size, processes=processes, limit=limit)
    request = Request(
        suite=suite if isinstance(suite, str) else "own",
        conditions=suite_of(suite, linf, l2),
        store=store if isinstance(store, Store) else Store(store or DEFAULT),
        limit=None if limit is None else int(limit),
        seeds=seeds_of(seed),
        bn_modes=(bn_modes,) if isinstance(bn_modes, BNMode) else tuple(bn_modes),
        chunk=chunk,
        batch_size=batch_size,
        keep_images=keep_images,
        examine=examine,
        force=force,
        name=name or name_of(model),
        command=command,
    )
    if processes > 1 and fabric is None:
        return in_processes(processes, model, partial(_carry_out, data, request), progress)
    return _carry_out(data, request, fabric, model, progress)


def _carry_out(
    data: Any, request: Request, fabric: Fabric | None, model: nn.Module, notify: Notify | None
) -> Card:
    images = as_set(data, input=spec_of(model))
    if len(images) == 0:
        raise BadInput("the data hold no image to evaluate on")
    request.check_fit(model, images)
    n = len(images) if request.limit is None else min(request.limit, len(images))
    subject = Subject(
        model, images, request.store, request.chunk, request.batch_size, request.keep_images, fabric
    )
    brief = not any(isinstance(condition, Attacked) for condition in request.conditions)
    checked = _checked(request, n) if brief else n
    static = (mode for mode in request.bn_modes if isinstance(mode, RunningMode | BranchMode))
    by_pixels = next(static, request.bn_modes[0])
    plans = [
        ModePlan(
            subject, request, mode, n, trust.first_cells(subject, mode, request.seeds[0], checked, brief)
        )
        for mode in request.bn_modes
    ]
    for plan in plans if brief else ():
        if plan.bn_mode != by_pixels:  # wrong pixels are no matter of the BN mode
            del plan.first[1:]
    _check_nothing_dropped(request, plans)
    meter = Meter(notify, [cell for plan in plans for cell in plan.cells])
    rows: list[Row] = []
    flags: list[Flag] = []
    for plan in plans:
        mode_rows, mode_flags = plan.measure(meter, request.force)
        rows += mode_rows
        flags += mode_flags
    provenance = {
        "trimtab": trimtab.__version__,
        "examined": request.examine,
        "torch": torch.__version__,
        **subject.identity,
        "pixels": describe(getattr(model, "spec", InputSpec(images.spec.size, images.spec.channels))),
        "preprocessing": preprocessing(model, images),
        "statistics": statistics_of(model),
        "command": request.command,
    }
    if any(cell.coupled for plan in plans for cell in plan.suite):
        provenance["batch"] = min(request.chunk, n)
    card = Card(request.name, images.name, request.suite, tuple(rows), tuple(flags), provenance)
    if fabric is None or fabric.global_rank == 0:
        request.store.record(card.id, card.json())
    return card


def _checked(request: Request, n: int) -> int:
    """Return on how many images a suite without attacks is checked beforehand, at a fraction of its cost."""
    passes = sum(condition.cost for condition in request.conditions) * n * len(request.bn_modes)
    cost = trust.NORMALIZATION_COST + 3.0 * len(request.bn_modes)
    return min(n, max(FEWEST, int(FRACTION * passes / cost)))


def _check_nothing_dropped(request: Request, plans: list[ModePlan]) -> None:
    """Refuse attacks of a user's own list that apply in no BN mode; a named suite leaves them out."""
    planned = [cell.condition for plan in plans for cell in plan.suite]
    for condition in request.conditions if request.suite == "own" else ():
        if isinstance(condition, Attacked) and not any(condition is each for each in planned):
            modes = ", ".join(map(str, request.bn_modes))
            adapts = getattr(condition.attack, "adaptive", False)
            why = "it is for a model that adapts, such as in PerBatchMode" if adapts else "leave it out"
            raise BadInput(f"{condition} does not apply to this model in BN mode {modes}; {why}")


class ModePlan:
    """All cells of one BN mode: the model's health, then the suite, then probes of its attacks."""

    def __init__(
        self, subject: Subject, request: Request, bn_mode: BNMode, n: int, first: list[Cell]
    ) -> None:
        self.bn_mode = bn_mode
        seeds = request.seeds
        self.first = first
        conditions = [c for c in request.conditions if _applies(c, subject, bn_mode)]
        if not conditions:
            fix = "freeze its statistics first (adapt.frozen; trimtab certify --adapt N)"
            coupled = bn_mode.couples or subject.couples
            why = f": images of a batch influence each other; {fix}" if coupled else ""
            raise BadInput(
                f"there is nothing to measure: {request.conditions[0]} does not apply to this model "
                f"in BN mode {bn_mode}{why}"
            )
        self.suite = [
            Cell(subject, condition, bn_mode, seed, n) for seed in seeds for condition in conditions
        ]
        self.probes = {
            budget: trust.probing(subject, budget, bn_mode, seeds[0], n) for budget in request.budgets
        }

    @property
    def cells(self) -> list[Cell]:
        """All cells, in the order in which they are measured."""
        probes = [cell for by_role in self.probes.values() for cell in by_role.values()]
        return [*self.first, *self.suite, *probes]

    def measure(self, meter: Meter, force: bool) -> tuple[list[Row], tuple[Flag, ...]]:
        """Measure all cells; without `force`, none that the first flags make meaningless."""
        flags = list(trust.first_flags(self.first, [measure(cell, meter) for cell in self.first]))
        stopped = trust.stopped(flags) and not force
        suite = [cell for cell in self.suite if not (stopped and _meaningless(cell.condition, flags))]
        measured = [(cell, measure(cell, meter)) for cell in suite]
        rows = [row_of(cell, columns) for cell, columns in measured]
        if len(suite) < len(self.suite):
            flags = trust.unmeasured(flags)
        if not stopped:
            for budget, cells in self.probes.items():
                columns = {role: measure(cell, meter) for role, cell in cells.items()}
                flags += trust.attack_flags(budget, columns)
        flags += trust.suite_flags(measured, rows)
        return rows, trust.distinct(flags, self.bn_mode)


def _meaningless(condition: Condition, flags: list[Flag]) -> bool:
    return isinstance(condition, Attacked) and trust.stopped(flags, condition.attack)


def _applies(condition: Condition, subject: Subject, bn_mode: BNMode) -> bool:
    """Whether there is anything to measure; the model is probed for coupling only where that matters."""
    applies = {coupled: condition.applies(subject.model, coupled) for coupled in (True, False)}
    return applies[True] if applies[True] == applies[False] else applies[bn_mode.couples or subject.couples]


def row_of(cell: Cell, columns: Columns) -> Row:
    """Summarize a measured cell as a row."""
    count = Accuracy.of(columns["correct"])
    condition, data = cell.condition, cell.subject.data
    return Row(
        condition=condition.record(),
        bn_mode=mode_record(cell.bn_mode),
        images=ImagesRecord(data.name, cell.subject.identity["data"], 0, cell.n),
        seed=cell.seed,
        accuracy=count.value,
        interval=count.interval(),
        correct=count.correct,
        n=count.n,
        iterate=condition.iterate(cell.coupled),
        batch_size=min(cell.subject.chunk, cell.n) if cell.coupled else None,
        figures=condition.figures(columns),
        curve=condition.curve(columns),
        measure=condition.measure(columns),
        key=cell.key,
    )
