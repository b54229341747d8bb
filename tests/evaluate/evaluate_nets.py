"""A small network that is trained in seconds on the embedded sample."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.data.embedded import sample
from trimtab.types import InputSpec


class Net(nn.Module):
    """Pixels in, logits out; mean and deviation inside."""

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self.spec = spec
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * 49, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.spec.mean[0]) / self.spec.std[0])


@cache
def trained(eps: float = 0.0) -> Net:
    """The network after one epoch, on images moved by up to `eps` against it; always the same."""
    data = sample("train")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net(data.spec)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        for part in torch.randperm(len(data)).split(64):
            x, y, _ = data.take(part)
            if eps:
                x = _moved(model.eval(), x, y, eps)
            optimizer.zero_grad()
            F.cross_entropy(model.train()(x), y).backward()
            optimizer.step()
    return model.eval()


def _moved(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    delta = torch.empty_like(x).uniform_(-eps, eps).requires_grad_(True)
    (grad,) = torch.autograd.grad(F.cross_entropy(model(x + delta), y), delta)
    return (x + (delta + eps * grad.sign()).clamp(-eps, eps)).clamp(0, 1).detach()
