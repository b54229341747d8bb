"""When a prediction counts as correct."""

from __future__ import annotations

import math

import pytest
import torch

from trimtab.runtime import is_misclassified


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
