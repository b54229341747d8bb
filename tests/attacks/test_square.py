"""Square's account of its queries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trimtab.attacks import L2, Linf, Square
from trimtab.attacks.base import AttackTask
from trimtab.types import Budget


class FlipsAt(nn.Module):
    """Two logits, of which the wrong one is the larger from a given pass on (0 is the first)."""

    def __init__(self, flip: int) -> None:
        super().__init__()
        self.flip, self.passes = flip, 0

    def forward(self, x: Tensor) -> Tensor:
        margin = (
            1.0 if self.passes >= self.flip else self.passes - 100.0
        )  # each query is better than the last
        self.passes += 1
        return torch.tensor([[0.0, margin]]).to(x).repeat(len(x), 1)


@pytest.mark.parametrize("budget", [Linf(0.1), L2(0.5)], ids=str)
@pytest.mark.parametrize("queries", [1, 4])
def test_success_is_counted_in_queries(budget: Budget, queries: int) -> None:
    net, x = FlipsAt(queries), torch.full((2, 3, 8, 8), 0.5)
    task = AttackTask(net, x, torch.zeros(2, dtype=torch.long), seed=0, ids=[0, 1], coupled=False)
    outcome = Square(budget, queries=9).run(task)
    assert outcome.success.all()
    assert outcome.success_at.tolist() == [queries] * 2
    assert net.passes == 1 + queries  # the clean images are classified first


def test_squares_shrink_after_the_published_queries() -> None:
    """Table of the public code: p = 0.8 is halved after queries 10, 50, 200, ... of 10,000."""
    x, attack = torch.zeros(1, 3, 32, 32), Square(Linf("8/255"), queries=10_000)
    after = {1: 29, 10: 29, 11: 20, 50: 20, 51: 14, 200: 14, 201: 10, 8000: 2, 8001: 1}  # sqrt(p 32 32)
    assert {query: attack._side(query, x) for query in after} == after
    short = Square(Linf("8/255"), queries=1000)  # a tenth of the queries: after query 1, 5, 20, ...
    assert [short._side(query, x) for query in (1, 2, 5, 6, 20, 21)] == [29, 20, 20, 14, 14, 10]
