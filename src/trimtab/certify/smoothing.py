"""Randomized smoothing: an l2 radius around an image within which the smoothed classifier cannot change.

The smoothed classifier of f predicts  g(x) = argmax_c P(f(x + z) = c),  z ~ N(0, sigma^2 I).
If the top class has probability at least p > 1/2, then g(x + d) = g(x) for every |d|_2 < sigma Phi^-1(p).
`certify` guesses the top class from n0 samples, bounds its probability from below with n fresh ones, and
abstains if the bound does not exceed one half. Over the samples, each image's certificate is wrong with
probability at most alpha. `predict` returns only g's class, for far fewer samples.

Paper: Cohen, Rosenfeld, Kolter 2019, "Certified adversarial robustness via randomized smoothing",
CERTIFY and PREDICT. Nandy et al. apply it to adversarially trained networks whose statistics were
re-estimated on noisy images and then frozen: certify `adapt.frozen(model, noisy_images)`.

Noise is in pixels and is not clipped. What runs is a copy of the model in eval mode; the model is untouched.

What we changed: `certify` abstains early on an image that is very unlikely to reach the bound
(`bounds.give_up_counts`). Abstaining is always sound, so the guarantee is unchanged; it saves most of
the samples of abstentions: an image whose top class has probability 0.4 is given up after 2 % of n = 100,000.
Several images share a batch.

Cost: n0 + n forward passes an image.  Norm knobs: none, but statistics must be fixed; a model whose output
depends on its batch is refused. If they were estimated on the very images that are certified, f is not
independent of an attacker who chooses those images: `statistics` records where they come from.

Limits: the guarantee holds in exact arithmetic, floating-point rounding is not accounted for; and it holds
for g, which needs many forward passes to classify one image, not for f.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trimtab import rng
from trimtab.certify.bounds import give_up_counts, max_radius, p_lower, radius, top_class
from trimtab.certify.sampling import BLOCK, SampleProgress, Sampler, sampler
from trimtab.types import BadInput, counts, html_table, number, pretty

VERSION = 1
"""Part of every result's key: incremented whenever a change alters results."""
ABSTAIN = -1
"""The class of an abstention."""
Counts: TypeAlias = NDArray[np.int64]
ROUND = 500
"""Least number of samples per image between two checks whether it can still be certified."""
LOOKS = 50
"""Largest number of such checks."""


@dataclass(frozen=True, eq=False)
class Certificates:
    """Certificates of images, each with confidence 1 - alpha. Tensors are on the CPU."""

    ids: Tensor
    """The images' indices in their set."""
    classes: Tensor
    """The smoothed classifier's class; -1 where it abstains."""
    radii: Tensor
    """The class is constant under every perturbation of smaller l2 norm (float64); 0 where it abstains."""
    p_lower: Tensor
    """The lower bound of the guessed class's probability; 0 where the image was given up."""
    counts: Tensor
    """Number of samples for which the guessed class is predicted."""
    draws: Tensor
    """Number of samples: n, or fewer where the image was given up."""
    sigma: float
    """Std of the noise."""
    n0: int
    """Samples that guess the class."""
    n: int
    """Samples that bound its probability."""
    alpha: float
    """Probability that a certificate is wrong, per image."""
    seed: int
    """Seed of the noise."""
    statistics: str
    """Where the model's normalization statistics come from."""

    def __len__(self) -> int:
        return len(self.classes)

    def _repr_html_(self) -> str:
        kept = self.radii[self.classes >= 0]
        rows = [("images", str(len(self))), ("abstains", str(len(self) - len(kept)))]
        if len(kept):
            rows += [("l2 radius", f"median {float(kept.median()):.3f}, largest {float(kept.max()):.3f}")]
        return html_table(f"Certificates: {self}", ("", ""), rows)

    @property
    def max_radius(self) -> float:
        """The largest radius that n samples can certify."""
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
    progress: SampleProgress | None = None,
) -> Certificates:
    """Return the smoothed classifier's class and certified l2 radius for each image.

    An image's result is a function of (model, image, id, seed, sigma, n0, n, alpha, give_up) alone: not of
    the batch size, nor of the other images in x.

    Args:
        model: The base classifier f; its output for an image must not depend on the batch.
        x: Images (N, C, H, W) in [0, 1].
        sigma: Std of the noise, in pixels; noisy images are not clipped.
        n0: Samples that guess the top class.
        n: Fresh samples that bound its probability.
        alpha: Probability that a certificate is wrong, per image.
        seed: Seed of the noise.
        ids: The images' indices in their set.
        statistics: Where the model's normalization statistics come from; by default its `provenance`.
        give_up: Probability of abstaining early on an image that n samples would certify; 0 for never.
        batch_size: Noisy images per forward pass; a matter of speed only.
        progress: Called as samples are classified.
    """
    sigma, alpha = _numbers(sigma, alpha)
    counts(n0=n0, n=n)
    if not 0 <= give_up < 1:
        raise BadInput(f"give_up must be a probability from 0 to below 1, found {give_up:g}")
    listed, total = rng.ids_of(x, ids), len(x) * (n0 + n)
    with sampler(model, x, listed, sigma, seed, batch_size, progress, total) as sample:
        # Negative blocks guess the class, the others test it: n0 does not change the samples of the test.
        guess = sample.count(np.arange(len(x)), -n0 // BLOCK, n0).argmax(axis=1)
        hits, drawn = count_hits(sample, guess, n, alpha, give_up)
    bound = np.where(drawn == n, p_lower(hits, n, alpha), 0.0)
    classes = np.where(bound > 0.5, guess, ABSTAIN)
    return Certificates(
        ids=torch.tensor(listed, device="cpu"),
        classes=torch.from_numpy(classes),
        radii=torch.from_numpy(radius(bound, sigma)),
        p_lower=torch.from_numpy(bound),
        counts=torch.from_numpy(hits),
        draws=torch.from_numpy(drawn),
        sigma=sigma,
        n0=n0,
        n=n,
        alpha=alpha,
        seed=seed,
        statistics=statistics or statistics_of(model),
    )


def count_hits(sample: Sampler, guess: Counts, n: int, alpha: float, give_up: float) -> tuple[Counts, Counts]:
    """Return how often each guessed class is predicted, and of how many samples: n, or fewer if given up.

    Every few samples, images that are very unlikely to reach the bound are dropped, see
    `bounds.give_up_counts`.
    """
    ends = looks(n)
    floors = give_up_counts(n, alpha, ends, give_up)
    hits, drawn, running = np.zeros_like(guess), np.zeros_like(guess), np.arange(len(guess))
    for (start, look), floor in zip(pairwise([0, *ends]), floors, strict=True):
        if not len(running):
            break
        counts = sample.count(running, start // BLOCK, look - start)
        hits[running] += counts[np.arange(len(running)), guess[running]]
        drawn[running] = look
        hopeful = hits[running] > floor
        sample.advance(int((n - look) * (~hopeful).sum()))
        running = running[hopeful]
    return hits, drawn


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
    progress: SampleProgress | None = None,
) -> Tensor:
    """Return the smoothed classifier's class for each image, -1 where it is not significant at level alpha.

    A class that is returned is wrong (not g's) with probability at most alpha.

    Args:
        model: The base classifier.
        x: Images (N, C, H, W) in [0, 1].
        sigma: Std of the noise, in pixels.
        n: Samples per image.
        alpha: Probability that a returned class is wrong, per image.
        seed: Seed of the noise.
        ids: The images' indices in their set.
        batch_size: Noisy images per forward pass.
        progress: Called as samples are classified.
    """
    sigma, alpha = _numbers(sigma, alpha)
    counts(n=n)
    with sampler(model, x, rng.ids_of(x, ids), sigma, seed, batch_size, progress, len(x) * n) as sample:
        return torch.from_numpy(top_class(sample.count(np.arange(len(x)), 0, n), alpha))


def looks(n: int) -> list[int]:
    """Return after how many of n samples `certify` checks whether an image can still be certified."""
    spacing = -(-max(ROUND, n // LOOKS) // BLOCK) * BLOCK
    return [min(start + spacing, n) for start in range(0, n, spacing)]


def join(parts: Sequence[Certificates]) -> Certificates:
    """Join the certificates of several chunks of images; they must share sigma, n, alpha and seed."""
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
            raise BadInput(f"certificates with different {name} cannot be joined: {sorted(set(values))}")
    return Certificates(**joined)


def _numbers(sigma: float | str, alpha: float | str) -> tuple[float, float]:
    sigma, alpha = number(sigma), number(alpha)
    if sigma <= 0:
        raise BadInput(f"sigma, the std of the noise in pixels, must be above 0, found {sigma:g}")
    if not 0 < alpha < 1:
        raise BadInput(
            f"alpha, the probability of a wrong certificate, must lie between 0 and 1, found {alpha:g}"
        )
    return sigma, alpha


def statistics_of(model: nn.Module) -> str:
    """Return where a model's normalization statistics come from, by its `provenance` if it has one."""
    provenance = getattr(model, "provenance", None)
    return provenance if isinstance(provenance, str) else "as stored in the model"
