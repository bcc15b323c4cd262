"""Jobs that read the same samples in one order in every epoch: a simulation of the cache in blocks of samples.

With independent orders the shares of misses are expectations (misses.py); with one order they are 0 or 1. So each epoch
is cut into blocks, and every lane steps from event to event: a job starts, enters a block, catches up with another, or
ends.

- A block is a hit if it is in the cache when a job enters it.
- Otherwise a job behind another in the same block hits what that job has read, until it catches up.
- Jobs side by side in a block that is not cached: if the cache coalesces reads, the one that reads fastest leads and
  the others cannot overtake it; if not, all of them read the rest of the block.

Between events the rates are constant and come from contention.py. Arrays are [jobs, lanes] unless noted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.model.contention import Contention, Flags, Leaders
from precision_time.ingest.model.misses import limited
from precision_time.ingest.model.outcome import Outcome
from precision_time.ingest.model.parts import Parts
from precision_time.ingest.model.rates import Array, JobRates, SharedCache, Slowdowns

BLOCKS, FEWEST, MOST = 3000, 32, 64
"""Blocks of all epochs of all jobs together, and the fewest and most in one epoch. A block is the resolution in time
and in the size of the cache: with 64, 1.6 % of an epoch."""
EDGE, LEVELS = 2.0, 16
"""Blocks over which an LRU cache turns from hits to misses, and in how many steps."""
NEARLY = 0.002
"""Share of an epoch by which blocks that just fit may exceed a cache that only fills up: their number is chosen so."""
TIED = 1e-9
"""Share of a block within which two jobs are at the same sample."""


def simulate(
    jobs: Sequence[JobRates],
    slowdowns: Slowdowns,
    cache: SharedCache,
    offsets: Array,
    *,
    count_start_up: bool = False,
) -> Outcome:
    """What fluid.run returns, for jobs with one order; `offsets` in seconds is [jobs, lanes].

    Raises IngestError for jobs that share only part of their data, since one order needs one data set.
    """
    run = Simulation(jobs, slowdowns, cache, offsets, count_start_up)
    while run.going:
        run.settle()
        run.advance()
    finish = run.finish + np.array([[job.end_s] for job in jobs])
    return Outcome(finish.T, finish.max(axis=0), run.first_epoch.T, run.stall.T)


class _Blocks:
    """The cache, in blocks of samples.

    A group is a set of jobs that read the same data; each group has `per_epoch` blocks, the columns of the tables.

    group     [jobs] the first job of each job's group
    initial   [jobs] share of a job's samples that are cached before the start
    weight    [blocks] samples of a block
    entered   [lanes, blocks] event number at which a job last began to read the block; 0: not in the cache
    """

    def __init__(self, parts: Parts, cache: SharedCache, epochs: float, lanes: int) -> None:
        total = float(parts.size.sum())
        fits = cache.capacity is None or cache.capacity >= total * (1 - 1e-12)
        self.capacity = np.inf if fits or cache.capacity is None else float(cache.capacity)
        self.evicts = cache.policy == "lru"
        parts = limited(parts, self.capacity)
        before = float(parts.size @ parts.cached)
        filling = 1.0 if fits else (self.capacity - before) / (total - before)
        self.per_epoch = _division(filling, cache, epochs)
        self.group = _groups(parts)
        self.initial = parts.share @ parts.cached
        sizes = [float(parts.size[parts.share[first] > 0].sum()) for first in np.unique(self.group)]
        self._first_column = np.searchsorted(np.unique(self.group), self.group) * self.per_epoch
        self.weight = np.repeat(np.array(sizes) / self.per_epoch, self.per_epoch)
        self._total = total
        self.entered = np.zeros((lanes, len(self.weight)))
        self._unread = np.zeros_like(self.entered)
        self._occupied = np.full(lanes, before)
        self._clock = 0.0

    def column(self, done: Leaders) -> Leaders:
        """The block that each job is in after `done` blocks."""
        return done % self.per_epoch + self._first_column[:, None]

    @property
    def full(self) -> Flags:
        """Lanes in which everything cached before the start has been evicted."""
        if not self.evicts or np.isinf(self.capacity):
            return np.zeros(len(self.entered), dtype=bool)
        return (self.entered > 0) @ self.weight >= self.capacity * (1 - 1e-9)

    def lost(self, lanes: Leaders, column: Leaders, unread: Array) -> Array:
        """Share of a block that is not in the cache, [lanes].

        With LRU a block is cached if the samples read since it was entered fit in the cache. The share rises from 0 to
        1 over EDGE blocks around that capacity, because prefetching averages hits and misses. A job at this distance
        misses some samples, which slows the job ahead and can keep the distance constant.

        unread   [lanes] samples of the other jobs' current blocks that these have not read yet
        """
        entered = self.entered[lanes, column]
        if not self.evicts or np.isinf(self.capacity):
            return np.where(entered > 0, 0.0, 1.0)
        weight = self.weight[column]
        since = (self.entered[lanes] > entered[:, None]) @ self.weight + weight
        since += self._unread[lanes, column] - unread
        # Narrower where nearly all fits: a job that has read all else since then misses the whole block.
        band = np.minimum(EDGE * weight, 2.0 * (self._total - self.capacity))
        beyond = (since - self.capacity) / band + 0.5
        return np.where(entered > 0, np.clip(np.round(beyond * LEVELS) / LEVELS, 0.0, 1.0), 1.0)

    def enter(self, lanes: Leaders, column: Leaders, unread: Array, share: float) -> None:
        """A job begins to read a block, `share` of which was not cached before the start; `unread` as in lost()."""
        self._clock += 1.0
        if not self.evicts:
            more = self.weight[column] * share * (self.entered[lanes, column] == 0)
            room = self._occupied[lanes] + more <= self.capacity + NEARLY * self._total
            self._occupied[lanes] += np.where(room, more, 0.0)
            lanes, column, unread = lanes[room], column[room], unread[room]
        if self.capacity > 0:
            self.entered[lanes, column] = self._clock
            self._unread[lanes, column] = unread


class Simulation:
    """The state of all lanes, advanced from event to event. Arrays are [jobs, lanes].

    done, part   blocks that a job has finished, and the share it has read of its current one
    lost         share of the rest of a job's current block that is not cached
    reads        whether a job reads the rest of its block itself although another job reads it too
    target       the nearest job ahead in the same block; the job itself if there is none
    """

    def __init__(
        self, jobs: Sequence[JobRates], slowdowns: Slowdowns, cache: SharedCache, offsets: Array, count_start_up: bool
    ) -> None:
        shape = offsets.shape
        self.blocks = _Blocks(Parts.of(jobs), cache, sum(float(job.epochs) for job in jobs), shape[1])
        self._rates = _Rates(jobs, slowdowns, self.blocks.per_epoch, shape[1])
        self._coalesces = cache.coalesces
        same = (self.blocks.group[:, None] == self.blocks.group) & ~np.eye(len(jobs), dtype=bool)
        self._pairs = [(int(i), int(j)) for i, j in np.argwhere(same)]
        # Of jobs at the same sample, the one that takes the least time for a missed sample reads it.
        self._quickest = [int(i) for i in np.argsort([job.time_s(1.0) for job in jobs], kind="stable")]
        self._launch = offsets if count_start_up else None
        self._begin = offsets + np.array([[job.start_up_s] for job in jobs])
        self._goal = np.array([[float(job.epochs)] for job in jobs]) * self.blocks.per_epoch
        self._lanes = np.arange(shape[1])
        self._self = np.arange(len(jobs))[:, None] + np.zeros(shape, dtype=int)
        self.time = np.zeros(shape[1])
        self._done, self._part = np.zeros(shape, dtype=int), np.zeros(shape)
        self._enters = np.ones(shape, dtype=bool)
        self._lost, self._reads = np.zeros(shape), np.zeros(shape, dtype=bool)
        self.finish, self.first_epoch, self.stall = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape)

    @property
    def going(self) -> bool:
        """Whether any job of any lane has not ended."""
        return bool(np.isnan(self.finish).any())

    @property
    def progress(self) -> Array:
        """Epochs done."""
        return np.asarray((self._done + self._part) / self.blocks.per_epoch)

    def settle(self) -> Array:
        """Compute and return the share of misses of each job until the next event; compute the rates too."""
        self._running = (self._begin <= self.time) & np.isnan(self.finish)
        # A job that has ended stays in the block that it read in part.
        self._present = self._running | (self._part > 0)
        self._column = self.blocks.column(self._done)
        self._enter()
        self._target = self._nearest_ahead()
        stored = self.blocks.entered[self._lanes, self._column] > 0
        follows = (self._target != self._self) & stored & ~self._reads
        misses = self._running & (self._lost > 0) & ~follows
        leader = self._self.copy()
        for place, i in enumerate(self._quickest):
            for j in self._quickest[:place]:
                if (i, j) in self._pairs:
                    tied = misses[i] & misses[j] & (self._column[i] == self._column[j])
                    tied &= np.abs(self._part[i] - self._part[j]) <= TIED
                    if self._coalesces:
                        leader[i] = np.where(tied & (leader[i] == i), leader[j], leader[i])
                    else:
                        self._reads[[[i], [j]]] |= tied
        miss = np.where(misses & (leader == self._self), self._lost, 0.0)
        if self.blocks.initial.any():
            miss *= 1.0 - self.blocks.initial[:, None] * ~self.blocks.full
        starting = np.zeros_like(misses)
        if self._launch is not None:
            starting = (self._launch <= self.time) & (self._begin > self.time)
        self._rate, self._waiting = self._rates(miss, self._running, starting, leader)
        return miss

    def _enter(self) -> None:
        """Look up the blocks that jobs begin. A block that another job is still reading is not cached yet."""
        enters = self._enters & self._running
        if not enters.any():
            return
        lanes_of = [np.flatnonzero(row) for row in enters]
        inside = self._running & (self._part > 0)
        rest = np.where(inside, (1.0 - self._part) * self.blocks.weight[self._column], 0.0)
        unread = rest.sum(axis=0) - rest
        for i, lanes in enumerate(lanes_of):
            self._lost[i, lanes] = self.blocks.lost(lanes, self._column[i, lanes], unread[i, lanes])
            self._reads[i, lanes] = False
        for i, j in self._pairs:
            inside = self._present[j] & ~enters[j] & (self._column[j] == self._column[i])
            self._lost[i] = np.where(enters[i] & inside, self._lost[j], self._lost[i])
        for i, lanes in enumerate(lanes_of):
            share = 1.0 - float(self.blocks.initial[i])
            self.blocks.enter(lanes, self._column[i, lanes], unread[i, lanes], share)
        self._enters &= ~enters

    def _nearest_ahead(self) -> Leaders:
        """For each job in a block that is not cached, the nearest job ahead in that block; else the job itself."""
        target, nearest = self._self.copy(), np.full(self._part.shape, np.inf)
        for i, j in self._pairs:
            beside = self._running[i] & (self._lost[i] > 0) & self._present[j] & (self._lost[j] > 0)
            beside &= self._column[i] == self._column[j]
            closer = beside & (self._part[j] > self._part[i] + TIED) & (self._part[j] < nearest[i])
            target[i], nearest[i] = np.where(closer, j, target[i]), np.where(closer, self._part[j], nearest[i])
        return target

    def advance(self) -> None:
        """Advance each lane to its next event: a launch, the end of a block, or one job reaching another."""
        moments = self._begin if self._launch is None else np.concatenate([self._begin, self._launch])
        start = np.where(moments > self.time, moments, np.inf).min(axis=0)
        stop = np.minimum(self._goal - self._done, 1.0)
        gap = self._part[self._target, self._lanes] - self._part
        closing = self._rate - self._rate[self._target, self._lanes]
        with np.errstate(divide="ignore", invalid="ignore"):
            block = np.where(self._running, (stop - self._part) / self._rate, np.inf)
            meeting = np.where((gap > 0) & (closing > 0), gap / closing, np.inf)
            dt = np.minimum(start - self.time, np.minimum(block, meeting).min(axis=0))
        dt = np.where(np.isfinite(dt), dt, 0.0)  # a lane where all is over
        started = dt >= (start - self.time) * (1 - 1e-12)
        self.time = np.where(started, start, self.time + dt)
        self.stall += self._running * dt * self._waiting
        part = self._part + self._rate * dt
        ended = self._running & (part >= stop - TIED)
        # A job that has reached another is at exactly the same sample.
        there = part[self._target, self._lanes]
        self._part = np.where(np.abs(there - part) <= TIED, there, part)
        self._end_blocks(ended, stop)

    def _end_blocks(self, ended: Flags, stop: Array) -> None:
        """Record the jobs that `ended` a block, or the last share `stop` of their last block."""
        whole = ended & (stop >= 1)
        stored = self.blocks.entered[self._lanes, self._column] > 0
        self._part = np.where(whole, 0.0, np.where(ended, stop, self._part))
        self._done, self._enters = self._done + whole, self._enters | whole
        for i, j in self._pairs:
            read = whole[j] & ~whole[i] & stored[i] & (self._column[i] == self._column[j])
            self._lost[i] = np.where(read, 0.0, self._lost[i])
        reached = ended & (self._done + self._part >= np.minimum(self._goal, self.blocks.per_epoch) - TIED)
        self.first_epoch = np.where(reached & np.isnan(self.first_epoch), self.time - self._begin, self.first_epoch)
        self.finish = np.where(ended & (self._done + self._part >= self._goal - TIED), self.time, self.finish)


class _Rates:
    """Blocks per second and share of time waiting for data, [jobs, lanes], for given states of all jobs.

    A state is a job's share of misses, whether it runs or starts up, and the job it cannot overtake. Solutions of
    contention.py are cached by the states of all jobs of a lane.
    """

    def __init__(self, jobs: Sequence[JobRates], slowdowns: Slowdowns, per_epoch: int, lanes: int) -> None:
        self._jobs, self._slowdowns = jobs, slowdowns
        self._samples = np.array([[job.samples / per_epoch] for job in jobs])
        self._known: dict[bytes, Array] = {}
        self._state = np.full((3 * len(jobs), lanes), np.nan)
        self._now = np.zeros((2, len(jobs), lanes))

    def __call__(self, miss: Array, running: Flags, starting: Flags, leader: Leaders) -> tuple[Array, Array]:
        state = np.concatenate([miss, running + 2.0 * starting, leader])
        changed = np.flatnonzero((state != self._state).any(axis=0))
        if len(changed):
            keys = [row.tobytes() for row in state[:, changed].T.copy()]
            new = {key: int(lane) for key, lane in zip(keys, changed, strict=True) if key not in self._known}
            if new:
                self._known.update(
                    zip(new, self._solve(list(new.values()), miss, running, starting, leader), strict=True)
                )
            self._now[:, :, changed] = np.array([self._known[key] for key in keys]).transpose(1, 2, 0)
            self._state = state
        return self._now[0], self._now[1]

    def _solve(self, lanes: list[int], miss: Array, running: Flags, starting: Flags, leader: Leaders) -> Array:
        """[lanes, 2, jobs]"""
        at = np.array(lanes)
        contention = Contention(self._jobs, self._slowdowns)
        time, busy, _ = contention.solve(miss[:, at], running[:, at], starting[:, at], leader=leader[:, at])
        return np.stack([running[:, at] / (time * self._samples), 1.0 - busy]).transpose(2, 0, 1)


def _division(filling: float, cache: SharedCache, epochs: float) -> int:
    """Number of blocks of an epoch. `filling`: share of an epoch that fills the cache; 1 if all data fit.

    Evictions, and jobs that read the same block each for itself, need blocks for resolution in time. A cache that only
    fills up needs a number of blocks of which a nearly whole number fits.
    """
    if filling == 1 and cache.coalesces:
        return 1
    if filling == 1 or cache.policy == "lru":
        return int(np.clip(BLOCKS / epochs, FEWEST, MOST))
    fewest = 4 if cache.coalesces else FEWEST
    return next((n for n in range(fewest, 4 * MOST) if abs(n * filling - round(n * filling)) < NEARLY * n), MOST)


def _groups(parts: Parts) -> Leaders:
    """For each job, the first job that reads the same data. Raises IngestError if jobs share part of their data."""
    reads = parts.share > 0
    for i, j in np.argwhere(reads.astype(float) @ reads.T > 0):
        if (reads[i] != reads[j]).any():
            raise IngestError(
                "Jobs that read partly the same data have same_order: an order of other data is another order, so "
                "set same_order to false."
            )
    return np.array([int(np.flatnonzero((reads == row).all(axis=1))[0]) for row in reads])
