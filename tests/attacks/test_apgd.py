"""Auto-PGD's step size, by hand from algorithm 1 of the paper: one pixel, and a loss with a script."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from trimtab.attacks import Linf
from trimtab.attacks.apgd import ascend, judge_clean
from trimtab.attacks.base import AttackTask
from trimtab.attacks.losses import cw

EPS = 0.1


class Scripted(nn.Module):
    """Two logits whose margin takes given values, pass by pass, with a gradient of given signs."""

    def __init__(self, values: Sequence[float], signs: Sequence[int]) -> None:
        super().__init__()
        self.values, self.signs = values, signs
        self.offsets: list[float] = []
        """Where each pass looked, from the clean pixel in units of eps."""

    def forward(self, x: Tensor) -> Tensor:
        t = min(len(self.offsets), len(self.values) - 1)
        self.offsets.append(float(x.detach().sum() - 0.5) / EPS)
        margin = self.values[t] + self.signs[t] * (x - x.detach()).flatten(1).sum(1)
        return torch.stack([torch.zeros_like(margin), margin], 1)


@pytest.mark.parametrize(
    ("values", "after"),
    [
        # 4 of 5 increases exceed 0.75 * 5: a full step of 2 eps from the border, 3/4 of it with momentum.
        ([-9, -8, -7, -6, -6.5, -5, -5, -5], [-0.5]),
        # 3 of 5 do not: back to the best point and its gradient, then a half step against the new one.
        ([-9, -8, -7, -7.5, -6, -6.5, -5, -5], [1.0, 0.25]),
    ],
)
def test_the_step_is_halved_where_at_most_three_quarters_of_the_steps_increase_the_loss(
    values: list[float], after: list[float]
) -> None:
    net = Scripted(
        [values[0], *values], [1, 1, 1, 1, 1, 1, -1, -1, -1]
    )  # the first pass judges the clean pixel
    x, y = torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    task = AttackTask(net, x, y, seed=0, ids=[0], coupled=False)
    ascend(task, judge_clean(task), lambda z, rows: cw(z, y[rows]), Linf(EPS), steps=20, draw=0)
    clean, start, *steps = net.offsets
    assert clean == 0
    assert -1 <= start <= 1
    assert steps[:5] == pytest.approx([1.0] * 5)  # the first step of 2 eps reaches the border
    assert steps[5 : 5 + len(after)] == pytest.approx(after)


def test_the_step_is_halved_where_the_best_loss_has_not_improved_since_the_last_checkpoint() -> None:
    # The start is the best point. 4 of the 5 and 4 of the 4 steps before the checkpoints 5 and 9 increase the
    # loss, so only the stalled best halves the step, from 2 to 1.
    net = Scripted([-9, -4, -8, -7, -6.5, -6, -5.5, -5.4, -5.3, -5.2, -5.1], [1] * 11)
    x, y = torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    task = AttackTask(net, x, y, seed=0, ids=[0], coupled=False)
    ascend(task, judge_clean(task), lambda z, rows: cw(z, y[rows]), Linf(EPS), steps=20, draw=0)
    _, start, *steps = net.offsets
    assert steps[:9] == pytest.approx([1.0] * 9)
    momentum = 0.25 * (start - 1.0)
    assert steps[9] == pytest.approx(start + 0.75 * (min(start + 1, 1.0) - start) + momentum)
