"""A progress line on a terminal, shown only when the work takes more than two seconds; where standard error is no
terminal (a log), a line now and then."""

from __future__ import annotations

import sys
import time

from precision_time.cli.streams import note, show_status

PATIENCE_S = 2.0
LOG_S = 30.0
"""Seconds between two lines of a log."""
WIDTH = 30


class Progress:
    """`with Progress("jobs") as report: ...; report(done, total)`."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._start = self._told = time.monotonic()
        self._shown = False
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._start < PATIENCE_S:
            return
        if not sys.stderr.isatty():
            if now - self._told >= LOG_S:
                note(f"{done}/{total} {self._unit}{self._left(done, total)}")
                self._told = now
            return
        bar = "#" * (WIDTH * done // max(total, 1))
        text = f"[{bar:<{WIDTH}}] {done}/{total} {self._unit}{self._left(done, total)}"
        show_status(text)
        self._shown = True

    def _left(self, done: int, total: int) -> str:
        """Time left, if the rest goes on as what was done since the first report (earlier work may be continued)."""
        now = time.monotonic()
        self._first = self._first or (now, done)
        began, before = self._first
        if done <= before:
            return ""
        seconds = (now - began) / (done - before) * (total - done)
        return f", about {seconds:.0f} s left" if seconds < 90 else f", about {seconds / 60:.0f} min left"

    def __exit__(self, *_: object) -> None:
        if self._shown:
            show_status("")
