"""Misses of jobs that read the same samples in one and the same order, in every epoch (the same seed, or no shuffling).

A job behind another finds what that one has read; the one in front misses all. Of jobs side by side one reads and the
others cannot overtake it, or, where none waits for another's read, all read (side_by_side.py). Arrays are as in
misses.py, whose classes these are kinds of.
"""

from __future__ import annotations

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.model.contention import Contention, Flags, Leaders
from precision_time.ingest.model.edge import Edge, Others
from precision_time.ingest.model.history import Bends
from precision_time.ingest.model.misses import Fits, crossing, limited
from precision_time.ingest.model.parts import Parts
from precision_time.ingest.model.rates import Array
from precision_time.ingest.model.side_by_side import Splits

NEAR = 1e-9
"""Epochs within which two jobs are side by side."""
BIT = 1e-6
"""Epochs over which a speed is told."""
LOOK = 1 / 8
"""Epochs in one step, at most, with an LRU cache that is too small."""


class Ordered(Fits):
    """The cache holds all, or fills once and stays (no-eviction): it holds the samples up to `limit`, [jobs, lanes]."""

    def __init__(self, parts: Parts, capacity: float | None, lanes: int, coalesces: bool = True) -> None:
        super().__init__(limited(parts, np.inf if capacity is None else capacity))
        self._coalesces = coalesces
        self._splits = Splits()
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
            gap, closing = _in_epoch(x[j] - x[i]), rate[i] - rate[j]
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
            gap = _in_epoch(x - x[i])
            those.append(lost & lost[i] & self._same[i][:, None] & ((gap <= NEAR) | (gap >= 1 - NEAR)))
        return those

    def settle(
        self, miss: Array, x: Array, n: Array, running: Flags, contention: Contention, pressing: Flags | None
    ) -> tuple[Array, Leaders | None]:
        """Misses of jobs that are side by side. Where one waits for what another reads, one misses all and the others
        cannot overtake it; else each has as many as keeps them together, as far as that can be."""
        self._bound = []
        clusters = []
        before = np.zeros(x.shape, dtype=bool)
        for i, those in enumerate(self.beside(x, n, running)):
            those = those & ~before & (those.sum(axis=0) > 1)
            before |= those
            if those.any():
                clusters.append((those, 1.0 - float(self._cached[i])))
        if not clusters:
            return miss, None
        if self._coalesces:
            self._bound = [those for those, _ in clusters]
            return self._led(miss, clusters, contention)
        miss = self._splits(miss, clusters, running, contention, pressing)
        for those, _ in clusters:
            shares = those & (miss > 1e-6)
            self._bound.append(shares & (shares.sum(axis=0) > 1))
        return miss, None

    def _led(
        self, miss: Array, clusters: list[tuple[Flags, float]], contention: Contention
    ) -> tuple[Array, Leaders | None]:
        """Of each cluster the one leads that is soonest through with a sample that it misses."""
        numbers = np.arange(len(miss))[:, None]
        leader = numbers + np.zeros(miss.shape, dtype=int)
        for those, total in clusters:
            first = np.where(those, contention.alone(total), np.inf).argmin(axis=0)
            miss = np.where(those & (numbers != first), 0.0, miss)
            leader = np.where(those, first, leader)
        return miss, leader

    def keep(self, x: Array, ahead: Array) -> Array:
        for those in self._bound:
            way = np.where(those, ahead - x, np.nan)
            with np.errstate(invalid="ignore"):
                equal = those & (np.abs(way - np.fmax.reduce(way)) <= NEAR)
            count = equal.sum(axis=0)
            mean = np.where(equal, way, 0.0).sum(axis=0) / np.maximum(count, 1)
            ahead = np.where(equal & (count > 1), x + mean, ahead)
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

    def __init__(self, parts: Parts, capacity: float, lanes: int, coalesces: bool = True) -> None:
        super().__init__(parts, None, lanes, coalesces)
        self._held = capacity
        self._history = Bends(len(parts.share), lanes)
        # Who may find what whom has read; itself too, an epoch ago, if the cache can hold all its data.
        self._pairs = [(int(j), int(i)) for j, i in np.argwhere(self._same) if i != j or self._size[j] < capacity]
        self._behind, self._ahead = (np.array([pair[at] for pair in self._pairs], dtype=int) for at in (0, 1))
        self._readers = [(float(self._size[g]), np.flatnonzero(self._group == g)) for g in np.unique(self._group)]
        self._last: tuple[Array, Array] | None = None
        self._shared: tuple[Array, Array] | None = None
        self._edge = Edge(self._pairs, lanes)

    def share(self, x: Array, n: Array) -> Array:
        if self._shared is not None and self._shared[0] is x:
            return self._shared[1]
        found = np.zeros(x.shape, dtype=bool)
        if self._pairs and self._held > 0:
            for (j, _), room in zip(self._pairs, self._rooms(x), strict=True):
                found[j] |= room >= 0
        miss = np.where(found, 0.0, 1.0)
        if self._cached.any():
            miss *= 1.0 - self._cached[:, None] * ~self._full(x)
        self._shared = (x, miss)
        return miss

    def held(self, x: Array, n: Array) -> Array:
        before = min(float(self.parts.size @ self.parts.cached), self._held)
        kept = np.where(self._full(x), 0.0, before)
        touched = np.maximum(self._since(np.zeros_like(x), x), kept)
        return np.asarray(np.minimum(touched, self._held) / self.parts.size.sum())

    def ends(self, n: Array, goal: Array, x: Array) -> Array:
        return np.minimum(goal, n + 1.0)

    def settle(
        self, miss: Array, x: Array, n: Array, running: Flags, contention: Contention, pressing: Flags | None
    ) -> tuple[Array, Leaders | None]:
        miss, leader = super().settle(miss, x, n, running, contention, pressing)
        if not self._pairs or self._held <= 0:
            return miss, leader
        rooms, speeds = self._rooms(x), lambda: self._speeds(x)
        return self._edge.settle(miss, rooms, speeds, Others(running, pressing, leader), contention), leader

    def meets(self, x: Array, n: Array, rate: Array) -> Array:
        """Or until what a job finds was read when relative speeds changed: between, all is linear."""
        soonest = np.minimum(super().meets(x, n, rate), LOOK / rate.max(axis=0))
        if not self._pairs:
            return np.asarray(soonest)
        y = x[self._ahead] - self._gap(x)
        bend = self._history.next_bend(self._ahead, y) - y
        return np.asarray(np.minimum(soonest, (bend / rate[self._behind]).min(axis=0)))

    def until(self, x: Array, ahead: Array) -> Array:
        """Share of the way at which a job begins to find what another read, or finds it no more."""
        if not self._pairs or self._held <= 0:
            return np.ones(x.shape[1])
        now = np.where(self._rooms(x) >= 0, 1.0, -1.0)

        def otherwise(y: Array) -> Array:
            """Above 0 once a job finds what it does not now, or the reverse."""
            return np.asarray(np.where(self._edge.on, -1.0, -now * self._rooms(y)).max(axis=0))

        return crossing(otherwise, x, ahead, np.ones(x.shape[1], dtype=bool), rounds=6, beyond=NEAR)

    def accept(self, x: Array, n: Array) -> None:
        self._history.accept(x)
        self._last = self._shared = None

    def _rooms(self, x: Array) -> Array:
        """For each pair, share of the cache that could be touched besides without losing what it finds."""
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        y = x[self._ahead] - self._gap(x)
        then = self._history.when(self._ahead, np.maximum(y, 0.0), x)
        since = self._since(then, x[:, None])
        rooms = np.where(y >= -NEAR, 1.0 - since / self._held, -1.0) + NEAR
        self._last = (x, rooms)
        return rooms

    def _speeds(self, x: Array) -> Array:
        """For each pair, how fast the one behind went, for each epoch of the one ahead, when that was where it is."""
        y = np.maximum(x[self._ahead] - self._gap(x), 0.0)
        later = self._history.when(self._ahead, y + BIT, x) - self._history.when(self._ahead, y, x)
        return np.asarray(later[self._behind, np.arange(len(y))] / BIT)

    def _gap(self, x: Array) -> Array:
        """How far each pair is apart, above 0 and at most 1."""
        gap = _in_epoch(x[self._ahead] - x[self._behind])
        return np.where((gap <= NEAR) | (gap >= 1 - NEAR), 1.0, gap)

    def _full(self, x: Array) -> Flags:
        return self._since(np.zeros_like(x), x) >= self._held * (1 - 1e-12)

    def _since(self, then: Array, x: Array) -> Array:
        """Samples that anyone has touched since the jobs were at `then`, [jobs, ...]."""
        length = np.minimum(x - then, 1.0)
        total = np.zeros(then.shape[1:])
        for size, those in self._readers:
            total += size * (length[those[0]] if len(those) == 1 else _union(_in_epoch(then[those]), length[those]))
        return total


def _in_epoch(x: Array) -> Array:
    """x modulo 1, in a third of the time."""
    return x - np.floor(x)


def _union(start: Array, length: Array) -> Array:
    """Share of a circle of length 1 that arcs [arcs, ...], none longer than 1, cover together."""
    if len(start) == 2:
        # Of the second arc, what lies in the first before and after the seam.
        begin = _in_epoch(start[1] - start[0])
        end = begin + length[1]
        common = np.maximum(np.minimum(length[0], end) - begin, 0.0) + np.maximum(np.minimum(length[0], end - 1.0), 0.0)
        return np.asarray(length[0] + length[1] - common)
    order = np.argsort(start, axis=0)
    start, length = np.take_along_axis(start, order, 0), np.take_along_axis(length, order, 0)
    # Twice around, so that an arc over the seam is seen before the second round; the second round is what counts.
    begin = np.concatenate([start, start + 1.0])
    end = np.maximum.accumulate(np.concatenate([start + length, start + 1.0 + length]), axis=0)
    arcs = len(start)
    upto = np.minimum(np.concatenate([begin[1:], begin[:1] + 2.0]), end)
    return np.asarray(np.maximum(upto - begin, 0.0)[arcs:].sum(axis=0))
