"""The tables of the store, by version: an older database is brought to the present version, a newer one is refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from precision_time.errors import StoreError
from precision_time.serve.store.dialect import Dialect

VERSIONS = "store_versions"

MIGRATIONS: tuple[Sequence[str], ...] = (
    (
        """CREATE TABLE predictions (
            id {id} NOT NULL PRIMARY KEY,
            made_at {real} NOT NULL,
            cluster TEXT NOT NULL,
            key TEXT UNIQUE,
            job TEXT NOT NULL,
            estimate TEXT NOT NULL,
            facets TEXT NOT NULL,
            p10 {real} NOT NULL,
            p50 {real} NOT NULL,
            p90 {real} NOT NULL,
            versions TEXT NOT NULL
        )""",
        "CREATE INDEX predictions_of_cluster ON predictions (cluster, id)",
        """CREATE TABLE outcomes (
            number {number} NOT NULL PRIMARY KEY CHECK (number > 0),
            prediction {id} NOT NULL REFERENCES predictions (id),
            key TEXT NOT NULL,
            recorded_at {real} NOT NULL,
            step_s {real},
            steps_s TEXT NOT NULL,
            run_s {real},
            peak_bytes {number},
            finished SMALLINT,
            machine TEXT NOT NULL,
            UNIQUE (prediction, key)
        )""",
        "{guards:predictions}",
        "{guards:outcomes}",
    ),
)
"""Statements from each version to the next. `{id}`, `{real}` and `{number}` are types of the dialect, `{guards:TABLE}`
its triggers against changes. A migration that has shipped is never edited: a change is a further one."""


def migrate(dialect: Dialect, connection: Any) -> None:
    """Bring the tables to the present version; within a transaction that excludes other writers.

    Raises `StoreError` for a database of a newer version, and for one that another program made.
    """
    there = dialect.tables(connection)
    if VERSIONS not in there:
        if ours := sorted(there & {"predictions", "outcomes"}):
            raise StoreError(f"{dialect.name} has a table {ours[0]!r} of another program; give the store its own")
        statement = "CREATE TABLE {} (version {number} NOT NULL PRIMARY KEY, made_at {real} NOT NULL)"
        _run(dialect, connection, statement.replace("{}", VERSIONS))
        _run(dialect, connection, f"{{guards:{VERSIONS}}}")
    version = version_of(dialect, connection)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{dialect.name} has version {version}, and this precision-time reads up to {len(MIGRATIONS)}; install a "
            "newer precision-time, or name another store"
        )
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        for statement in statements:
            _run(dialect, connection, statement)
        dialect.execute(connection, f"INSERT INTO {VERSIONS} (version, made_at) VALUES (?, ?)", (number, time.time()))


def is_present(dialect: Dialect, connection: Any) -> bool:
    """Whether the tables have the present version."""
    return VERSIONS in dialect.tables(connection) and version_of(dialect, connection) == len(MIGRATIONS)


def version_of(dialect: Dialect, connection: Any) -> int:
    """The version of the tables."""
    found = dialect.execute(connection, f"SELECT COALESCE(MAX(version), 0) FROM {VERSIONS}").fetchone()
    return int(found[0])


def _run(dialect: Dialect, connection: Any, statement: str) -> None:
    if statement.startswith("{guards:"):
        for guard in dialect.guards(statement[8:-1]):
            dialect.execute(connection, guard)
        return
    for word, kind in dialect.types.items():
        statement = statement.replace(f"{{{word}}}", kind)
    dialect.execute(connection, statement)
