"""The statistics of a certificate: confidence bounds of a probability, and the radius that follows.

A class predicted for k of n independent samples has, with confidence 1 - alpha, at least the probability

    p_lower(k, n) = the alpha-quantile of Beta(k, n - k + 1)             (Clopper-Pearson, exact, one-sided)

and if p_lower > 1/2 the prediction of the smoothed classifier cannot change within
R = sigma Phi^-1(p_lower). All functions take and return arrays.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from trimtab.types import BadInput

Floats = NDArray[np.float64]


def p_lower(k: ArrayLike, n: ArrayLike, alpha: float) -> Floats:
    """Return the exact lower confidence bound (one-sided, level 1 - alpha) of a probability: k hits of n."""
    k, n = np.asarray(k), np.asarray(n)
    # Beta(0, .) is not a distribution; without a hit the bound is 0.
    return np.where(k > 0, special.betaincinv(np.maximum(k, 1), n - k + 1, alpha), 0.0)


def radius(p: ArrayLike, sigma: float) -> Floats:
    """Return the l2 radius that a probability of at least p certifies; 0 up to one half."""
    return sigma * special.ndtri(np.maximum(p, 0.5))


def max_radius(sigma: float, n: int, alpha: float) -> float:
    """Return the radius if all n samples agree, the largest that n samples can certify."""
    return float(radius(alpha ** (1 / n), sigma))


def min_hits(n: int, alpha: float) -> int:
    """Return the smallest count k of n that certifies (p_lower > 1/2): P(Bin(n, 1/2) >= k) < alpha."""
    if 0.5**n >= alpha:
        raise BadInput(
            f"{n} samples can never certify at alpha {alpha:g}, even if all agree; "
            f"take at least {math.floor(-math.log2(alpha)) + 1}"
        )
    return int(stats.binom.isf(alpha, n, 0.5)) + 1


def give_up_counts(n: int, alpha: float, checks: ArrayLike, probability: float) -> NDArray[np.int64]:
    """Return, for each number of samples m in `checks`, the largest hit count at which `certify` gives up.

    Samples are exchangeable: if n samples contain K hits, the number of hits among the first m is
    hypergeometric, whatever the class probabilities. An image that n samples would certify has K >= min_hits,
    and loses its certificate with at most `probability`, over all checks together. With probability 0 an
    image is given up only when hits in all remaining samples would not suffice.

    Args:
        n: Total number of samples.
        alpha: Probability that a certificate is wrong.
        checks: Numbers of samples after which the hits are checked.
        probability: Probability of giving up an image that n samples would certify.
    """
    m = np.atleast_1d(np.asarray(checks))
    k = min_hits(n, alpha)
    out_of_reach = np.maximum(m - (n - k), 0) - 1
    improbable = stats.hypergeom.ppf(probability / len(m), n, k, m) - 1
    return np.maximum(out_of_reach, improbable).astype(np.int64)


def top_class(counts: NDArray[np.int64], alpha: float) -> NDArray[np.int64]:
    """Return the most frequent class of each row (images x classes), or -1 where it is not significant.

    The two highest counts are compared by the exact two-sided binomial test against one half.
    """
    second, first = np.sort(counts, axis=1)[:, -2:].T
    p_value = 2 * stats.binom.sf(first - 1, first + second, 0.5)
    return np.where(p_value <= alpha, counts.argmax(axis=1), -1)
