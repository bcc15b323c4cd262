"""A discrete-event simulation of co-located jobs, sample by sample: the judge of the fluid model.

It shares nothing with the model but the description of the jobs. Every sample is drawn from a real random permutation,
looked up in a real cache (an ordered dictionary), read from a storage that serves the jobs beside each other, prepared
by a pool of workers, queued, and trained on by an accelerator. Two that miss one sample at once share one read, or
both read it where the cache does not coalesce.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from precision_time.ingest.model.rates import JobRates, SharedCache, Slowdowns

WORKERS, QUEUE = 4, 32
"""Few against the samples: what is on its way acts as some more cache, which the fluid model does not have."""


class Cache:
    """Which samples are at hand."""

    def __init__(self, capacity: float | None, policy: str, coalesces: bool = True) -> None:
        self.coalesces = coalesces
        self._capacity, self._evicts = capacity, policy == "lru"
        self._held: OrderedDict[int, None] = OrderedDict()
        self.coming: dict[int, simpy.Event] = {}

    def __contains__(self, sample: int) -> bool:
        if sample not in self._held:
            return False
        self._held.move_to_end(sample)
        return True

    def add(self, sample: int) -> None:
        if self._capacity is not None and len(self._held) >= self._capacity and sample not in self._held:
            if not self._evicts or not self._held:
                return
            self._held.popitem(last=False)
        self._held[sample] = None


class Server:
    """Serves the jobs beside each other: one's speed is 1 / (1 + sum over the busy others of (stretch - 1))."""

    def __init__(self, env: simpy.Environment, stretch: Sequence[Sequence[float]]) -> None:
        self._env, self._stretch = env, stretch
        self._lines: list[deque[list[Any]]] = [deque() for _ in stretch]
        self._known: dict[tuple[bool, ...], list[tuple[deque[list[Any]], float]]] = {}
        self._since, self._turn = 0.0, 0

    def serve(self, job: int, work: float) -> simpy.Event:
        """Comes when `work` seconds (alone) of this job, and all it asked before, are done."""
        self._advance()
        done = self._env.event()
        self._lines[job].append([work, done])
        self._plan()
        return done

    def _busy(self) -> list[tuple[deque[list[Any]], float]]:
        """The lines of the busy jobs, each with its speed."""
        key = tuple(map(bool, self._lines))
        found = self._known.get(key)
        if found is None:
            jobs = [job for job, line in enumerate(self._lines) if line]
            found = self._known[key] = [
                (self._lines[job], 1 / (1 + sum(self._stretch[job][j] - 1 for j in jobs if j != job))) for job in jobs
            ]
        return found

    def _advance(self) -> None:
        passed, self._since = self._env.now - self._since, self._env.now
        busy = self._busy()
        for line, speed in busy:
            line[0][0] -= passed * speed
        for line, _ in busy:
            if line[0][0] <= 1e-12:
                line.popleft()[1].succeed()

    def _plan(self) -> None:
        waits = [line[0][0] / speed for line, speed in self._busy()]
        if waits:
            self._turn += 1
            self._env.timeout(max(min(waits), 0.0), self._turn).callbacks.append(self._wake)

    def _wake(self, event: simpy.Event) -> None:
        if event.value == self._turn:
            self._advance()
            self._plan()


@dataclass
class Job:
    """Runs one job in the simulation and keeps when it ended."""

    index: int
    rates: JobRates
    data: np.ndarray[Any, Any]
    env: simpy.Environment
    cache: Cache
    storage: Server
    accelerator: Server
    rng: np.random.Generator
    same_order: bool = False
    finish: float = 0.0
    trained: int = 0
    missed: int = 0
    first_epoch: float = 0.0

    def samples(self) -> Iterator[int]:
        left = round(self.rates.samples * self.rates.epochs)
        while left > 0:
            order = self.data if self.same_order else self.rng.permutation(self.data)
            yield from (int(s) for s in order[:left])
            left -= len(order)

    def read(self, sample: int) -> Generator[Any, Any, None]:
        coming = self.cache.coming
        if sample in self.cache:
            return
        if sample in coming and self.cache.coalesces:  # another job is reading it: wait for that, as for a locked page
            yield coming[sample]
            return
        self.missed += 1
        served = coming[sample] = self.storage.serve(self.index, self.rates.storage_s)
        yield served
        coming.pop(sample, None)
        self.cache.add(sample)

    def train(self) -> simpy.Event:
        return self.accelerator.serve(self.index, self.rates.hot_s)

    def counted(self, begin: float) -> None:
        self.trained += 1
        if self.trained == self.rates.samples:
            self.first_epoch = self.env.now - begin

    def run(self, offset: float) -> Generator[Any, Any, None]:
        yield self.env.timeout(offset + self.rates.start_up_s)
        begin = self.env.now
        yield from (self.lockstep(begin) if self.rates.overlap == 0 else self.deep(begin))
        self.finish = self.env.now + self.rates.end_s

    def lockstep(self, begin: float) -> Generator[Any, Any, None]:
        """The next sample is read while this one is trained on, and both are waited for."""
        samples = self.samples()
        yield from self.read(next(samples))
        for sample in samples:
            yield self.env.all_of([self.train(), self.env.process(self.read(sample))])
            self.counted(begin)
        yield self.train()
        self.counted(begin)

    def deep(self, begin: float) -> Generator[Any, Any, None]:
        """Workers read ahead into a long queue; preparing takes them half of what the accelerator can take."""
        samples, queue = self.samples(), simpy.Store(self.env, QUEUE)

        def work() -> Generator[Any, Any, None]:
            for sample in samples:
                yield from self.read(sample)
                yield self.env.timeout(0.5 * self.rates.hot_s * WORKERS)
                yield queue.put(sample)

        for _ in range(WORKERS):
            self.env.process(work())
        for _ in range(round(self.rates.samples * self.rates.epochs)):
            yield queue.get()
            yield self.train()
            self.counted(begin)


def simulate(
    jobs: Sequence[JobRates], slowdowns: Slowdowns, cache: SharedCache, offsets: Sequence[float], seed: int = 0
) -> list[Job]:
    """Run all to the end. Parts of the data become ranges of sample numbers."""
    env = simpy.Environment()
    rng = np.random.default_rng(seed)
    held = Cache(cache.capacity, cache.policy, cache.coalesces)
    storage, accelerator = Server(env, slowdowns.storage), Server(env, slowdowns.hot)
    start: dict[str, np.ndarray[Any, Any]] = {}
    at = 0
    for job in jobs:
        for part, share in job.parts.items():
            if part not in start:
                size = round(share * job.samples)
                start[part], at = np.arange(at, at + size), at + size
    runs = []
    for i, job in enumerate(jobs):
        data = np.concatenate([start[part] for part in job.parts])
        runs.append(Job(i, job, data, env, held, storage, accelerator, rng, slowdowns.same_order))
    for sample in (s for s in range(at) if rng.random() < jobs[0].cached):
        held.add(sample)
    for run, offset in zip(runs, offsets, strict=True):
        env.process(run.run(offset))
    env.run()
    return runs
