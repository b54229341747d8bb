"""`trimtab adapt`: what test-time statistics bring on noisy or corrupted images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.options import (
    Count,
    Device,
    Json,
    Model,
    Place,
    Seed,
    Split,
    first,
    loaded,
    origin,
    speaks,
    whole,
)

if TYPE_CHECKING:
    from trimtab.evaluate import Card


@dataclass(frozen=True)
class Adapt:
    """Accuracy with and without adapted statistics, over noise, rho and batch size.

    Each table of the paper is one command:
      adapt MODEL --sigma 0 0.25 0.5 0.75                     noise levels (table 1)
      adapt MODEL --sigma 0.5 --rho 0 0.1 0.3 0.5 0.7 0.9 1   how much of the batch (table 4)
      adapt MODEL --sigma 0.5 --batch-size 8 16 32 64 128     how large a batch (table 5)
    """

    model: Model
    data: str = "sample"
    """Images with labels (`trimtab data list`)."""
    split: Split = "test"
    limit: Count = None
    """Only the first so many images."""
    sigma: tuple[str, ...] = ("0", "0.1", "0.25", "0.5")
    """Deviations of Gaussian noise, in pixels; 0 is clean."""
    corruption: tuple[str, ...] = ()
    """Common corruptions to try as well, as NAME or NAME:SEVERITY."""
    rho: tuple[str, ...] = ("1",)
    """Weight of the batch's own statistics."""
    batch_size: tuple[int, ...] = (256,)
    """Sizes of the batches that adapt."""
    blend_of: str = "std"
    """What rho mixes beside the mean: std (the paper) or var."""
    seed: Seed = 0
    device: Device = "auto"
    store: Path = Path(".trimtab/store.sqlite")
    """Where results are kept."""
    save: Place = None
    """Freeze the statistics on noisy training images, as certification wants, by the last --rho, and save the
    model here."""
    save_sigma: str = "0.25"
    """The noise on those images."""
    save_images: int = 512
    """How many they are."""
    json: Json = False

    def run(self) -> int:
        import trimtab
        from trimtab import adapt, data, evaluate, models
        from trimtab.cli import show
        from trimtab.cli.evaluate import run_with_progress
        from trimtab.evaluate import conditions, states
        from trimtab.types import BadInput, number

        save_sigma = number(self.save_sigma)
        if min(self.batch_size) < 1:
            raise BadInput(f"--batch-size must be 1 or more, found {min(self.batch_size)}")
        if self.save_images < 1:
            raise BadInput(f"--save-images must be 1 or more, found {self.save_images}")
        if self.save is not None and self.save.is_file():
            raise BadInput(f"--save wants a folder, and {self.save} is a file")
        model, images = loaded(self.model, self.device), data.load(self.data, self.split)
        shown = [conditions.Noise(s) if number(s) else conditions.Clean() for s in self.sigma]
        shown += [_corrupted(text) for text in self.corruption]
        cards = {}
        n = len(first(images, self.limit))
        for size in dict.fromkeys(min(size, n) for size in self.batch_size):  # no batch holds more
            adapted = [states.PerBatch(number(rho), self.blend_of) for rho in self.rho]
            cards[size] = run_with_progress(
                evaluate, model, images, suite=shown, store=self.store, limit=self.limit, seed=self.seed,
                states=[states.Running(), *adapted], batch_size=size, chunk=size, name=self.model,
            )  # fmt: skip
        if self.save is not None and speaks():
            known = data.load(self.data, "train")
            batch = next(iter(known.batches(self.save_images)))
            made = adapt.frozen_under_noise(
                model, batch.x, save_sigma, self.seed, batch.ids, number(self.rho[-1]),
                self.blend_of, origin(known, images),
            )  # fmt: skip
            if isinstance(made, models.Pixels) and not made.recorded:  # its size was a guess
                made = made.described(spec=replace(made.spec, size=images.spec.size))
            trimtab.save(made, self.save)
        if self.json:
            import json

            print(json.dumps({size: json.loads(card.json()) for size, card in cards.items()}, sort_keys=True))
            return 0
        show.table(
            f"{self.model} on {images.name}: accuracy with a 95 % interval",
            ["images", "statistics", "batch", "right"],
            _lines(cards),
            right=[2, 3],
        )
        told = (flag for card in cards.values() for flag in card.flags)
        show.doubts([flag for flag in dict.fromkeys(told) if flag.name != "batch"])  # which is the point here
        if self.save is not None:
            show.out.print(f"The frozen model is in {self.save}.", markup=False)
        return 0


def _lines(cards: Mapping[int, Card]) -> list[list[str]]:
    """One line per kind of images, statistics and batch; running statistics do not depend on the batch."""
    from trimtab.cli import show

    lines = {}
    for size, card in cards.items():
        for place, row in enumerate(card.rows):
            own = row.state == "running"
            at = (row.condition, "" if own else f"{size:9}", place)
            shown = show.accuracy(row.accuracy, row.interval)
            short = row.state.removeprefix("adapted per batch (").removesuffix(")")
            lines[at] = [row.condition, short, "" if own else str(size), shown]
    order = list(dict.fromkeys(condition for condition, _, _ in lines))
    chosen = sorted(lines, key=lambda at: (order.index(at[0]), at[1], at[2]))
    rows = [lines[at] for at in chosen]
    return [["" if k and rows[k - 1][0] == row[0] else row[0], *row[1:]] for k, row in enumerate(rows)]


def _corrupted(text: str):  # type: ignore[no-untyped-def]  # the type is imported when the command runs
    from trimtab.evaluate.conditions import Corrupted

    name, _, severity = text.partition(":")
    return Corrupted(name, whole(severity or "3", "the severity of --corruption"))
