"""The store: whole or not at all, whoever dies and whoever else is writing."""

import multiprocessing
import sqlite3
from pathlib import Path

import pytest
import torch
from evaluate_nets import Net

from trimtab.data.embedded import sample
from trimtab.evaluate import Clean, Store, run, runs
from trimtab.evaluate.conditions import Columns
from trimtab.types import BadInput

ABOUT: dict[str, object] = {"seed": 0}


def columns(start: int, stop: int) -> dict[str, torch.Tensor]:
    return {"correct": torch.arange(start, stop) % 3 == 0, "radius": torch.arange(start, stop) / 7}


def test_what_was_committed_is_read_back_to_the_bit(store: Store) -> None:
    store.commit("cell", ABOUT, (0, 50), columns(0, 50))
    ((span, file),) = store.chunks("cell").items()
    held = store.read(file)
    assert span == (0, 50)
    assert held is not None
    assert all(torch.equal(held[name], values) for name, values in columns(0, 50).items())
    assert store.chunks("another") == {}


def test_a_store_is_not_made_by_looking_for_it(tmp_path: Path) -> None:
    nowhere = Store(tmp_path / "mistyped" / "store.sqlite")
    assert nowhere.cards() == nowhere.cells() == []
    assert nowhere.chunks("cell") == {}
    assert not (tmp_path / "mistyped").exists()


def test_equal_columns_are_one_file(store: Store) -> None:
    store.commit("one", ABOUT, (0, 50), columns(0, 50))
    store.commit("two", ABOUT, (0, 50), columns(0, 50))
    assert len(list(store.samples.rglob("*.safetensors"))) == 1


@pytest.mark.parametrize("damage", ["lost", "cut short", "altered"])
def test_a_damaged_file_counts_as_not_measured(store: Store, damage: str) -> None:
    store.commit("cell", ABOUT, (0, 50), columns(0, 50))
    (place,) = store.samples.rglob("*.safetensors")
    content = place.read_bytes()
    if damage == "lost":
        place.unlink()
    else:
        place.write_bytes(content[:-9] if damage == "cut short" else content[:-1] + b"\x01")
    assert store.read(place.stem) is None


def test_the_file_comes_first_so_that_a_row_never_points_to_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(BadInput, match="the disk is full"):
        store.commit("cell", ABOUT, (0, 50), columns(0, 50))
    assert store.chunks("cell") == {}
    assert not [path for path in store.samples.rglob("*") if path.is_file()]


def _commit_many(path: Path, worker: int) -> None:
    store = Store(path)
    for i in range(30):
        store.commit("shared", ABOUT, (i, i + 1), columns(i, i + 1))
        store.commit(f"own {worker}", ABOUT, (i, i + 1), columns(i, i + 1))


def test_two_processes_may_write_at_once(store: Store) -> None:
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_commit_many, args=(store.path, worker)) for worker in (0, 1)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
        assert process.exitcode == 0
    for cell in ("shared", "own 0", "own 1"):
        assert list(store.chunks(cell)) == [(i, i + 1) for i in range(30)]


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are not the bytes of a database" * 50)
    with pytest.raises(BadInput, match=r"notes\.txt cannot be used as a store"):
        Store(text).cells()
    with pytest.raises(BadInput, match="cannot be used as a store"):
        Store(text / "store.sqlite").cells()


def test_a_store_of_another_format_is_named(store: Store) -> None:
    store.cells()
    with sqlite3.connect(store.path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(BadInput, match="another version of trimtab"):
        store.cells()


class Counting(Clean):
    """A condition of a user's own, with a figure that is a whole number."""

    def figures(self, columns: Columns) -> dict[str, float]:
        return {"images right": int(columns["correct"].sum())}


def test_runs_are_read_as_they_were_recorded_and_damage_is_told_by_name(tmp_path: Path) -> None:
    place = tmp_path / "store.sqlite"
    asked = {"store": place, "limit": 8, "examine": False}
    model = Net(sample().spec)
    card, again = (
        run(model, sample(), [Counting()], command=command, **asked)
        for command in ("trimtab this", "trimtab that")
    )
    assert card.id == again.id
    (kept,) = runs(place)
    assert kept.id == card.id
    for damage in ("substr(card, 1, 200)", "replace(card, '\"correct\": ', '\"correct\": 1')"):
        with sqlite3.connect(place) as db:
            whole = db.execute("SELECT card FROM runs").fetchone()[0]
            db.execute(f"UPDATE runs SET card = {damage}")
        with pytest.raises(BadInput, match=f"the run '{card.id}' in .* is damaged"):
            runs(place)
        with sqlite3.connect(place) as db:
            db.execute("UPDATE runs SET card = ?", (whole,))
