"""`search --run`: the next configuration is run and timed here, until the search stops."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from precision_time.checks import show, small_number
from precision_time.cli.parser import UsageError
from precision_time.cli.streams import note
from precision_time.report.printable import printable
from precision_time.units import human_seconds

if TYPE_CHECKING:
    from precision_time.predictors.cherrypick import CherryPick

NAME = "{id}"
"""Stands for the configuration's id in a command."""


def command_of(text: str) -> list[str]:
    """The words of a command; no shell runs it. Raises `UsageError` where it cannot be split or names no id."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"flag --run {show(text)} cannot be split into words: {error}; close the quotes") from None
    if not any(NAME in word for word in words):
        raise UsageError(f"flag --run {show(text)} does not say where the configuration goes; write {NAME} there")
    return words


def most_runs(text: str | None) -> int | None:
    """The number of --most-runs; None: until the search stops."""
    if text is None:
        return None
    if not (value := small_number(text)):
        raise UsageError(f"flag --most-runs is {show(text)}; give a whole number above 0")
    return value


def run_all(engine: CherryPick, words: list[str], most: int | None, keep: Callable[[str, float | None], None]) -> None:
    """Run what the search asks for; `keep` stores every result before the next run begins.

    The time of a run is that from its start to its end. One that ends with another status than 0 has failed.
    """
    done = 0
    while (most is None or done < most) and (asked := engine.ask()) is not None:
        note(f"run {asked.name}")
        seconds = _timed([word.replace(NAME, asked.name) for word in words])
        note(f"{asked.name}: {'failed' if seconds is None else human_seconds(seconds)}")
        engine.tell(asked.name, seconds)
        keep(asked.name, seconds)
        done += 1


def _timed(words: list[str]) -> float | None:
    """Seconds of a process; None where it failed. What it prints goes to standard error."""
    began = time.monotonic()
    try:
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"flag --run: {printable(words[0])} cannot be started: {error}; correct the command") from None
    return None if ended.returncode else max(time.monotonic() - began, 1e-9)
