"""Processes that predict, and the limits of each request: its time, its turn, its process replaced where it fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from precision_time.errors import ServeError
from precision_time.processes import module_command
from precision_time.serve.http.limits import PREDICT_S, RETRY_S, SEARCH_S, WAIT_FACTOR, WAITING
from precision_time.serve.http.problems import ProblemError, parts_from
from precision_time.serve.http.worker import HEAD

SEARCHES = frozenset({"compare", "plan"})
"""Questions that take many predictions."""
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_START_S = 120.0
_LOOK_S = 0.25
"""How often the processor time of a late answer is looked at."""


MOST_TAUGHT = 20
"""Clusters that a process keeps at once, those asked for last; each takes up to some megabytes."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was learned of a cluster, as a process has to know it before it answers. `number`: of the last outcome;
    `state`: what `Cluster.from_dict` reads."""

    cluster: str
    number: int
    state: Callable[[], Mapping[str, Any]]


class Gone(Exception):  # noqa: N818 - what happened, not an error of this package
    """The process ended before it answered."""


class Worker:
    """One process, which answers one question at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stat: int | None = None
        self._taught: OrderedDict[str, int] = OrderedDict()
        with contextlib.suppress(OSError):
            self._stat = os.open(f"/proc/{process.pid}/stat", os.O_RDONLY)

    @classmethod
    async def start(cls, module: str) -> Worker:
        """A process of a module that has loaded its tables. Raises `ServeError` where it does not start."""
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command, variables = module_command(module, environment=threads)
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=variables)
        worker = cls(process)
        try:
            await asyncio.wait_for(worker._read(), _START_S)
        except (Gone, asyncio.TimeoutError):
            await worker.end()
            raise ServeError("a worker process does not start; see what it wrote to the log") from None
        except asyncio.CancelledError:
            await worker.end()
            raise
        return worker

    async def ask(self, question: bytes, lesson: Lesson | None = None) -> dict[str, Any]:
        """The reply, or that to the `lesson` before it where it has a problem. Raises `Gone` where the process ends."""
        if lesson is not None and self._taught.get(lesson.cluster) != lesson.number:
            self._taught.pop(lesson.cluster, None)
            forget = [self._taught.popitem(last=False)[0]] if len(self._taught) >= MOST_TAUGHT else []
            taught = {"ask": "teach", "cluster": lesson.cluster, "state": lesson.state(), "forget": forget}
            reply = await self._answer(json.dumps(taught).encode())
            if "problem" in reply:
                return reply
            self._taught[lesson.cluster] = lesson.number
        if lesson is not None:
            self._taught.move_to_end(lesson.cluster)
        return await self._answer(question)

    async def _answer(self, question: bytes) -> dict[str, Any]:
        stream = self._process.stdin
        try:
            stream.write(HEAD.pack(len(question)) + question)  # type: ignore[union-attr]
            await stream.drain()  # type: ignore[union-attr]
        except (ConnectionError, RuntimeError):
            raise Gone from None
        return await self._read()

    async def _read(self) -> dict[str, Any]:
        stream = self._process.stdout
        try:
            (length,) = HEAD.unpack(await stream.readexactly(HEAD.size))  # type: ignore[union-attr]
            reply: dict[str, Any] = json.loads(await stream.readexactly(length))  # type: ignore[union-attr]
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Gone from None
        return reply

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float | None:
        """Processor time so far; None where the system does not say."""
        if self._stat is None:
            return None
        try:
            fields = os.pread(self._stat, 4096, 0).rpartition(b")")[2].split()
        except OSError:  # it has ended
            return None
        return (int(fields[11]) + int(fields[12])) / _TICKS

    async def end(self) -> None:
        """Kill the process, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._stat is not None:
            os.close(self._stat)
            self._stat = None


class Pool:
    """`count` processes. A search never takes the last free one, so that predictions go on beside it."""

    def __init__(self, count: int, module: str = "precision_time.serve.http.worker") -> None:
        self.count, self._module = count, module
        self.waiting = 0
        self.replaced = 0
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self._searches = asyncio.Semaphore(max(1, count - 1))
        self._workers: set[Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start all processes; raises `ServeError` where one does not start."""
        await asyncio.gather(*(self._add() for _ in range(self.count)))

    async def _add(self) -> None:
        worker = await Worker.start(self._module)
        if self._closed:
            await worker.end()
            return
        self._workers.add(worker)
        self._idle.put_nowait(worker)

    @property
    def pids(self) -> list[int]:
        return sorted(worker.pid for worker in self._workers)

    async def ask(self, ask: str, asked: Mapping[str, Any], lesson: Lesson | None = None) -> dict[str, Any]:
        """The answer to a question of `answers.ANSWERS`, corrected by a cluster. Raises `ProblemError`."""
        if self.waiting >= WAITING * self.count:
            raise ProblemError(503, f"{self.waiting} requests wait already; try again later", RETRY_S)
        self.waiting += 1
        try:
            named = {} if lesson is None else {"cluster": lesson.cluster}
            question = await _written({"ask": ask, **asked, **named})
            if ask not in SEARCHES:
                return await self._asked(question, lesson, PREDICT_S)
            async with self._searches:
                return await self._asked(question, lesson, SEARCH_S)
        finally:
            self.waiting -= 1

    async def _asked(self, question: bytes, lesson: Lesson | None, limit_s: float) -> dict[str, Any]:
        worker = await self._idle.get()
        answering = asyncio.ensure_future(self._watched(worker, worker.ask(question, lesson), limit_s))
        try:
            reply = await asyncio.shield(answering)
        except asyncio.CancelledError:  # the client has gone; the worker ends its answer first
            answering.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        if "problem" in reply:
            problem = reply["problem"]
            raise ProblemError(problem["status"], problem["detail"], **parts_from(problem))
        answer: dict[str, Any] = reply["answer"]
        return answer

    async def _watched(
        self, worker: Worker, asking: Coroutine[Any, Any, dict[str, Any]], limit_s: float
    ) -> dict[str, Any]:
        """The reply of a worker, which is idle again or replaced then."""
        began, cpu = time.monotonic(), worker.cpu_s()
        reply = asyncio.ensure_future(asking)
        wait_s = limit_s
        while True:
            done, _ = await asyncio.wait({reply}, timeout=wait_s)
            if done:
                break
            used, now = worker.cpu_s(), time.monotonic() - began
            spent = used - cpu if used is not None and cpu is not None else now
            if spent >= limit_s or now >= WAIT_FACTOR * limit_s:
                reply.cancel()
                await self._replace(worker)
                raise _late(limit_s, spent >= limit_s)
            wait_s = _LOOK_S
        try:
            found = reply.result()
        except Gone:
            await self._replace(worker)
            raise ProblemError(503, "the process that answered has ended; try again", RETRY_S) from None
        if "ends" in found:
            await self._replace(worker)
        else:
            self._idle.put_nowait(worker)
        return found

    async def _replace(self, worker: Worker) -> None:
        """End a process; another one starts while requests go on."""
        self._workers.discard(worker)
        await worker.end()
        self.replaced += 1
        if not self._closed:
            task = asyncio.ensure_future(self._again())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _again(self) -> None:
        """Start a process, and try once a second where the machine has no memory for it."""
        while not self._closed:
            try:
                await self._add()
                return
            except (ServeError, OSError):
                await asyncio.sleep(1.0)

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._workers), return_exceptions=True)
        self._workers.clear()


async def _written(asked: Mapping[str, Any]) -> bytes:
    """A question as JSON; one with a graph is written in a thread, beside other requests."""
    if "graph" not in asked:
        return json.dumps(asked).encode()
    return (await asyncio.to_thread(json.dumps, asked)).encode()


def _late(limit_s: float, busy: bool) -> ProblemError:
    if busy:
        return ProblemError(
            422,
            f"this request takes more than {limit_s:g} s of processor time, the most that one may take; ask for "
            "fewer candidates or a smaller job, or use the library",
        )
    return ProblemError(503, "the machine is too busy to answer in time; try again later", RETRY_S)
