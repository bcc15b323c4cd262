"""Misses of jobs that read the same samples in one and the same order, in every epoch (the same seed, or no shuffling).

A job behind another finds what that one has read; the one in front misses all. Jobs side by side share the misses so
that they stay side by side, if the faster cannot get away from the slower although it then reads alone. Arrays are as
in misses.py, whose classes these are kinds of.
"""

from __future__ import annotations

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.contention import Contention, Flags
from precision_time.ingest.misses import Fits, Lru, crossing, limited
from precision_time.ingest.parts import Parts
from precision_time.ingest.rates import Array

NEAR = 1e-9
"""Epochs within which two jobs are side by side."""


class Ordered(Fits):
    """The cache holds all, or fills once and stays (no-eviction): it holds the samples up to `limit`, [jobs, lanes]."""

    def __init__(self, parts: Parts, capacity: float | None, lanes: int) -> None:
        super().__init__(limited(parts, np.inf if capacity is None else capacity))
        self._capacity = np.inf if capacity is None else capacity
        self._group = self._groups()
        self._same = self._group[:, None] == self._group
        self._size = np.array([float(parts.size[row > 0].sum()) for row in parts.share])
        self._cached = self.parts.share @ self.parts.cached
        self._limit = np.full((len(parts.share), lanes), np.inf)
        self._bound: list[Flags] = []

    def share(self, x: Array, n: Array) -> Array:
        held = np.minimum(self._front(x), self._limit)
        beyond = (x - n >= held - NEAR) & ((n < 1) | np.isfinite(self._limit))
        return np.where(beyond, 1.0, 0.0) * (1.0 - self._cached[:, None])

    def held(self, x: Array, n: Array) -> Array:
        return np.asarray(self._occupied(np.minimum(x, self._limit)) / self.parts.size.sum())

    def changing(self, x: Array, n: Array, running: Flags) -> Flags:
        return np.zeros(x.shape[1], dtype=bool)

    def ends(self, n: Array, goal: Array, x: Array) -> Array:
        """Ends of epochs, and where the held samples end."""
        full = np.isfinite(self._limit)
        inside = np.where(x - n < self._limit - NEAR, n + self._limit, n + 1.0)
        return np.minimum(goal, np.where(full, inside, np.where(n < 1, 1.0, np.inf)))

    def meets(self, x: Array, n: Array, rate: Array) -> Array:
        """Seconds until a job catches up with one that misses, [lanes]."""
        misses = self.share(x, n) > 0
        soonest = np.full(x.shape[1], np.inf)
        for i, j in zip(*np.nonzero(self._same & ~np.eye(len(x), dtype=bool)), strict=True):
            gap, closing = (x[j] - x[i]) % 1.0, rate[i] - rate[j]
            meeting = (closing > 0) & (gap > NEAR) & (gap < 1 - NEAR) & misses[j]
            soonest = np.minimum(soonest, np.where(meeting, gap / np.where(meeting, closing, 1.0), np.inf))
        return soonest

    def until(self, x: Array, ahead: Array) -> Array:
        filling = np.isinf(self._limit[0])
        return crossing(lambda y: self._occupied(y) - self._capacity, x, ahead, filling)

    def accept(self, x: Array, n: Array) -> None:
        now = np.isinf(self._limit[0]) & (self._occupied(x) >= self._capacity * (1 - 1e-9))
        self._limit = np.where(now, self._front(x), self._limit)

    def beside(self, x: Array, n: Array, running: Flags) -> list[Flags]:
        """For each job, which [jobs, lanes] stand beside it and miss: one waits for what another reads."""
        lost = running & (self.share(x, n) > 0)
        those = []
        for i in range(len(x)):
            gap = (x - x[i]) % 1.0
            those.append(lost & lost[i] & self._same[i][:, None] & ((gap <= NEAR) | (gap >= 1 - NEAR)))
        return those

    def settle(
        self, miss: Array, x: Array, n: Array, running: Flags, contention: Contention, pressing: Flags | None
    ) -> Array:
        """Let jobs that are side by side share the misses: as much each as keeps them together, in all as one alone."""
        self._bound = []
        clusters = [(i, those) for i, those in enumerate(self.beside(x, n, running)) if (those.sum(axis=0) > 1).any()]
        clusters = [(i, those & ~those[:i].any(axis=0)) for i, those in clusters]
        if not clusters:
            return miss
        for i, those in clusters:
            several = those & (those.sum(axis=0) > 1)
            even = miss[i] / np.maximum(those.sum(axis=0), 1)
            miss = np.where(several, even, miss)
        for _ in range(60):
            _, training, reading = contention.solve(miss, running, pressing)
            hot, storage = contention.stretched(reading, training, pressing)
            before = miss
            for i, those in clusters:
                several = those & (those.sum(axis=0) > 1)
                if several.any():
                    total = 1.0 - self._cached[i]
                    miss = np.where(several, 0.5 * miss + 0.5 * _shared(contention, hot, storage, several, total), miss)
            if np.abs(miss - before).max() < 1e-7:
                break
        for i, those in clusters:
            shares = those & (miss > 1e-6) & (miss < 1.0 - self._cached[i] - 1e-6)
            self._bound.append(shares & (shares.sum(axis=0) > 1))
        return miss

    def keep(self, x: Array, ahead: Array) -> Array:
        for those in self._bound:
            way = np.where(those, ahead - x, 0.0).sum(axis=0) / np.maximum(those.sum(axis=0), 1)
            ahead = np.where(those, x + way, ahead)
        return ahead

    def _front(self, x: Array) -> Array:
        """Progress, in the first epoch, of the furthest of those that read the same, [jobs, lanes]."""
        first = np.minimum(x, 1.0)
        return np.stack([first[same].max(axis=0) for same in self._same])

    def _occupied(self, x: Array) -> Array:
        front = self._front(x)
        total = np.zeros(x.shape[1])
        for g in np.unique(self._group):
            total += self._size[g] * (self._cached[g] + (1.0 - self._cached[g]) * front[g])
        return total

    def _groups(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int_]]:
        """For each job, the first that reads the same data; refuses data that are the same in part."""
        reads = self.parts.share > 0
        for i, j in zip(*np.nonzero(np.triu(self._shares)), strict=True):
            if (reads[i] != reads[j]).any():
                raise IngestError(
                    "Jobs that read partly the same data have same_order: an order of other data is another order, so "
                    "set same_order to false."
                )
        return np.array([int(np.flatnonzero((reads == row).all(axis=1))[0]) for row in reads])


class OrderedLru(Ordered):
    """LRU that holds less than all: one job alone finds nothing again, since what it needs next was used longest ago.

    A job behind another finds what that one read, if fewer samples than the cache holds were touched since.
    """

    def __init__(self, parts: Parts, capacity: float, lanes: int) -> None:
        super().__init__(parts, None, lanes)
        self._lru = _Arcs(parts, capacity, lanes, self._group, self._size)

    def share(self, x: Array, n: Array) -> Array:
        then, full = self._lru.window(x, n)
        found = np.zeros(x.shape, dtype=bool)
        for i in range(len(x)):
            for j in np.flatnonzero(self._same[i]):
                gap = (x[j] - x[i]) % 1.0
                gap = np.where((gap <= NEAR) | (gap >= 1 - NEAR), 1.0, gap)
                found[i] |= gap <= x[j] - then[j] + NEAR
        return np.where(found, 0.0, 1.0 - self._cached[:, None] * ~full)

    def held(self, x: Array, n: Array) -> Array:
        then, full = self._lru.window(x, n)
        before = float(self.parts.size @ self.parts.cached)
        kept = np.where(full, 0.0, np.minimum(before, self._lru.capacity))
        touched = np.maximum(self._lru.since(then, x, n), kept)
        return np.asarray(np.minimum(touched, self._lru.capacity) / self.parts.size.sum())

    def changing(self, x: Array, n: Array, running: Flags) -> Flags:
        return np.asarray(self._lru.window(x, n)[1] & running.any(axis=0))

    def ends(self, n: Array, goal: Array, x: Array) -> Array:
        return np.minimum(goal, n + 1.0)

    def until(self, x: Array, ahead: Array) -> Array:
        return self._lru.until(x, ahead)

    def accept(self, x: Array, n: Array) -> None:
        self._lru.accept(x, n)


class _Arcs(Lru):
    """The window of an LRU cache when each job touches one arc after the other of the same circle of samples."""

    def __init__(
        self,
        parts: Parts,
        capacity: float,
        lanes: int,
        group: np.ndarray[tuple[int, ...], np.dtype[np.int_]],
        size: Array,
    ) -> None:
        super().__init__(parts, capacity, lanes)
        self.capacity = capacity
        self._group, self._size = group, size

    def since(self, then: Array, x: Array, n: Array) -> Array:
        total = np.zeros(x.shape[1])
        for g in np.unique(self._group):
            those = self._group == g
            total += self._size[g] * _union(then[those] % 1.0, np.minimum(x[those] - then[those], 1.0))
        return total


def _union(start: Array, length: Array) -> Array:
    """Share of a circle of length 1 that arcs [arcs, lanes] cover together."""
    order = np.argsort(start, axis=0)
    start, length = np.take_along_axis(start, order, 0), np.take_along_axis(length, order, 0)
    # Twice around, so that an arc over the seam is seen before the second round; the second round is what counts.
    begin = np.concatenate([start, start + 1.0])
    end = np.maximum.accumulate(np.concatenate([start + length, start + 1.0 + length]), axis=0)
    arcs = len(start)
    upto = np.minimum(np.concatenate([begin[1:], begin[:1] + 2.0]), end)
    return np.asarray(np.maximum(upto - begin, 0.0)[arcs:].sum(axis=0))


def _shared(contention: Contention, hot: Array, storage: Array, several: Flags, total: float) -> Array:
    """Misses of each of `several` that give them one time per sample, as far as can be, and add up to `total`."""

    def most(time: Array) -> Array:
        return np.where(several, np.minimum(contention.most_misses(time, hot, storage), total), 0.0)

    everyone = np.where(several, contention.seconds(np.full_like(hot, total), hot, storage), 0.0).max(axis=0)
    low, high = np.zeros_like(everyone), everyone
    for _ in range(45):
        middle = 0.5 * (low + high)
        enough = most(middle).sum(axis=0) >= total
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    under, over = most(low), most(high)
    span = over.sum(axis=0) - under.sum(axis=0)
    part = np.where(span > 0, (total - under.sum(axis=0)) / np.where(span > 0, span, 1.0), 1.0)
    return np.asarray(under + np.clip(part, 0.0, 1.0) * (over - under))
