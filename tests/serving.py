"""Servers for tests: the application in this process, and `precision-time serve` as a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from starlette.testclient import TestClient

from benchmarks.attack.served import InlinePool
from precision_time.serve.http.app import build_app
from precision_time.serve.http.limits import PREDICT_S
from precision_time.serve.http.logs import Log
from precision_time.serve.http.service import Service
from precision_time.serve.http.tokens import Tokens
from precision_time.serve.store import open_store

START_S = 120.0
RESNET = {"model": "resnet50", "gpu": "a100-80gb-sxm", "precision": "amp-fp16", "batch_size": 64}


class Here:
    """The application in this process, with what is behind it."""

    def __init__(self, folder: Path, tokens: Path | None = None, pool: Any = None) -> None:
        self.pool = pool or InlinePool()
        self.store = open_store(folder / "store.db")
        self.service = Service(self.pool, self.store)
        self.lines = io.StringIO()
        self.app = build_app(self.service, Tokens(tokens), Log(self.lines), frozenset({"testserver"}))
        self.client = TestClient(self.app, raise_server_exceptions=False)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]


@contextlib.contextmanager
def here(folder: Path, tokens: Path | None = None) -> Iterator[Here]:
    """The application, closed at the end."""
    found = Here(folder, tokens)
    with found.client:
        yield found
    found.service.close()


class Served:
    """A server process at `url`, with its log."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.url, self.process, self.log_path = url, process, log
        self.http = httpx.Client(base_url=url, timeout=10 * PREDICT_S + 40.0)

    def log(self) -> list[dict[str, Any]]:
        lines = self.log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_S)


@contextlib.contextmanager
def served(folder: Path, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """`precision-time serve` on a free port, killed at the end."""
    log = folder / "server.log"
    paths = ["--database", str(folder / "store.db"), "--tokens", str(folder / "tokens.json")]
    command = [sys.executable, "-m", "precision_time", "serve", "--port", "0", *paths, *flags]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env={**os.environ, **(environment or {})}, cwd=folder
        )
    try:
        server = Served(_address(process, log), process, log)
        with server.http:
            yield server
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        for line in log.read_text().splitlines():
            if line.startswith("{") and json.loads(line)["event"] == "listening":
                return str(json.loads(line)["address"])
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log.read_text()}")
