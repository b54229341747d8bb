"""Randomised smoothing: an l2 radius around an image within which the smoothed classifier cannot change.

Around a base classifier f, the smoothed one answers  g(x) = argmax_c P(f(x + z) = c),  z ~ N(0, sigma^2 I).
If the top class has probability at least p > 1/2, then g(x + d) = g(x) for every |d|_2 < sigma Phi^-1(p).
`certify` guesses the top class from n0 draws, bounds its probability from below with n fresh ones, and
abstains if the bound does not exceed one half. Over the draws, each image's certificate is wrong with
probability at most alpha. `predict` answers only g's class, for far fewer draws.

Paper: Cohen, Rosenfeld, Kolter 2019, "Certified adversarial robustness via randomized smoothing",
CERTIFY and PREDICT. Nandy et al. apply it to adversarially trained networks whose statistics were
re-estimated on noisy images and then frozen: certify `adapt.frozen(model, noisy_images)`.

Noise is in pixels and is not clipped. What runs is a copy of the model in eval mode; the model is untouched.

What we changed: an image is given up as soon as it will hardly reach the bound (`bounds.hopeless`).
Abstaining is always sound, so the guarantee stays what it was; it spares most of the draws of images that
abstain: a class that holds 40 % is given up after 2 % of n = 100,000. Draws of several images share batches.

Cost: n0 + n forward passes an image.  Norm knobs: none, but statistics must be fixed; a model whose output
depends on its batch is refused. If they were estimated on the very images that are certified, f is not
independent of an attacker who sends those images: `statistics` says where they come from.

Limits: the guarantee is about real numbers, floating-point rounding is not accounted for; and it is
about g, which answers one image at the price of many passes, not about f.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimtab import draws
from trimtab.certify.bounds import hopeless, max_radius, p_lower, radius, winner
from trimtab.certify.sampling import BLOCK, Progress, require_positive, sampler
from trimtab.types import BadInput, number, pretty

VERSION = 1
"""Part of every result's key: raised whenever a change moves numbers."""
ABSTAIN = -1
ROUND = 500
"""Draws of each image between two looks at whether it can still be certified, at least."""
LOOKS = 50
"""Such looks, at most."""


@dataclass(frozen=True, eq=False)
class Certificates:
    """What is certain of each image, with confidence 1 - alpha each. Tensors are on the CPU."""

    ids: Tensor
    """The images' indices in their set."""
    classes: Tensor
    """The smoothed classifier's class; -1 where it abstains."""
    radii: Tensor
    """The class holds under every perturbation of smaller l2 norm (float64); 0 where it abstains."""
    p_lower: Tensor
    """The lower bound of the guessed class's probability; 0 where the image was given up."""
    counts: Tensor
    """How many draws the guessed class won."""
    draws: Tensor
    """Out of how many: n, or fewer where the image was given up."""
    sigma: float
    n0: int
    n: int
    alpha: float
    seed: int
    statistics: str
    """Where the model's normalisation statistics come from."""

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def max_radius(self) -> float:
        """No certificate from n draws can exceed this."""
        return max_radius(self.sigma, self.n, self.alpha)

    def __str__(self) -> str:
        return (
            f"sigma {pretty(self.sigma)}, {len(self)} images, n {self.n:,}, alpha {self.alpha:g}, "
            f"statistics {self.statistics}"
        )


def certify(
    model: nn.Module,
    x: Tensor,
    sigma: float | str = 0.5,
    n0: int = 100,
    n: int = 100_000,
    alpha: float | str = 0.001,
    seed: int = 0,
    ids: Tensor | Sequence[int] | None = None,
    *,
    statistics: str | None = None,
    give_up: float = 1e-6,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Certificates:
    """The smoothed classifier's class and certified l2 radius for each image of x (N, C, H, W) in [0, 1].

    An image's result is a function of (model, image, id, seed, sigma, n0, n, alpha, give_up) alone: not of
    the batch size, nor of the other images in x. `statistics` says where the model's normalisation
    statistics come from; else its own `provenance` does. An image that n draws would certify is given up
    early with at most the chance `give_up`; at 0 none is. `batch_size` is only a matter of speed.
    """
    sigma, alpha = _numbers(sigma, alpha)
    require_positive(n0=n0, n=n)
    if not 0 <= give_up < 1:
        raise BadInput(f"give_up must be a chance from 0 to below 1, found {give_up:g}")
    ends = looks(n)
    floors = hopeless(n, alpha, ends, give_up)

    listed, total = draws.ids_of(x, ids), len(x) * (n0 + n)
    with sampler(model, x, listed, sigma, seed, batch_size, progress, total) as sample:
        # Blocks below zero guess the class and blocks from zero on test it: n0 does not move the test.
        guess = sample.count(np.arange(len(x)), -n0 // BLOCK, n0).argmax(axis=1)
        hits, taken, running = np.zeros_like(guess), np.zeros_like(guess), np.arange(len(x))
        for (start, look), floor in zip(pairwise([0, *ends]), floors, strict=True):
            if not len(running):
                break
            counts = sample.count(running, start // BLOCK, look - start)
            hits[running] += counts[np.arange(len(running)), guess[running]]
            taken[running] = look
            hopeful = hits[running] > floor
            sample.advance(int((n - look) * (~hopeful).sum()))
            running = running[hopeful]

    bound = np.where(taken == n, p_lower(hits, n, alpha), 0.0)
    return Certificates(
        ids=torch.tensor(listed, device="cpu"),
        classes=torch.from_numpy(np.where(bound > 0.5, guess, ABSTAIN)),
        radii=torch.from_numpy(radius(bound, sigma)),
        p_lower=torch.from_numpy(bound),
        counts=torch.from_numpy(hits),
        draws=torch.from_numpy(taken),
        sigma=sigma,
        n0=n0,
        n=n,
        alpha=alpha,
        seed=seed,
        statistics=statistics or statistics_of(model),
    )


def predict(
    model: nn.Module,
    x: Tensor,
    sigma: float | str = 0.5,
    n: int = 1_000,
    alpha: float | str = 0.001,
    seed: int = 0,
    ids: Tensor | Sequence[int] | None = None,
    *,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """The smoothed classifier's class for each image, -1 where n draws do not settle it at level alpha.

    A class that is returned is wrong (not g's) with probability at most alpha.
    """
    sigma, alpha = _numbers(sigma, alpha)
    require_positive(n=n)
    with sampler(model, x, draws.ids_of(x, ids), sigma, seed, batch_size, progress, len(x) * n) as sample:
        return torch.from_numpy(winner(sample.count(np.arange(len(x)), 0, n), alpha))


def looks(n: int) -> list[int]:
    """After how many of n draws `certify` looks whether an image can still be certified; the last is n."""
    spacing = -(-max(ROUND, n // LOOKS) // BLOCK) * BLOCK
    return [min(start + spacing, n) for start in range(0, n, spacing)]


def join(parts: Sequence[Certificates]) -> Certificates:
    """Certificates of several chunks of images as one; they must have been made in the same way."""
    if not parts:
        raise BadInput("there are no certificates to join")
    joined: dict[str, Any] = {}
    for name in (field.name for field in fields(Certificates)):
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Tensor):
            joined[name] = torch.cat(values)
        elif len(set(values)) == 1:
            joined[name] = values[0]
        else:
            raise BadInput(f"certificates of different {name} cannot be joined: {sorted(set(values))}")
    return Certificates(**joined)


def _numbers(sigma: float | str, alpha: float | str) -> tuple[float, float]:
    sigma, alpha = number(sigma), number(alpha)
    if sigma <= 0:
        raise BadInput(f"sigma, the deviation of the noise in pixels, must be above 0, found {sigma:g}")
    if not 0 < alpha < 1:
        raise BadInput(f"alpha, the chance of a wrong certificate, must lie between 0 and 1, found {alpha:g}")
    return sigma, alpha


def statistics_of(model: nn.Module) -> str:
    """Where a model's normalisation statistics come from, as far as it says."""
    told = getattr(model, "provenance", None)
    return told if isinstance(told, str) else "as stored in the model"
