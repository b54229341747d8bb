"""Evidence against "the stream is like the reference" that may be looked at after every image.

Every new score is ranked among all earlier ones, those of the held-out reference first:

    p_n = ( #{i < n : s_i > s_n} + u_n #{i <= n : s_i = s_n} ) / n        u_n uniform

While the stream is exchangeable with the reference, p_1, p_2, ... are independent and uniform, whatever the
distribution of the scores. A test martingale bets against that: its capital stays at 1 on average, and by
Ville's inequality it ever reaches 1/alpha with probability at most alpha. An alarm at that level is
valid at any time, without a fixed number of images and without a correction for looking often.

The bet is the simple jumper: capital spread over f(p) = 1 + e (p - 1/2), e in `BETS`, of which a fraction
`JUMP` is spread evenly again after each image, so that it finds low and high scores and follows changes.

Paper: Vovk et al. 2021, "Retrain or not retrain: conformal test martingales for change-point detection".
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

BETS = (-1.9, -1.0, 0.0, 1.0, 1.9)
JUMP = 0.01


class Martingale:
    """A conformal test martingale over one score per image."""

    def __init__(self, reference: Iterable[float]) -> None:
        self.scores = array("d", sorted(reference))
        """All scores so far, ascending: 8 bytes an image."""
        self.log_capital = 0.0
        self.weights = [1 / len(BETS)] * len(BETS)

    def update(self, score: float, u: float) -> float:
        """Rank a new score, bet, and return its p-value.

        Args:
            score: The image's score.
            u: A uniform random number that breaks ties.
        """
        low, high = bisect_left(self.scores, score), bisect_right(self.scores, score)
        above, ties, n = len(self.scores) - high, high - low + 1, len(self.scores) + 1
        p = (above + u * ties) / n
        insort(self.scores, score)
        spread = [(1 - JUMP) * w + JUMP / len(BETS) for w in self.weights]
        bets = [w * (1 + e * (p - 0.5)) for w, e in zip(spread, BETS, strict=True)]
        growth = sum(bets)
        self.log_capital += math.log(growth)
        self.weights = [bet / growth for bet in bets]
        return p

    @property
    def numbers(self) -> list[float]:
        """The log-capital followed by the weights: with `scores` all that `restore` needs."""
        return [self.log_capital, *self.weights]

    def restore(self, scores: Iterable[float], numbers: Sequence[float]) -> None:
        """Continue from `scores` and `numbers`."""
        if len(numbers) != 1 + len(BETS) or not all(map(math.isfinite, numbers)):
            raise ValueError("no capital of this test martingale")
        self.scores = array("d", scores)
        self.log_capital, *self.weights = numbers


def log_mean(log_capitals: Sequence[float]) -> float:
    """Return the log of the average capital: an average of martingales is a martingale."""
    top = max(log_capitals)
    return top + math.log(sum(math.exp(value - top) for value in log_capitals) / len(log_capitals))
