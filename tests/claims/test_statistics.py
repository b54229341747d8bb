"""What MIX-6 and MIX-8 call different must be more than what chance gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trimtab import norm
from trimtab.claims import mix
from trimtab.claims.bench import Bench
from trimtab.claims.scales import SMOKE


def batches(count=40, scale=1.0):
    drawn = torch.Generator().manual_seed(0)
    return [scale * torch.randn(32, 20, 1, 1, generator=drawn) for _ in range(count)]


def layer(variance=1.0, mean=0.0):
    made = norm.steer(nn.Sequential(nn.BatchNorm2d(20))).eval()
    made[0].running_var[:2], made[0].running_mean[:2] = variance, mean
    return made


def test_batches_of_just_what_running_statistics_describe_lie_at_the_distance_of_sampling_noise():
    rows = mix.from_running(layer(), batches())
    # A mean of 32 normal values has a mean distance of sqrt(2 / pi / 32) from 0.
    assert rows["means, average channel, distance"] == pytest.approx((2 / torch.pi / 32) ** 0.5, rel=0.05)
    for name in ("means", "stds"):
        for which in ("average channel", "worst tenth of channels"):
            assert abs(rows[f"{name}, {which}, beyond sampling noise"]) < 0.03, (name, which)


def test_a_tenth_of_the_channels_whose_variance_does_not_converge_is_found():
    rows = mix.from_running(layer(variance=2.0), batches())
    assert rows["stds, worst tenth of channels, distance"] == pytest.approx(1 - 0.5**0.5, abs=0.03)
    assert rows["stds, worst tenth of channels, beyond sampling noise"] > 0.15
    assert abs(rows["means, worst tenth of channels, beyond sampling noise"]) < 0.05
    rows = mix.from_running(layer(mean=1.0), batches())
    assert rows["means, worst tenth of channels, beyond sampling noise"] > 0.7


def test_statistics_are_looked_at_over_batches_as_training_takes_them(tmp_path):
    bench = Bench(SMOKE, 0, tmp_path)
    found = mix.training_batches(bench, mix.ADV, 38)
    assert len(found) == 4
    assert len({tuple(batch.ids.tolist()) for batch in found}) == 4
    shown = bench.images("train").take(found[0].ids).x
    flipped = torch.stack([shown.flip(3) == found[0].x, shown == found[0].x]).flatten(2).all(2)
    assert flipped.any(0).all()
    assert flipped.any(1).all()  # the recipe's augmentation: some are mirrored, some are not
