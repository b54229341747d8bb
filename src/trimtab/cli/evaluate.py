"""`trimtab evaluate`: scorecard, trust card, store, page."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trimtab.cli.options import Count, Json, Model, Place, Seed, Split, Strict, Text, speaks

if TYPE_CHECKING:
    from trimtab.evaluate import Card

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
    frozen[:IMAGES]: of the first 256, or so many, of the very images evaluated, as a condition shows them
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
    store: Path = Path(".trimtab/store.sqlite")
    """Where results are kept."""
    page: Place = None
    """Write the report page here."""
    baseline: Text = None
    """For corruptions: alexnet (published ImageNet-C only) or the id of a run to divide errors by."""
    keep_images: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep the adversarial images in the store."""
    strict: Strict = False
    json: Json = False

    def run(self) -> int:
        import trimtab
        from trimtab import data, evaluate
        from trimtab.attacks import L2, Linf
        from trimtab.cli import show
        from trimtab.types import BadInput

        if self.baseline is not None and self.suite != "corruptions":
            raise BadInput(f"--baseline goes with --suite corruptions; {self.suite} has no use for it")
        images = data.load(self.data, self.split)
        model = trimtab.load(self.model)
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
            processes=self.processes,
            name=self.model,
            command=shlex.join(["trimtab", *sys.argv[1:]]),
        )
        if self.json:
            print(card.json(), end="")
        elif self.suite == "corruptions":
            self._corruptions(card)
        else:
            show.scorecard(card)
        if self.page is not None and speaks():
            from trimtab import report

            report.page([card], self.page, extras=report.gather(model, images, card, self.store))
            show.err.print(f"The page is {self.page}.", markup=False)
        return int(self.strict and not card.trusted)

    def _corruptions(self, card: Card) -> None:
        from trimtab import evaluate
        from trimtab.cli import show
        from trimtab.evaluate.corruption import ALEXNET, baseline_of, corruption_errors

        baseline = None
        if self.baseline is not None:
            alexnet = self.baseline == "alexnet"
            baseline = ALEXNET if alexnet else baseline_of(evaluate.find(self.baseline, self.store).card)
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
        show.trust(card)


def run_with_progress(evaluate: Any, model: Any, images: Any, **options: Any) -> Card:
    """`evaluate.run` with a bar that shows the bounds on the accuracy so far, shared out under torchrun."""
    from trimtab.cli import show

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
        return states.Frozen(images=int(number(rest or 256)))
    raise BadInput(f"{text!r} is no norm state; write one of {STATES}")
