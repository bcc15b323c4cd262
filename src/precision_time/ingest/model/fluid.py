"""When jobs that share a node end: a fluid model, for many start offsets at once.

A job advances continuously through its epochs, at 1 / (time per sample x samples) epochs per second. The time per
sample depends on the share of its next samples that are missing from the cache (misses.py) and on the other jobs
(contention.py). Cache-aware staggering (HiPC 2023) has a performance model for this; only its abstract is known here,
so these equations are this project's, for any number of jobs, overlapping data and a cache of stated capacity.

Time advances in steps of the midpoint method (second order) that end exactly where a rate may jump: at starts, ends of
epochs, and when the cache is full. The midpoint is used because a small LRU cache misses most at the end of an epoch.
Steps are shorter where rates change faster (step_length.py). While no share of misses changes, one step reaches the
next jump.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.model.contention import Contention, Flags
from precision_time.ingest.model.misses import AllCached, Lru, NoEviction
from precision_time.ingest.model.outcome import Outcome
from precision_time.ingest.model.parts import Parts
from precision_time.ingest.model.rates import Array, JobRates, SharedCache, Slowdowns
from precision_time.ingest.model.same_order import simulate
from precision_time.ingest.model.step_length import CHANGE, CHANGE_LRU, StepLength

STEP = 1 / 8
"""Longest step, as a share of an epoch, while shares of misses change."""


def run(
    jobs: Sequence[JobRates],
    slowdowns: Slowdowns,
    cache: SharedCache,
    offsets_s: Array | Sequence[Sequence[float]],
    *,
    count_start_up: bool = False,
    step: float = STEP,
) -> Outcome:
    """Run `jobs`, each launched at its offset; `offsets_s` in seconds is [lanes, jobs], each row an independent case.

    count_start_up  a job that starts up slows the others as a job that prepares and trains does
    step            longest step in epochs, while shares of misses change

    Raises IngestError for offsets of another shape or below 0. Jobs with one order are run by same_order.simulate.
    """
    offsets = _checked(jobs, offsets_s)
    if slowdowns.same_order:
        return simulate(jobs, slowdowns, cache, offsets, count_start_up=count_start_up)
    flow = Flow(jobs, Contention(jobs, slowdowns), _misses(Parts.of(jobs), cache, offsets.shape[1]), offsets, step)
    if count_start_up:
        flow.launch = offsets
    if isinstance(flow.cache, Lru):
        flow.solo = _SoloEpochs(offsets.shape[1])
    while flow.going:
        flow.settle()
        flow.advance()
    finish = flow.finish + np.array([[job.end_s] for job in jobs])
    return Outcome(finish.T, finish.max(axis=0), flow.first_epoch.T, flow.stall.T)


class Flow:
    """The state of all lanes, [jobs, lanes]: progress x in epochs, and the epoch n that each job is in."""

    def __init__(
        self, jobs: Sequence[JobRates], contention: Contention, cache: AllCached, offsets: Array, step: float
    ) -> None:
        shape, lanes = offsets.shape, offsets.shape[1]
        self.cache, self._contention = cache, contention
        self._length = StepLength(step, CHANGE_LRU if isinstance(cache, Lru) else CHANGE, len(jobs), lanes)
        self._goal = np.array([[float(job.epochs)] for job in jobs]) * np.ones(lanes)
        self._samples = np.array([[float(job.samples)] for job in jobs])
        self._begin = offsets + np.array([[job.start_up_s] for job in jobs])
        self.launch: Array | None = None
        self.solo: _SoloEpochs | None = None
        self.x, self._n, self.time = np.zeros(shape), np.zeros(shape), np.zeros(lanes)
        self.finish, self.first_epoch, self.stall = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape)
        cache.accept(self.x, self._n)

    @property
    def going(self) -> bool:
        """Whether any job of any lane has not ended."""
        return bool(np.isnan(self.finish).any())

    def settle(self) -> Array:
        """Compute and return the share of misses of each job now; compute the rates too."""
        self.running = (self._begin <= self.time) & np.isnan(self.finish)
        self._starting = None if self.launch is None else (self.launch <= self.time) & (self._begin > self.time)
        miss = self.cache.share(self.x, self._n)
        self._changing = self.cache.changing(self.x, self._n, self.running)
        time, self._busy, self._reading = self._contention.solve(miss, self.running, self._starting, self._changing)
        self._rate = self.running / (time * self._samples)
        return miss

    def advance(self) -> None:
        """Advance each lane by one step, at most to the next jump of a rate."""
        x, running = self.x, self.running
        ends = self.cache.ends(self._n, self._goal, x)
        moments = self._begin if self.launch is None else np.concatenate([self._begin, self.launch])
        starts = np.where(moments > self.time, moments, np.inf).min(axis=0)
        jump = self._until_jump(ends, starts)
        dt = np.where(self._changing, np.minimum(jump, self._length.longest(self._rate)), jump)
        dt = np.where(np.isfinite(dt), dt, 0.0)  # a lane where all is over
        if self._changing.any():
            self._to_the_middle(dt, ends)
            dt = np.minimum(dt, self._until_jump(ends, starts))
        share = self.cache.until(x, np.minimum(x + self._rate * dt, ends))
        dt = dt * share
        arrived = running & (ends - x <= self._rate * dt + 1e-12)
        self.x = x = np.where(arrived, ends, np.minimum(x + self._rate * dt, ends))
        # Exactly the start time, so that the comparisons in settle() hold.
        started = dt >= (starts - self.time) * (1 - 1e-12)
        self.time = np.where(started, starts, self.time + dt)
        self._length.accept(dt, started | (share < 1) | arrived.any(axis=0))
        self.stall += np.where(running, dt * (1.0 - self._busy), 0.0)
        if arrived.any():
            first = arrived & (self._n < 1) & (x >= np.minimum(self._goal, 1.0))
            self.first_epoch = np.where(first, self.time - self._begin, self.first_epoch)
            self.finish = np.where(arrived & (x >= self._goal), self.time, self.finish)
            self._n = np.where(arrived & (x >= self._n + 1.0), np.floor(x), self._n)
        self.cache.accept(x, self._n)
        if self.solo is not None:
            self._skip(self.solo, arrived)

    def _until_jump(self, ends: Array, starts: Array) -> Array:
        """Seconds until a rate may jump, [lanes]."""
        with np.errstate(divide="ignore", invalid="ignore"):
            way = np.where(self.running, (ends - self.x) / self._rate, np.inf)
        return np.asarray(np.minimum(starts - self.time, way.min(axis=0)))

    def _to_the_middle(self, dt: Array, ends: Array) -> None:
        """Replace the rates by those in the middle of a step of `dt`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            middle = np.minimum(self._length.middle(self.x, self._rate, dt), ends)
        halfway = self.cache.share(middle, self._n)
        time, self._busy, later = self._contention.solve(halfway, self.running, self._starting)
        before, self._rate = self._rate, self.running / (time * self._samples)
        self._length.adapt(dt, before, self._rate, np.abs(later - self._reading), self._changing)

    def _skip(self, solo: _SoloEpochs, arrived: Flags) -> None:
        going, others = self.running & np.isnan(self.finish), (self._begin > self.time).any(axis=0)
        epochs, self.time = solo.skip(self.time, going, arrived, others, self._goal - self.x, self.stall.sum(axis=0))
        self._goal, self.stall = self._goal - epochs, self.stall + epochs * solo.stall


class _SoloEpochs:
    """Skips epochs of a job that runs alone with an LRU cache: after two such epochs all later ones take equally long.

    By then the data of other jobs are evicted, or fit in the cache beside the job's data.
    """

    def __init__(self, lanes: int) -> None:
        self._ends = np.zeros(lanes)
        self._since, self._stalled = np.zeros(lanes), np.zeros(lanes)
        self.stall = np.zeros(lanes)

    def skip(
        self, t: Array, going: Flags, arrived: Flags, others: Flags, left: Array, stalled: Array
    ) -> tuple[Array, Array]:
        """Number of epochs to skip, [jobs, lanes], and the time after them; `stall` is the wait in each, in seconds."""
        alone = (going.sum(axis=0) == 1) & ~others
        if not alone.any():
            self._ends[:] = 0.0
            return np.zeros(going.shape), t
        at_end = alone & (arrived & going).any(axis=0)
        self._ends = np.where(alone, self._ends + at_end, 0.0)
        ripe = at_end & (self._ends >= 4)
        epochs = np.where(ripe & going, np.maximum(np.ceil(left - 1e-9) - 1.0, 0.0), 0.0)
        length, self.stall = t - self._since, stalled - self._stalled
        self._since = np.where(at_end, t, self._since)
        self._stalled = np.where(at_end, stalled, self._stalled)
        with np.errstate(invalid="ignore"):
            return epochs, np.where(ripe, t + epochs.sum(axis=0) * length, t)


def _misses(parts: Parts, cache: SharedCache, lanes: int) -> AllCached:
    """The model of misses for this cache, with independent orders."""
    capacity = cache.capacity
    if capacity is None or capacity >= parts.size.sum() * (1 - 1e-12):
        return AllCached(parts)
    return (NoEviction if cache.policy == "no-eviction" else Lru)(parts, capacity, lanes)


def _checked(jobs: Sequence[JobRates], offsets_s: Array | Sequence[Sequence[float]]) -> Array:
    offsets = np.asarray(offsets_s, dtype=float)
    if not jobs or offsets.ndim != 2 or offsets.shape[1] != len(jobs) or not len(offsets):
        raise IngestError(
            f"offsets_s has the shape {offsets.shape} for {len(jobs)} jobs: give one row for each case and one column "
            "for each job."
        )
    if not np.isfinite(offsets).all() or (offsets < 0).any():
        raise IngestError("offsets_s holds a negative or infinite number: give seconds from 0 on.")
    return np.ascontiguousarray(offsets.T)
