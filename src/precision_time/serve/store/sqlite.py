"""SQLite: one file on a local disk, for one machine with any number of processes and threads.

In WAL mode with `synchronous=FULL` a commit returns when its pages are on the disk. Writers of all processes take turns
by a lock on a file beside the database: a checkpoint then never runs beside a commit, which in SQLite before 3.51.3 can
damage a database (https://sqlite.org/wal.html, "The WAL-reset bug").
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precision_time.errors import StoreError
from precision_time.report.write import reason
from precision_time.serve.store.dialect import TIMEOUT_S, WRITE, Fault

try:
    import fcntl
except ImportError:  # Windows, where SQLite's own lock is the only one
    fcntl = None  # type: ignore[assignment]

_AGAIN = "the next call tries again"
_RESTORE = "restore a backup into a new file with `precision-time store restore`"
_FAULTS = (
    ("database or disk is full", "the disk is full", f"free some space; {_AGAIN}"),
    ("disk i/o error", "the disk cannot be written or read", f"see to the disk or its quota; {_AGAIN}"),
    ("readonly", "it is read-only", "let this user write the file and its folder"),
    ("unable to open", "the file cannot be opened", "see to the folder and its permissions"),
    ("is locked", "another process holds it", f"wait for its end; {_AGAIN}"),
    ("not a database", "the file is damaged, or is no database", _RESTORE),
    ("malformed", "the file is damaged", _RESTORE),
)
"""Text of an error, what it means and what to do."""


class Sqlite:
    """The database in the file at `path`, which is made where it is not there."""

    errors: tuple[type[BaseException], ...] = (sqlite3.Error, OverflowError, UnicodeError, OSError)
    types: Mapping[str, str] = {"number": "INTEGER", "real": "REAL", "id": "TEXT"}
    forks = False  # the child would have the parent's view of locks, without the locks (sqlite.org/howtocorrupt.html)

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.name = f"store {str(path)!r}"
        self._file: tuple[int, int] | None = None
        self._locks: dict[int, int] = {}

    def connect(self) -> sqlite3.Connection:
        self._check_place()
        if not self.path.exists():
            # Jobs are nobody else's business: the journal files take the permissions of the database.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(self.path, timeout=TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            mode = self._write_ahead(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
        if mode != "wal":
            connection.close()
            raise StoreError(
                f"{self.name} is on a file system without shared memory, such as NFS; put it on a local disk, or use "
                "PostgreSQL"
            )
        self._file = self._identity()
        return connection

    def _write_ahead(self, connection: sqlite3.Connection) -> str:
        """Set WAL mode where the file does not have it yet: one process at a time, since SQLite does not wait."""
        mode: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
        if mode != "wal":
            self._lock(connection)
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            finally:
                self.end(connection)
        return mode

    def usable(self, connection: sqlite3.Connection) -> bool:
        """False where the file was replaced. One that was removed is not made again: what it held would be missed."""
        self._check_place()
        return self._identity() == self._file

    def _check_place(self) -> None:
        if not self.path.parent.is_dir():
            raise StoreError(f"{self.name} cannot be used: there is no folder {str(self.path.parent)!r}; make it")
        if self._file is not None and not self.path.exists():
            raise StoreError(f"{self.name} was removed; put it back, or start again for a new one")

    def _identity(self) -> tuple[int, int]:
        state = os.stat(self.path)
        return state.st_dev, state.st_ino

    def begin(self, connection: sqlite3.Connection, kind: str) -> None:
        if kind == WRITE:
            self._lock(connection)
        connection.execute("BEGIN IMMEDIATE" if kind == WRITE else "BEGIN")

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def end(self, connection: sqlite3.Connection) -> None:
        handle = self._locks.pop(id(connection), None)
        if handle is not None:
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
            os.close(handle)

    def _lock(self, connection: sqlite3.Connection) -> None:
        """Wait for the turn of this connection to write."""
        if fcntl is None:
            return
        handle = os.open(f"{self.path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until, pause = time.monotonic() + TIMEOUT_S, 0.0005
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise sqlite3.OperationalError("database is locked") from None
                time.sleep(pause)
                pause = min(2 * pause, 0.01)
        except BaseException:
            os.close(handle)
            raise
        self._locks[id(connection)] = handle

    def execute(self, connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return connection.execute(statement, values)

    def number_outcomes(self, connection: sqlite3.Connection) -> None:
        """`BEGIN IMMEDIATE` has done it."""

    def tables(self, connection: sqlite3.Connection) -> set[str]:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {name for (name,) in found if not name.startswith("sqlite_")}

    def guards(self, table: str) -> Sequence[str]:
        """INSERT OR REPLACE deletes without a trigger, so an insert of a row number that is there is refused, too."""
        refusal = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        return (
            f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refusal}",
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refusal}",
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN {_SAME_ROW[table]} "
            "BEGIN SELECT RAISE(IGNORE); END",
        )

    def fault(self, error: BaseException) -> Fault:
        text = str(error).lower()
        if isinstance(error, OSError):
            return Fault(reason(error), "see to the file and its folder")
        for part, meaning, fix in _FAULTS:
            if part in text:
                return Fault(meaning, fix)
        return Fault(f"SQLite says: {str(error) or type(error).__name__}", _AGAIN)


_SAME_ROW = {
    "predictions": "EXISTS (SELECT 1 FROM predictions WHERE id = NEW.id OR key = NEW.key)",
    "outcomes": "EXISTS (SELECT 1 FROM outcomes WHERE number = NEW.number"
    " OR (prediction = NEW.prediction AND key = NEW.key))",
    "store_versions": "EXISTS (SELECT 1 FROM store_versions WHERE version = NEW.version)",
}
"""Condition under which an insert would replace a row."""
