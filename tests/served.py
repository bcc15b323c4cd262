"""A server as a process of its own, and Debian's chromium, for tests of the page and of the demonstration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
CHROMIUM_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[str]:
    """The address of a server that keeps what it is given in `folder`."""
    command = [sys.executable, "-m", "precision_time", "serve", "--port", "0", "--workers", "1", "--quiet"]
    files = ["--database", str(folder / "store.sqlite"), "--tokens", str(folder / "tokens.json")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen([*command, *files, *flags], stdout=out, stderr=out, env=environment)
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        process.wait(60)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """What the log says once requests are answered."""
    while process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}") and (event := json.loads(line)).get("event") == "listening":
                return str(event["address"])
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"the server ended: {log.read_text()}")


@contextmanager
def browsing() -> Iterator[Any]:
    """Playwright's browser; skips the tests where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


def texts(elements: Sequence[Any]) -> list[str]:
    """The text of each element."""
    return [element.inner_text() for element in elements]
