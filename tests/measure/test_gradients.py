"""Gradients as pictures."""

import pytest
import torch

from trimtab import measure


def test_a_picture_maps_stds_to_black_and_white_and_takes_the_old_argument_name():
    gradient = torch.tensor([-1.0, 0.0, 1.0]).view(1, 1, 1, 3)  # of std 1
    expected = torch.tensor([0.25, 0.5, 0.75]).view(1, 1, 1, 3)
    torch.testing.assert_close(measure.as_picture(gradient, stds=2), expected)
    with pytest.warns(DeprecationWarning, match="stds"):
        torch.testing.assert_close(measure.as_picture(gradient, deviations=2), expected)
