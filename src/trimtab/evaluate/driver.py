"""`run`: measure a suite, examine what was measured, and return the card.

Kill it at any time and call it again: it goes on where it was, and the card is the same to the byte.
"""

from __future__ import annotations

import operator
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import trimtab
from trimtab.certify.smoothing import statistics_of
from trimtab.data import Images, as_set
from trimtab.evaluate import trust
from trimtab.evaluate.card import Card, Flag, Progress, Row
from trimtab.evaluate.conditions import Attacked, Columns, Condition
from trimtab.evaluate.engine import CHUNK, Cell, Subject, measure
from trimtab.evaluate.states import NormState, Running
from trimtab.evaluate.store import DEFAULT, Store
from trimtab.evaluate.suites import suite_of
from trimtab.keys import describe
from trimtab.measure.accuracy import Accuracy
from trimtab.models import Pixels
from trimtab.types import BadInput, Budget, InputSpec, whole

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Tell = Callable[[Progress], None]


def run(
    model: nn.Module,
    data: Any,
    suite: str | Iterable[Any] = "quick",
    store: Store | str | Path | None = None,
    progress: Tell | None = None,
    limit: int | None = None,
    seed: int | Sequence[int] = 0,
    states: Sequence[NormState] = (Running(),),
    linf: Budget | None = None,
    l2: Budget | None = None,
    batch_size: int = CHUNK,
    chunk: int = CHUNK,
    keep_images: bool = False,
    examine: bool = True,
    insist: bool = False,
    processes: int = 1,
    fabric: Fabric | None = None,
    name: str | None = None,
    command: str | None = None,
) -> Card:
    """Measure a suite on the first `limit` images, in every norm state and with every seed, and examine it.

    `suite` is "quick", "standard", "full" (with the budgets `linf` and `l2`) or "corruptions", or a list of
    conditions and attacks. `batch_size` is how many images go through the model at once, which changes no
    result; `chunk` is how many are committed at once, and the batch where images influence each other.
    `keep_images` stores adversarial images, too (see `rescore`).

    `processes` starts that many on this machine (model and data must then be picklable). In a program that is
    launched by Fabric or torchrun, give its `fabric` instead; every process returns the card. `name` and
    `command` are for the card: what the model is called, and how to make the card again.

    If the pixels turn out to be wrongly normalised, or no gradient can reach them, no robust accuracy is
    measured, unless you `insist`.
    `examine=False` leaves out the probing attacks of the trust card, which then rests on the suite alone.
    """
    plan = _Plan(
        suite=suite if isinstance(suite, str) else "own",
        conditions=suite_of(suite, linf, l2),
        store=store if isinstance(store, Store) else Store(store or DEFAULT),
        limit=limit if limit is None else whole(limit, "limit"),
        seeds=_seeds(seed),
        states=(states,) if isinstance(states, NormState) else tuple(states),
        chunk=_positive("chunk", chunk),
        batch_size=_positive("batch_size", batch_size),
        keep_images=keep_images,
        examine=examine,
        insist=insist,
        name=name or _name_of(model),
        command=command,
    )
    if _positive("processes", processes) > 1 and fabric is None:
        return _in_processes(processes, model, data, plan, progress)
    return _carry_out(fabric, model, data, plan, progress)


@dataclass(frozen=True)
class _Plan:
    suite: str
    conditions: list[Condition]
    store: Store
    limit: int | None
    seeds: tuple[int, ...]
    states: tuple[NormState, ...]
    chunk: int
    batch_size: int
    keep_images: bool
    examine: bool
    insist: bool
    name: str
    command: str | None

    def __post_init__(self) -> None:
        for one in self.states:
            if not isinstance(one, NormState):
                raise BadInput(
                    f"a norm state is evaluate.Running(), evaluate.Branch(name) ..., found {one!r}"
                )
        if not self.states:
            raise BadInput("an evaluation needs at least one norm state, such as running; found none")
        if not self.seeds:
            raise BadInput("an evaluation needs at least one seed; found none")
        for given in (self.conditions, self.states, self.seeds):
            names = [str(one) for one in given]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise BadInput(f"{twice!r} is asked for twice; rows are told apart by their names")

    @property
    def budgets(self) -> list[Budget]:
        """The budgets within which attacks are examined."""
        tried = (condition.budget for condition in self.conditions if isinstance(condition, Attacked))
        return list(dict.fromkeys(budget for budget in tried if budget and budget.radius and self.examine))


def _in_processes(count: int, model: nn.Module, data: Any, plan: _Plan, progress: Tell | None) -> Card:
    """Start processes, listen to the first one's progress, and return its card."""
    from lightning_fabric import Fabric
    from torch.multiprocessing import ProcessExitedException

    try:
        pickle.dumps(model)
    except Exception as why:  # whatever the model's parts raise
        raise BadInput(
            f"this model cannot be handed to other processes ({_first_line(why)}); define its classes at the "
            "top of a module, or start the processes yourself with torchrun"
        ) from None
    news: Any = get_context("spawn").SimpleQueue()
    listener = Thread(target=_relay, args=(news, progress), daemon=True)
    listener.start()
    device = next(model.parameters(), torch.empty(0)).device.type
    fabric = Fabric(accelerator=device, devices=count, strategy="ddp_spawn")
    # Fabric copies its arguments and what comes back, and cannot copy frozen values: so it gets none.
    work = partial(_in_a_process, data=data, plan=plan, progress=news.put if progress else None)
    try:
        card, problem = fabric.launch(work, model)
    except ProcessExitedException as ended:
        if ended.signal_name == "SIGINT":
            raise KeyboardInterrupt from None
        raise BadInput(
            f"one of the processes was lost ({_first_line(ended)}); what was finished is kept: run it again"
        ) from None
    finally:
        news.put(None)
        listener.join()
    if problem:
        raise BadInput(problem)
    return Card.read(card)


def _in_a_process(
    fabric: Fabric, model: nn.Module, data: Any, plan: _Plan, progress: Tell | None
) -> tuple[str, str]:
    """The card as text, or what was wrong with the input."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a word, as the end of its parent does
    try:
        return _carry_out(fabric, model.to(fabric.device), data, plan, progress).json(), ""
    except BadInput as problem:
        return "", str(problem)
    finally:
        # A process that ends while the group's threads still run may be aborted.
        torch.distributed.destroy_process_group()


def _relay(news: Any, progress: Tell | None) -> None:
    while (told := news.get()) is not None:
        if progress:
            progress(told)


def _carry_out(
    fabric: Fabric | None, model: nn.Module, data: Any, plan: _Plan, progress: Tell | None
) -> Card:
    images = as_set(data)
    if len(images) == 0:
        raise BadInput("the data hold no image to evaluate on")
    _check_fit(model, images, plan)
    n = len(images) if plan.limit is None else min(_positive("limit", plan.limit), len(images))
    subject = Subject(model, images, plan.store, plan.chunk, plan.batch_size, plan.keep_images, fabric)
    benches = [_Bench(subject, plan, state, n) for state in plan.states]
    _check_all_asked(plan, benches)
    meter = _Meter(progress, [cell for bench in benches for cell in bench.cells])
    rows: list[Row] = []
    flags: list[Flag] = []
    for bench in benches:
        found, doubts = bench.work(meter, plan.insist)
        rows += found
        flags += doubts
    provenance = {
        "trimtab": trimtab.__version__,
        "examined": plan.examine,
        "torch": torch.__version__,
        **subject.identity,
        "pixels": describe(getattr(model, "spec", InputSpec(images.spec.size, images.spec.channels))),
        "statistics": statistics_of(model),
        "command": plan.command,
    }
    if any(cell.coupled for bench in benches for cell in bench.suite):
        provenance["batch"] = min(plan.chunk, n)
    card = Card(plan.name, images.name, plan.suite, tuple(rows), tuple(flags), provenance)
    if fabric is None or fabric.global_rank == 0:
        plan.store.record(card.id, card.json())
    return card


def _check_fit(model: nn.Module, images: Images, plan: _Plan) -> None:
    """Whether model and conditions can take such images at all, before any is measured."""
    channels = images.spec.channels
    if isinstance(model, Pixels) and model.spec.channels != channels:
        coloured = "folder:PATH@SIZE makes images RGB, without @SIZE grey ones stay grey"
        raise BadInput(
            f"the model takes images with {model.spec.channels} channels, and those of {images.name!r} have "
            f"{channels}; give it the images that it was made for (--data; {coloured}), or say what it "
            f"takes: let your function return trimtab.models.wrap(net, InputSpec(channels={channels}))"
        )
    for condition in plan.conditions:
        condition.check(images.spec)


def _check_all_asked(plan: _Plan, benches: list[_Bench]) -> None:
    """An attack of one's own list is not left out without a word, as a suite leaves out what cannot be."""
    measured = [cell.condition for bench in benches for cell in bench.suite]
    for asked in plan.conditions if plan.suite == "own" else ():
        if isinstance(asked, Attacked) and not any(asked is one for one in measured):
            states = ", ".join(map(str, plan.states))
            adapts = getattr(asked.attack, "adaptive", False)
            why = "it is for a model that adapts, such as in the state PerBatch" if adapts else "leave it out"
            raise BadInput(f"{asked} does not apply to this model with statistics {states}; {why}")


class _Bench:
    """All cells of one norm state: the model's health, then the suite, then what its attacks are worth."""

    def __init__(self, subject: Subject, plan: _Plan, state: NormState, n: int) -> None:
        self.state = state
        self.health = trust.health(subject, state, plan.seeds[0], n)
        asked = [condition for condition in plan.conditions if _applies(condition, subject, state)]
        if not asked:
            mend = "freeze its statistics first (adapt.frozen; trimtab certify --adapt N)"
            why = (
                f": images of a batch influence each other; {mend}"
                if state.couples or subject.couples
                else ""
            )
            raise BadInput(
                f"there is nothing to measure: {plan.conditions[0]} does not apply to this model "
                f"with statistics {state}{why}"
            )
        self.suite = [Cell(subject, condition, state, seed, n) for seed in plan.seeds for condition in asked]
        self.probes = {
            budget: trust.probing(subject, budget, state, plan.seeds[0], n) for budget in plan.budgets
        }

    @property
    def cells(self) -> list[Cell]:
        probes = [cell for by_role in self.probes.values() for cell in by_role.values()]
        return [self.health, *self.suite, *probes]

    def work(self, meter: _Meter, insist: bool) -> tuple[list[Row], tuple[Flag, ...]]:
        flags = list(trust.first_flags(self.health, measure(self.health, meter)))
        stopped = trust.stopped(flags) and not insist
        suite = [cell for cell in self.suite if not (stopped and _in_vain(cell.condition, flags))]
        seen = [(cell, measure(cell, meter)) for cell in suite]
        rows = [row_of(cell, columns) for cell, columns in seen]
        if len(suite) < len(self.suite):
            flags = trust.unmeasured(flags)
        if not stopped:
            for budget, cells in self.probes.items():
                columns = {role: measure(cell, meter) for role, cell in cells.items()}
                flags += trust.attack_flags(budget, columns)
        flags += trust.suite_flags(seen, rows)
        return rows, trust.distinct(flags, self.state)


def _in_vain(condition: Condition, flags: list[Flag]) -> bool:
    return isinstance(condition, Attacked) and trust.stopped(flags, condition.attack)


def _applies(condition: Condition, subject: Subject, state: NormState) -> bool:
    """Whether there is anything to measure; the model is tried for coupling only where that matters."""
    either = {coupled: condition.applies(subject.model, coupled) for coupled in (True, False)}
    return either[True] if either[True] == either[False] else either[state.couples or subject.couples]


def row_of(cell: Cell, columns: Columns) -> Row:
    count = Accuracy.of(columns["correct"])
    condition = cell.condition
    return Row(
        kind=condition.kind,
        condition=str(condition),
        state=str(cell.state),
        seed=cell.seed,
        accuracy=count.value,
        interval=count.interval(),
        correct=count.correct,
        n=count.n,
        score=condition.score(cell.coupled),
        figures=condition.figures(columns),
        key=cell.key,
        instead=condition.instead,
    )


@dataclass
class _Meter:
    """Tells how far the work is. The time left is guessed from what each condition costs."""

    tell: Tell | None
    cells: list[Cell]
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    spent: float = 0.0  # cost of what was measured here
    saved: float = 0.0  # cost of what the store had

    def __call__(self, cell: Cell, fresh: int, count: Accuracy) -> None:
        if self.tell is None:
            return
        if fresh:
            self.spent += fresh * cell.condition.cost
        else:
            self.saved += count.n * cell.condition.cost
        self.done += fresh or count.n
        whole = sum(one.n * one.condition.cost for one in self.cells)
        rate = (time.monotonic() - self.began) / self.spent if self.spent else None
        left = None if rate is None else rate * (whole - self.spent - self.saved)
        total = sum(one.n for one in self.cells)
        self.tell(Progress(str(cell.condition), self.done, total, *count.bounds(cell.n), left))


def _seeds(given: Any) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, given if isinstance(given, Iterable) else (given,)))
    except TypeError:
        raise BadInput(f"a seed is a whole number, or several of them, found {given!r}") from None


def _first_line(problem: BaseException) -> str:
    return str(problem).partition("\n")[0] or type(problem).__name__


def _positive(name: str, value: int) -> int:
    if whole(value, name) < 1:
        raise BadInput(f"{name} must be 1 or more, found {value}")
    return value


def _name_of(model: nn.Module) -> str:
    origin = getattr(model, "origin", None)
    return str(getattr(origin, "source", None) or type(model).__name__)
