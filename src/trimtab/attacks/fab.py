"""FAB: the nearest misclassified image, found by projections onto the linearized decision boundary.

Idea      linearize f_t - f_y at the iterate x, and move to the nearest point of that hyperplane in the
          box, biased towards the clean image x_0; once misclassified, step back towards x_0 and repeat
Equation  x <- clip((1 - a) (x + eta d(x)) + a (x_0 + eta d(x_0))), d(z) the shortest step from z to the
          hyperplane, a = min(|d(x)| / (|d(x)| + |d(x_0)|), 0.1); misclassified: x <- x_0 + beta (x - x_0)
Paper     Croce and Hein 2020, "Minimally distorted adversarial examples with a fast adaptive boundary
          attack" (eta 1.05, beta 0.9; later restarts from a random point at half the distance found)
Targeted  t is each of the classes ranked next after the label, one run each (FAB-T of AutoAttack);
          untargeted, t is at each step the class whose hyperplane is nearest
Norm      running statistics of the active branch, not updated
Cost      per run `steps` forward/backward passes (untargeted: one backward pass per class) and as many
          forward passes; without early stopping, five more forward passes in the end
Changed   the projection onto the hyperplane in the box uses Newton's method instead of sorting all pixels;
          with early stopping, an image leaves once it is misclassified within the budget; without, the
          paper's final search on the segment to x_0, which its authors' package leaves out
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from trimtab import rng
from trimtab.attacks.apgd import judge_clean, ranked_classes
from trimtab.attacks.base import Attack, AttackTask, Outcome, non_default
from trimtab.attacks.geometry import column, distance, random_start
from trimtab.attacks.losses import cw, gradient
from trimtab.runtime import is_misclassified
from trimtab.types import L2, BadInput, Budget, Linf, method_card, whole

_ETA, _BETA, _ALPHA = 1.05, 0.9, 0.1
_FINAL, _CAUTION = 3, 0.02
"""Secant steps of the final search, each short of the estimated boundary by a fraction of the bracket."""
_PIECES = 50
"""Largest number of Newton steps of the projection; few are needed."""


@method_card(__doc__)
@dataclass(frozen=True)
class FAB(Attack):
    """The nearest misclassified image within the budget (fast adaptive boundary attack).

    Args:
        budget: The ball around each image: Linf(eps) or L2(eps), in pixels.
        steps: Projections in each run.
        targets: Number of classes to try, most likely first; 0 is the untargeted attack.
        restarts: Independent runs for each target; all but the first begin at a random point.
        early_stop: Drop an image once it is misclassified within the budget (faster), else search for the
            nearest.
    """

    budget: Budget = field(default_factory=lambda: Linf("8/255"))
    steps: int = 100
    targets: int = 9
    restarts: int = 1
    early_stop: bool = True
    one_by_one = True

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("restarts", 1), ("targets", 0)):
            if whole(getattr(self, name), name) < least:
                raise BadInput(f"FAB needs {name} >= {least}, found {getattr(self, name)}")
        if not isinstance(self.early_stop, bool):
            raise BadInput(f"early_stop is True or False, found {self.early_stop!r}")

    def __str__(self) -> str:
        rest = non_default(self, "budget", "steps", "targets", "early_stop")
        kind = f"FAB-{self.steps} ({f'{self.targets} targets' if self.targets else 'untargeted'})"
        return f"{kind}, {self.budget}, {self.scored(False)}{rest}"

    def scored(self, coupled: bool) -> str:
        """Return which iterate counts: the first or the nearest misclassified one."""
        return "early stopping" if self.early_stop else "nearest iterate"

    def distances(
        self, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0, ids: Tensor | Sequence[int] | None = None
    ) -> Tensor:
        """Return the distance of the nearest misclassified image found for each image, in the budget's norm.

        0 where the clean image is misclassified, infinity where no image was found; the radius of the budget
        does not matter. One run gives the robust accuracy at every eps: `(distances > eps).double().mean()`.

        Args:
            model: Any classifier that returns logits (N, classes).
            x: Images (N, C, H, W) with pixels in [0, 1].
            y: Labels (N,).
            seed: Seed of all randomness.
            ids: The images' indices in their set, 0..N-1 if not given.
        """
        whole_box = Linf(1) if isinstance(self.budget, Linf) else L2(math.sqrt(x[:1].numel()))
        outcome = replace(self, budget=whole_box, early_stop=False).outcome(model, x, y, seed, ids)
        return torch.where(outcome.success, distance(outcome.x, x, whole_box), torch.inf)

    def run(self, task: AttackTask) -> Outcome:
        """Search for the nearest misclassified image, towards each target, `restarts` times."""
        before = judge_clean(task)
        ranked = ranked_classes(task)
        search = _Search(self, task, before)
        for restart in range(self.restarts):
            for rank in range(min(self.targets, ranked.shape[1] - 1) or 1):
                search.descend(ranked[:, rank] if self.targets else None, restart, rank)
        if not self.early_stop:
            search.approach()
        return search.outcome(before)


class _Search:
    """The nearest misclassified image of each image so far, and its distance."""

    def __init__(self, fab: FAB, task: AttackTask, before: Outcome) -> None:
        self.fab, self.task = fab, task
        self.nearest, self.success_at = before.x.clone(), before.success_at.clone()
        self.distance = torch.where(before.success, 0.0, torch.inf).to(task.x.dtype)

    def descend(self, target: Tensor | None, restart: int, rank: int) -> None:
        """Run once on all images that have not left, and keep what is nearer than before."""
        task, budget = self.task, self.fab.budget
        rows = (self.distance > (budget.radius if self.fab.early_stop else 0)).nonzero()[:, 0]
        if len(rows) == 0:
            return
        x0 = task.x[rows]
        x = self._start(rows, restart, rank) if restart else x0
        for t in range(self.fab.steps + 1):
            if t or restart:
                with torch.no_grad():
                    wrong = is_misclassified(task.net(x), task.y[rows])
                self._record(rows[wrong], x[wrong], t)
                x = torch.where(column(wrong, x), x0 + _BETA * (x - x0), x)
                if self.fab.early_stop:
                    stay = self.distance[rows] > budget.radius
                    rows, x0, x = rows[stay], x0[stay], x[stay]
            if t == self.fab.steps or len(rows) == 0:
                return
            value, w = boundary(task.net, x, task.y[rows], None if target is None else target[rows], budget)
            x = step_across(x, x0, value, w, budget)

    def _start(self, rows: Tensor, restart: int, rank: int) -> Tensor:
        """Return a random point, at most half as far as the nearest misclassified image."""
        x0, ids = self.task.x[rows], [self.task.ids[i] for i in rows.tolist()]
        draw = rng.purpose(f"fab start {rank}", restart)
        point = random_start(x0, self.fab.budget, self.task.seed, ids, draw)
        fraction = (self.distance[rows] / max(self.fab.budget.radius, 1e-12)).clamp(max=1) / 2
        return x0 + column(fraction, x0) * (point - x0)

    def _record(self, rows: Tensor, x: Tensor, t: int) -> None:
        radius, dist = self.fab.budget.radius, distance(x, self.task.x[rows], self.fab.budget)
        nearer = dist < self.distance[rows]
        rows, x, dist = rows[nearer], x[nearer], dist[nearer]
        first = (self.distance[rows] > radius) & (dist <= radius)
        self.nearest[rows], self.distance[rows] = x, dist
        self.success_at[rows[first]] = t

    @torch.no_grad()
    def approach(self) -> None:
        """Final search: approach the boundary on the segment from each clean image to its nearest image."""
        rows = ((self.distance > 0) & self.distance.isfinite()).nonzero()[:, 0]
        if len(rows) == 0:
            return
        x0, y = self.task.x[rows], self.task.y[rows]
        delta = self.nearest[rows] - x0
        # x0 + u delta is classified correctly at u_correct, and misclassified at u_wrong.
        u_correct, u_wrong = torch.zeros(len(rows)).to(delta), torch.ones(len(rows)).to(delta)
        below, above = (cw(self.task.net(x0 + column(u, delta) * delta), y) for u in (u_correct, u_wrong))
        for _ in range(_FINAL):
            secant = (below / (below - above)).nan_to_num(1.0).clamp(0, 1)
            u = u_correct + (secant + _CAUTION * (1 - secant)) * (u_wrong - u_correct)
            x = x0 + column(u, delta) * delta
            z = self.task.net(x)
            value, wrong = cw(z, y), is_misclassified(z, y)
            self._record(rows[wrong], x[wrong], self.fab.steps)
            u_wrong, above = torch.where(wrong, u, u_wrong), torch.where(wrong, value, above)
            u_correct, below = torch.where(wrong, u_correct, u), torch.where(wrong, below, value)

    def outcome(self, before: Outcome) -> Outcome:
        """Return the nearest images where they lie within the budget, else the clean ones."""
        success = self.distance <= self.fab.budget.radius
        x = torch.where(column(success, before.x), self.nearest, before.x)
        return Outcome(x, success, self.success_at)


def boundary(
    net: nn.Module, x: Tensor, y: Tensor, target: Tensor | None, budget: Budget
) -> tuple[Tensor, Tensor]:
    """Return f_t - f_y at x, (N,), and its gradient, for the targets or else for the nearest hyperplane.

    Args:
        net: The network.
        x: The iterates, (N, ...).
        y: Labels (N,).
        target: Classes (N,); None chooses for each image the class whose linearized boundary is nearest.
        budget: Its norm measures how near a hyperplane is.
    """
    with torch.enable_grad():
        inputs = x.detach().requires_grad_(True)
        z = net(inputs)
        if target is not None:
            value = (z.gather(1, target[:, None]) - z.gather(1, y[:, None]))[:, 0]
            return value.detach(), gradient(value.sum(), inputs)
        values = z - z.gather(1, y[:, None])  # (N, classes)
        gradients = (torch.autograd.grad(v.sum(), inputs, retain_graph=True)[0] for v in values.unbind(1))
        nearest = torch.full_like(values[:, 0], torch.inf).detach()
        value, w = torch.zeros_like(nearest), torch.zeros_like(x)
        for k, grad in enumerate(gradients):
            dual = grad.flatten(1).norm(1 if isinstance(budget, Linf) else 2, dim=1)
            dist = torch.where(y == k, torch.inf, values[:, k].detach().abs() / dual.clamp(min=1e-12))
            nearer = dist < nearest
            nearest = torch.where(nearer, dist, nearest)
            value = torch.where(nearer, values[:, k].detach(), value)
            w = torch.where(column(nearer, w), grad, w)
    return value, w


def step_across(x: Tensor, x0: Tensor, value: Tensor, w: Tensor, budget: Budget) -> Tensor:
    """Return the next iterate: just across the hyperplane, biased towards the clean images x0.

    Args:
        x: The iterates, (N, ...).
        x0: The clean images.
        value: f_t - f_y at x, (N,).
        w: Its gradient at x.
        budget: Its norm measures the steps.
    """
    value_at_x0 = value + (w * (x0 - x)).flatten(1).sum(1)
    d, d0 = to_hyperplane(x, value, w, budget), to_hyperplane(x0, value_at_x0, w, budget)
    size, size0 = (distance(x + step, x, budget).clamp(min=1e-8) for step in (d, d0))
    a = column((size / (size + size0)).clamp(max=_ALPHA), x)
    return ((1 - a) * (x + _ETA * d) + a * (x0 + _ETA * d0)).clamp(0.0, 1.0)


def to_hyperplane(x: Tensor, value: Tensor, w: Tensor, budget: Budget) -> Tensor:
    """Return the shortest step d with value + <w, d> = 0 and x + d in [0, 1].

    It has |d_j| = min(u s_j, room_j), with s_j = 1 (l_inf) or |w_j| (l_2), and room_j the distance to the
    border of the box. u solves sum_j |w_j| min(u s_j, room_j) = |value|. The sum is concave and piecewise
    linear in u, so Newton's method from u = 0 never overshoots. If no point of the box suffices, d goes as
    far as it can.

    Args:
        x: Images (N, ...).
        value: The linear function's value at x, (N,).
        w: Its gradient (N, ...).
        budget: Its norm is the one in which d is shortest.
    """
    dims = tuple(range(1, x.dim()))  # all but the batch
    scale = w.abs().amax(dims, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    sign, size = -w.sign() * column(value.sign(), x), w.abs() / scale
    needed = column(value.abs(), x) / scale
    room = torch.where(sign > 0, 1 - x, x)
    s = torch.ones_like(needed) if isinstance(budget, Linf) else size
    rates, u = size * s, torch.zeros_like(needed)
    for _ in range(_PIECES):
        d = u * s
        missing = needed - (size * torch.minimum(d, room)).sum(dims, keepdim=True)
        rate = (rates * (d < room)).sum(dims, keepdim=True)
        unsolved = (missing > 1e-6 * needed) & (rate > 1e-12)
        if not bool(unsolved.any()):
            break
        u = torch.where(unsolved, u + missing / rate.clamp(min=1e-12), u)
    return sign * torch.minimum(u * s, room)
