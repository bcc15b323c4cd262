"""How jobs that share a node run beside each other: a fluid model, many start offsets at once.

A job is a flow through its epochs: it advances at 1 / (time per sample x samples) epochs a second, where the time per
sample depends on how many of its next samples are missing from the cache (misses.py) and on what the other jobs do
meanwhile (contention.py). This is the performance model of cache-aware staggering (HiPC 2023) in the form of
SYSTEMS.md, section 5, for any number of jobs, overlapping data and a cache of stated capacity.

Time goes in steps of the midpoint method, second order, that end exactly where a rate may jump: at starts, ends of
epochs, and when the cache is full. (The midpoint, since a small LRU cache misses most at the very end of an epoch.)
Steps are as short as rates change fast (pace.py). While no share of misses changes, one step goes all the way to the
next moment of a jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.model.contention import Contention, Flags
from precision_time.ingest.model.misses import Fits, Lru, NoEviction
from precision_time.ingest.model.order import Ordered, OrderedLru
from precision_time.ingest.model.pace import CHANGE, CHANGE_LRU, Pace
from precision_time.ingest.model.parts import Parts
from precision_time.ingest.model.rates import Array, JobRates, SharedCache, Together

STEP = 1 / 8
"""Share of an epoch in one step, at most, while shares of misses change."""
NO_STEP, EDGE_STEP, PATIENCE = 1e-5, 1 / 64, 8
"""Share of an epoch in a step that is hardly one, and in the one taken instead after several such."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What happened over time for one vector of offsets; rows are moments.

    times_s   [T] seconds
    progress  [T, jobs] epochs done
    miss      [T, jobs] share of misses from this moment on; 0 where a job does not read
    held      [T] share of all the data that is in the cache
    """

    times_s: Array
    progress: Array
    miss: Array
    held: Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """When each job ends, for each vector of offsets.

    finish_s        [lanes, jobs] from time 0 to the end of the process
    makespan_s      [lanes] from time 0 to the last of them
    first_epoch_s   [lanes, jobs] from a job's first read to the end of its first epoch
    stall_s         [lanes, jobs] time that a job waited for its data: what it ran minus what it prepared or trained
    trajectory      where it was asked for
    """

    finish_s: Array
    makespan_s: Array
    first_epoch_s: Array
    stall_s: Array
    trajectory: Trajectory | None = None


def run(
    jobs: Sequence[JobRates],
    together: Together,
    cache: SharedCache,
    offsets_s: Array | Sequence[Sequence[float]],
    *,
    start_up_presses: bool = False,
    step: float = STEP,
    trajectory: bool = False,
) -> Outcome:
    """Run `jobs`, each launched at its offset; `offsets_s` is [lanes, jobs], every row a case of its own.

    start_up_presses  a job that starts up slows the others as one does that prepares and trains
    trajectory        tell what happened; for one row only
    """
    offsets = _checked(jobs, offsets_s, trajectory)
    lanes = offsets.shape[1]
    parts = Parts.of(jobs)
    cached = _misses(parts, cache, together.same_order, lanes)
    contention = Contention(jobs, together)
    goal = np.array([[float(job.epochs)] for job in jobs]) * np.ones(lanes)
    samples = np.array([[float(job.samples)] for job in jobs])
    begin = offsets + np.array([[job.start_up_s] for job in jobs])
    x, n, t = np.zeros_like(begin), np.zeros_like(begin), np.zeros(lanes)
    finish, first, stall = np.full_like(begin, np.nan), np.full_like(begin, np.nan), np.zeros_like(begin)
    stuck, pace = (
        np.zeros(lanes, dtype=int),
        Pace(step, CHANGE_LRU if isinstance(cached, Lru) else CHANGE, len(jobs), lanes),
    )
    cached.accept(x, n)
    # Otherwise all later epochs of a job are one step.
    lone = _Lone(lanes) if isinstance(cached, Lru | OrderedLru) and not trajectory else None
    rows: list[tuple[Array, Array, Array, Array]] = []

    while np.isnan(finish).any():
        running = (begin <= t) & np.isnan(finish)
        pressing = (offsets <= t) & (begin > t) if start_up_presses else None
        miss, leader = cached.settle(cached.share(x, n), x, n, running, contention, pressing)
        changing = cached.changing(x, n, running)
        time, busy, reading = contention.solve(miss, running, pressing, changing, leader)
        rate = running / (time * samples)
        if trajectory:
            rows.append((t.copy(), x.copy(), np.where(running, miss, 0.0), cached.held(x, n)))

        ends = cached.ends(n, goal, x)
        starts = _following(t, begin, offsets if start_up_presses else None)
        with np.errstate(divide="ignore", invalid="ignore"):
            jump = np.minimum(starts - t, np.where(running, (ends - x) / rate, np.inf).min(axis=0))
            dt = np.where(changing, np.minimum(jump, pace.longest(rate)), jump)
            dt = np.minimum(dt, cached.meets(x, n, rate))
            dt = np.where(np.isfinite(dt), dt, 0.0)  # a lane where all is over
            if changing.any():
                middle = np.minimum(pace.middle(x, rate, dt), ends)
                halfway, leader = cached.settle(cached.share(middle, n), middle, n, running, contention, pressing)
                time, busy, later = contention.solve(halfway, running, pressing, leader=leader)
                before, rate = rate, running / (time * samples)
                pace.adapt(dt, before, rate, np.abs(later - reading), changing)
                jump = np.minimum(starts - t, np.where(running, (ends - x) / rate, np.inf).min(axis=0))
                dt = np.minimum(dt, jump)
            share = cached.until(x, np.minimum(cached.keep(x, x + rate * dt), ends))
            dt = dt * share
            # A job on the edge of what the cache still holds may find and lose it at one and the same moment, for ever.
            fastest = rate.max(axis=0)
            stuck = np.where(dt * fastest < NO_STEP, stuck + 1, np.maximum(stuck - 1, 0))
            dt = np.where((stuck > PATIENCE) & (fastest > 0), np.maximum(dt, np.minimum(jump, EDGE_STEP / fastest)), dt)
            here = running & (ends - x <= rate * dt + 1e-12)
            x = np.where(here, ends, np.minimum(cached.keep(x, x + rate * dt), ends))

        # Onto the start exactly, so that the comparisons above hold.
        started = dt >= (starts - t) * (1 - 1e-12)
        t = np.where(started, starts, t + dt)
        pace.accept(dt, started | (share < 1) | here.any(axis=0))
        stall += np.where(running, dt * (1.0 - busy), 0.0)
        if here.any():
            first = np.where(here & (n < 1) & (x >= np.minimum(goal, 1.0)), t - begin, first)
            finish = np.where(here & (x >= goal), t, finish)
            n = np.where(here & (x >= n + 1.0), np.floor(x), n)
        cached.accept(x, n)
        if lone is not None:
            going = running & np.isnan(finish)
            lasting, t = lone.skip(t, going, here, (begin > t).any(axis=0), goal - x, stall.sum(axis=0))
            goal, stall = goal - lasting, stall + lasting * lone.stall

    finish = finish + np.array([[job.end_s] for job in jobs])
    told = None
    if trajectory:
        rows.append((t, x, np.zeros_like(x), cached.held(x, n)))
        told = Trajectory(
            np.array([row[0][0] for row in rows]),
            np.array([row[1][:, 0] for row in rows]),
            np.array([row[2][:, 0] for row in rows]),
            np.array([row[3][0] for row in rows]),
        )
    return Outcome(finish.T, finish.max(axis=0), first.T, stall.T, told)


class _Lone:
    """Skips epochs of a job that is alone with an LRU cache: after two, each takes as long as the one before.

    By then what others have left in the cache is gone, or the job's own data fit beside it.
    """

    def __init__(self, lanes: int) -> None:
        self._ends = np.zeros(lanes)
        self._since, self._stalled = np.zeros(lanes), np.zeros(lanes)
        self.stall = np.zeros(lanes)

    def skip(
        self, t: Array, going: Flags, here: Flags, others: Flags, left: Array, stalled: Array
    ) -> tuple[Array, Array]:
        """Whole epochs that are skipped, [jobs, lanes], and the time after them; `stall` is the wait in each."""
        alone = (going.sum(axis=0) == 1) & ~others
        if not alone.any():
            self._ends[:] = 0.0
            return np.zeros(going.shape), t
        at_end = alone & (here & going).any(axis=0)
        self._ends = np.where(alone, self._ends + at_end, 0.0)
        ripe = at_end & (self._ends >= 4)
        epochs = np.where(ripe & going, np.maximum(np.ceil(left - 1e-9) - 1.0, 0.0), 0.0)
        length, self.stall = t - self._since, stalled - self._stalled
        self._since = np.where(at_end, t, self._since)
        self._stalled = np.where(at_end, stalled, self._stalled)
        with np.errstate(invalid="ignore"):
            return epochs, np.where(ripe, t + epochs.sum(axis=0) * length, t)


def _misses(parts: Parts, cache: SharedCache, same_order: bool, lanes: int) -> Fits:
    """How misses come about with this cache, in one order or in independent ones."""
    capacity = cache.capacity
    if capacity is None or capacity >= parts.size.sum() * (1 - 1e-12):
        return Ordered(parts, None, lanes, cache.coalesces) if same_order else Fits(parts)
    if cache.policy == "no-eviction":
        ordered = Ordered(parts, capacity, lanes, cache.coalesces) if same_order else None
        return ordered or NoEviction(parts, capacity, lanes)
    return OrderedLru(parts, capacity, lanes, cache.coalesces) if same_order else Lru(parts, capacity, lanes)


def _following(t: Array, begin: Array, offsets: Array | None) -> Array:
    """The next moment at which a job is launched or begins to read, [lanes]; infinite if none does."""
    moments = begin if offsets is None else np.concatenate([begin, offsets])
    return np.asarray(np.where(moments > t, moments, np.inf).min(axis=0))


def _checked(jobs: Sequence[JobRates], offsets_s: Array | Sequence[Sequence[float]], trajectory: bool) -> Array:
    offsets = np.asarray(offsets_s, dtype=float)
    if not jobs or offsets.ndim != 2 or offsets.shape[1] != len(jobs) or not len(offsets):
        raise IngestError(
            f"offsets_s has the shape {offsets.shape} for {len(jobs)} jobs: give one row for each case and one column "
            "for each job."
        )
    if not np.isfinite(offsets).all() or (offsets < 0).any():
        raise IngestError("offsets_s holds a negative or infinite number: give seconds from 0 on.")
    if trajectory and len(offsets) != 1:
        raise IngestError(f"A trajectory of {len(offsets)} rows of offsets was asked for: give one row.")
    return np.ascontiguousarray(offsets.T)
