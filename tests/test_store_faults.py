"""What a store says when its database fails, and that the next call works once it is well again."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from postgresql_server import Server, running
from precision_time.errors import StoreError
from precision_time.serve.records import Prediction
from precision_time.serve.store import SqlStore, open_store, postgresql, sqlite
from store_cases import outcome, prediction
from test_full_disk import largest_file

LARGE = {"text": "x" * 20_000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqlStore]:
    opened = open_store(path)
    yield opened
    opened.close()


def fill(store: SqlStore, one: Prediction, key: str = "fill", most: int = 5000) -> list[str]:
    """Record outcomes until the store fails; the keys of those that were acknowledged."""
    kept: list[str] = []

    def record() -> None:
        for index in range(most):
            store.add_outcome(outcome(one, key=f"{key}-{index}", machine={"text": os.urandom(10_000).hex()}))
            kept.append(f"{key}-{index}")

    with pytest.raises(StoreError, match=r"(is full|cannot be written or read); .*; the next call tries again$"):
        record()
    return kept


def keys(store: SqlStore, one: Prediction) -> list[str]:
    return [each.key for each in store.outcomes(one.id)]


@contextlib.contextmanager
def small_disk(size: str, owner: str | None = None) -> Iterator[Path]:
    """A folder of its own file system that is soon full."""
    folder = Path(tempfile.mkdtemp(prefix="pt-", dir="/tmp"))
    options = f"size={size}" + (f",uid={owner},mode=0700" if owner else "")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        if os.geteuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a file system cannot be mounted here")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
    finally:
        folder.rmdir()


# --- SQLite


def test_a_file_that_may_not_grow(store: SqlStore, path: Path) -> None:
    one = store.add_prediction(prediction())
    with largest_file(300_000):
        kept = fill(store, one)
        assert len(kept) > 5
        assert keys(store, one) == kept, "it can still be read"
    assert store.add_outcome(outcome(one, key="after"))
    assert keys(store, one) == [*kept, "after"]
    assert [each.number for each in store.recorded()] == list(range(1, len(kept) + 2))


def test_a_full_disk_under_sqlite() -> None:
    with small_disk("1m") as folder:
        store = open_store(folder / "store.db")
        one = store.add_prediction(prediction())
        kept = fill(store, one)
        assert len(kept) > 5
        assert keys(store, one) == kept
        subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=True)
        assert store.add_outcome(outcome(one, key="after", machine=LARGE))
        assert keys(store, one) == [*kept, "after"]
        store.close()
        with contextlib.closing(sqlite3.connect(folder / "store.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_new_store_on_a_full_disk() -> None:
    with small_disk("8k") as folder:
        (folder / "rest").write_bytes(b"x" * 4096)
        store = open_store(folder / "store.db", check=False)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"full|cannot be written"):
                store.check()
        subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=True)
        assert store.add_prediction(prediction())
        store.close()


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Permissions count for other users than root."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        yield


def test_a_read_only_file() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder, path = Path(name), Path(name) / "store.db"
        writer = open_store(path)
        one = writer.add_prediction(prediction())
        writer.close()
        for each in folder.iterdir():
            each.chmod(0o444)
        folder.chmod(0o555)
        with as_nobody():
            store = open_store(path, check=False)
            with pytest.raises(StoreError, match=r"read-only|permission denied|cannot be opened"):
                store.add_prediction(prediction())
        folder.chmod(0o777)
        for each in folder.iterdir():
            each.chmod(0o666)
        with as_nobody():
            assert store.prediction(one.id) == one
            assert store.add_outcome(outcome(one))
            store.close()


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"model,gpu\n" * 1000)
    with pytest.raises(StoreError, match="damaged, or is no database; restore a backup"):
        open_store(path)
    assert path.read_bytes().startswith(b"model,gpu\n"), "it is left as it was"


def test_a_damaged_file(store: SqlStore, path: Path) -> None:
    one = store.add_prediction(prediction())
    for index in range(60):
        store.add_outcome(outcome(one, key=str(index), machine=LARGE))
    store.close()
    content = bytearray(path.read_bytes())
    for at in range(4096, len(content), 4096):
        content[at : at + 100] = b"\xff" * 100
    path.write_bytes(content)
    damaged = open_store(path, check=False)
    with pytest.raises(StoreError, match="damaged"):
        list(damaged.recorded())
    damaged.close()


@pytest.mark.parametrize("who", ["another program", "another store"])
def test_a_locked_database(store: SqlStore, path: Path, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "TIMEOUT_S", 0.1)
    one = store.add_prediction(prediction())
    waiting = open_store(path)
    if who == "another program":
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process holds it; wait for its end; the next call"):
            waiting.add_outcome(outcome(one))
        assert waiting.prediction(one.id) == one, "readers go on"
        holder.execute("ROLLBACK")
        holder.close()
    else:

        def hold(session: Any) -> None:
            with pytest.raises(StoreError, match="another process holds it"):
                waiting.add_outcome(outcome(one))
            assert waiting.prediction(one.id) == one

        store._transactions.run("write", hold)
    assert waiting.add_outcome(outcome(one))
    waiting.close()


def test_a_file_that_was_removed_is_not_silently_begun_again(store: SqlStore, path: Path) -> None:
    one = store.add_prediction(prediction())
    store.add_outcome(outcome(one))
    kept = path.with_name("kept")
    shutil.move(path, kept)
    for _ in range(2):
        with pytest.raises(StoreError, match="was removed; put it back, or start again for a new one"):
            store.add_outcome(outcome(one, key="lost"))
    assert not path.exists()
    shutil.move(kept, path)
    assert store.prediction(one.id) == one


def test_a_file_that_was_replaced(store: SqlStore, path: Path, tmp_path: Path) -> None:
    """A restored backup is used from the next call on."""
    store.add_prediction(prediction())
    other = open_store(tmp_path / "other.db")
    one = other.add_prediction(prediction())
    other.close()
    for name in ("store.db-wal", "store.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    os.replace(tmp_path / "other.db", path)
    assert [each.id for each in store.predictions()] == [one.id]


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    store = open_store(folder / "store.db")
    shutil.rmtree(folder)
    with pytest.raises(StoreError, match="there is no folder"):
        store.check()
    store.close()


def test_all_connections_in_use(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from precision_time.serve.store import transactions

    monkeypatch.setattr(transactions, "TIMEOUT_S", 0.1)
    go = threading.Event()
    inside = threading.Semaphore(0)

    def hold(session: Any) -> None:
        inside.release()
        assert go.wait(60)

    with ThreadPoolExecutor(transactions.MOST_CONNECTIONS) as pool:
        held = [pool.submit(store.in_snapshot, hold) for _ in range(transactions.MOST_CONNECTIONS)]
        for _ in held:
            assert inside.acquire(timeout=60)
        with pytest.raises(StoreError, match="is busy: all 8 connections are in use"):
            store.check()
        go.set()
        for each in held:
            each.result()
    store.check()


# --- PostgreSQL


@pytest.fixture
def served(postgresql: Server) -> Iterator[SqlStore]:
    opened = open_store(postgresql.new_database())
    yield opened
    opened.close()


def backends(server: Server, statement: str) -> None:
    import psycopg

    with psycopg.connect(server.address(), autocommit=True) as connection:
        connection.execute(statement)


END_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'precision-time'"


def test_connections_that_the_server_closed_are_replaced(served: SqlStore, postgresql: Server) -> None:
    one = served.add_prediction(prediction())
    with ThreadPoolExecutor(4) as pool:  # several kept connections
        list(pool.map(lambda _: served.check(), range(8)))
    backends(postgresql, END_ALL)
    assert served.add_outcome(outcome(one)) is True
    backends(postgresql, END_ALL)
    assert served.prediction(one.id) == one


def test_a_connection_that_ends_within_a_transaction(served: SqlStore, postgresql: Server) -> None:
    one = served.add_prediction(prediction())

    def ended(session: Any) -> None:
        backends(postgresql, END_ALL)
        session.rows("SELECT 1")

    with pytest.raises(StoreError, match=r"cannot be reached .*; see that it runs; the next call tries again"):
        served._transactions.run("write", ended)
    assert served.add_outcome(outcome(one))


def test_statements_and_locks_that_take_too_long(
    served: SqlStore, postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = served.add_prediction(prediction())
    short = "SET LOCAL statement_timeout = 300; SET LOCAL lock_timeout = 100"
    monkeypatch.setattr("precision_time.serve.store.postgresql._SETTINGS", short)
    with pytest.raises(StoreError, match="a statement took more than 20 s"):
        served._transactions.run("read", lambda session: session.rows("SELECT pg_sleep(20)"))

    def hold(session: Any) -> None:
        session.number_outcomes()
        with pytest.raises(StoreError, match="another transaction holds a lock"):
            served.add_outcome(outcome(one))

    served._transactions.run("write", hold)
    assert served.add_outcome(outcome(one))


def test_a_rollback_in_place_of_a_commit_is_no_acknowledgement(served: SqlStore) -> None:
    """The server answers COMMIT with ROLLBACK where a statement failed that the client overlooked."""
    one = served.add_prediction(prediction())

    def overlooked(session: Any) -> None:
        with contextlib.suppress(Exception):
            session.rows("SELECT 1 / 0")

    with pytest.raises(StoreError, match="rolled back"):
        served._transactions.run("write", overlooked)
    assert served.add_outcome(outcome(one))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("53100", "disk of the server is full"), ("53300", "no connection left"), ("25006", "read-only; name"),
        ("28P01", "refused the user"), ("42501", "may not use"), ("3D000", "no such database"), ("XX001", "damaged"),
        ("57P03", "cannot be reached"), ("08006", "cannot be reached"), ("22P02", "the server says"),
    ],
)  # fmt: skip
def test_reasons_of_a_server(state: str, text: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    error = psycopg.OperationalError("some\ntext")
    error.sqlstate = state
    fault = postgresql.PostgreSql("postgresql://pt@host/db").fault(error)
    assert text in f"{fault.reason}; {fault.fix}"
    assert fault.lost is (state in ("57P03", "08006"))


def test_a_server_that_stops_and_comes_back() -> None:
    with running(fsync=False) as server:
        store = open_store(server.new_database())
        one = store.add_prediction(prediction())
        store.add_outcome(outcome(one, key="before"))
        server.stop()
        late = open_store(server.address("test_1"), check=False)
        for call in (store.check, late.check, lambda: store.add_outcome(outcome(one, key="lost"))):
            with pytest.raises(StoreError, match="cannot be reached"):
                call()
        server.start()
        assert store.add_outcome(outcome(one, key="after"))
        assert keys(late, one) == ["before", "after"]
        server.stop()
        server.start()
        assert store.add_outcome(outcome(one, key="restarted")), "without a failed call where the server is up again"
        store.close()
        late.close()


def test_a_full_disk_under_postgresql() -> None:
    with running(fsync=False) as server:
        import psycopg

        owner = str(server.folder.stat().st_uid)
        with small_disk("2m", owner) as folder:
            with psycopg.connect(server.address(), autocommit=True) as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
            store = open_store(f"{server.new_database()}%20-cdefault_tablespace%3Dsmall")
            one = store.add_prediction(prediction())
            kept = fill(store, one)
            assert len(kept) > 5
            assert keys(store, one) == kept
            subprocess.run(["mount", "-o", "remount,size=16m", str(folder)], check=True)
            assert store.add_outcome(outcome(one, key="after", machine=LARGE))
            assert [each.number for each in store.recorded()] == list(range(1, len(kept) + 2))
            store.close()
            server.stop()


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("predictions", "job", '{"model'), ("predictions", "job", "[1]"), ("predictions", "facets", "\x01"),
        ("predictions", "p50", "0.5x"), ("predictions", "p10", -0.4), ("predictions", "made_at", b"\xff"),
        ("predictions", "cluster", "a b"), ("outcomes", "steps_s", "[0.5,"), ("outcomes", "steps_s", "[0.5, -1]"),
        ("outcomes", "steps_s", "[NaN]"), ("outcomes", "step_s", "half"), ("outcomes", "machine", "7"),
    ],
)  # fmt: skip
def test_a_damaged_row_is_named(store: SqlStore, path: Path, table: str, column: str, value: object) -> None:
    one = store.add_prediction(prediction())
    store.add_outcome(outcome(one, steps_s=(0.5, 0.6)))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for name in (row[0] for row in connection.execute("select name from sqlite_master where type = 'trigger'")):
            connection.execute(f"drop trigger {name}")
        connection.execute(f"update {table} set {column} = ?", (value,))
        connection.commit()
    with pytest.raises(StoreError, match=f"{one.id}' is damaged in the database .*; restore a backup into a new one"):
        list(store.recorded())
