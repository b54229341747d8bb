"""The store: whole or not at all, whoever dies and whoever else is writing.

Also tests evaluate.format1, evaluate.records.
"""

import json
import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from nets import Net
from trimtab.attacks import PGD, CurvePGD
from trimtab.data.embedded import sample
from trimtab.evaluate import (
    Card,
    Clean,
    Corrupted,
    Noise,
    PerBatchMode,
    RunningMode,
    Shifted,
    Similar,
    Store,
    find,
    run,
    runs,
)
from trimtab.evaluate.bn_modes import StoredMode
from trimtab.evaluate.certified import Certified
from trimtab.evaluate.conditions import Columns
from trimtab.evaluate.records import (
    AttackRecord,
    BudgetRecord,
    CleanRecord,
    Curve,
    Measure,
    NoiseRecord,
    OtherRecord,
)
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


def old_row(key: str, kind: str, condition: str, state: str, **changes: object) -> dict[str, object]:
    """A row as format 1 wrote it."""
    return {
        **{"kind": kind, "condition": condition, "state": state, "seed": 0, "accuracy": 0.5},
        **{
            "interval": [0.2, 0.8],
            "correct": 4,
            "n": 8,
            "score": "",
            "figures": {},
            "key": key,
            "instead": "",
        },
        **changes,
    }


OLD_CELLS: dict[str, dict[str, Any]] = {
    "k0": {
        "condition": {"is": "Clean", "version": 1},
        "state": {"is": "Running", "version": 1},
        "batch": None,
    },
    "k1": {
        "condition": {"is": "Noise", "version": 1, "sigma": 0.5},
        "state": {"is": "PerBatch", "version": 1, "rho": 1e-05, "blend_of": "var"},
        "batch": 64,
    },
    "k2": {
        "condition": {
            "is": "Attacked",
            "version": 1,
            "attack": {"is": "CurvePGD", "budget": {"is": "Linf", "eps": 0.25}, "steps": 20, "loss": "ce"},
        },
        "state": {"is": "Running", "version": 1},
        "batch": None,
    },
}
OLD_CARD: dict[str, Any] = {
    **{"model": "net", "data": "sample", "suite": "own"},
    "rows": [
        old_row("k0", "clean", "clean", "running"),
        old_row("k1", "noise", "Gaussian noise, sigma 0.5", "adapted per batch (rho 1e-05 of var)"),
        old_row(
            "k2",
            "attack",
            "CurvePGD-20",
            "running",
            figures={"after 20": 0.1, "after 5": 0.3},
            score="last iterate",
        ),
        old_row("lost", "corruption", "fog, severity 3", "branch adv"),
        old_row(
            *("k0", "gradients", "gradient similarity (LIGS), step 0.01", "running"),
            instead="LIGS",
            figures={"LIGS": 0.9, "LIGS, lower end": 0.8, "LIGS, upper end": 0.95},
        ),
    ],
    "flags": [{"name": "samples", "saw": "few", "advice": "more", "state": "branch adv"}],
    "provenance": {"data": "d1", "command": "trimtab evaluate net"},
}


def old_store(place: Path) -> None:
    """A store of format 1 with one card, whose last cell is not known."""
    with closing(sqlite3.connect(place)) as db, db:
        db.execute("CREATE TABLE cells (key TEXT PRIMARY KEY, about TEXT NOT NULL)")
        db.execute("CREATE TABLE chunks (cell TEXT, start INTEGER, stop INTEGER, file TEXT)")
        db.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, card TEXT NOT NULL, finished TEXT NOT NULL)")
        for key, about in OLD_CELLS.items():
            db.execute("INSERT INTO cells VALUES (?, ?)", (key, json.dumps(about)))
        db.execute("INSERT INTO chunks VALUES ('k0', 0, 8, 'gone')")
        db.execute("INSERT INTO runs VALUES ('old', ?, '2026-01-02 03:04:05')", (json.dumps(OLD_CARD),))
        db.execute("PRAGMA user_version = 1")


def test_cards_of_format_1_are_joined_to_their_cells_and_its_cells_are_not_reused(tmp_path: Path) -> None:
    old_store(tmp_path / "store.sqlite")
    store = Store(tmp_path / "store.sqlite")
    (entry,) = runs(store)
    clean, noise, attack, lost, gradients = entry.card.rows
    assert entry.finished == "2026-01-02 03:04:05"
    assert (clean.condition, clean.bn_mode, clean.batch_size) == (CleanRecord(), RunningMode(), None)
    assert noise.condition == NoiseRecord(0.5, clip=True)  # format 1 always clipped
    assert (noise.bn_mode, noise.batch_size) == (PerBatchMode(1e-05, "var"), 64)
    assert isinstance(attack.condition, AttackRecord)
    assert (attack.condition.method, attack.condition.budget) == ("CurvePGD", BudgetRecord("l_inf", 0.25))
    assert attack.curve == Curve("iterations", ((5.0, 0.3), (20.0, 0.1)))
    assert (lost.condition, lost.bn_mode) == (
        OtherRecord("fog, severity 3", "corruption"),
        StoredMode("branch adv"),
    )
    assert gradients.measure == Measure("LIGS", 0.9, 0.8, 0.95)
    assert entry.card.flags[0].bn_mode == StoredMode("branch adv")
    assert store.chunks("k0") == {}
    assert store.cells() == []
    assert find(entry.card.id, store) == entry  # read again, now from format 2


def test_a_card_of_format_1_without_its_store_keeps_its_words_as_names() -> None:
    card = Card.read(json.dumps(OLD_CARD))
    assert [str(row.condition) for row in card.rows] == [row["condition"] for row in OLD_CARD["rows"]]
    assert [str(row.bn_mode) for row in card.rows] == [row["state"] for row in OLD_CARD["rows"]]
    assert Card.read(card.json()) == card


def test_rows_of_every_kind_survive_json(tmp_path: Path) -> None:
    mode = PerBatchMode(0.5, "var")
    conditions = [
        *(
            Clean(),
            Noise(0.5, clip=True),
            Corrupted("frost", 2),
            PGD(steps=2),
            CurvePGD(steps=2, marks=(1, 2)),
        ),
        *(Certified(n=20), Shifted(), Similar()),
    ]
    model = Net(sample().spec)
    card = run(
        model, sample(), conditions, tmp_path / "s", limit=8, bn_modes=[RunningMode(), mode], examine=False
    )
    assert Card.read(card.json()) == card
    assert {type(row.condition).__name__ for row in card.rows} == {
        *("CleanRecord", "NoiseRecord", "CorruptionRecord", "AttackRecord"),
        *("CertificateRecord", "ShiftRecord", "SimilarityRecord"),
    }
    assert {row.bn_mode for row in card.rows} == {RunningMode(), mode}
    assert {row.batch_size for row in card.rows if row.bn_mode == mode} == {8}
