"""Small networks are quickest on one thread, and their results then never depend on how many there are."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trimtab.evaluate import Store


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.sqlite")
