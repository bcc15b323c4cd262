"""Transactions on a few kept connections, each used by one thread at a time, and writes of several threads in one."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from precision_time.errors import PrecisionTimeError, StoreError
from precision_time.serve.store.dialect import TIMEOUT_S, WRITE, Dialect, Fault
from precision_time.serve.store.schema import is_present, migrate

T = TypeVar("T")
MOST_CONNECTIONS = 8
"""Connections of a process."""
MOST_TOGETHER = 64
"""Writes of one transaction: a commit waits for the disk once, for all threads that write at that time."""


class Session:
    """A transaction that is open: runs statements with `?` for values."""

    def __init__(self, dialect: Dialect, connection: Any) -> None:
        self._dialect, self._connection = dialect, connection

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._dialect.execute(self._connection, statement, values).fetchall()
        return found

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement that writes; the number of rows that it wrote."""
        count: int = self._dialect.execute(self._connection, statement, values).rowcount
        return count

    def number_outcomes(self) -> None:
        self._dialect.number_outcomes(self._connection)


class Transactions:
    """Runs functions in transactions. A connection on which anything failed is closed, so that the next call begins
    with a sound one."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._idle: list[Any] = []
        self._left = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._migrated = self._closed = False
        self._in_use = 0
        _ALL.add(self)

    def run(self, kind: str, work: Callable[[Session], T]) -> T:
        """What `work` returns, once its transaction is committed.

        Raises `StoreError` where the database fails; what `work` raises itself rolls the transaction back. A kept
        connection that the server has closed meanwhile is replaced, and the work is done once more.
        """
        if self._closed:
            raise StoreError(f"{self.dialect.name} was closed; open it again")
        if self._process != os.getpid():
            self._begin_after_fork()
        if not self._left.acquire(timeout=TIMEOUT_S):
            raise StoreError(f"{self.dialect.name} is busy: all {MOST_CONNECTIONS} connections are in use; try again")
        with self._lock:
            self._in_use += 1
        try:
            return self._attempt(kind, work)
        finally:
            with self._lock:
                self._in_use -= 1
            self._left.release()

    def _begin_after_fork(self) -> None:
        """Connections and locks are not shared with the parent."""
        if self._in_use and not self.dialect.forks:
            raise StoreError(
                f"{self.dialect.name} was in use by another thread when this process was forked; fork before it is used"
            )
        self._left, self._lock = threading.BoundedSemaphore(MOST_CONNECTIONS), threading.Lock()
        self._idle, self._in_use, self._process = [], 0, os.getpid()

    def close_before_fork(self) -> None:
        """Close kept connections that a child must not have."""
        if not self.dialect.forks and self._process == os.getpid():
            self._forget()

    def _attempt(self, kind: str, work: Callable[[Session], T]) -> T:
        while True:
            connection, kept = None, False
            stage = "connect"
            try:
                connection, kept = self._take()
                stage = "work"
                try:
                    self.dialect.begin(connection, kind)
                    result = work(Session(self.dialect, connection))
                    stage = "commit"
                    self.dialect.commit(connection)
                finally:
                    self.dialect.end(connection)
            except self.dialect.errors as error:
                self._discard(connection)
                fault = self.dialect.fault(error)
                if fault.lost:
                    self._forget()
                    if kept and stage == "work":
                        continue
                raise self._failed(fault) from error
            except BaseException:
                self._discard(connection)
                raise
            with self._lock:
                self._idle.append(connection)
            return result

    def _failed(self, fault: Fault) -> StoreError:
        return StoreError(f"{self.dialect.name} failed: {fault.reason}; {fault.fix}")

    def _take(self) -> tuple[Any, bool]:
        """A connection, and whether it is one that was kept."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            try:
                usable = self.dialect.usable(connection)
            except BaseException:
                self._discard(connection)
                raise
            if usable:
                return connection, True
            self._discard(connection)
        connection = self.dialect.connect()
        try:
            if not self._migrated:
                self._migrate(connection)
        except BaseException:
            self._discard(connection)
            raise
        return connection, False

    def _migrate(self, connection: Any) -> None:
        """Bring the tables to the present version; a database that has it is not written to."""
        if not is_present(self.dialect, connection):
            try:
                self.dialect.begin(connection, WRITE)
                self.dialect.number_outcomes(connection)  # one process at a time
                migrate(self.dialect, connection)
                self.dialect.commit(connection)
            finally:
                self.dialect.end(connection)
        self._migrated = True

    def _discard(self, connection: Any) -> None:
        if connection is not None:
            try:
                connection.close()
            except self.dialect.errors:
                return

    def _forget(self) -> None:
        """Close all kept connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._discard(connection)

    def close(self) -> None:
        self._closed = True
        if self._process == os.getpid():
            self._forget()


_ALL: weakref.WeakSet[Transactions] = weakref.WeakSet()


def _close_before_fork() -> None:
    for each in list(_ALL):
        each.close_before_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_before_fork)


@dataclass(slots=True)
class _Ticket(Generic[T]):
    """A write that waits for its turn."""

    work: Callable[[Session], T]
    done: threading.Event = field(default_factory=threading.Event)
    result: T | None = None
    error: BaseException | None = None


class Writer:
    """Runs writes in the order in which they come, those that wait at the same time in one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._process = 0
        self._waiting: deque[_Ticket[Any]]
        self._turn: threading.Lock
        self._begin()

    def _begin(self) -> None:
        self._process, self._waiting, self._turn = os.getpid(), deque(), threading.Lock()

    def run(self, work: Callable[[Session], T]) -> T:
        """What `work` returns, once it is committed. A `PrecisionTimeError` that it raises before it has written
        anything is raised to its caller alone; any other failure to all of the transaction."""
        if self._process != os.getpid():  # another thread may have held the turn when this process was forked
            self._begin()
        ticket = _Ticket(work)
        self._waiting.append(ticket)
        with self._turn:
            while not ticket.done.is_set():
                self._write([self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))])
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[return-value]

    def _write(self, tickets: list[_Ticket[Any]]) -> None:
        failure: BaseException = StoreError(f"{self._transactions.dialect.name} failed: the process was interrupted")
        refused: dict[int, BaseException] = {}
        results: list[Any] = [None] * len(tickets)

        def work(session: Session) -> None:
            refused.clear()
            for index, ticket in enumerate(tickets):
                try:
                    results[index] = ticket.work(session)
                except PrecisionTimeError as error:
                    refused[index] = error

        committed = False
        try:
            self._transactions.run(WRITE, work)
            committed = True
        except PrecisionTimeError as error:
            failure = error
        finally:
            for index, ticket in enumerate(tickets):
                ticket.result = results[index] if committed else None
                ticket.error = refused.get(index) if committed else failure
                ticket.done.set()
