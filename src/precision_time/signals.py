"""Signals that ask a command to stop: it ends its children and closes its files first."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from precision_time.errors import Interrupted


class Stopped(Interrupted):
    """A signal asked this process to stop; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As a shell reports it."""
        return 128 + self.number


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Within the block SIGINT, SIGTERM and SIGHUP raise `Stopped`, so that children are ended and files closed.

    A second signal ends the process at once. Signals that are ignored (nohup) or handled by someone else stay so; in a
    thread that is not the main one nothing changes.
    """
    came: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if came:
            os._exit(128 + number)
        came.append(number)
        raise Stopped(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
