"""`trimtab certify`: l2 radii within which a smoothed classifier's prediction provably does not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.cli.evaluate import run_with_progress
from trimtab.cli.lazy import adapt, console, data
from trimtab.cli.options import FloatOrRatio, OnImages, OptionalStr, describe_source
from trimtab.types import BadInput, number

if TYPE_CHECKING:
    from trimtab.evaluate import Card


@dataclass(frozen=True)
class CertifyCommand(OnImages):
    """Measure certified accuracy over l2 radii, by randomized smoothing.

    An interrupted run resumes. With --adapt N the statistics are first re-estimated on N training
    images with the same noise, and then frozen: an adversarially trained network then keeps much of its
    accuracy under noise.
    """

    limit: int = 100
    sigma: tuple[str, ...] = ("0.25",)
    """Stds of the smoothing noise; pixels are in [0, 1]."""
    n0: int = 100
    """Noise samples that guess the class."""
    n: int = 10_000
    """Noise samples that certify it; radii end at 3.2 sigma for 10,000 and at 3.8 sigma for 100,000."""
    alpha: FloatOrRatio = 0.001
    """The probability that a certificate is wrong."""
    adapt: int = 0
    """Freeze the statistics on N noisy images first; 0 leaves them as they are."""
    adapt_on: OptionalStr = None
    """Which images: train (sound, the default), or test as in the paper (labeled so)."""
    store: Path = Path(".trimtab/store.sqlite")
    """Where results are kept."""

    def run(self) -> int:
        """Run the command and return its exit code."""
        self._check()
        model, images = self.load_model_and_images()
        cards = {
            f"sigma {sigma:g}": self._measured(model, images, sigma) for sigma in map(number, self.sigma)
        }
        if self.json:
            _as_json(cards)
        else:
            self._print(cards)
        return 0

    def _check(self) -> None:
        if self.adapt < 0:
            raise BadInput(f"--adapt takes the number of images to adapt to, 0 for none; found {self.adapt}")
        if self.adapt_on is not None and not self.adapt:
            raise BadInput("--adapt-on goes with --adapt, the number of images to adapt to")

    def _measured(self, model: Any, images: Any, sigma: float) -> Card:
        from trimtab.evaluate.certified import Certified

        statistics = "the model's own"
        if self.adapt:
            model, statistics = self._frozen(model, images, sigma)
        return run_with_progress(
            model, images, suite=[Certified(sigma, self.n0, self.n, self.alpha)], store=self.store,
            limit=self.limit, seed=self.seed, chunk=16, name=f"{self.model}, statistics {statistics}",
        )  # fmt: skip

    def _print(self, cards: Mapping[str, Card]) -> None:
        first_rows = {sigma: card.rows[0] for sigma, card in cards.items()}
        curves = {sigma: dict(row.curve.points) if row.curve else {} for sigma, row in first_rows.items()}
        radii = [radius for radius in max(curves.values(), key=len) if radius]  # 0 is the accuracy itself
        rows = [
            [
                sigma,
                console.accuracy(row.accuracy, row.interval).strip(),
                *(console.percent(curves[sigma].get(radius, 0.0)) for radius in radii),
                console.percent(row.figures["abstains"]),
            ]
            for sigma, row in first_rows.items()
        ]
        card, row = next((card, card.rows[0]) for card in cards.values())
        how = f"unclipped noise, {self.n:,} samples, alpha {self.alpha:g}, BN mode {row.bn_mode}"
        title = f"{self.model}, {card.measured_on}: certified accuracy by l2 radius, {how}"
        if self.adapt:
            sources = dict.fromkeys(str(card.provenance["statistics"]) for card in cards.values())
            title += f"; statistics {', '.join(sources)}"
        columns = ["", "r = 0  [95 %]", *(f"r = {radius:g}" for radius in radii), "abstains"]
        console.table(title, columns, rows, right=range(1, len(columns)))
        flags = [(flag, sigma) for sigma, card in cards.items() for flag in card.flags]
        console.flags([flag for flag, _ in flags], [sigma for _, sigma in flags])

    def _frozen(self, model: Any, images: Any, sigma: float) -> tuple[Any, str]:
        """A copy with statistics frozen on noisy images, and where they come from."""
        split = self.adapt_on or "train"
        known = data.load(self.data, split, input=model.spec)
        batch = next(iter(known.batches(self.adapt)))
        what = describe_source(known, images, split)
        frozen = adapt.frozen_under_noise(model, batch.x, sigma, self.seed, batch.ids, what=what)
        return frozen, str(frozen.provenance)


def _as_json(cards: Mapping[str, Card]) -> None:
    console.as_json(
        {
            sigma: {
                **asdict(card.rows[0]),
                "data": card.data,
                "preprocessing": card.provenance["preprocessing"],
                "statistics": str(card.provenance["statistics"]),
                "flags": [asdict(flag) for flag in card.flags],
            }
            for sigma, card in cards.items()
        }
    )
