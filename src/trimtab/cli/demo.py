"""`trimtab demo`: the whole loop on embedded images and networks of the zoo, ending in a page.

Audit, attack, adapt, certify a network that was trained as usual; fine-tune it for a minute with Mixture
BN, so that a second set of norm parameters and statistics learns adversarial images; measure again; compare
on a page. Everything is kept: a second call reads what the first one found.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from trimtab.cli.options import Json

if TYPE_CHECKING:
    from trimtab.evaluate import Card, Row

STANDARD, NOISY, RECIPE = "zoo:sample-standard", "zoo:sample-noise", "sample-mixture"
EPS, SIGMA = "8/255", 0.25
BEFORE, MAIN, ADV = "before", "after, main branch", "after, adversarial branch"
QUICK = {"data.images": 256, "epochs": 1, "objective.attack.steps": 2}
"""What of the recipe a quick demo changes."""


@dataclass(frozen=True)
class Demo:
    """Audit, break, adapt and certify small networks of the zoo; harden one in a minute; write a page."""

    out: Path = Path("trimtab-demo")
    """Where the network, the results and the page go. A second call reuses what is there."""
    limit: int = 500
    """Images to measure on."""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """Few images and steps: shows in seconds that everything runs, and nothing more."""
    json: Json = False

    @property
    def command(self) -> str:
        """What one types to get the same numbers."""
        few = f" --limit {self.limit}" if self.limit != type(self).limit else ""
        return f"trimtab demo{few}{' --quick' * self.quick}"

    def run(self) -> int:
        import trimtab
        from trimtab import data, report
        from trimtab.cli import show

        began, busy = time.perf_counter(), time.process_time()
        model, images = trimtab.load(STANDARD), data.load("sample", "test")
        found = [self._audit(model, images)]

        self._say(
            f"2. Attacks at {EPS}, noise and fog, with the statistics of training and with adapted ones"
        )
        cards = {BEFORE: self._evaluate(BEFORE, model, images)}
        found += what_breaks(cards[BEFORE])

        self._say("3. Certificates: within which distance does the answer hold, whatever the attack?")
        certified = self._certify(model, images)
        found.append(what_holds(certified))

        tuned = self._fine_tune()
        self._say("5. The same measurements after fine-tuning, on either branch")
        for name, branch in {MAIN: "main", ADV: "adv"}.items():
            cards[name] = self._evaluate(name, _released(tuned, branch), images)
        found += what_it_brought(cards)

        page = self.out / "page.html"
        compared = [cards[BEFORE], cards[ADV]]
        extras = report.gather(model, images, cards[BEFORE], self.out / "store.sqlite")
        report.page(compared, page, title="Before and after a minute of Mixture BN", extras=extras)
        if self.json:
            self._as_json(cards, certified, found, page)
            return 0
        for sentence in found:
            show.out.print(f"• {sentence}", markup=False, highlight=False)
        took = f"{time.perf_counter() - began:.0f} s ({time.process_time() - busy:.0f} s of processor time)"
        show.out.print(f"That took {took}. The page is {page.resolve()}", markup=False, highlight=False)
        return 0

    def _say(self, words: str) -> None:
        from trimtab.cli import show

        (show.err if self.json else show.out).print(words, markup=False, highlight=False)

    def _audit(self, model: Any, images: Any) -> str:
        from trimtab import norm

        self._say(f"1. {STANDARD}: a ResNet-8, trained as usual on 7,500 embedded images of clothes")
        audit = norm.audit(model, images.subset(slice(0, 512)).batches(128))
        worst = max(layer.drift_mean or 0.0 for layer in audit.layers)
        state = "sound" if audit.sound else f"troubled: {audit}"
        return (
            f"Its {len(audit.layers)} normalisation layers are {state}; on test images their means are at "
            f"most {worst:.2f} deviations off."
        )

    def _evaluate(self, name: str, model: Any, images: Any) -> Card:
        """All conditions with the statistics of training; disturbances with adapted ones, too."""
        from trimtab import attacks
        from trimtab.cli import show
        from trimtab.evaluate import Attacked, Clean, Corrupted, Noise, PerBatch, Running, Shifted, Similar

        linf = attacks.Linf(EPS)
        attacked = [Attacked(attacks.FGSM(linf)), Attacked(attacks.PGD(linf, steps=20, score="any"))]
        disturbed = [Clean(), Noise(0.1), Noise(SIGMA), Corrupted("fog", 3), Shifted(0.2), Similar()]
        if name == MAIN:  # only what shows that this branch stayed what it was
            card = self._measure(name, model, images, [Clean(), *attacked], Running())
        else:
            card = self._measure(name, model, images, [*disturbed, *attacked], Running())
            adapted = self._measure(name, model, images, disturbed, PerBatch(1.0))
            card = replace(card, rows=card.rows + adapted.rows, flags=card.flags + adapted.flags)
        if not self.json:
            show.scorecard(card)
        return card

    def _measure(self, name: str, model: Any, images: Any, suite: Any, state: Any) -> Card:
        from trimtab import evaluate
        from trimtab.cli.evaluate import run_with_progress

        limit = min(self.limit, 48) if self.quick else self.limit
        return run_with_progress(
            evaluate, model, images, suite=suite, states=[state], limit=limit, name=name,
            store=self.out / "store.sqlite", command=self.command, keep_images=True, examine=not self.quick,
        )  # fmt: skip

    def _certify(self, model: Any, images: Any) -> dict[str, Row]:
        import trimtab
        from trimtab import adapt, data, evaluate
        from trimtab.cli import show
        from trimtab.cli.evaluate import run_with_progress
        from trimtab.evaluate.certified import Certified

        first = next(iter(data.load("sample", "train").batches(256)))
        what = "training images"
        networks = {
            "trained as usual": model,
            "with statistics frozen on 256 noisy training images": adapt.frozen_under_noise(
                model, first.x, SIGMA, ids=first.ids, what=what
            ),
            "trained under noise": trimtab.load(NOISY),
        }
        draws, limit = (100, 4) if self.quick else (1000, 32)
        rows = {
            name: run_with_progress(
                evaluate, network, images, suite=[Certified(SIGMA, n=draws)], limit=limit, chunk=16,
                store=self.out / "store.sqlite", name=name, command=self.command,
            ).rows[0]
            for name, network in networks.items()
        }  # fmt: skip
        if not self.json:
            radii = [name for name in rows["trained as usual"].figures if name != "abstains"]
            show.table(
                f"Certified accuracy, {limit} images, {draws:,} draws at sigma {SIGMA:g}",
                ["", *(name.replace("radius", "r =") for name in radii)],
                [[name, *(show.percent(row.figures[at]) for at in radii)] for name, row in rows.items()],
                right=range(1, 1 + len(radii)),
            )
        return rows

    def _fine_tune(self) -> Any:
        import trimtab
        from trimtab import train
        from trimtab.cli.options import speaks

        recipe = train.read_recipe(RECIPE, QUICK if self.quick else None)
        folder = self.out / ("mixture-quick" if self.quick else "mixture")
        if (folder / "model.json").is_file():
            self._say(f"4. It was fine-tuned before: {folder}")
        else:
            self._say("4. A minute of Mixture BN: a second branch of its norm layers learns attacked images")
            alone = train.Engine(devices=1)
            with train.progress_bar(shown=speaks()) as bar:
                if (folder / "checkpoints" / "last.safetensors").is_file():
                    train.resume(folder, callbacks=[bar], engine=alone)
                else:
                    train.fit(recipe=recipe, folder=folder, callbacks=[bar], engine=alone)
        return trimtab.load(f"file:{folder}")

    def _as_json(
        self, cards: dict[str, Card], certified: dict[str, Row], found: list[str], page: Path
    ) -> None:
        import json
        from dataclasses import asdict

        from trimtab.cli import show

        show.as_json(
            {
                "cards": {name: json.loads(card.json()) for name, card in cards.items()},
                "certified": {name: asdict(row) for name, row in certified.items()},
                "findings": found,
                "page": str(page),
            }
        )


def _released(model: Any, branch: str) -> Any:
    """A stock copy with the values of one branch: what one would deploy."""
    import copy

    from trimtab import norm

    return norm.release(copy.deepcopy(model), branch)


# ---- what was found, in plain words; every number is from a card ------------------------------------------


def what_breaks(card: Card) -> list[str]:
    """Clean, attacked, and disturbed with and without adapted statistics."""
    clean, worst = _accuracy(card, "clean"), _attacked(card)
    noisy = [row.condition for row in card.rows if row.kind == "noise"][-1]
    adapted = [row.state for row in card.rows][-1]
    plain, mended = (_accuracy(card, noisy, state) for state in ("running", adapted))
    change = "raises" if mended > plain else "does not raise"
    return [
        f"It is right on {clean:.0%} of clean images; attacks of at most {EPS} per pixel leave {worst:.0%}.",
        f"{noisy} leaves {plain:.0%}. Re-estimating the statistics on the noisy images {change} that: "
        f"{mended:.0%}, with no training at all. That mends noise, and is no defence against an attacker.",
    ]


def what_holds(certified: dict[str, Row]) -> str:
    radius = next(at for at in list(next(iter(certified.values())).figures)[1:] if at.startswith("radius"))
    shares = ", ".join(f"{row.figures[radius]:.0%} {name}" for name, row in certified.items())
    return f"Certified to be right within an l2 {radius} (alpha 0.001): {shares}."


def what_it_brought(cards: dict[str, Card]) -> list[str]:
    before, main, adv = (cards[name] for name in (BEFORE, MAIN, ADV))
    return [
        f"After fine-tuning, the adversarial branch stands on {_attacked(adv):.0%} under the strongest "
        f"attack (before: {_attacked(before):.0%}) and is right on {_accuracy(adv, 'clean'):.0%} of clean "
        f"images (before: {_accuracy(before, 'clean'):.0%}).",
        f"The main branch keeps {_accuracy(main, 'clean'):.0%} on clean images, and falls to "
        f"{_attacked(main):.0%} under attack. The two share all weights but the norm layers; still they are "
        "two classifiers, and you deploy one: nothing tells an attacked image from a clean one beforehand.",
    ]


def _accuracy(card: Card, condition: str, state: str = "running") -> float:
    return next(r.accuracy for r in card.rows if (r.condition, r.state) == (condition, state))


def _attacked(card: Card) -> float:
    return min(r.accuracy for r in card.rows if r.kind == "attack" and r.state == "running")
