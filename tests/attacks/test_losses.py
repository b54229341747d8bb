"""The losses that attacks ascend, as published."""

import math

import pytest
import torch

from trimtab.attacks.losses import cw, dlr, dlr_targeted, other_class


def test_cw_margin_is_the_gap_to_the_best_other_class():
    z, y = torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]]), torch.tensor([0, 2])
    assert torch.equal(cw(z, y), torch.tensor([-0.5, 3.0]))


def test_dlr_is_the_published_formula():
    z = torch.tensor([[4.0, 3.0, 1.0, 0.0]])
    y, t = torch.tensor([0]), torch.tensor([2])
    assert float(dlr(z, y)) == pytest.approx(-(4 - 3) / (4 - 1))
    assert float(dlr_targeted(z, y, t)) == pytest.approx(-(4 - 1) / (4 - 0.5 * (1 + 0)))


def test_targets_are_uniform_over_the_other_classes():
    y = torch.zeros(6000, dtype=torch.long)
    counts = torch.bincount(other_class(y, 4, seed=3, ids=range(6000)), minlength=4)
    assert counts[0] == 0
    assert (counts[1:] - 2000).abs().max() < 5 * math.sqrt(6000 * (1 / 3) * (2 / 3))
