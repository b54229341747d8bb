"""APART where the gradient of a shift is zero by mathematics, so that its sign is rounding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.train import bottlenecks
from torch import nn

from trimtab import norm, train
from trimtab.types import BadInput


def test_two_processes_equal_one_on_linear_bottlenecks(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launch, bottlenecks.__file__, str(tmp_path)], capture_output=True, text=True, timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    two = torch.load(tmp_path / "two.pt", weights_only=True)
    one = bottlenecks.trained(tmp_path / "one")
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=0, atol=1e-8, msg=f"{key} differs")


def bottleneck() -> nn.Sequential:
    """conv, BN, conv, BN, ReLU: the second BN undoes every shift of the first one's mean."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 5, 1), nn.BatchNorm2d(5), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_shift_that_the_next_norm_undoes_gets_sign_zero(dtype: torch.dtype) -> None:
    model = norm.steer(bottleneck().to(dtype)).train()
    x = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    y = torch.arange(16) % 3
    with norm.observe(model) as seen:
        F.cross_entropy(model(x), y).backward()
    gradients = {p: p.grad for p in model.parameters() if p.grad is not None}
    raw = norm.shift_gradients(model, seen, gradients)
    cleaned = norm.shift_gradients(model, seen, gradients, tolerance=1e3 * torch.finfo(dtype).eps)
    assert bool((raw["1"].mu != 0).any())  # rounding, which has a sign
    assert bool((cleaned["1"].mu == 0).all())
    for name, half in (("1", "sigma"), ("3", "mu"), ("3", "sigma")):
        if name == "3":  # these are no rounding
            assert torch.equal(getattr(cleaned[name], half), getattr(raw[name], half))


def test_the_threshold_is_an_option_and_zero_turns_it_off() -> None:
    assert train.APART(zero_below="1e-3").zero_below == 1e-3
    with pytest.raises(BadInput, match="zero_below"):
        train.APART(zero_below=1.5)
