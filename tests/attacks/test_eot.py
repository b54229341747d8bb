"""The classifier that EOT attacks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.attacks.linear import Linear, inner_images
from torch import nn

from trimtab.attacks import EOT, PGD, Linf
from trimtab.attacks.eot import MeanProbability


def test_the_logits_are_the_logarithm_of_the_mean_probability() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double() for _ in range(5)]
    x = torch.rand(6, 1, 2, 2, dtype=torch.float64)
    wanted = torch.stack([model(x).softmax(1) for model in models]).mean(0)
    torch.testing.assert_close(MeanProbability(models)(x).exp(), wanted)
    assert MeanProbability(models)(1000 * x).isfinite().all()  # probabilities that underflow


def test_eot_climbs_minus_the_logarithm_of_the_mean_probability():
    models = [Linear(s) for s in range(3)]
    x, y = inner_images(4).requires_grad_(True), torch.tensor([0, 1, 0, 1])
    mixed = F.cross_entropy(MeanProbability(models)(x), y, reduction="sum")
    mean = torch.stack([m(x).softmax(1) for m in models]).mean(0)
    explicit = -mean.gather(1, y[:, None]).log().sum()
    torch.testing.assert_close(mixed, explicit)
    torch.testing.assert_close(torch.autograd.grad(mixed, x)[0], torch.autograd.grad(explicit, x)[0])


def test_eot_over_a_set_of_linear_models_moves_every_pixel_against_all():
    models = [Linear(s) for s in range(3)]
    x = inner_images(6)
    y = torch.zeros(6, dtype=torch.long)
    adv = EOT(PGD(Linf(0.05), steps=20, random_start=False), sampler=models)(models[0], x, y)
    before = torch.stack([m(x).softmax(1) for m in models]).mean(0)[:, 0]
    after = torch.stack([m(adv).softmax(1) for m in models]).mean(0)[:, 0]
    assert (after < before).all()
