"""The share of a job's next samples that are not in the cache, from the progress of all jobs.

Progress x counts epochs; n is the epoch a job is in, and x - n lies in [0, 1]. Every job reads each epoch in a new
random order, so that two jobs touch a sample independently. Arrays are [jobs, lanes].
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from precision_time.ingest.model.contention import Flags
from precision_time.ingest.model.history import History
from precision_time.ingest.model.parts import Parts
from precision_time.ingest.model.rates import Array


class AllCached:
    """The cache holds all data: a job misses, in its first epoch, the samples that no job has read before.

    A sample that i has not read is missed if no other job has read it: m_i = product over the others of (1 - x_j), in
    each part of the data; from the second epoch on nothing is missed.
    With phi = 1 - product over all of (1 - x_j), the share of the data in the cache, this is (1 - phi) / (1 - x_i).
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        readers = [np.flatnonzero(parts.share[:, p]) for p in range(len(parts.names))]
        self.readers: list[list[int]] = [[int(j) for j in those] for those in readers]
        reads_part = (parts.share > 0).astype(float)
        self._shares = ((reads_part @ reads_part.T) > 0) & ~np.eye(len(reads_part), dtype=bool)
        self._sharing = [(int(i), int(j)) for i, j in np.argwhere(np.triu(self._shares))]
        self._all = float(parts.size.sum())

    def share(self, x: Array, n: Array) -> Array:
        """Share of misses among the samples that each job reads next."""
        unread = 1.0 - np.minimum(x, 1.0)
        return np.where(n < 1, self.of_others(unread), 0.0)

    def of_others(self, untouched: Array, cached: Array | None = None) -> Array:
        """For each job, the share of its data that no other has touched and that was not cached, [jobs, lanes].

        untouched [jobs, lanes]: chance that j has not touched a sample; cached [parts] or [parts, lanes].
        """
        cached = self.parts.cached if cached is None else cached
        miss = np.zeros_like(untouched)
        for p, readers in enumerate(self.readers):
            for i in readers:
                others = prod((untouched[j] for j in readers if j != i), start=float(self.parts.share[i, p]))
                miss[i] += others * (1.0 - cached[p])
        return miss

    def touched(self, untouched: Array, cached: Array | None = None) -> Array:
        """Samples that any job has read, or that were cached at the start, [lanes]."""
        total = np.full(untouched.shape[1:], self._all)
        for p, readers in enumerate(self.readers):
            left = prod(untouched[j] for j in readers) * self.parts.size[p]
            total -= left if cached is None else left * (1.0 - cached[p])
        return total

    def changing(self, x: Array, n: Array, running: Flags) -> Flags:
        """Lanes in which some share of misses changes as the jobs go on."""
        first = running & (x < 1)
        both = np.zeros(x.shape[1], dtype=bool)
        for i, j in self._sharing:
            both |= first[i] & first[j]
        return both

    def ends(self, n: Array, goal: Array, x: Array) -> Array:
        """Progress at which a job's share of misses may jump, or at which it ends."""
        return np.where(n < 1, np.minimum(goal, 1.0), goal)

    def until(self, x: Array, ahead: Array) -> Array:
        """Share of the step from x to `ahead` at which the cache becomes full, at most 1, [lanes]."""
        return np.ones(x.shape[1])

    def accept(self, x: Array, n: Array) -> None:
        """A step ended with progress x."""


class NoEviction(AllCached):
    """The cache fills once and then keeps its content (CoorDL): the samples read before it was full.

    `frozen` is the progress of each job at that time; a sample is cached if any job had read it by then.
    """

    def __init__(self, parts: Parts, capacity: float, lanes: int) -> None:
        super().__init__(limited(parts, capacity))
        self._capacity = capacity
        self._frozen = np.full((len(parts.share), lanes), np.inf)

    def share(self, x: Array, n: Array) -> Array:
        unread = 1.0 - np.minimum(np.minimum(x, self._frozen), 1.0)
        return self.of_others(unread) * np.where(n < 1, 1.0, unread)

    def changing(self, x: Array, n: Array, running: Flags) -> Flags:
        return np.asarray(super().changing(x, n, running) & np.isinf(self._frozen[0]))

    def until(self, x: Array, ahead: Array) -> Array:
        full = ~np.isinf(self._frozen[0])
        return np.where(full, 1.0, crossing(lambda y: self._occupied(y) - self._capacity, x, ahead, ~full))

    def accept(self, x: Array, n: Array) -> None:
        now = np.isinf(self._frozen[0]) & (self._occupied(x) >= self._capacity * (1 - 1e-9))
        self._frozen = np.where(now, x, self._frozen)

    def _occupied(self, x: Array) -> Array:
        return self.touched(1.0 - np.minimum(x, 1.0), self.parts.cached)


EDGE = 1e-7
"""Epochs within which a crossing is found."""
AHEAD = np.arange(4)[:, None]
"""Rows of the history that are examined at once for the start of the window."""


class Lru(AllCached):
    """A miss evicts the least recently used sample, so the cache holds the samples touched in a window of time.

    The window starts at the time tau since which as many distinct samples were touched as the cache holds (the
    characteristic time of Che et al., 2002, here a function of time). For progress x = n + a now and n' + b at tau, j
    has not touched a sample since with the chance 1 - (a - b) in one epoch, b (1 - a) over the end of one, else 0. A
    job misses what it has not yet read in this epoch, if it did not read it in the window in the epoch before (chance
    1, b, 0) and no other did. For one job this is cache.lru_hits.
    """

    def __init__(self, parts: Parts, capacity: float, lanes: int) -> None:
        super().__init__(limited(parts, capacity))
        self._capacity = capacity
        self._history = History(len(parts.share), lanes)
        self._opens, self._lanes = np.zeros(lanes, dtype=int), np.arange(lanes)
        self._filled = np.zeros(lanes, dtype=bool)
        self._last: tuple[Array, Array, Array, Flags, Array, Array] | None = None

    def share(self, x: Array, n: Array) -> Array:
        _, full, untouched, own_unread = self.window(x, n)
        return own_unread * self.of_others(untouched, self._left_of_the_first(untouched, full))

    def changing(self, x: Array, n: Array, running: Flags) -> Flags:
        full = self.window(x, n)[1].copy()
        self._filled = full.copy()
        if self.parts.cached.any():
            full[:] = True
        return super().changing(x, n, running) | full & running.any(axis=0)

    def ends(self, n: Array, goal: Array, x: Array) -> Array:
        return np.minimum(goal, n + 1.0)

    def until(self, x: Array, ahead: Array) -> Array:
        if self._filled.all():
            return np.ones(x.shape[1])
        zero = np.zeros_like(x)
        n = np.floor(x)

        def over(y: Array, cached: Array | None = None) -> Array:
            return self.touched(_untouched(zero, y, n), cached) - self._capacity

        share = crossing(over, x, ahead, ~self._filled)
        if not self.parts.cached.any():
            return share
        # Samples cached before the start are evicted from the time on at which the cache is full.
        room = over(x, self.parts.cached) < -1e-9 * self._capacity
        return np.minimum(share, crossing(lambda y: over(y, self.parts.cached), x, ahead, room))

    def accept(self, x: Array, n: Array) -> None:
        self._history.accept(x)
        self._last = None

    def window(self, x: Array, n: Array) -> tuple[Array, Flags, Array, Array]:
        """Progress of each job at the start of the window (0 before the cache is full); whether it is full; _untouched.

        Between two rows of the history each chance is linear in the position between them, so the number of samples
        touched is a polynomial of that position.
        """
        if self._last is not None and self._last[0] is x and self._last[1] is n:
            return self._last[2:]
        history, capacity = self._history, float(self._capacity)
        history.now(x)
        while True:
            rows = np.minimum(self._opens + AHEAD, history.rows)
            then = history.at(rows)
            over = self.touched(_untouched(then, x[:, None], n[:, None])) - capacity
            passed = ((over[1:] >= 0) & (rows[1:] < history.rows)).sum(axis=0)
            self._opens += passed
            if passed.max() < len(AHEAD) - 1:
                break
        low, high = then[:, passed, self._lanes], then[:, passed + 1, self._lanes]
        at_low, at_high = over[passed, self._lanes], over[passed + 1, self._lanes]
        line = _Segment(low, high, x, n)
        # The window may have been computed for a point half a step ahead.
        full = (self._opens > 0) | (at_low >= -1e-9 * capacity)
        # Linear interpolation, then one Newton step.
        share = np.clip(at_low / np.maximum(at_low - at_high, 1e-300), 0.0, 1.0) * full
        if capacity > 0 and full.any():
            over, slope = self._slope(line.untouched(share), line.slope)
            share = np.clip(share - over * full / np.minimum(slope, -1e-300), 0.0, 1.0)
        self._last = (x, n, low + (high - low) * share, full, line.untouched(share), line.own_unread(share))
        return self._last[2:]

    def _slope(self, untouched: Array, slope: Array) -> tuple[Array, Array]:
        """Samples touched beyond what the cache holds, and how fast they change with the chances `untouched`."""
        over = np.full(untouched.shape[1], self._all - float(self._capacity))
        change = np.zeros(untouched.shape[1])
        for size, readers in zip(self.parts.size, self.readers, strict=True):
            left, rate = untouched[readers[0]], slope[readers[0]]
            for j in readers[1:]:
                left, rate = left * untouched[j], rate * untouched[j] + left * slope[j]
            over -= size * left
            change -= size * rate
        return over, change

    def _left_of_the_first(self, untouched: Array, full: Flags) -> Array:
        """Share of each part's untouched samples that are still cached from before the start."""
        cached = self.parts.cached[:, None]
        if not cached.any():
            return cached
        weight_kept = np.zeros(untouched.shape[1])
        for p, readers in enumerate(self.readers):
            weight_kept += self.parts.size[p] * cached[p] * prod((untouched[j] for j in readers), start=1.0)
        room = np.where(full, 0.0, self._capacity - self.touched(untouched))
        return np.asarray(cached * np.clip(room / np.maximum(weight_kept, 1e-300), 0.0, 1.0))


class _Segment:
    """_untouched() between `low` (0) and `high` (1), two rows of the history within one epoch of each job."""

    def __init__(self, low: Array, high: Array, x: Array, n: Array) -> None:
        before = np.minimum(np.floor(low), n)
        ends, rest = n - before, 1.0 - (x - n)
        self._begun, self._way = low - before, high - low
        self._same, self._next = (ends == 0).astype(float), (ends == 1).astype(float)
        grows = self._same + self._next * rest
        self._base = self._same * rest + grows * self._begun
        self.slope = grows * self._way

    def untouched(self, share: Array | float) -> Array:
        return np.asarray(self._base + self.slope * share)

    def own_unread(self, share: Array) -> Array:
        return np.asarray(self._same + self._next * (self._begun + self._way * share))


def _untouched(then: Array, x: Array, n: Array) -> Array:
    """Probability that a job has not read a sample since its progress was `then`."""
    before = np.minimum(np.floor(then), n)
    ends, rest = n - before, 1.0 - (x - n)
    same = ends == 0
    return np.asarray(same * rest + (same + (ends == 1) * rest) * (then - before))


def crossing(value: Callable[[Array], Array], x: Array, ahead: Array, lanes: Flags, rounds: int = 12) -> Array:
    """Share of the step from x to `ahead` at which `value` rises to 0, in `lanes`; 1 where it does not.

    Regula falsi with the Illinois rule, since the values are nearly linear over a step.
    """
    way, low = ahead - x, np.zeros(x.shape[1])
    at_low, at_high = value(x), value(ahead)
    inside = lanes & (at_high > 0) & (at_low <= 0)
    high = np.ones(x.shape[1])
    if not inside.any():
        return high
    share, last = high, np.zeros(x.shape[1])
    near = 1e-9 * (at_high - at_low)
    for _ in range(rounds):
        straight = high - at_high * (high - low) / np.maximum(at_high - at_low, 1e-300)
        share = np.where(inside, straight, 1.0)
        at = value(x + way * share)
        over = at > -near
        side = np.where(over, 1.0, -1.0)
        weight_kept = np.where(side == last, 0.5, 1.0)
        at_low, last = np.where(over, at_low * weight_kept, at), side
        at_high = np.where(over, np.maximum(at, 0.0), at_high * weight_kept)
        low, high = np.where(over, low, share), np.where(over, share, high)
        edge = np.minimum(EDGE / np.maximum(way.max(axis=0), EDGE), 0.5)
        if (~inside | (np.abs(at) < near) | (high - low <= 2.0 * edge)).all():
            break
    return share


def limited(parts: Parts, capacity: float) -> Parts:
    """The parts, with the content at the start limited to the capacity of the cache."""
    held = float(parts.size @ parts.cached)
    scale = min(1.0, capacity / held) if held else 1.0
    return Parts(parts.names, parts.share, parts.size, parts.cached * scale)
