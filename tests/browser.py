"""Debian's chromium, driven by Playwright, for tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def browsing() -> Iterator[Any]:
    """Playwright's browser; skips the tests where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


def texts(elements: Sequence[Any]) -> list[str]:
    """The text of each element."""
    return [element.inner_text() for element in elements]
