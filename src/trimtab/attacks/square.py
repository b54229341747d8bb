"""Square: a black-box search that uses only logits, so that masked gradients do not stop it.

Idea      keep a change of a random square if the margin shrinks; squares get smaller over time
Paper     Andriushchenko et al. 2020, "Square attack"
Norm      running statistics of the active branch, not updated
Cost      `queries` forward passes, no backward pass; misclassified images leave the batch
Changed   each image has its own squares (the public code: one position for the batch), which reach the last
          row and column as well
"""

from __future__ import annotations

import math
import warnings
from dataclasses import InitVar, dataclass, field

import torch
from torch import Tensor

from trimtab import rng
from trimtab.attacks.apgd import judge_clean
from trimtab.attacks.base import Attack, AttackTask, Outcome, non_default
from trimtab.attacks.geometry import norms, project
from trimtab.attacks.losses import cw
from trimtab.types import BadInput, Budget, Linf, method_card, whole

_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries


@method_card(__doc__)
@dataclass(frozen=True)
class Square(Attack):
    """A random search over squares of pixels that uses only logits (Square attack).

    Args:
        budget: The ball around each image: Linf(eps) or L2(eps), in pixels.
        queries: Forward passes per image.
        fraction: Fraction of the pixels that the first squares cover.
        rescale: Stretch the published schedule, made for 10,000 queries, to `queries`.
        share: Deprecated name of `fraction`.
    """

    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    queries: int = 5000
    fraction: float = 0.8
    rescale: bool = True
    share: InitVar[float | None] = None
    one_by_one = True
    by_gradients = False
    version = 2

    def __post_init__(self, share: float | None) -> None:
        if share is not None:
            warnings.warn("share is now fraction", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "fraction", share)
        if whole(self.queries, "queries") < 1 or not 0 < self.fraction <= 1:
            raise BadInput(
                f"Square needs queries >= 1 and 0 < fraction <= 1, found {self.queries}, {self.fraction}"
            )

    def __str__(self) -> str:
        return f"Square-{self.queries}, {self.budget}, early stopping{non_default(self, 'budget', 'queries')}"

    def run(self, task: AttackTask) -> Outcome:
        """Search for misclassified images with `queries` forward passes each."""
        if task.x.dim() != 4:
            raise BadInput(f"Square needs images (N, C, H, W), found {task.x.dim()} axes")
        before = judge_clean(task)
        with torch.no_grad():
            return self._search(task, before)

    def _search(self, task: AttackTask, before: Outcome) -> Outcome:
        out, success, success_at = before.x.clone(), before.success.clone(), before.success_at.clone()
        rows = (~success).nonzero().squeeze(1)
        center = task.x[rows]
        samples = _Samples(task, rows)
        best = project(center + samples.start(center, self.budget), center, self.budget)
        margin = torch.full((len(rows),), -torch.inf, dtype=center.dtype, device=center.device)
        proposal = best
        for query in range(self.queries):
            if len(rows) == 0:
                break
            if query:
                side = self._side(query, center)
                proposal = propose(best, center, self.budget, side, samples.next())
            value = cw(task.net(proposal), task.y[rows])
            better = value > margin
            best = torch.where(better.view(-1, 1, 1, 1), proposal, best)
            margin = torch.where(better, value, margin)
            wrong = margin > 0
            if bool(wrong.any()):
                out[rows[wrong]] = best[wrong]
                success[rows[wrong]] = True
                success_at[rows[wrong]] = query + 1
                keep = ~wrong
                rows, center, best, margin = rows[keep], center[keep], best[keep], margin[keep]
                samples.keep(keep)
        out[rows] = best
        return Outcome(out, success, success_at)

    def _side(self, query: int, x: Tensor) -> int:
        """Return the side of the squares, whose fraction of the image is halved at fixed queries."""
        at = query * 10_000 // self.queries if self.rescale else query
        fraction = self.fraction / 2 ** sum(at > point for point in _HALVINGS)
        height, width = x.shape[2:]
        side = max(round(math.sqrt(fraction * height * width)), 1)
        if not isinstance(self.budget, Linf):
            side = max(side, 3) | 1
        return min(side, min(height, width) - 1)


def propose(best: Tensor, center: Tensor, budget: Budget, side: int, u: Tensor) -> Tensor:
    """Return the images with one random square changed (l_inf), or mass moved between two squares (l2).

    Args:
        best: The best images so far, (N, C, H, W).
        center: The clean images.
        budget: The ball around them.
        side: Side of the squares, in pixels.
        u: Uniform random numbers, (N, 5 + C).
    """
    top, left = _corner(u[:, 0], best.shape[2], side), _corner(u[:, 1], best.shape[3], side)
    inside = _window(best, top, left, side)  # (N, 1, H, W)
    signs = (u[:, 5 : 5 + best.shape[1]] < 0.5).to(best.dtype)[:, :, None, None] * 2 - 1
    if isinstance(budget, Linf):
        return project(best + inside * signs * (2 * budget.radius), center, budget)

    delta = best - center
    other = _window(best, _corner(u[:, 2], best.shape[2], side), _corner(u[:, 3], best.shape[3], side), side)
    either = torch.maximum(inside, other)
    bump = _place(_bump(side, best), best, top, left, u[:, 4] < 0.5) * inside * signs
    here = delta * inside
    fresh = bump + here / norms(here).clamp(min=1e-12)
    per_channel = fresh.flatten(2).norm(dim=2)[:, :, None, None].clamp(min=1e-12)
    unspent = (budget.radius**2 - norms(delta) ** 2).clamp(min=0) / best.shape[1]
    freed = (delta * either).flatten(2).pow(2).sum(2)[:, :, None, None]
    moved = delta * (1 - either) + fresh / per_channel * (unspent + freed).sqrt()
    return (center + moved * (budget.radius / norms(moved).clamp(min=1e-12))).clamp(0, 1)


class _Samples:
    """The random numbers of each image, computed in blocks."""

    BLOCK = 256

    def __init__(self, task: AttackTask, rows: Tensor) -> None:
        self.like, self.seed = task.x, task.seed
        self.ids = [task.ids[i] for i in rows.tolist()]
        self.wide = 5 + task.x.shape[1]
        self.at, self.block = 0, torch.empty(0)

    def start(self, x: Tensor, budget: Budget) -> Tensor:
        """Return the first perturbation: vertical stripes (l_inf) or a grid of bumps (l2) of random sign."""
        n, channels, height, width = x.shape
        if isinstance(budget, Linf):
            u = rng.uniform(
                x.new_empty(n, channels, 1, width), self.seed, self.ids, rng.purpose("square start")
            )
            return torch.where(u < 0.5, -budget.radius, budget.radius).to(x)
        side = max(min(height, width) // 5, 1)
        down, across = height // side, width // side
        like = x.new_empty(n, channels, down, across)
        u = rng.uniform(like, self.seed, self.ids, rng.purpose("square start"))
        # (n, channels, down * side, across * side): each sign times the bump
        tiles = torch.kron((u < 0.5).to(x) * 2 - 1, _bump(side, x))
        top, left = (height - down * side) // 2, (width - across * side) // 2
        tiles = torch.nn.functional.pad(
            tiles, (left, width - across * side - left, top, height - down * side - top)
        )
        return tiles / norms(tiles) * budget.radius

    def next(self) -> Tensor:
        """Return the random numbers of the next query, (N, 5 + C)."""
        offset = self.at % self.BLOCK
        if offset == 0:
            like = self.like.new_empty(len(self.ids), self.BLOCK, self.wide)
            self.block = rng.uniform(like, self.seed, self.ids, rng.purpose("square", self.at // self.BLOCK))
        self.at += 1
        return self.block[:, offset]

    def keep(self, rows: Tensor) -> None:
        """Keep only the images where the mask is true."""
        self.ids = [i for i, stays in zip(self.ids, rows.tolist(), strict=True) if stays]
        self.block = self.block[rows] if len(self.block) else self.block


def _corner(u: Tensor, size: int, side: int) -> Tensor:
    return (u * (size - side + 1)).long().clamp(max=size - side)


def _window(x: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    down, across = (torch.arange(n, device=x.device)[None] for n in x.shape[2:])
    tall = (down >= top[:, None]) & (down < top[:, None] + side)
    wide = (across >= left[:, None]) & (across < left[:, None] + side)
    return (tall[:, None, :, None] & wide[:, None, None, :]).to(x.dtype)


def _bump(side: int, like: Tensor) -> Tensor:
    """Return two adjacent peaks of opposite sign and unit norm together, (side, side).

    Each fills half of the square; at distance d from its center it is the sum of 1 / (k + 1)^2 over k >= d.
    """
    halves = [_peak(half, side, like) for half in (side // 2, side - side // 2) if half]
    bump = torch.cat([half / half.norm() * sign for half, sign in zip(halves, (1, -1), strict=False)])
    return bump / bump.norm()


def _peak(height: int, width: int, like: Tensor) -> Tensor:
    down, across = ((torch.arange(n, device=like.device) - (n // 2)).abs() for n in (height, width))
    d = torch.maximum(down[:, None], across[None])  # (height, width)
    steps = 1 / torch.arange(1, max(height, width) // 2 + 2, device=like.device, dtype=like.dtype) ** 2
    return steps.flip(0).cumsum(0).flip(0)[d]


def _place(pattern: Tensor, x: Tensor, top: Tensor, left: Tensor, turned: Tensor) -> Tensor:
    """Return the pattern at each image's place, transposed where `turned`, (N, 1, H, W)."""
    side = len(pattern)
    down = (torch.arange(x.shape[2], device=x.device)[None] - top[:, None]).clamp(0, side - 1)[:, :, None]
    across = (torch.arange(x.shape[3], device=x.device)[None] - left[:, None]).clamp(0, side - 1)[:, None, :]
    placed = torch.where(turned[:, None, None], pattern[across, down], pattern[down, across])
    return placed[:, None]
