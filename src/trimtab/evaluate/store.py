"""Where results live: one SQLite file per project folder, and next to it the values of every single image.

A cell is committed chunk by chunk: first its columns as a file named by their content (written next to its
place, synced, renamed), then the row that points to it. So whatever is in the table is whole, and a process
may be killed at any moment. Files are checked against their name when read; one that is lost or damaged
counts as not yet measured. Two processes may share a store: of a chunk that both measured, the first stays.

A store of format 1 is upgraded when it is opened: its cards become cards of format 2, joined to the cells
that their rows name; its cells and chunks are kept in tables of their own and measured anew.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.evaluate import format1
from trimtab.evaluate.card import FORMAT
from trimtab.io import atomic_write, canonical
from trimtab.types import BadInput

if TYPE_CHECKING:
    from trimtab.evaluate.conditions import Columns

DEFAULT = Path(".trimtab") / "store.sqlite"
_PATIENCE = 60.0  # seconds to wait for another process's commit
_TABLES = """
CREATE TABLE cells (key TEXT PRIMARY KEY, about TEXT NOT NULL);
CREATE TABLE chunks (cell TEXT NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, file TEXT NOT NULL,
                     PRIMARY KEY (cell, start, stop));
CREATE TABLE runs (id TEXT PRIMARY KEY, card TEXT NOT NULL, finished TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
"""

Span = tuple[int, int]
"""Positions start (included) to stop (not included) of the data set."""


@dataclass(frozen=True)
class Store:
    """The store of one project folder."""

    path: str | Path = DEFAULT
    """The SQLite file; it and its folder are created when there is something to keep."""

    @property
    def samples(self) -> Path:
        """The folder of per-image files."""
        return Path(self.path).parent / "samples"

    def chunks(self, cell: str) -> dict[Span, str]:
        """Return the finished chunks of a cell, and their files."""
        rows = self._query("SELECT start, stop, file FROM chunks WHERE cell = ? ORDER BY start", cell)
        return {(start, stop): file for start, stop, file in rows}

    def read(self, file: str) -> Columns | None:
        """Return the columns in a file; None if it is missing or altered."""
        from safetensors import torch

        try:
            content = self._place(file).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(content).hexdigest() != file:
            return None
        return torch.load(content)

    def commit(self, cell: str, about: dict[str, object], span: Span, columns: Columns) -> None:
        """Keep one finished chunk: the file first, the row second. What is there already and whole stays."""
        from safetensors import torch

        file = self._write(torch.save({k: v.contiguous() for k, v in columns.items()}))
        with self._open() as db:
            db.execute("INSERT OR IGNORE INTO cells VALUES (?, ?)", (cell, canonical(about)))
            db.execute("INSERT OR IGNORE INTO chunks VALUES (?, ?, ?, ?)", (cell, *span, file))

    def forget(self, cell: str, span: Span) -> None:
        """Drop the row of a chunk whose file is of no use."""
        with self._open() as db:
            db.execute("DELETE FROM chunks WHERE cell = ? AND start = ? AND stop = ?", (cell, *span))

    def record(self, run: str, card: str) -> None:
        """Keep the card of a finished run; the same run again is the same card."""
        with self._open() as db:
            db.execute("INSERT OR IGNORE INTO runs (id, card) VALUES (?, ?)", (run, card))

    def cards(self) -> list[tuple[str, str, str]]:
        """Return (id, when it finished in UTC, card as JSON) of every run, the oldest first."""
        return self._query("SELECT id, finished, card FROM runs ORDER BY finished, rowid")

    def cells(self) -> list[tuple[str, str]]:
        """Return (key, description as JSON) of every cell that was begun."""
        return self._query("SELECT key, about FROM cells ORDER BY rowid")

    def _query(self, query: str, *parameters: str) -> list[Any]:
        """Return the rows of a query; a store that does not exist has none, and is not created by asking."""
        try:
            Path(self.path).stat()
        except FileNotFoundError:
            return []
        except OSError:
            pass  # opening it raises the error
        with self._open() as db:
            return list(db.execute(query, parameters))

    def _place(self, file: str) -> Path:
        return self.samples / file[:2] / f"{file}.safetensors"

    def _write(self, content: bytes) -> str:
        file = hashlib.sha256(content).hexdigest()
        with atomic_write(self._place(file)) as part:
            part.write_bytes(content)
        return file

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction: nothing is held open across processes or forks."""
        try:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=_PATIENCE)) as db:
                db.execute("PRAGMA synchronous = FULL")
                _prepare(db, self.path)
                with db:
                    yield db
        except (sqlite3.Error, OSError) as problem:
            raise BadInput(f"{self.path} cannot be used as a store: {problem}") from None


def _prepare(db: sqlite3.Connection, path: str | Path) -> None:
    """Make the tables of a new store, or upgrade those of an old one."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version < FORMAT:
        with db:
            db.execute("BEGIN IMMEDIATE")
            (version,) = db.execute("PRAGMA user_version").fetchone()  # another process may have been quicker
            if version < FORMAT:
                if version == 1:
                    _set_aside(db)
                for statement in filter(str.strip, _TABLES.split(";")):
                    db.execute(statement)
                if version == 1:
                    _convert_cards(db)
                db.execute(f"PRAGMA user_version = {FORMAT}")
                version = FORMAT
    if version != FORMAT:
        raise BadInput(f"{path} was written by another version of trimtab (format {version}, here {FORMAT})")


def _set_aside(db: sqlite3.Connection) -> None:
    for table in ("cells", "chunks", "runs"):
        db.execute(f"ALTER TABLE {table} RENAME TO {table}_format1")


def _convert_cards(db: sqlite3.Connection) -> None:
    """Record every card of format 1 anew; one that is damaged stays behind in its old table."""
    cells = {key: json.loads(about) for key, about in db.execute("SELECT key, about FROM cells_format1")}
    for card, finished in db.execute("SELECT card, finished FROM runs_format1 ORDER BY rowid").fetchall():
        try:
            converted = format1.card(json.loads(card), cells)
        except ValueError:
            continue
        entry = (converted.id, converted.json(), finished)
        db.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", entry)
