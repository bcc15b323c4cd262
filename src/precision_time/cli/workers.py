"""The processes that share the predictions of a command: `--workers N`, or a Dask cluster by `--dask ADDRESS`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from precision_time.checks import show, small_number
from precision_time.cli.parser import UsageError
from precision_time.errors import MissingExtraError
from precision_time.processes import Workers

MOST_WORKERS = 256
CONNECT_S = 10
"""Seconds that a scheduler has to answer."""


@contextmanager
def workers_of(options: Namespace) -> Iterator[Workers]:
    """A number of processes, None for as many as are worth starting, or the executor of a Dask cluster."""
    if options.dask is None:
        yield _count(options.workers)
        return
    if options.workers is not None:
        raise UsageError("--workers and --dask are given; a Dask cluster has its own workers, so leave one out")
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError("--dask needs Dask: pip install 'precision-time[distributed]'") from None
    try:
        client = Client(options.dask, timeout=CONNECT_S)
    except (OSError, ValueError, TimeoutError) as error:
        why = " ".join(str(error).split())
        raise UsageError(f"Dask scheduler {show(options.dask)} does not answer ({why}); check its address") from None
    try:
        yield client.get_executor()
    finally:
        client.close()


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    count = small_number(text)
    if not count or count > MOST_WORKERS:
        raise UsageError(f"flag --workers is {show(text)}; give a whole number from 1 to {MOST_WORKERS}")
    return count
