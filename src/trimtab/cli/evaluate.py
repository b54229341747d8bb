"""`trimtab evaluate`: scorecard, trust card, store, page."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trimtab.cli.options import (
    Count,
    Device,
    Json,
    Model,
    Place,
    Seed,
    Split,
    Strict,
    Text,
    first,
    loaded,
    speaks,
    whole,
)

if TYPE_CHECKING:
    from trimtab.data import Images
    from trimtab.evaluate import Card
    from trimtab.measure.corruption_error import Baseline

STATES = (
    "running, branch:NAME, batch or batch:RHO (adapted per batch), frozen or frozen:IMAGES (adapted once, to "
    "the first of the images that are evaluated)"
)


@dataclass(frozen=True)
class Evaluate:
    """Measure a model's accuracy, clean and under attack, and whether the numbers can be trusted.

    Kill it and run it again: it goes on where it was. Finished work is never repeated.
    """

    model: Model
    data: str = "sample"
    """Images with labels: sample, cifar10, folder:PATH, npz:PATH and more (`trimtab data list`)."""
    split: Split = "test"
    suite: str = "quick"
    """What to measure.
    quick: clean, FGSM, PGD-20, noise, moved statistics, gradient similarity: minutes on a CPU
    standard: and the margin, l2, an iteration curve to 100, a sample of corruptions
    full: and the AutoAttack-style ensemble, a curve to 2000, all corruptions at all severities, certificates
    corruptions: clean, and the 15 + 4 common corruptions at all severities
    """
    limit: Count = None
    """Only the first so many images."""
    states: Annotated[tuple[str, ...], tyro.conf.arg(metavar="STATE ...")] = ("running",)
    """Which statistics normalise.
    running: the model's own
    branch:NAME: of a branch
    batch[:RHO]: of every batch
    frozen[:IMAGES]: of the first 256, or so many, images of the data, as a condition shows them
    """
    eps: str = "8/255"
    """Radius of l_inf attacks, in pixels."""
    eps_l2: str = "0.5"
    """Radius of l2 attacks, in pixels; quick and corruptions do not use it."""
    seed: Seed = 0
    batch_size: int = 256
    """Images at once; results do not depend on it."""
    chunk: int = 256
    """Images that are committed at once, and the batch of states that adapt per batch."""
    processes: int = 1
    """Processes on this machine."""
    device: Device = "auto"
    store: Path = Path(".trimtab/store.sqlite")
    """Where results are kept."""
    page: Place = None
    """Write the report page here."""
    baseline: Text = None
    """For corruptions: the id of a run on the same images, whose errors are divided by."""
    keep_images: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep the adversarial images in the store."""
    insist: tyro.conf.FlagCreatePairsOff[bool] = False
    """Attack also where the trust card finds that the numbers will mean nothing (wrong pixels, say)."""
    strict: Strict = False
    json: Json = False

    def run(self) -> int:
        from trimtab import data, evaluate
        from trimtab.attacks import L2, Linf
        from trimtab.cli import show
        from trimtab.types import BadInput

        if self.baseline is not None and self.suite != "corruptions":
            raise BadInput(f"--baseline goes with --suite corruptions; {self.suite} has no use for it")
        if self.page is not None:
            from trimtab.report.page import require_folder

            require_folder(self.page)
        images = data.load(self.data, self.split)
        baseline = self._baseline(images)
        model = loaded(self.model, self.device)
        card = run_with_progress(
            evaluate,
            model,
            images,
            suite=self.suite,
            store=self.store,
            limit=self.limit,
            seed=self.seed,
            states=[state(text) for text in self.states],
            linf=Linf(self.eps),
            l2=L2(self.eps_l2),
            batch_size=self.batch_size,
            chunk=self.chunk,
            keep_images=self.keep_images,
            insist=self.insist,
            processes=self.processes,
            name=self.model,
        )
        if self.json and baseline is not None:
            show.as_json({**json.loads(card.json()), **_against(card, baseline)})
        elif self.json:
            print(card.json(), end="")
        elif self.suite == "corruptions":
            self._corruptions(card, baseline)
        else:
            show.scorecard(card)
        if self.page is not None and speaks():
            from trimtab import report

            report.page([card], self.page, extras=report.gather(model, images, card, self.store))
            show.err.print(f"The page is {self.page}.", markup=False)
        return int(self.strict and not card.trusted)

    def _baseline(self, images: Images) -> Baseline | None:
        """The run to divide errors by, if it has them all and saw the same images."""
        from trimtab import evaluate
        from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
        from trimtab.evaluate.corruption import baseline_of
        from trimtab.types import BadInput

        if self.baseline is None:
            return None
        card = evaluate.find(self.baseline, self.store).card
        found = baseline_of(card)
        if missing := [name for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS) if name not in found.mean_errors]:
            raise BadInput(
                f"the run {self.baseline!r} has no error for {missing[0]}; take one of --suite corruptions"
            )
        n = len(first(images, self.limit))
        if card.provenance.get("data") != images.digest or card.rows[0].n != n:
            raise BadInput(
                f"the run {self.baseline!r} was measured on other images ({card.rows[0].n} of {card.data}, "
                f"here {n} of {images.name}); a baseline must have seen the same"
            )
        return found

    def _corruptions(self, card: Card, baseline: Baseline | None) -> None:
        from trimtab.cli import show
        from trimtab.evaluate.corruption import corruption_errors

        states = list(dict.fromkeys(row.state for row in card.rows))
        judged = [corruption_errors(card, state, baseline) for state in states]
        rows = [
            [
                "frost (grown ice)" if name == "frost" else name.replace("_", " "),
                *(show.percent(found.mean_errors[name]) for found in judged),
            ]
            for name in judged[0].errors
        ]
        rows += [["clean", *(show.percent(found.clean) for found in judged)]]
        rows += [["mean of the fifteen", *(show.percent(found.mean_error) for found in judged)]]
        rows += [["gap to clean", *(show.percent(found.gap) for found in judged)]]
        if baseline is not None:
            rows += [["mCE", *(f"{100 * found.mce:.1f}" for found in judged)]]
            rows += [["relative mCE", *(f"{100 * found.relative_mce:.1f}" for found in judged)]]
        against = f", mCE against {baseline.name}" if baseline else ""
        title = f"{card.model} on {card.data}: error by corruption, mean of five severities{against}"
        show.table(title, ["corruption", *states], rows, right=range(1, 9))
        show.doubts(card.flags)


def _against(card: Card, baseline: Baseline) -> dict[str, Any]:
    """The mCE of each norm state, for scripts."""
    from trimtab.evaluate.corruption import corruption_errors

    states = dict.fromkeys(row.state for row in card.rows)
    judged = {state: corruption_errors(card, state, baseline) for state in states}
    return {
        "baseline": baseline.name,
        "mce": {state: found.mce for state, found in judged.items()},
        "relative_mce": {state: found.relative_mce for state, found in judged.items()},
    }


def run_with_progress(evaluate: Any, model: Any, images: Any, **options: Any) -> Card:
    """`evaluate.run` with a bar that shows the bounds on the accuracy so far, shared out under torchrun."""
    from trimtab.cli import show

    options.setdefault("command", shlex.join(["trimtab", *sys.argv[1:]]))
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and "LOCAL_WORLD_SIZE" in os.environ:
        from trimtab.train import Engine

        options["fabric"] = Engine().start("32-true")
        model = options["fabric"].to_device(model)

    with show.progress("evaluating") as tell:

        def told(at: Any) -> None:
            tell(at.done, at.total, f"{at.condition}: {100 * at.lower:.0f} to {100 * at.upper:.0f} %")

        card: Card = evaluate.run(model, images, progress=told, **options)
    return card


def state(text: str) -> Any:
    """A norm state as it is written on the command line."""
    from trimtab.evaluate import states
    from trimtab.types import BadInput, number

    kind, _, rest = text.partition(":")
    if kind == "running" and not rest:
        return states.Running()
    if kind == "branch" and rest:
        return states.Branch(rest)
    if kind == "batch":
        return states.PerBatch(number(rest or 1.0))
    if kind == "frozen":
        return states.Frozen(images=whole(rest or "256", "frozen:IMAGES"))
    raise BadInput(f"{text!r} is no norm state; write one of {STATES}")
