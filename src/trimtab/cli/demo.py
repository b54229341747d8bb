"""`trimtab demo`: the whole loop on embedded images and networks of the zoo, ending in a page.

Audit, attack, adapt, certify a network with standard training; fine-tune it for a minute with Mixture BN, so
that a second set of norm parameters and statistics learns adversarial images; measure again; compare on a
page. Everything is stored: a second call reads the results of the first one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

import trimtab
from trimtab.cli.evaluate import run_with_progress
from trimtab.cli.lazy import adapt, attacks, console, data, evaluate, norm, report, train
from trimtab.cli.options import Json, is_main_process

if TYPE_CHECKING:
    from trimtab.evaluate import BNMode, Card, Row
    from trimtab.evaluate.records import ConditionRecord

STANDARD, NOISY, RECIPE = "zoo:sample-standard", "zoo:sample-noise", "sample-mixture"
EPS, SIGMA = "8/255", 0.25
USUAL = "standard training"
BEFORE, MAIN, ADV = "before", "after (main branch)", "after (adversarial branch)"
QUICK = {"data.images": 256, "epochs": 1, "objective.attack.steps": 2}
"""What a quick demo changes of the recipe."""


@dataclass(frozen=True)
class DemoCommand:
    """Audit, attack, adapt and certify small networks; harden one; write a page."""

    out: Path = Path("trimtab-demo")
    """Where the network, the results and the page go. A second call reuses what is there."""
    limit: int = 500
    """Images to measure on."""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """Few images and steps: shows in seconds that everything runs; the numbers mean little."""
    json: Json = False

    @property
    def command(self) -> str:
        """The command that gives the same numbers."""
        few = f" --limit {self.limit}" if self.limit != type(self).limit else ""
        return f"trimtab demo{few}{' --quick' * self.quick}"

    def run(self) -> int:
        """Run the command and return its exit code."""
        began, busy = time.perf_counter(), time.process_time()
        model, images = trimtab.load(STANDARD), data.load("sample", "test")
        findings = [self._audit(model, images)]

        self._say(f"2. Attacks at {EPS}, noise and fog, with running and with adapted statistics")
        cards = {BEFORE: self._evaluate(BEFORE, model, images)}
        findings += under_stress(cards[BEFORE])

        self._say("3. Certificates: within which radius is the prediction constant, whatever the attack?")
        certified = self._certify(model, images)
        findings.append(certificates(certified))

        tuned = self._fine_tune()
        self._say("5. The same measurements after fine-tuning, on either branch")
        for name, branch in {MAIN: "main", ADV: "adv"}.items():
            cards[name] = self._evaluate(name, _released(tuned, branch), images)
        findings += after_tuning(cards)

        page = self.out / "page.html"
        compared = [cards[BEFORE], cards[ADV]]
        self._say("6. The page: advice, and a panel that steers the fine-tuned network")
        store, few = self.out / "store.sqlite", 48 if self.quick else self.limit
        with console.page_progress() as progress:
            extras = report.gather(model, images, cards[BEFORE], store, steering=False, progress=progress)
            panel = report.stored_panel(tuned, images, self.out, few, progress)
        extras = replace(extras, panels={"the fine-tuned network": panel} if panel else {})
        report.page(compared, page, title="Before and after a minute of Mixture BN", extras=extras)
        if self.json:
            self._as_json(cards, certified, findings, page)
            return 0
        for sentence in findings:
            console.say(f"• {sentence}")
        took = f"{time.perf_counter() - began:.0f} s ({time.process_time() - busy:.0f} s of processor time)"
        console.say(f"That took {took}. The page is {page.resolve()}")
        return 0

    def _say(self, words: str) -> None:
        (console.err if self.json else console.out).print(words, markup=False, highlight=False)

    def _audit(self, model: Any, images: Any) -> str:
        self._say(f"1. {STANDARD}: a ResNet-8 with standard training on 7,500 embedded images of clothes")
        audit = norm.audit(model, images.subset(slice(0, 512)).batches(128))
        worst = max(layer.drift_mean or 0.0 for layer in audit.layers)
        state = "fine" if audit.sound else f"not fine: {audit}"
        return (
            f"Its {len(audit.layers)} normalization layers are {state}; on test images their means are at "
            f"most {worst:.2f} std off."
        )

    def _evaluate(self, name: str, model: Any, images: Any) -> Card:
        """All conditions with running statistics; noise and corruptions with adapted ones as well."""
        linf, running, clean = attacks.Linf(EPS), evaluate.RunningMode(), evaluate.Clean()
        attacked = [attacks.FGSM(linf), attacks.PGD(linf, steps=20, early_stop=True)]
        unattacked = [clean, evaluate.Noise(0.1), evaluate.Noise(SIGMA), evaluate.Corrupted("fog", 3)]
        unattacked += [evaluate.Shifted(0.2), evaluate.Similar()]
        if name == MAIN:  # only what shows that this branch is unchanged
            card = self._measure(name, model, images, [clean, *attacked], running)
        else:
            card = self._measure(name, model, images, [*unattacked, *attacked], running)
            adapted = self._measure(name, model, images, unattacked, evaluate.PerBatchMode(1.0))
            card = replace(card, rows=card.rows + adapted.rows, flags=card.flags + adapted.flags)
        if not self.json:
            console.scorecard(card)
        return card

    def _measure(self, name: str, model: Any, images: Any, suite: Any, mode: Any) -> Card:
        limit = min(self.limit, 48) if self.quick else self.limit
        return run_with_progress(
            model, images, suite=suite, bn_modes=[mode], limit=limit, name=name,
            store=self.out / "store.sqlite", command=self.command, keep_images=True, examine=not self.quick,
        )  # fmt: skip

    def _certify(self, model: Any, images: Any) -> dict[str, Row]:
        from trimtab.evaluate.certified import Certified

        first = next(iter(data.load("sample", "train").batches(256)))
        what = "training images"
        networks = {
            USUAL: model,
            "with statistics frozen on 256 noisy training images": adapt.frozen_under_noise(
                model, first.x, SIGMA, ids=first.ids, what=what
            ),
            "trained under noise": trimtab.load(NOISY),
        }
        draws, limit = (100, 4) if self.quick else (1000, 32)
        rows = {
            name: run_with_progress(
                network, images, suite=[Certified(SIGMA, n=draws)], limit=limit, chunk=16,
                store=self.out / "store.sqlite", name=name, command=self.command,
            ).rows[0]
            for name, network in networks.items()
        }  # fmt: skip
        if not self.json:
            curves = {name: row.curve.points for name, row in rows.items() if row.curve}
            radii = [radius for radius, _ in curves[USUAL]]
            console.table(
                f"Certified accuracy, first {limit} images, {draws:,} samples at sigma {SIGMA:g}",
                ["", *(f"r = {radius:g}" for radius in radii)],
                [[name, *(console.percent(value) for _, value in points)] for name, points in curves.items()],
                right=range(1, 1 + len(radii)),
            )
        return rows

    def _fine_tune(self) -> Any:
        recipe = train.read_recipe(RECIPE, QUICK if self.quick else None)
        folder = self.out / ("mixture-quick" if self.quick else "mixture")
        if (folder / "model.json").is_file():
            self._say(f"4. Already fine-tuned: {folder}")
        else:
            self._say("4. A minute of Mixture BN: a second branch of its norm layers learns attacked images")
            alone = train.Engine(devices=1)
            with train.progress_bar(shown=is_main_process()) as bar:
                if (folder / "checkpoints" / "last.safetensors").is_file():
                    train.resume(folder, callbacks=[bar], engine=alone)
                else:
                    train.fit(recipe=recipe, folder=folder, callbacks=[bar], engine=alone)
        return trimtab.load(f"file:{folder}")

    def _as_json(
        self, cards: dict[str, Card], certified: dict[str, Row], findings: list[str], page: Path
    ) -> None:
        import json
        from dataclasses import asdict

        console.as_json(
            {
                "cards": {name: json.loads(card.json()) for name, card in cards.items()},
                "certified": {name: asdict(row) for name, row in certified.items()},
                "findings": findings,
                "page": str(page),
            }
        )


def _released(model: Any, branch: str) -> Any:
    """A stock copy with the values of one branch: what one would deploy."""
    import copy

    return norm.release(copy.deepcopy(model), branch)


# ---- the findings in sentences; every number is from a card -----------------------------------------


def under_stress(card: Card) -> list[str]:
    """Compare clean, attacked, and noisy accuracy, the latter with and without adapted statistics."""
    from trimtab.evaluate.records import CleanRecord

    clean, worst = _accuracy(card, CleanRecord()), _attacked(card)
    noise = [row.condition for row in card.rows if row.kind == "noise"][-1]
    adapted = [row.bn_mode for row in card.rows][-1]
    before, after = (_accuracy(card, noise, mode) for mode in (evaluate.RunningMode(), adapted))
    change = "raises" if after > before else "does not raise"
    return [
        f"It classifies {clean:.0%} of clean images correctly, and {worst:.0%} under attacks of {EPS} per "
        "pixel.",
        f"Under {noise}, it classifies {before:.0%}. Re-estimating the statistics on the noisy images "
        f"{change} this: {after:.0%}, without training. This helps against noise; it is no defense against "
        "attacks.",
    ]


def certificates(certified: dict[str, Row]) -> str:
    """Compare what is certified at the smallest radius above 0."""
    curves = {name: row.curve.points for name, row in certified.items() if row.curve}
    radius = next(iter(curves.values()))[1][0]
    fractions = ", ".join(f"{points[1][1]:.0%} ({name})" for name, points in curves.items())
    return f"Certified correct within an l2 radius of {radius:g} (alpha 0.001): {fractions}."


def after_tuning(cards: dict[str, Card]) -> list[str]:
    """Compare both branches with the network before."""
    from trimtab.evaluate.records import CleanRecord

    before, main, adv = (cards[name] for name in (BEFORE, MAIN, ADV))
    clean = {name: _accuracy(cards[name], CleanRecord()) for name in (BEFORE, MAIN, ADV)}
    return [
        f"After fine-tuning, the adversarial branch classifies {_attacked(adv):.0%} correctly under the "
        f"strongest attack (before: {_attacked(before):.0%}) and {clean[ADV]:.0%} of clean images (before: "
        f"{clean[BEFORE]:.0%}).",
        f"The main branch keeps {clean[MAIN]:.0%} on clean images and drops to {_attacked(main):.0%} under "
        "attack. The two share all weights except the norm layers, but they are two classifiers, and you "
        "deploy one of them: nothing separates adversarial from clean images beforehand.",
    ]


def _accuracy(card: Card, condition: ConditionRecord, mode: BNMode | None = None) -> float:
    cell = (condition, mode or evaluate.RunningMode())
    return next(row.accuracy for row in card.rows if (row.condition, row.bn_mode) == cell)


def _attacked(card: Card) -> float:
    running = evaluate.RunningMode()
    return min(row.accuracy for row in card.rows if row.kind == "attack" and row.bn_mode == running)
