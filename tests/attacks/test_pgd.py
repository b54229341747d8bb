"""Where PGD starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trimtab.attacks import PGD, Linf


@pytest.mark.parametrize("fraction", [0.0, 0.2, 1.0])
def test_a_fraction_of_the_images_starts_at_the_image_and_the_rest_in_the_ball(fraction: float) -> None:
    n, eps = 1000, 0.1
    x = torch.full((n, 1, 2, 2), 0.5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    start = PGD(Linf(eps), steps=0, clean_start=fraction)(model, x, torch.zeros(n, dtype=torch.long))
    moved = (start - x).flatten(1)
    clean = int((moved == 0).all(1).sum())
    assert abs(clean - fraction * n) <= 4 * (n * fraction * (1 - fraction)) ** 0.5  # four standard errors
    assert float(moved.abs().max()) <= eps + 1e-6
    if clean < n:  # uniform in the ball: mean 0, variance eps^2 / 3
        drawn = moved[(moved != 0).any(1)]
        assert float(drawn.var()) == pytest.approx(eps**2 / 3, rel=0.1)
        assert abs(float(drawn.mean())) < 0.01


@pytest.mark.parametrize("early_stop", [False, True])
def test_a_robust_image_takes_every_step_of_every_restart(early_stop: bool) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    x = torch.full((6, 1, 2, 2), 0.5)
    y = model(x).argmax(1)
    gradients: list[int] = []
    model[0].register_forward_pre_hook(
        lambda _, given: gradients.append(len(given[0])) if given[0].requires_grad else None
    )
    attack = PGD(Linf(1e-6), steps=4, restarts=3, early_stop=early_stop)
    assert not bool(attack.outcome(model, x, y).success.any())
    assert sum(gradients) == 6 * 4 * 3


class Staircase(nn.Module):
    """Two logits of one pixel, whose margin and slope are given at the places that steps of 0.01 reach."""

    margins = torch.tensor([0.5, 0.4, -0.3, 0.6, 0.6], dtype=torch.float64)
    slopes = torch.tensor([-100.0, -1.0, -1.0, -1.0, -1.0], dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixel = x.flatten()
        at = ((pixel - 0.5) / 0.01).round().long()
        margin = self.margins[at] + self.slopes[at] * (pixel - pixel.detach())
        return torch.stack([margin, torch.zeros_like(margin)], 1)


def test_early_stopping_sees_a_flip_that_nothing_predicted_after_one_that_did_not_come() -> None:
    # The first slope predicts a flip, so iterate 1 is judged, and survives. Iterate 2 is misclassified, which
    # the slope at 1 does not predict; iterates 3 and 4 are not.
    x, y = torch.full((3, 1, 1, 1), 0.5, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    attack = {"steps": 4, "step_size": 0.01, "loss": "cw", "random_start": False}
    stopped = PGD(Linf(0.1), **attack, early_stop=True).outcome(Staircase(), x, y)
    whole = PGD(Linf(0.1), **attack, early_stop=False).outcome(Staircase(), x, y)
    assert stopped.success_at.tolist() == whole.success_at.tolist() == [2, 2, 2]
    assert bool(stopped.success.all())
    assert not bool(whole.success.any())
