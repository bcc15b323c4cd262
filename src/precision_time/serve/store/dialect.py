"""What SQLite and PostgreSQL do differently; all other SQL is written once.

A `Dialect` opens connections, begins and commits transactions, gives the types of columns and the triggers that keep
tables append-only, and turns errors of its driver into a reason and a fix. Statements have `?` for values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

READ, SNAPSHOT, WRITE = "read", "snapshot", "write"
"""Kinds of transactions; a snapshot sees the database as it was at its first statement until it ends."""
TIMEOUT_S = 5.0
"""Longest wait for a connection, or for a lock that another process holds."""
STATEMENT_S = 20.0
"""Longest time of one statement on a server."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a call failed.

    reason  what is wrong
    fix     what the operator can do about it
    lost    whether the connection is gone: with a new one the call may succeed
    """

    reason: str
    fix: str
    lost: bool = False


class Dialect(Protocol):
    """One kind of database.

    name     how errors call this database, without a password
    errors   what its driver raises where the database cannot do what it is asked for
    types    column types that differ, by the words that schemas use: number, real, id
    forks    whether a process may be forked while one of its threads uses a connection
    """

    name: str
    errors: tuple[type[BaseException], ...]
    types: Mapping[str, str]
    forks: bool

    def connect(self) -> Any:
        """A connection of the driver, in which each statement is its own transaction until `begin`."""

    def usable(self, connection: Any) -> bool:
        """Whether a connection that was kept may be used again."""

    def begin(self, connection: Any, kind: str) -> None: ...

    def commit(self, connection: Any) -> None: ...

    def end(self, connection: Any) -> None:
        """Called once after each transaction that `begin` was called for, however it ended."""

    def execute(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> Any:
        """The cursor of a statement."""

    def number_outcomes(self, connection: Any) -> None:
        """Make this transaction the only one that gives numbers to outcomes, until it has been committed."""

    def tables(self, connection: Any) -> set[str]:
        """Names of the tables that are there."""

    def guards(self, table: str) -> Sequence[str]:
        """Statements after which rows of the table cannot be changed or deleted."""

    def fault(self, error: BaseException) -> Fault: ...
