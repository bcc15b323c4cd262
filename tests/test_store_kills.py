"""`kill -9` of processes that write to a store, and of the PostgreSQL server, at random moments under load.

Nothing that was acknowledged may be missing, nothing may be there twice, and outcomes are numbered without gaps. The
moments come from a seed that is printed; PRECISION_TIME_SEED repeats one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import precision_time
from postgresql_server import Server, running
from precision_time.serve.store import SqlStore, open_store

SOURCE = str(Path(precision_time.__file__).parents[1])
TESTS = Path(__file__).parent
PROCESSES = 2


class Writers:
    """The writing processes, and what they have said."""

    def __init__(self, target: str) -> None:
        self.target = target
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((SOURCE, str(TESTS))), "PYTHONHASHSEED": "0"}
        words = [sys.executable, str(TESTS / "store_writer.py")]
        self._parent = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.processes: list[int] = []
        self.begun: set[str] = set()
        self.kept: dict[str, str] = {}
        self.failures: list[str] = []
        self._rounds = 0

    def _read(self) -> None:
        assert self._parent.stdout is not None
        for line in self._parent.stdout:
            self._lines.put(line)

    def begin(self) -> None:
        """Start writing, first what is not known to be kept, and wait for the first acknowledgement."""
        self._rounds += 1
        self.processes = []
        given = {
            "target": self.target, "round": self._rounds, "processes": PROCESSES,
            "retry": sorted(self.begun - set(self.kept)),
        }  # fmt: skip
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(given) + "\n")
        self._parent.stdin.flush()
        self.wait_for_more()

    def wait_for_more(self) -> None:
        """Read until one more write is acknowledged and all processes are there."""
        count = len(self.kept)
        while len(self.kept) == count or len(self.processes) < PROCESSES:
            assert self._take(60) != "over"

    def kill(self, pause: float) -> None:
        """Kill the processes, with a pause between the first and the others, and read what they still said."""
        first, *others = self.processes
        os.kill(first, signal.SIGKILL)
        time.sleep(pause)
        for each in others:
            os.kill(each, signal.SIGKILL)
        while self._take(60) != "over":
            pass
        self.processes = []

    def _take(self, timeout: float) -> str:
        word, _, rest = self._lines.get(timeout=timeout).rstrip("\n").partition(" ")
        if word == "process":
            self.processes.append(int(rest))
        elif word == "begin":
            self.begun.add(rest)
        elif word == "kept":
            key, _, identifier = rest.partition(" ")
            self.kept[key] = identifier
        elif word == "failed":
            self.failures.append(rest)
        return word

    def close(self) -> None:
        for each in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(60)
        self._reader.join(60)
        assert self._parent.stdout is not None
        self._parent.stdout.close()


class Judge:
    """Follows the outcomes by their numbers, and compares them with what the writers were told."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.store = open_store(target)
        self.last = 0
        self.seen: dict[str, str] = {}

    def check(self, writers: Writers) -> None:
        for each in self.store.recorded(self.last):
            assert each.number == self.last + 1, "numbers have no gaps"
            self.last = each.number
            key = each.outcome.key
            assert key not in self.seen, "no outcome is there twice"
            assert key == each.prediction.key
            self.seen[key] = each.prediction.id
        assert {key: self.seen.get(key) for key in writers.kept} == writers.kept, "all that was acknowledged is there"
        assert set(self.seen) <= writers.begun

    def check_all(self, writers: Writers) -> None:
        """Once more with a store of its own, from the beginning."""
        self.store.close()
        self.store, self.last, self.seen = open_store(self.target), 0, {}
        self.check(writers)
        ids = [each.id for each in all_predictions(self.store)]
        assert len(ids) == len(set(ids))
        keys = [each.key for each in all_predictions(self.store)]
        assert len(keys) == len(set(keys)), "no prediction is there twice"
        assert set(self.seen) <= set(keys) <= writers.begun
        self.store.close()


def all_predictions(store: SqlStore) -> Iterator[object]:
    before = None
    while page := store.predictions(before=before, limit=1000):
        yield from page
        before = page[-1].id


@pytest.fixture
def moments() -> random.Random:
    seed = os.environ.get("PRECISION_TIME_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"PRECISION_TIME_SEED={seed}")
    return random.Random(seed)


def kill_writers(target: str, rounds: int, moments: random.Random) -> int:
    """The number of writes that were acknowledged in all."""
    writers, judge = Writers(target), Judge(target)
    try:
        for _ in range(rounds):
            writers.begin()
            time.sleep(moments.expovariate(1 / 0.03))
            writers.kill(moments.choice((0.0, moments.random() * 0.03)))
            judge.check(writers)
        judge.check_all(writers)
    finally:
        writers.close()
        judge.store.close()
    assert not writers.failures
    return len(writers.kept)


def kill_server(server: Server, rounds: int, moments: random.Random) -> int:
    """The same, where the server is killed and the writers go on when it is back."""
    target = server.new_database()
    writers, judge = Writers(target), Judge(target)
    try:
        writers.begin()
        for _ in range(rounds):
            time.sleep(moments.expovariate(1 / 0.05))
            server.kill()
            server.start()
            writers.wait_for_more()  # on the next call, with the same store
        writers.kill(0.0)
        judge.check_all(writers)
    finally:
        writers.close()
        judge.store.close()
    assert writers.failures
    assert all("cannot be reached" in text for text in writers.failures), set(writers.failures)
    return len(writers.kept)


_TRACED = """
import os, sys
from precision_time.serve.store import open_store
from store_cases import outcome, prediction
store = open_store(sys.argv[1])
one = prediction()
for index in range(3):
    os.write(1, b"begin prediction")
    one = store.add_prediction(prediction())
    os.write(1, b"kept prediction")
    os.write(1, b"begin outcome")
    store.add_outcome(outcome(one))
    os.write(1, b"kept outcome")
store.close()
"""


def test_sqlite_waits_for_the_disk_before_it_acknowledges(tmp_path: Path) -> None:
    """A killed process leaves what it wrote with the system; against a loss of power only a sync of the log helps."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace")
    trace = tmp_path / "trace"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((SOURCE, str(TESTS)))}
    command = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync,write", "-o", str(trace)]
    done = subprocess.run(
        [*command, sys.executable, "-c", _TRACED, str(tmp_path / "store.db")], env=environment, capture_output=True
    )
    if b"ptrace" in done.stderr.lower():
        pytest.skip("this process may not trace others")
    assert done.returncode == 0, done.stderr
    calls = [line for line in trace.read_text().splitlines() if "write(1<" in line or "sync(" in line]
    for what in ("prediction", "outcome"):
        begins = [index for index, line in enumerate(calls) if f'"begin {what}"' in line]
        ends = [index for index, line in enumerate(calls) if f'"kept {what}"' in line]
        assert len(begins) == len(ends) == 3
        for begin, end in zip(begins, ends, strict=True):
            assert any("sync(" in line and "store.db-wal>" in line for line in calls[begin:end])


def test_killed_writers_of_sqlite(tmp_path: Path, moments: random.Random) -> None:
    assert kill_writers(str(tmp_path / "store.db"), 4, moments) >= 4


def test_killed_writers_of_postgresql(postgresql: Server, moments: random.Random) -> None:
    assert kill_writers(postgresql.new_database(), 4, moments) >= 4


def test_a_killed_server(moments: random.Random) -> None:
    with running() as server:
        assert kill_server(server, 1, moments) >= 2


@pytest.mark.slow
def test_two_hundred_killed_writers_of_sqlite(tmp_path: Path, moments: random.Random) -> None:
    print(kill_writers(str(tmp_path / "store.db"), 100, moments), "writes were acknowledged")


@pytest.mark.slow
def test_two_hundred_killed_writers_of_postgresql(moments: random.Random) -> None:
    with running() as server:
        print(kill_writers(server.new_database(), 100, moments), "writes were acknowledged")


@pytest.mark.slow
def test_twenty_killed_servers(moments: random.Random) -> None:
    with running() as server:
        print(kill_server(server, 20, moments), "writes were acknowledged")
