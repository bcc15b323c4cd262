"""Work shared out over processes: what many predictions are made with. The answers are those of one process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TypeVar

Given = TypeVar("Given")
Found = TypeVar("Found")


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pooled(
    work: Callable[[Given], Found], chunks: Sequence[Given], workers: int
) -> Generator[tuple[int, Found], None, None]:
    """Positions of chunks with what `work` makes of them, as they are done.

    Ends early, with nothing said of the others, where there can be no pool or it breaks (a worker killed for memory).
    """
    others = set(multiprocessing.active_children())
    try:
        # spawn: a fork would copy the threads' locks of whoever calls us
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    except (OSError, NotImplementedError, ImportError):  # no semaphores here
        return
    try:
        with _interrupts_held():  # Ctrl-C is for us; workers inherit the mask and are ended below
            futures = {pool.submit(work, chunk): index for index, chunk in enumerate(chunks)}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        return
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """A worker whose parent is killed would wait for work for ever."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
