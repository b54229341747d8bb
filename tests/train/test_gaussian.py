"""Training on Gaussian noise."""

from __future__ import annotations

import torch
from tests.train.stock_layers import CLASSES, N, batch
from torch import Tensor, nn

from trimtab import train


def test_gaussian_noise_belongs_to_the_image_and_not_to_the_batch() -> None:
    x, y = batch()
    seen = []

    class Watch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach().clone())
            return x.flatten(1)[:, :CLASSES] * torch.ones((), requires_grad=True)

    objective = train.Gaussian(sigma=0.25)
    objective(Watch(), x, y, seed=9, ids=range(N))
    order = torch.randperm(N)
    objective(Watch(), x[order], y[order], seed=9, ids=order)
    torch.testing.assert_close(seen[0][order], seen[1])
    assert 0.2 < float((seen[0] - x).std()) < 0.3
