"""A progress line on a terminal, shown only when the work takes more than two seconds."""

from __future__ import annotations

import sys
import time

PATIENCE_S = 2.0
WIDTH = 30


class Progress:
    """`with Progress("jobs") as report: ...; report(done, total)`."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._start = time.monotonic()
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._start < PATIENCE_S or not sys.stderr.isatty():
            return
        bar = "#" * (WIDTH * done // max(total, 1))
        print(f"\r[{bar:<{WIDTH}}] {done}/{total} {self._unit}", end="", file=sys.stderr, flush=True)
        self._shown = True

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
