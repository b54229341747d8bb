"""One process or two: the same ledger, to the byte in float64.

Also tests evaluate.collective.
"""

import pytest
import torch
from torch import nn

from nets import Net
from trimtab.attacks import PGD, Linf
from trimtab.data.embedded import sample
from trimtab.evaluate import Clean, EvaluationStatus, Noise, Store, run
from trimtab.types import BadInput

SUITE = [Clean(), Noise(0.1), PGD(Linf("8/255"), steps=5, early_stop=True)]


def untrained() -> nn.Module:
    torch.manual_seed(0)
    return Net(sample().spec).double()


def ledger(store: Store) -> dict[str, dict[tuple[int, int], str]]:
    """Every chunk of every cell, by the hash of its content."""
    return {key: store.chunks(key) for key, _ in store.cells()}


def test_two_processes_make_the_ledger_of_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    one, two = (Store(tmp_path_factory.mktemp("s") / "store.sqlite") for _ in range(2))
    few = sample().subset(slice(0, 144))  # five chunks, so that one process waits at the end
    single = run(untrained(), few, SUITE, store=one, chunk=32, batch_size=32, examine=False)
    told: list[EvaluationStatus] = []
    how = {"batch_size": 8, "processes": 2, "progress": told.append}
    double = run(untrained(), few, SUITE, store=two, chunk=32, examine=False, **how)
    assert double.json() == single.json()
    assert ledger(two) == ledger(one)
    # After the two cells of the trust card (health, normalization), which have chunks of their own size.
    assert [len(chunks) for chunks in list(ledger(one).values())[2:]] == [5, 5, 5]
    assert told[-1].done == told[-1].total
    assert [at.done for at in told] == sorted(at.done for at in told)


def test_bad_input_found_in_a_process_is_told_as_anywhere(store: Store) -> None:
    x, y, _ = sample().take(torch.arange(8))
    with pytest.raises(BadInput, match=r"labels must lie in 0\.\.9"):
        run(untrained(), (x, y + 10), [Clean()], store=store, processes=2)
