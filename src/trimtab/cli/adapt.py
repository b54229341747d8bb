"""`trimtab adapt`: test-time adaptation of the statistics on noisy or corrupted images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

import trimtab
from trimtab.cli.evaluate import run_with_progress
from trimtab.cli.lazy import adapt, console, data, evaluate, models
from trimtab.cli.options import (
    Memory,
    OnImages,
    OptionalPath,
    describe_images,
    describe_source,
    first,
    is_main_process,
    parse_corruption,
)
from trimtab.types import BadInput, at_least, number

if TYPE_CHECKING:
    from trimtab.evaluate import Card


@dataclass(frozen=True)
class AdaptCommand(OnImages):
    """Measure accuracy with and without adapted statistics, under noise.

    Each table of the paper is one command:
      adapt MODEL --sigma 0 0.25 0.5 0.75                     noise levels (table 1)
      adapt MODEL --sigma 0.5 --rho 0 0.1 0.3 0.5 0.7 0.9 1   weight of the batch (table 4)
      adapt MODEL --sigma 0.5 --batch-size 8 16 32 64 128     size of the batch (table 5)
    """

    sigma: tuple[str, ...] = ("0", "0.1", "0.25", "0.5")
    """Stds of Gaussian noise, 0 is clean; pixels are in [0, 1]."""
    clip: tyro.conf.FlagCreatePairsOff[bool] = False
    """Clip noisy pixels to [0, 1]; the paper does not."""
    corruption: tuple[str, ...] = ()
    """Common corruptions to try as well, as NAME or NAME:SEVERITY."""
    rho: tuple[str, ...] = ("1",)
    """Weight of the batch's own statistics."""
    batch_size: tuple[int, ...] = ()
    """Sizes of the batches that adapt. By default as many images as fit into --memory, from 64 to 256."""
    memory: Memory = 2.0
    blend_of: str = "std"
    """What rho blends in addition to the mean: std (the paper) or var."""
    store: Path = Path(".trimtab/store.sqlite")
    """File that stores the results."""
    save: OptionalPath = None
    """Freeze the statistics on noisy training images, as certification requires, with the last --rho, and
    save the model here."""
    save_sigma: str = "0.25"
    """Std of the noise on those images."""
    save_images: int = 512
    """Number of images to freeze on."""

    def run(self) -> int:
        """Run the command and return its exit code."""
        self._check()
        model, images = self.load_model_and_images()
        n = len(first(images, self.limit))
        given = self.batch_size or (self.adapting(model, images, self.memory, gradients=False),)
        sizes = dict.fromkeys(min(size, n) for size in given)  # a batch has at most all images
        cards = {size: self._evaluate(model, images, size) for size in sizes}
        if self.save is not None and is_main_process():
            self._freeze(model, images, self.save)
        if self.json:
            import json

            print(json.dumps({size: json.loads(card.json()) for size, card in cards.items()}, sort_keys=True))
        else:
            self._print(cards, describe_images(images, n))
        return 0

    def _check(self) -> None:
        number(self.save_sigma)
        at_least(1, **{"--batch-size": min(self.batch_size, default=1), "--save-images": self.save_images})
        if self.save is not None and self.save.is_file():
            raise BadInput(f"--save takes a folder, and {self.save} is a file")

    def _evaluate(self, model: Any, images: Any, size: int) -> Card:
        """Evaluate all conditions with running statistics, and adapted in batches of this size."""
        suite = [evaluate.Noise(s, self.clip) if number(s) else evaluate.Clean() for s in self.sigma]
        suite += [_corrupted(text) for text in self.corruption]
        adapted = [evaluate.PerBatchMode(number(rho), self.blend_of) for rho in self.rho]
        return run_with_progress(
            model, images, suite=suite, store=self.store, limit=self.limit, seed=self.seed,
            bn_modes=[evaluate.RunningMode(), *adapted], batch_size=size, chunk=size, name=self.model,
        )  # fmt: skip

    def _freeze(self, model: Any, images: Any, folder: Path) -> None:
        """Save the model with statistics frozen on noisy training images."""
        training = data.load(self.data, "train", input=model.spec)
        batch = next(iter(training.batches(self.save_images)))
        frozen = adapt.frozen_under_noise(
            model, batch.x, number(self.save_sigma), self.seed, batch.ids, number(self.rho[-1]),
            self.blend_of, describe_source(training, images),
        )  # fmt: skip
        if isinstance(frozen, models.Pixels) and not frozen.recorded:  # its size was a guess
            frozen = frozen.described(spec=replace(frozen.spec, size=images.spec.size))
        trimtab.save(frozen, folder)

    def _print(self, cards: Mapping[int, Card], images: str) -> None:
        console.table(
            f"{self.model}, {images}: accuracy with a 95 % interval",
            ["condition", "BN mode", "batch", "correct"],
            _lines(cards),
            right=[2, 3],
        )
        raised = (flag for card in cards.values() for flag in card.flags)
        # Coupled batches are what this command compares, so their flag is left out.
        console.flags([flag for flag in dict.fromkeys(raised) if flag.name != "batch"])
        if self.save is not None:
            console.say(f"The frozen model is in {self.save}.")


def _lines(cards: Mapping[int, Card]) -> list[list[str]]:
    """Return a line per condition, BN mode and batch size; running statistics have one, without a size."""
    rows = {}
    for card in cards.values():
        for index, row in enumerate(card.rows):
            rows[str(row.condition), row.batch_size or 0, index] = row
    order = list(dict.fromkeys(condition for condition, _, _ in rows))
    lines = []
    for key in sorted(rows, key=lambda key: (order.index(key[0]), *key[1:])):
        row, (condition, size, _) = rows[key], key
        accuracy = console.accuracy(row.accuracy, row.interval)
        lines.append([condition, str(row.bn_mode), str(size or ""), accuracy])
    # A condition is printed only in the first of its lines.
    return [["" if k and lines[k - 1][0] == line[0] else line[0], *line[1:]] for k, line in enumerate(lines)]


def _corrupted(text: str) -> Any:
    return evaluate.Corrupted(*parse_corruption(text))
