"""What determines the result of a cell."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from trimtab.data.sets import from_arrays
from trimtab.evaluate import Clean, RunningMode, Store
from trimtab.evaluate.cells import Cell, Subject
from trimtab.evaluate.engine import measure


class Guess(nn.Module):
    """Random logits, also in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.randn(len(x), 10)


def test_a_random_model_differs_from_chunk_to_chunk_and_not_from_run_to_run(tmp_path: Path) -> None:
    images = from_arrays(torch.rand(128, 1, 4, 4), torch.arange(64).repeat(2) % 10)

    def correct(folder: str) -> Tensor:
        subject = Subject(Guess(), images, Store(tmp_path / folder / "store.sqlite"), chunk=64)
        return measure(Cell(subject, Clean(), RunningMode(), 0, 128))["correct"]

    once, again = correct("once"), correct("again")
    assert torch.equal(once, again)
    assert not torch.equal(once[:64], once[64:])
