"""The classifier that EOT attacks."""

from __future__ import annotations

import torch
from torch import nn

from trimtab.attacks.eot import MeanProbability


def test_the_logits_are_the_logarithm_of_the_mean_probability() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double() for _ in range(5)]
    x = torch.rand(6, 1, 2, 2, dtype=torch.float64)
    wanted = torch.stack([model(x).softmax(1) for model in models]).mean(0)
    torch.testing.assert_close(MeanProbability(models)(x).exp(), wanted)
    assert MeanProbability(models)(1000 * x).isfinite().all()  # probabilities that underflow
