"""Worker processes: a pool that shares out predictions, and modules of this package run as processes of their own."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from precision_time.child import end_with_parent
from precision_time.without_collection import WithoutCollection

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Workers = int | Executor | None
"""Processes that share a work: so many on this machine, None for as many as are worth starting, or any executor (a
pool, or that of a Dask cluster)."""


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pooled(
    work: Callable[[Argument], Result],
    chunks: Sequence[Argument],
    workers: int,
    here: Callable[[Argument], Result] | None = None,
) -> Generator[tuple[int, Result], None, None]:
    """(index, `work(chunks[index])`) of every chunk as it is done by a pool of `workers` processes.

    With `here` this process helps them: it does `here(chunks[index])` of the last chunk that none has begun.
    Ends early, without the remaining chunks, where no pool can be made or it breaks (a worker killed for memory).
    """
    others = set(multiprocessing.active_children())
    try:
        # spawn: a fork would copy the locks of the caller's threads
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, initializer=end_with_parent, initargs=(os.getpid(),))
    except (OSError, NotImplementedError, ImportError):  # no semaphores here
        return
    try:
        with _interrupts_held():  # workers inherit the mask, so Ctrl-C reaches only this process, which ends them below
            futures = {pool.submit(work, chunk): index for index, chunk in enumerate(chunks)}
        for future in reversed(tuple(futures)):
            if here is None:
                break
            if future.cancel():
                index = futures.pop(future)
                yield index, here(chunks[index])
            for done in [each for each in futures if each.done()]:
                yield futures.pop(done), done.result()
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


def shared(
    work: Callable[[Argument], Result], chunks: Sequence[Argument], executor: Executor
) -> Generator[tuple[int, Result], None, None]:
    """(index, `work(chunks[index])`) of every chunk as an executor has done it; those that its workers lost are left
    out. What `work` itself raises is raised here when the chunk is done again."""
    futures = {executor.submit(work, chunk): index for index, chunk in enumerate(chunks)}
    try:
        for future in as_completed(futures):
            with contextlib.suppress(Exception, CancelledError):
                yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def map_chunks(
    work: Callable[[Argument], Result],
    items: Sequence[Argument],
    chunks: Sequence[Sequence[int]],
    workers: int | Executor,
    progress: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """`work(item)` of every item, in order. `chunks` hold the indices of all items in the order to do them.

    With several `workers`, of which this process is one, or an executor, each chunk is done by one process, so `work`
    and the items must be picklable. What a pool that cannot be made, breaks or loses a worker leaves is done here.
    `progress(done, total)` counts items.
    """
    report = progress or (lambda done, total: None)
    results: dict[int, Result] = {}
    report(0, len(items))
    if isinstance(workers, Executor) or workers > 1:
        alone, asked = partial(_each, work), [[items[i] for i in chunk] for chunk in chunks]
        work_on = partial(_each_in_worker, work)
        if isinstance(workers, Executor):
            own = shared(work_on, asked, workers)
        else:
            own = pooled(work_on, asked, workers - 1, alone)
        with contextlib.closing(own) as done:
            for position, chunk_results in done:
                results.update(zip(chunks[position], chunk_results, strict=True))
                report(len(results), len(items))
    for chunk in chunks:
        with WithoutCollection():
            for index in (index for index in chunk if index not in results):
                results[index] = work(items[index])
                report(len(results), len(items))
    return [results[index] for index in range(len(items))]


def _each(work: Callable[[Argument], Result], items: Sequence[Argument]) -> list[Result]:
    with WithoutCollection():
        return [work(item) for item in items]


def _each_in_worker(work: Callable[[Argument], Result], items: Sequence[Argument]) -> list[Result]:
    gc.freeze()  # caches live as long as the worker, so the garbage collector need not visit them
    return _each(work, items)


def module_command(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command that `start_module` starts, and its environment."""
    path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **(environment or {})}
    alone = ["-P"] if sys.version_info >= (3, 11) else []  # else a random.py of the current folder would be imported
    command = [sys.executable, *alone, "-m", "precision_time.child", str(os.getpid()), module, *arguments]
    return command, variables


def start_module(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start `python -m module ARGUMENTS`; it imports this very package, from whatever folder it is started.

    The process is killed when this one, or the thread that calls this, ends for whatever reason (see `child`), and
    leaves Ctrl-C to it. It imports no files of its current folder. `environment` is added to that of this process,
    `options` are those of `subprocess.Popen`.
    """
    command, variables = module_command(module, *arguments, environment=environment)
    return subprocess.Popen(command, env=variables, **options)


def run_command(text: str, folder: str | Path, timeout_s: float) -> tuple[int, str]:
    """Exit code and output of a shell command in `folder`; all that it started is killed when this process ends.

    Raises `TimeoutError` after `timeout_s` seconds.
    """
    with tempfile.TemporaryFile() as output:
        process = start_module(
            "--command", text, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"not done after {timeout_s:g} s") from None
        finally:
            end_process(process, _GROUP_S)
        output.seek(0)
        return code, output.read().decode(errors="replace")


_GROUP_S = 5.0
"""Seconds for a child to kill the programs that it started, once its input has closed."""


def end_process(process: subprocess.Popen[bytes], patience_s: float = 0.0) -> None:
    """Close the pipes of a process, give it `patience_s` seconds to exit, then kill it; it is gone on return."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
        return
    process.kill()
    process.wait()


def json_objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines that a process wrote; other lines, which libraries may print, are skipped."""
    for line in lines:
        with contextlib.suppress(ValueError):
            content = json.loads(line)
            if isinstance(content, dict):
                yield content


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
