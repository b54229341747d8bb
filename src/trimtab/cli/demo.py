"""`trimtab demo`: the whole loop on embedded images in minutes, ending in a page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.evaluate import Card

RECIPE = {
    "model": "net:resnet8,width=8",
    "data": {"name": "sample", "augment": [], "validation": 500},
    "optimiser": {"lr": 0.2},
    "batch_size": 128,
}


@dataclass(frozen=True)
class Demo:
    """Train a small network on embedded images; audit, break, adapt and certify it; write a page."""

    out: Path = Path("trimtab-demo")
    """Where the network, the results and the page go. A second call reuses what is there."""
    epochs: int = 6
    """Of training; the default takes about half a minute on two cores."""
    limit: int = 500
    """Images to measure on."""

    def run(self) -> int:
        from trimtab.cli import show

        began = time.perf_counter()
        from trimtab import data, report

        model = self._network()
        self._audit(model)
        card = self._evaluate(model)
        self._certify(model)
        page = self.out / "page.html"
        store = self.out / "store.sqlite"
        report.page([card], page, extras=report.gather(model, data.load("sample", "test"), card, store))
        for sentence in findings(card):
            show.out.print(f"• {sentence}", markup=False, highlight=False)
        show.out.print(
            f"That took {time.perf_counter() - began:.0f} s. The page is {page.resolve()}", markup=False
        )
        return 0

    def _network(self) -> Any:
        import trimtab
        from trimtab import train
        from trimtab.cli import show

        folder = self.out / f"network-{self.epochs}"
        if (folder / "model.json").is_file():
            show.out.print(f"1. A network was trained before: {folder}", markup=False)
        else:
            show.out.print("1. Training a ResNet-8 on 7,500 embedded images of clothes", markup=False)
            recipe = train.read_recipe({**RECIPE, "epochs": self.epochs})
            with train.progress_bar() as bar:
                if folder.exists():
                    train.resume(folder, callbacks=[bar])
                else:
                    train.fit(recipe=recipe, folder=folder, callbacks=[bar])
        return trimtab.load(f"file:{folder}")

    def _audit(self, model: Any) -> None:
        from trimtab import data, norm
        from trimtab.cli import show

        images = data.load("sample", "test").subset(slice(0, 512))
        found = norm.audit(model, images.batches(128))
        worst = max(layer.drift_mean or 0.0 for layer in found.layers)
        state = "sound" if found.sound else f"troubled: {found}"
        show.out.print(
            f"2. Its {len(found.layers)} normalisation layers are {state}; on test images their means are at "
            f"most {worst:.2f} deviations off",
            markup=False,
        )

    def _evaluate(self, model: Any) -> Card:
        from trimtab import attacks, data, evaluate
        from trimtab.cli import show
        from trimtab.cli.evaluate import run_with_progress
        from trimtab.evaluate import Attacked, Clean, Corrupted, Noise, PerBatch, Running

        show.out.print("3. Noise, fog and attacks, under running, batch and blended statistics", markup=False)
        conditions = [
            Clean(),
            Noise(0.1),
            Noise(0.25),
            Corrupted("fog", 3),
            Attacked(attacks.FGSM(attacks.Linf("4/255"))),
            Attacked(attacks.PGD(attacks.Linf("4/255"), steps=20, score="any")),
        ]
        card = run_with_progress(
            evaluate, model, data.load("sample", "test"), suite=conditions, limit=self.limit,
            states=[Running(), PerBatch(1.0), PerBatch(0.5)], store=self.out / "store.sqlite",
            name="demo network", command="trimtab demo", keep_images=True,
        )  # fmt: skip
        show.scorecard(card)
        return card

    def _certify(self, model: Any) -> None:
        from trimtab import adapt, certify, data
        from trimtab.cli import show

        sigma, images = 0.25, data.load("sample", "train")
        first = next(iter(images.batches(256)))
        frozen = adapt.frozen_under_noise(model, first.x, sigma, ids=first.ids, what="training images")
        test = next(iter(data.load("sample", "test").batches(20)))
        rows = []
        for name, net in {
            "as trained": model,
            "statistics frozen on 256 noisy training images": frozen,
        }.items():
            found = certify.certify(net, test.x, sigma=sigma, n=500, ids=test.ids)
            curve = certify.certified_accuracy(found, test.y, (0.0, 0.25, 0.5))
            rows.append([name, *(show.percent(share) for share in curve.accuracy)])
        show.table(
            "4. Certified accuracy, 20 images, 500 draws at sigma 0.25",
            ["", "r = 0", "r = 0.25", "r = 0.5"],
            rows,
            right=[1, 2, 3],
        )


def findings(card: Card) -> list[str]:
    """What was found, in plain words; every number is from the card."""
    by = {(row.condition, row.state): row for row in card.rows}
    states = list(dict.fromkeys(row.state for row in card.rows))
    running, batch = states[0], states[1]

    def of(condition: str, state: str) -> float:
        return by[condition, state].accuracy

    found = [f"On clean images it is right on {100 * of('clean', running):.0f} %."]
    noisy = next(row.condition for row in reversed(card.rows) if row.kind == "noise")
    before, after = of(noisy, running), of(noisy, batch)
    verb = "raises" if after > before else "lowers"
    found.append(
        f"{noisy}: {100 * before:.0f} % with the statistics it was trained with; re-estimating them on the "
        f"noisy images {verb} that to {100 * after:.0f} %, with no training at all."
    )
    attacked = [row for row in card.rows if row.kind == "attack" and row.state == running]
    worst = min(attacked, key=lambda row: row.accuracy)
    found.append(
        f"{worst.condition} leaves {100 * worst.accuracy:.0f} %: it was not trained to resist attacks."
    )
    return found
