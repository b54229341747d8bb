"""Square: a black-box search that sees only logits. It finds what masked gradients hide.

Idea      keep a change of a random square if the margin shrinks; squares get smaller over time
Paper     Andriushchenko et al. 2020, "Square attack"
Norm      running statistics of the branch in use, not learning
Cost      `queries` forward passes, none backward; images that break leave the batch ("any" iterate)
Changed   for l2: the authors' bumps have two halves of opposite sign, and they start from bumps; these have
          one sign, and start from flat tiles
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trimtab import draws
from trimtab.attacks.apgd import standing
from trimtab.attacks.base import Attack, Outcome, Victim, unusual
from trimtab.attacks.geometry import norms, project
from trimtab.attacks.losses import cw
from trimtab.types import BadInput, Budget, Linf, whole

_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries


@dataclass(frozen=True)
class Square(Attack):
    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    """Where the images may go: Linf(eps) or L2(eps), in pixels."""
    queries: int = 5000
    """Forward passes per image."""
    share: float = 0.8
    """Share of the pixels that the first squares cover."""
    one_by_one = True
    by_gradients = False

    def __post_init__(self) -> None:
        if whole(self.queries, "queries") < 1 or not 0 < self.share <= 1:
            raise BadInput(
                f"Square needs queries >= 1 and 0 < share <= 1, found {self.queries}, {self.share}"
            )

    def __str__(self) -> str:
        return f"Square-{self.queries}, {self.budget}, any iterate{unusual(self, 'budget', 'queries')}"

    def run(self, victim: Victim) -> Outcome:
        if victim.x.dim() != 4:
            raise BadInput(f"Square needs images (N, C, H, W), found {victim.x.dim()} axes")
        before = standing(victim)
        with torch.no_grad():
            return self._search(victim, before)

    def _search(self, victim: Victim, before: Outcome) -> Outcome:
        out, broken, broken_at = before.x.clone(), before.broken.clone(), before.broken_at.clone()
        rows = (~broken).nonzero().squeeze(1)
        centre = victim.x[rows]
        chance = _Chance(victim, rows)
        best = project(centre + chance.start(centre, self.budget), centre, self.budget)
        margin = torch.full((len(rows),), -torch.inf, dtype=centre.dtype, device=centre.device)
        tried = best
        for query in range(self.queries):
            if len(rows) == 0:
                break
            if query:
                side = self._side(query, centre)
                tried = propose(best, centre, self.budget, side, chance.next())
            value = cw(victim.net(tried), victim.y[rows])
            better = value > margin
            best = torch.where(better.view(-1, 1, 1, 1), tried, best)
            margin = torch.where(better, value, margin)
            wrong = margin > 0
            if bool(wrong.any()):
                out[rows[wrong]] = best[wrong]
                broken[rows[wrong]] = True
                broken_at[rows[wrong]] = query + 1
                keep = ~wrong
                rows, centre, best, margin = rows[keep], centre[keep], best[keep], margin[keep]
                chance.keep(keep)
        out[rows] = best
        return Outcome(out, broken, broken_at)

    def _side(self, query: int, x: Tensor) -> int:
        """Side of the squares at this query: their share of the image halves at fixed points."""
        at = query / self.queries * 10_000
        share = self.share / 2 ** sum(at > point for point in _HALVINGS)
        height, width = x.shape[2:]
        side = max(round(math.sqrt(share * height * width)), 1)
        if not isinstance(self.budget, Linf):
            side = max(side, 3) | 1  # the l2 bump has a centre
        return min(side, min(height, width) - 1)


def propose(best: Tensor, centre: Tensor, budget: Budget, side: int, u: Tensor) -> Tensor:
    """A change of one random square (l_inf), or mass moved from one square to another (l2)."""
    top, left = _corner(u[:, 0], best.shape[2], side), _corner(u[:, 1], best.shape[3], side)
    inside = _window(best, top, left, side)  # (N, 1, H, W)
    signs = (u[:, 4 : 4 + best.shape[1]] < 0.5).to(best.dtype)[:, :, None, None] * 2 - 1
    if isinstance(budget, Linf):
        return project(best + inside * signs * (2 * budget.radius), centre, budget)

    delta = best - centre
    other = _window(best, _corner(u[:, 2], best.shape[2], side), _corner(u[:, 3], best.shape[3], side), side)
    either = torch.maximum(inside, other)
    bump = _bump(best, top, left, side) * inside * signs
    here = delta * inside
    fresh = bump + here / norms(here).clamp(min=1e-12)
    per_channel = fresh.flatten(2).norm(dim=2)[:, :, None, None].clamp(min=1e-12)
    unspent = (budget.radius**2 - norms(delta) ** 2).clamp(min=0) / best.shape[1]
    freed = (delta * either).flatten(2).pow(2).sum(2)[:, :, None, None]
    moved = delta * (1 - either) + fresh / per_channel * (unspent + freed).sqrt()
    return (centre + moved * (budget.radius / norms(moved).clamp(min=1e-12))).clamp(0, 1)


class _Chance:
    """Each image's own stream of random numbers, drawn ahead in blocks."""

    BLOCK = 256

    def __init__(self, victim: Victim, rows: Tensor) -> None:
        self.like, self.seed = victim.x, victim.seed
        self.ids = [victim.ids[i] for i in rows.tolist()]
        self.wide = 4 + victim.x.shape[1]
        self.at, self.block = 0, torch.empty(0)

    def start(self, x: Tensor, budget: Budget) -> Tensor:
        """Vertical stripes of random sign (l_inf), or a chequered pattern of random sign (l2)."""
        n, channels, _, width = x.shape
        if isinstance(budget, Linf):
            u = draws.uniform(
                x.new_empty(n, channels, 1, width), self.seed, self.ids, draws.purpose("square start")
            )
            return torch.where(u < 0.5, -budget.radius, budget.radius).to(x)
        u = draws.uniform(x.new_empty(n, channels, 5, 5), self.seed, self.ids, draws.purpose("square start"))
        tiles = torch.nn.functional.interpolate((u < 0.5).to(x) * 2 - 1, size=x.shape[2:])
        return tiles / norms(tiles) * budget.radius

    def next(self) -> Tensor:
        offset = self.at % self.BLOCK
        if offset == 0:
            like = self.like.new_empty(len(self.ids), self.BLOCK, self.wide)
            self.block = draws.uniform(
                like, self.seed, self.ids, draws.purpose("square", self.at // self.BLOCK)
            )
        self.at += 1
        return self.block[:, offset]

    def keep(self, rows: Tensor) -> None:
        self.ids = [i for i, stays in zip(self.ids, rows.tolist(), strict=True) if stays]
        self.block = self.block[rows] if len(self.block) else self.block


def _corner(u: Tensor, size: int, side: int) -> Tensor:
    return (u * (size - side + 1)).long().clamp(max=size - side)


def _window(x: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    down, across = (torch.arange(n, device=x.device)[None] for n in x.shape[2:])
    tall = (down >= top[:, None]) & (down < top[:, None] + side)
    wide = (across >= left[:, None]) & (across < left[:, None] + side)
    return (tall[:, None, :, None] & wide[:, None, None, :]).to(x.dtype)


def _bump(x: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    """A pseudo-Gaussian: largest in the middle of the square, falling in rings."""
    half = side // 2
    rings = torch.zeros(side, side, dtype=x.dtype, device=x.device)
    for k in range(half + 1):
        rings[half - k : half + k + 1, half - k : half + k + 1] += 1.0 / (half + 1 - (half - k)) ** 2
    rings = rings / rings.norm()
    down = torch.arange(x.shape[2], device=x.device)[None] - top[:, None]
    across = torch.arange(x.shape[3], device=x.device)[None] - left[:, None]
    return rings[down.clamp(0, side - 1)[:, :, None], across.clamp(0, side - 1)[:, None, :]][:, None]
