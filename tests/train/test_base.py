"""The losses that all objectives share.

Also tests train.standard.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.train.stock_layers import CLASSES, batch, net

from trimtab import train


def test_mixed_labels_weigh_the_loss_of_both_classes() -> None:
    x, y = batch()
    soft = 0.3 * F.one_hot(y, CLASSES) + 0.7 * F.one_hot(y.roll(1), CLASSES).double()
    hard = [train.Standard()(net().train(), x, labels)["loss"] for labels in (y, y.roll(1))]
    mixed = train.Standard()(net().train(), x, soft)["loss"]
    torch.testing.assert_close(mixed, 0.3 * hard[0] + 0.7 * hard[1])


def test_label_smoothing_spreads_its_share_over_all_classes() -> None:
    x, y = batch()
    spread = 0.9 * F.one_hot(y, CLASSES).double() + 0.1 / CLASSES
    smoothed = train.Standard(label_smoothing=0.1)(net().train(), x, y)["loss"]
    torch.testing.assert_close(smoothed, train.Standard()(net().train(), x, spread)["loss"])
