"""A PostgreSQL server of a test: its own data folder and port on a Unix socket, not as root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_USER = "postgres"
_SETTINGS = {
    "listen_addresses": "", "shared_buffers": "16MB", "max_connections": "60",
    "autovacuum": "off", "log_min_messages": "warning", "wal_level": "minimal", "max_wal_senders": "0",
}  # fmt: skip


class Server:
    """A server that is started, stopped and killed; its data stay until `remove`.

    `replicated`: it may have standbys; `of`: it is a standby of that server.
    """

    def __init__(self, fsync: bool, replicated: bool = False, of: Server | None = None) -> None:
        self._settings = {**_SETTINGS, "fsync": "on" if fsync else "off"}
        if replicated or of is not None:
            self._settings |= {"wal_level": "replica", "max_wal_senders": "4"}
        psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
        found = programs[-1] if programs else shutil.which("postgres")
        if found is None:
            pytest.skip("there is no PostgreSQL server on this machine")
        self._bin = Path(found).parent
        self._connect = psycopg.connect
        self._count = 0
        root = os.geteuid() == 0
        if root and not shutil.which("runuser"):
            pytest.skip("PostgreSQL does not run as root, and there is no runuser")
        self._prefix = ["runuser", "-u", _USER, "--"] if root else []
        self.folder = Path(tempfile.mkdtemp(prefix="pt-", dir="/tmp"))  # sockets have short paths
        if root:
            shutil.chown(self.folder, _USER)
        try:
            if of is None:
                self._run(
                    "initdb", "-D", self._data, "-A", "trust", "-U", "pt", "--no-sync", "--locale=C", "-E", "UTF8"
                )
            else:
                self._run(
                    "pg_basebackup",
                    "-h",
                    str(of.folder),
                    "-U",
                    "pt",
                    "-D",
                    self._data,
                    "-R",
                    "-X",
                    "stream",
                    "-c",
                    "fast",
                )
            self.start()
        except BaseException:
            self.remove()
            raise

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._prefix, str(self._bin / program), *arguments], capture_output=True, text=True, cwd="/", check=False
        )
        assert done.returncode == 0, f"{program}: {done.stdout[-2000:]} {done.stderr[-2000:]}"

    def start(self) -> None:
        settings = "".join(f" -c {name}='{value}'" for name, value in self._settings.items())
        options = f"-k {self.folder}{settings}"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", self._data, "-l", log, "-w", "-t", "120", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    @property
    def process(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """End the whole server by SIGKILL and wait until it is gone."""
        process = self.process
        os.kill(process, signal.SIGSTOP)  # so that it starts no other
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        for each in (process, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        until = time.monotonic() + 60
        while any(_runs(each) for each in (process, *map(int, children))) and time.monotonic() < until:
            time.sleep(0.01)
        # Where nothing reaps the killed process, its number is in use, and a new server takes it for a running one.
        for lock in (self.folder / "data" / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")):
            lock.unlink(missing_ok=True)

    def address(self, schema: str = "public") -> str:
        return f"postgresql://pt@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def new_database(self) -> str:
        """The address of an empty schema, which is to a store what a database is, and is made much faster."""
        self._count += 1
        name = f"test_{self._count}"
        with self._connect(self.address(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return self.address(name)

    def remove(self) -> None:
        with contextlib.suppress(AssertionError):
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextlib.contextmanager
def running(fsync: bool = True, replicated: bool = False, of: Server | None = None) -> Iterator[Server]:
    """A server; without `fsync` it is faster, for tests in which the machine does not lose its power."""
    server = Server(fsync, replicated, of)
    try:
        yield server
    finally:
        server.remove()
