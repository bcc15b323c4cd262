"""The store, the same on SQLite and PostgreSQL: what it keeps, in which order, and that nothing is kept twice."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postgresql_server import Server
from precision_time.errors import JobError, PrecisionTimeError, StoreError, UnknownPredictionError
from precision_time.serve.records import Outcome, Prediction
from precision_time.serve.store import SqlStore, default_path, made_at, new_id, open_store, sql_store
from precision_time.serve.store import schema as schema_module
from precision_time.serve.store.ids import Ids
from precision_time.serve.store.rows import outcome_row
from store_cases import outcome, prediction


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path or address of an empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server: Server = request.getfixturevalue("postgresql")
    return server.new_database()


@pytest.fixture
def store(target: str) -> Iterator[SqlStore]:
    opened = open_store(target)
    yield opened
    opened.close()


@contextlib.contextmanager
def raw(target: str) -> Iterator[Any]:
    """A connection of the driver, as somebody else would have it."""
    if target.startswith("postgresql"):
        import psycopg

        connection: Any = psycopg.connect(target, autocommit=True)
    else:
        connection = sqlite3.connect(target, isolation_level=None)
    with contextlib.closing(connection):
        yield connection


# --- records


def test_what_was_kept_is_read_back_by_another_store(store: SqlStore, target: str) -> None:
    first = prediction(key="k", job={"model": "resnet50", "input": {"image_size": 224}, "note": 'ü " \\ \u0000 %s ?'})
    kept = outcome(first, steps_s=(0.1, 0.30000000000000004), peak_bytes=2**40, finished=False, machine={"gpus": 8})
    assert store.add_prediction(first) == first
    assert store.add_outcome(kept) is True
    other = open_store(target)
    assert other.prediction(first.id) == first
    assert other.outcomes(first.id) == (kept,)
    ((found),) = other.recorded()
    assert (found.number, found.prediction, found.outcome) == (1, first, kept)
    other.close()


def test_unknown_records(store: SqlStore) -> None:
    assert store.prediction(new_id()) is None
    assert store.prediction("no id\0 at all") is None
    assert store.outcomes(new_id()) == ()
    assert store.predictions() == ()
    assert list(store.recorded()) == []
    with pytest.raises(UnknownPredictionError, match="there is no prediction"):
        store.add_outcome(outcome(prediction()))


def test_a_key_is_one_prediction(store: SqlStore) -> None:
    first, second = prediction(key="a"), prediction(key="a", cluster="other")
    assert store.add_prediction(first) == first
    assert store.add_prediction(second) == first
    assert store.prediction(second.id) is None
    assert store.add_prediction(first) == first, "the same one again"
    assert [each.id for each in store.predictions()] == [first.id]
    without = prediction()
    assert store.add_prediction(without) == store.add_prediction(without) == without
    assert len(store.predictions()) == 2
    both = replace(without, key="a")
    assert store.add_prediction(both) == first, "the key decides where id and key are those of two"


def test_a_key_is_one_outcome_of_a_prediction(store: SqlStore) -> None:
    one, two = (store.add_prediction(prediction()) for _ in range(2))
    assert store.add_outcome(outcome(one, key="slurm-1")) is True
    assert store.add_outcome(outcome(one, key="slurm-1", step_s=9.0)) is False
    assert store.add_outcome(outcome(two, key="slurm-1")) is True, "of another prediction"
    assert store.outcomes(one.id)[0].step_s == 0.5
    assert [each.number for each in store.recorded()] == [1, 2], "a repeated one takes no number"


def test_latest_predictions_first_page_by_page(store: SqlStore) -> None:
    made = [store.add_prediction(prediction(cluster="b" if i % 3 else "a")) for i in range(7)]
    ids = [each.id for each in made]
    assert [each.id for each in store.predictions()] == ids[::-1]
    pages, before = [], None
    while page := store.predictions(before=before, limit=3):
        pages.append([each.id for each in page])
        before = page[-1].id
    assert pages == [ids[6:3:-1], ids[3:0:-1], ids[:1]]
    assert [each.id for each in store.predictions("a")] == [ids[6], ids[3], ids[0]]
    assert store.predictions("a", before=ids[0]) == ()
    with pytest.raises(JobError, match="limit 0 must be"):
        store.predictions(limit=0)


def test_outcomes_are_read_from_a_number_on_across_pages(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    one = store.add_prediction(prediction())
    for index in range(450):  # more than two pages
        store.add_outcome(outcome(one, key=str(index)))
    assert [each.number for each in store.recorded()] == list(range(1, 451))
    assert [each.outcome.key for each in store.recorded(447)] == ["447", "448", "449"]
    assert list(store.recorded(450)) == []
    reader = store.recorded(448)
    next(reader)
    store.add_outcome(outcome(one, key="late"))
    assert [each.outcome.key for each in reader] == ["449", "late"], "no transaction is open between pages"


def test_numbers_of_clusters(store: SqlStore) -> None:
    assert store.clusters() == {}
    made = [store.add_prediction(prediction(cluster=name)) for name in ("b", "a", "b")]
    for key in "xy":
        store.add_outcome(outcome(made[0], key=key))
    assert store.clusters() == {"a": (1, 0), "b": (2, 2)}
    assert list(store.clusters()) == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"key": ""}, "key '' must be"), ({"key": "x" * 201}, "must be 1 to 200"), ({"key": "a\nb"}, "printable"),
        ({"key": "\ud800"}, "printable"), ({"step_s": float("nan")}, "step_s"), ({"step_s": -1.0}, "step_s"),
        ({"run_s": float("inf")}, "run_s"), ({"peak_bytes": 2**70}, "peak_bytes"),
        ({"recorded_at": -5.0}, "recorded_at"),
        ({"steps_s": (1.0,) * 10_001}, "10,001 entries"), ({"machine": {"a": float("nan")}}, "finite"),
        ({"machine": {"a": object()}}, "machine"), ({"step_s": None}, "measures nothing"),
    ],
)  # fmt: skip
def test_outcomes_that_are_refused(store: SqlStore, change: dict[str, Any], text: str) -> None:
    one = store.add_prediction(prediction())
    with pytest.raises(PrecisionTimeError, match=text):
        store.add_outcome(outcome(one, **change))
    assert store.add_outcome(outcome(one)), "nothing is left of the refused one"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": "42"}, "no id"), ({"cluster": "a b"}, "cluster 'a b'"), ({"cluster": "x" * 101}, "100 letters"),
        ({"key": "\x00"}, "printable"), ({"predicted": (1.0, float("nan"), 1.0)}, "predicted"),
        ({"estimate": {"x": "y" * (5 * 2**20)}}, "estimate has"),
    ],
)  # fmt: skip
def test_predictions_that_are_refused(store: SqlStore, change: dict[str, Any], text: str) -> None:
    with pytest.raises(PrecisionTimeError, match=text):
        store.add_prediction(prediction(**change))
    assert store.predictions() == ()


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    job=st.dictionaries(st.text(max_size=5), _PLAIN, max_size=4),
    seconds=st.floats(1e-9, 1e9),
    steps=st.lists(st.floats(1e-9, 1e9), max_size=5),
    key=st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=200),
)
def test_any_record_is_read_back_unchanged(
    store: SqlStore, job: dict[str, Any], seconds: float, steps: list[float], key: str
) -> None:
    one = store.add_prediction(prediction(job=job, predicted=(seconds, seconds, seconds), made_at=seconds))
    kept = outcome(one, key=key, step_s=seconds, steps_s=tuple(steps), recorded_at=seconds)
    store.add_outcome(kept)
    assert store.prediction(one.id) == one
    assert store.outcomes(one.id) == (kept,)


# --- append-only, durable


@pytest.mark.parametrize("table", ["predictions", "outcomes", "store_versions"])
def test_the_database_itself_refuses_changes(store: SqlStore, target: str, table: str) -> None:
    one = store.add_prediction(prediction(key="k"))
    store.add_outcome(outcome(one))
    column = {"predictions": "cluster = 'x'", "outcomes": "step_s = 1", "store_versions": "made_at = 1"}[table]
    statements = [f"UPDATE {table} SET {column}", f"DELETE FROM {table}"]
    if target.startswith("postgresql"):
        statements.append(f"TRUNCATE {table} CASCADE")
    with raw(target) as connection:
        for statement in statements:
            with pytest.raises(Exception, match="append-only"):
                connection.execute(statement)
    assert store.prediction(one.id) == one
    assert len(store.outcomes(one.id)) == 1


def test_sqlite_replaces_nothing_either(tmp_path: Path) -> None:
    """INSERT OR REPLACE deletes the row that is there, without the trigger of DELETE."""
    target = str(tmp_path / "store.db")
    store = open_store(target)
    one = store.add_prediction(prediction(key="k"))
    store.add_outcome(outcome(one))
    connection = sqlite3.connect(target, isolation_level=None)
    for table, change in (("predictions", "'x' AS cluster"), ("outcomes", "9 AS step_s")):
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        changed = change.split()[-1]
        columns = ", ".join(change if name == changed else name for name in names)
        connection.execute(f"INSERT OR REPLACE INTO {table} SELECT {columns} FROM {table}")
    connection.close()
    assert store.prediction(one.id) == one
    assert store.outcomes(one.id)[0].step_s == 0.5
    store.close()


def test_commits_wait_for_the_disk(store: SqlStore, target: str) -> None:
    def settings_of(session: Any) -> Any:
        if target.startswith("postgresql"):
            return session.rows("SELECT current_setting('synchronous_commit'), current_setting('statement_timeout')")
        return session.rows("PRAGMA synchronous") + session.rows("PRAGMA journal_mode")

    expected = [("on", "20s")] if target.startswith("postgresql") else [(2,), ("wal",)]
    assert store.in_snapshot(settings_of) == expected


# --- several at once


def test_threads_of_several_stores(target: str) -> None:
    """Numbers have no gaps, a reader who follows them misses none, and each thread's own writes are in its order."""
    stores = [open_store(target) for _ in range(3)]
    made = [stores[0].add_prediction(prediction()) for _ in range(4)]
    seen: list[int] = []
    done = threading.Event()

    def follow() -> None:
        reader = open_store(target)
        while True:
            last = done.is_set()
            seen.extend(each.number for each in reader.recorded(seen[-1] if seen else 0))
            if last:
                return reader.close()

    def write(index: int) -> None:
        for count in range(12):
            assert stores[index % 3].add_outcome(outcome(made[index % 4], key=f"{index}-{count}"))

    follower = threading.Thread(target=follow)
    follower.start()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    done.set()
    follower.join(60)
    assert seen == list(range(1, 73)), "a reader that asks for more by the last number has all, in order"
    keys = [each.outcome.key for each in stores[0].recorded()]
    for index in range(6):
        assert [key for key in keys if key.startswith(f"{index}-")] == [f"{index}-{count}" for count in range(12)]
    for store in stores:
        store.close()


def test_a_number_is_given_when_all_lower_ones_are_committed(target: str) -> None:
    """A writer that has its number and is slow to commit holds up the next one, so that no reader sees 2 before 1."""
    slow, quick, reader = (open_store(target) for _ in range(3))
    one = slow.add_prediction(prediction())
    numbered, go = threading.Event(), threading.Event()

    def held(session: Any) -> None:
        assert add_in(session, outcome(one, key="slow"))
        numbered.set()
        assert go.wait(60)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow._transactions.run, "write", held)
        assert numbered.wait(60)
        second = pool.submit(quick.add_outcome, outcome(one, key="quick"))
        with pytest.raises(concurrent.futures.TimeoutError):
            second.result(0.3)
        assert list(reader.recorded()) == []
        go.set()
        first.result()
        assert second.result()
    assert [(each.number, each.outcome.key) for each in reader.recorded()] == [(1, "slow"), (2, "quick")]
    for store in (slow, quick, reader):
        store.close()


def add_in(session: Any, record: Outcome) -> bool:
    return sql_store._add_outcome(session, record, outcome_row(record))


def test_a_rolled_back_number_is_given_again(store: SqlStore) -> None:
    one = store.add_prediction(prediction())

    def fails(session: Any) -> None:
        assert add_in(session, outcome(one, key="lost"))
        raise JobError("after the insert")

    with pytest.raises(JobError):
        store._transactions.run("write", fails)
    assert store.add_outcome(outcome(one, key="kept"))
    assert [(each.number, each.outcome.key) for each in store.recorded()] == [(1, "kept")]


def test_one_key_from_many_threads_is_one_record(target: str) -> None:
    stores = [open_store(target) for _ in range(2)]
    barrier = threading.Barrier(8, timeout=60)

    def write(index: int) -> tuple[str, bool]:
        barrier.wait()
        kept = stores[index % 2].add_prediction(prediction(key="same"))
        return kept.id, stores[index % 2].add_outcome(outcome(kept, key="same", step_s=1.0 + index))

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(write, range(8)))
    assert len({identifier for identifier, _ in results}) == 1
    assert sum(new for _, new in results) == 1
    for store in stores:
        assert len(list(store.recorded())) == len(store.predictions()) == 1
        store.close()


def test_a_refused_write_leaves_those_beside_it(store: SqlStore) -> None:
    """Writes that wait together are one transaction; what one of them gets wrong is told to its caller alone."""
    one = store.add_prediction(prediction())
    held, go = threading.Event(), threading.Event()

    def hold(session: Any) -> None:
        held.set()
        assert go.wait(60)

    with ThreadPoolExecutor(8) as pool:
        holder = pool.submit(store._writer.run, hold)
        assert held.wait(60)
        wrong = prediction()
        results = [pool.submit(store.add_outcome, outcome(one if i % 2 else wrong, key=str(i))) for i in range(6)]
        while len(store._writer._waiting) < 6:
            threading.Event().wait(0.005)
        go.set()
        holder.result()
        for index, result in enumerate(results):
            if index % 2:
                assert result.result() is True
            else:
                assert isinstance(result.exception(), UnknownPredictionError)
    assert len(store.outcomes(one.id)) == 3


def test_an_interrupted_write_frees_those_that_wait(store: SqlStore) -> None:
    one = store.add_prediction(prediction())

    def interrupted(session: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store._writer.run(interrupted)
    assert store.add_outcome(outcome(one))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of os.fork, from Python 3.12 on
def test_a_forked_process_uses_connections_of_its_own(store: SqlStore) -> None:
    one = store.add_prediction(prediction())
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            os._exit(0 if store.add_outcome(outcome(one, key="child")) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert store.add_outcome(outcome(one, key="parent"))
    assert [each.key for each in store.outcomes(one.id)] == ["child", "parent"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of os.fork, from Python 3.12 on
def test_processes_that_open_a_new_store_at_one_moment(target: str) -> None:
    moment = time.time() + 0.3
    children = []
    for number in range(5):
        child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                opened = open_store(target, check=False)
                while time.time() < moment:
                    pass
                one = opened.add_prediction(prediction(key=f"{number}"))
                code = 0 if opened.add_outcome(outcome(one)) else 1
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 5
    store = open_store(target)
    assert [each.number for each in store.recorded()] == [1, 2, 3, 4, 5]
    store.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of os.fork, from Python 3.12 on
def test_a_fork_while_another_thread_writes(store: SqlStore, target: str) -> None:
    """The child of SQLite is told; it would believe in locks that its parent alone has."""
    one = store.add_prediction(prediction())
    inside, go = threading.Event(), threading.Event()

    def hold(session: Any) -> None:
        inside.set()
        assert go.wait(60)

    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(store._writer.run, hold)
        assert inside.wait(60)
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                os._exit(0 if store.add_outcome(outcome(one, key="child")) else 1)
            except StoreError as error:
                os._exit(3 if "was in use by another thread when this process was forked" in str(error) else 2)
            finally:
                os._exit(4)
        go.set()
        holder.result()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if target.startswith("postgresql") else 3)
    assert store.add_outcome(outcome(one, key="parent"))


# --- versions


def test_an_older_store_is_migrated(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(target)
    one = store.add_prediction(prediction())
    store.close()
    more = ("CREATE TABLE remarks (number {number} NOT NULL PRIMARY KEY, text TEXT NOT NULL)",)
    monkeypatch.setattr(schema_module, "MIGRATIONS", (*schema_module.MIGRATIONS, more))
    newer = [open_store(target, check=False) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:  # several processes may start at once
        list(pool.map(lambda each: each.check(), newer))
    assert newer[0].prediction(one.id) == one
    with raw(target) as connection:
        assert connection.execute("SELECT version FROM store_versions ORDER BY version").fetchall() == [(1,), (2,)]
        assert connection.execute("SELECT COUNT(*) FROM remarks").fetchone() == (0,)
    for each in newer:
        each.close()


def test_a_failed_migration_changes_nothing(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(target).close()
    with monkeypatch.context() as patch:
        broken = ("CREATE TABLE remarks (number {number} NOT NULL PRIMARY KEY)", "CREATE TABLE predictions (x TEXT)")
        patch.setattr(schema_module, "MIGRATIONS", (*schema_module.MIGRATIONS, broken))
        with pytest.raises(StoreError):
            open_store(target)
    with raw(target) as connection, pytest.raises(Exception, match="remarks"):
        connection.execute("SELECT * FROM remarks")
    open_store(target).close()


def test_a_newer_store_is_refused_in_one_sentence(target: str) -> None:
    open_store(target).close()
    with raw(target) as connection:
        connection.execute("INSERT INTO store_versions VALUES (7, 0.0)")
    with pytest.raises(StoreError, match=r"has version 7, and this precision-time reads up to 1; install a newer"):
        open_store(target)


def test_tables_of_another_program_are_left_alone(target: str) -> None:
    with raw(target) as connection:
        connection.execute("CREATE TABLE outcomes (game TEXT)")
    with pytest.raises(StoreError, match="has a table 'outcomes' of another program"):
        open_store(target)
    with raw(target) as connection:
        connection.execute("INSERT INTO outcomes VALUES ('chess')")
        with pytest.raises(Exception, match="predictions"):
            connection.execute("SELECT * FROM predictions")


# --- opening, ids


def test_the_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_path() == tmp_path / ".local/share/precision-time/store.db"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/path")
    assert default_path() == tmp_path / ".local/share/precision-time/store.db", "the specification ignores those"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    store = open_store()
    store.add_prediction(prediction())
    store.close()
    path = tmp_path / "data/precision-time/store.db"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("mysql://user:secret@host/db", "unknown kind; give a path"), ("", "is no path"),
        ("sqlite://x", "unknown kind"), ("no/such/folder/store.db", "there is no folder"),
        ("postgresql://u:secret@h:99999999/d?bad=1", "cannot be read"),
        ("postgresql://user:secret@/db?host=/nowhere", "cannot be reached"), (".", "cannot be opened"),
        (":memory:", "keeps nothing; name a file"),
    ],
)  # fmt: skip
def test_stores_that_cannot_be_opened(target: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if target.startswith("postgresql"):
        pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match=text) as caught:
        open_store(target)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sqlite_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for target, path in (("sqlite:///a%20b.db", "a b.db"), (f"sqlite:///{tmp_path}/c.db", "c.db"), ("d.db", "d.db")):
        open_store(target).close()
        assert (tmp_path / path).is_file()


def test_ids_sort_by_time_also_where_the_clock_goes_back() -> None:
    times = iter([5_000_000_000, 5_000_000_000, 1_000_000_000, 5_000_000_100, 9_000_000_000])
    ids = Ids(lambda: next(times))
    made = [ids() for _ in range(5)]
    assert made == sorted(made)
    assert len(set(made)) == 5
    for each in made:
        parsed = uuid.UUID(each)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, each)
    assert made_at(made[0]) == 5.0
    assert made_at(made[4]) == 9.0


def test_ids_of_many_threads_are_distinct_and_sorted() -> None:
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: [new_id() for _ in range(500)], range(4)))
    assert all(part == sorted(part) for part in parts)
    assert len({each for part in parts for each in part}) == 2000


def test_a_closed_store_says_so(store: SqlStore) -> None:
    store.close()
    with pytest.raises(StoreError, match="was closed; open it again"):
        store.check()


def test_records_are_the_nouns_of_the_room() -> None:
    made = prediction()
    assert isinstance(made, Prediction)
    assert isinstance(outcome(made), Outcome)
