"""When a prediction counts as correct, and when a model as coupled."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from trimtab.runtime import couples_batch, is_misclassified


@pytest.mark.parametrize(
    ("logits", "label", "wrong"),
    [
        ([2.0, 1.0], 0, False),
        ([2.0, 1.0], 1, True),
        ([1.0, 1.0], 0, False),  # torch's argmax takes the first of equals
        ([math.nan, 1.0], 0, True),  # and NaN for the largest
        ([math.nan, 1.0], 1, True),
        ([2.0, math.nan], 0, True),
        ([math.inf, 1.0], 0, False),
    ],
)
def test_nan_is_never_correct(logits: list[float], label: int, wrong: bool) -> None:
    assert is_misclassified(torch.tensor([logits]), torch.tensor([label])).tolist() == [wrong]


class Centered(nn.Module):
    """Returns images minus the mean of their batch, or with a random offset, or as they are."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)
        offset = {"batch": z.mean(0), "random": torch.rand(z.shape[1]), "none": torch.zeros(1)}[self.how]
        return z - offset


@pytest.mark.parametrize(("how", "coupled"), [("batch", True), ("random", False), ("none", False)])
def test_only_a_model_that_depends_on_the_other_images_is_coupled(how: str, coupled: bool) -> None:
    x = torch.rand(4, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    assert couples_batch(Centered(how), x) is coupled
    assert couples_batch(Centered(how), x[:1]) is False  # there are no other images
