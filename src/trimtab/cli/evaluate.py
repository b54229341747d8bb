"""`trimtab evaluate`: print a scorecard and a trust card, store the results, write a report page."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trimtab.cli.lazy import attacks, console, evaluate, report, train
from trimtab.cli.options import (
    Memory,
    OnImages,
    OptionalInt,
    OptionalPath,
    OptionalStr,
    Strict,
    first,
    is_main_process,
    parse_int,
    some_of,
)
from trimtab.types import BadInput, counts, number

if TYPE_CHECKING:
    from trimtab.data import Images
    from trimtab.evaluate import Card
    from trimtab.measure.corruption_error import Baseline, CorruptionError

BN_MODES = (
    "running, branch:NAME, batch or batch:RHO (adapted per batch), frozen or frozen:IMAGES (adapted once, on "
    "the first of the images that are evaluated)"
)


@dataclass(frozen=True)
class EvaluateCommand(OnImages):
    """Measure accuracy, clean and under attack, and whether to trust it.

    A run that was killed resumes when it is started again; finished work is never repeated.
    """

    suite: str = "quick"
    """What to measure.
    quick: clean, FGSM, PGD-20, noise, shifted statistics, gradient similarity: minutes on a CPU
    standard: and the margin, l2, an iteration curve to 100, a sample of corruptions
    full: and AutoAttack, a curve to 2000, all corruptions at all severities, certificates
    corruptions: clean, and the 15 + 4 common corruptions at all severities
    """
    bn_modes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODE ...")] = ("running",)
    """Which statistics normalize.
    running: the model's own
    branch:NAME: those of a branch
    batch[:RHO]: re-estimated on every batch
    frozen[:N]: re-estimated once on the first N images (default 256), corrupted as evaluated
    """
    attack: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ATTACK ...")] = ()
    """Attacks that are added to the suite, within --eps.
    eot[:M]: PGD on the mean of M classifiers, re-adapted to noisy batches (default 10); for mode batch
    through-batch: PGD with gradients through the statistics of the batch; for mode batch
    targeted[:STEPS]: towards a random class in steps of 1/255, and the accuracy on the way (default 100)
    """
    eps: str = "8/255"
    """Radius of l_inf attacks; pixels are in [0, 1]."""
    eps_l2: str = "0.5"
    """Radius of l2 attacks; pixels are in [0, 1]. Unused by quick and corruptions."""
    batch_size: OptionalInt = None
    """Images per forward pass; results do not depend on it. By default as many as fit, at most 256."""
    chunk: OptionalInt = None
    """Images that are committed at once, and the batch of modes that adapt per batch. By default 256; for
    modes that adapt, as many as fit, without attacks at least 64."""
    memory: Memory = 2.0
    processes: int = 1
    """Processes on this machine."""
    store: Path = Path(".trimtab/store.sqlite")
    """Where results are kept."""
    html: OptionalPath = None
    """Write the report page here."""
    corrupted: OptionalStr = None
    """For corruptions: published files (imagenet-c:PATH, cifar10-c:PATH or cifar100-c:PATH) instead of
    corrupting --data on the fly; --data must be the clean images that they were made from."""
    baseline: OptionalStr = None
    """For corruptions: the id of a run on the same images, by whose errors mCE divides; with imagenet-c files
    also alexnet, as in the literature."""
    keep_images: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep the adversarial images in the store."""
    force: tyro.conf.FlagCreatePairsOff[bool] = False
    """Attack even if the trust card finds that the numbers will be meaningless, e.g. wrong pixel values."""
    strict: Strict = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        from trimtab.evaluate.suites import suite_of

        for option in ("baseline", "corrupted"):
            if getattr(self, option) is not None and self.suite != "corruptions":
                raise BadInput(f"--{option} needs --suite corruptions; {self.suite} does not use it")
        if self.html is not None:
            from trimtab.report.page import require_folder

            require_folder(self.html)
        model, images = self.load_model_and_images()
        baseline = self._baseline(images)
        linf, l2 = attacks.Linf(self.eps), attacks.L2(self.eps_l2)
        added = [named_attack(text, linf) for text in self.attack]
        suite: Any = self.suite
        if self.corrupted is not None:
            from trimtab.evaluate.published import published

            suite = [*published(self.corrupted), *added]
        elif added:
            suite = [*suite_of(self.suite, linf, l2), *added]
        modes = [bn_mode(text) for text in self.bn_modes]
        attacked = self.suite != "corruptions" or bool(added)
        batch_size, chunk = self._batches(model, images, attacked, any(mode.couples for mode in modes))
        conditions = suite_of(suite, linf, l2)
        foretell(model, images, sum(each.cost for each in conditions) * len(modes), self.limit)
        card = run_with_progress(
            model,
            images,
            suite=suite,
            store=self.store,
            limit=self.limit,
            seed=self.seed,
            bn_modes=modes,
            linf=linf,
            l2=l2,
            batch_size=batch_size,
            chunk=chunk,
            keep_images=self.keep_images,
            force=self.force,
            processes=self.processes,
            name=self.model,
        )
        if self.json and baseline is not None:
            console.as_json({**json.loads(card.json()), **_relative_errors(card, baseline)})
        elif self.json:
            print(card.json(), end="")
        elif self.suite == "corruptions":
            self._corruptions(card, baseline)
        else:
            console.scorecard(card)
        if self.html is not None and is_main_process():
            with console.page_progress() as progress:
                extras = report.gather(model, images, card, self.store, progress=progress)
            report.page([card], self.html, extras=extras)
            console.note(f"The page is {self.html}.")
        return int(self.strict and not card.trusted)

    def _batches(self, model: Any, images: Any, attacked: bool, together: bool) -> tuple[int, int]:
        """Return how many images go through the model at once, and how many are a chunk."""
        given = {"batch size": self.batch_size, "chunk": self.chunk, "processes": self.processes}
        counts(**given, limit=self.limit)
        batch_size, chunk = self.batch_size, self.chunk
        if batch_size is None:
            batch_size = self.fitting(model, images, self.memory, attacked)
        if chunk is None:
            chunk = self.adapting(model, images, self.memory, attacked) if together else 256
        return batch_size, chunk

    def _baseline(self, images: Images) -> Baseline | None:
        """Return the run to divide errors by; it must have every error, measured on the same images."""
        from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
        from trimtab.evaluate.corruption import baseline_of
        from trimtab.measure.corruption_error import ALEXNET

        if self.baseline is None:
            return None
        if self.baseline == "alexnet":
            if not (self.corrupted or "").startswith("imagenet-c:"):
                raise BadInput(
                    "--baseline alexnet needs the published files: give --corrupted imagenet-c:PATH"
                )
            return ALEXNET
        card = evaluate.find(self.baseline, self.store).card
        summary = baseline_of(card)
        needed = (*CORRUPTIONS, *(() if self.corrupted else EXTRA_CORRUPTIONS))
        if missing := [name for name in needed if name not in summary.mean_errors]:
            raise BadInput(
                f"the run {self.baseline!r} has no error for {missing[0]}; use a run of --suite corruptions"
            )
        published = {getattr(row.condition, "published", None) for row in card.rows} - {None}
        here = self.corrupted is not None
        if published != {here}:
            how = {True: "on published files", False: "with images corrupted on the fly"}
            raise BadInput(
                f"the run {self.baseline!r} was measured {how[not here]}, this one is {how[here]}; "
                "both must be the same"
            )
        n = len(first(images, self.limit))
        if card.provenance.get("data") != images.digest or card.rows[0].n != n:
            raise BadInput(
                f"the run {self.baseline!r} was measured on other images ({card.rows[0].n} of {card.data}, "
                f"here {n} of {images.name}); a baseline needs the same images"
            )
        return summary

    def _corruptions(self, card: Card, baseline: Baseline | None) -> None:
        from trimtab.evaluate.corruption import corruption_errors

        modes = list(dict.fromkeys(row.bn_mode for row in card.rows))
        summaries = [corruption_errors(card, mode, baseline) for mode in modes]
        names = {name: name.replace("_", " ") for name in summaries[0].errors}
        if self.corrupted is None and "frost" in names:
            names["frost"] = "frost (grown ice)"
        rows = _by_corruption(summaries, names)
        rows += [["clean", *(console.percent(summary.clean) for summary in summaries)]]
        rows += [["mean of the fifteen", *(console.percent(summary.mean_error) for summary in summaries)]]
        rows += [["gap to clean", *(console.percent(summary.gap) for summary in summaries)]]
        if baseline is not None:
            rows += [["mCE", *(f"{100 * summary.mce:.1f}" for summary in summaries)]]
            rows += [["relative mCE", *(f"{100 * summary.relative_mce:.1f}" for summary in summaries)]]
        against = f", mCE relative to {baseline.name}" if baseline else ""
        title = f"{card.model}, {card.measured_on}: error by corruption, mean of five severities{against}"
        columns = ["corruption", *map(str, modes)]
        if len(modes) == 1:
            columns = ["corruption", "mean", *(["CE"] if baseline else [])]
            columns += [f"severity {n}" for n in range(1, 6)]
        console.table(title, columns, rows, right=range(1, 9))
        console.flags(card.flags)


def _by_corruption(summaries: Sequence[CorruptionError], names: Mapping[str, str]) -> list[list[str]]:
    """Return a row per corruption with its error; for a single BN mode also its CE and errors by severity."""
    rows = [
        [title, *(console.percent(summary.mean_errors[name]) for summary in summaries)]
        for name, title in names.items()
    ]
    if len(summaries) == 1:
        for row, name in zip(rows, names, strict=True):
            ce = [f"{100 * summaries[0].ce[name]:.1f}"] if summaries[0].ce else []
            row += [*ce, *map(console.percent, summaries[0].errors[name])]
    return rows


def _relative_errors(card: Card, baseline: Baseline) -> dict[str, Any]:
    """Return the mCE of each BN mode, for --json."""
    from trimtab.evaluate.corruption import corruption_errors

    modes = dict.fromkeys(row.bn_mode for row in card.rows)
    summaries = {str(mode): corruption_errors(card, mode, baseline) for mode in modes}
    return {
        "baseline": baseline.name,
        "mce": {mode: summary.mce for mode, summary in summaries.items()},
        "relative_mce": {mode: summary.relative_mce for mode, summary in summaries.items()},
        "ce": {mode: summary.ce for mode, summary in summaries.items()},
    }


LONG = 600
"""Seconds above which an evaluation tells its time beforehand."""


def foretell(model: Any, images: Any, passes: float, limit: int | None) -> None:
    """Tell about how long an evaluation takes, and a smaller plan, where it is long.

    Args:
        model: The model.
        images: Its images.
        passes: Forward passes per image.
        limit: How many images are evaluated, all if None.
    """
    import time

    from trimtab.attacks import guard

    n, seconds = len(first(images, limit)), 0.0
    with suppress(Exception), guard(model):  # the evaluation itself says what is wrong with them
        x = some_of(images, 4, model)
        for _ in range(2):  # the first pass prepares
            began = time.monotonic()
            model(x)
            seconds = (time.monotonic() - began) / len(x) * passes * n
    if seconds > LONG and is_main_process():
        fewer = max(1, int(n * LONG / seconds))
        console.note(
            f"About {seconds / 60:,.0f} minutes at most: {passes:,.0f} passes over {n:,} images. "
            f"--limit {fewer} takes about {LONG // 60}; what is finished is kept."
        )


def run_with_progress(model: Any, images: Any, **options: Any) -> Card:
    """Call `evaluate.run` with a progress bar; under torchrun the processes share the work."""
    options.setdefault("command", shlex.join(["trimtab", *sys.argv[1:]]))
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and "LOCAL_WORLD_SIZE" in os.environ:
        options["fabric"] = train.Engine().start("32-true")
        model = options["fabric"].to_device(model)

    with console.progress("evaluating") as update:

        def notify(status: Any) -> None:
            text = str(status.condition)
            if status.lower > 0 or status.upper < 1:
                text += f" (accuracy will be {100 * status.lower:.0f} to {100 * status.upper:.0f} %)"
            update(status.fraction, 1.0, text, status.seconds_left)

        card: Card = evaluate.run(model, images, progress=notify, **options)
    return card


def bn_mode(text: str) -> Any:
    """Parse a value of --bn-modes."""
    kind, _, rest = text.partition(":")
    if kind == "running" and not rest:
        return evaluate.RunningMode()
    if kind == "branch" and rest:
        return evaluate.BranchMode(rest)
    if kind == "batch":
        return evaluate.PerBatchMode(number(rest or 1.0))
    if kind == "frozen":
        return evaluate.FrozenMode(images=parse_int(rest or "256", "frozen:IMAGES"))
    raise BadInput(f"{text!r} is not a BN mode; write one of {BN_MODES}")


def named_attack(text: str, budget: Any) -> Any:
    """Parse a value of --attack.

    Args:
        text: The name, optionally with a number, such as eot:10.
        budget: The attack's budget.
    """
    kind, _, rest = text.partition(":")
    if kind == "eot":
        return attacks.EOT(attacks.PGD(budget, steps=20), m=parse_int(rest or "10", "eot:M"))
    if kind == "through-batch" and not rest:
        return attacks.ThroughBatch(attacks.PGD(budget, steps=20))
    if kind == "targeted":
        steps = parse_int(rest or "100", "targeted:STEPS")
        marks = (*(n for n in (10, 20, 100, 500) if n < steps), steps)
        return attacks.CurvePGD(budget, steps=steps, step_size="1/255", targeted=True, marks=marks)
    raise BadInput(f"{text!r} is not an attack; write eot:M, through-batch or targeted:STEPS")
