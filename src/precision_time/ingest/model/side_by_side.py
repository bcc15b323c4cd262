"""How jobs in one order that stand side by side and each read everything stay together, if they can.

All read what they miss, for none waits for what another reads; only a slower one finds some of what a faster was first
to read, as much as keeps it beside that one.

What the slower of two misses is found on a grid that is drawn together; for more it is a damped fixed point. Neither
depends on how far the jobs are, so a run has few splits: each is found once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from precision_time.ingest.model.contention import Contention, Flags
from precision_time.ingest.model.rates import Array

Positions = NDArray[np.int_]
GRID = np.linspace(0.0, 1.0, 17)
EQUAL = 1e-6
"""Share of a time per sample by which two may differ and still go side by side."""


class Remembered:
    """Answers that depend on nothing but what is asked: each is found once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Array] = {}

    def __call__(self, asked: Sequence[Array | Flags | Positions], find: Callable[[Positions], Array]) -> Array:
        """Columns [..., lanes] for the columns of `asked`; `find` gives those of some lanes."""
        table = np.concatenate([np.asarray(row, dtype=float) for row in asked]).T.copy()
        keys = [column.tobytes() for column in table]
        new = {key: lane for lane, key in enumerate(keys) if key not in self._known}
        if new:
            found = find(np.array(list(new.values())))
            self._known.update((key, found[..., k]) for k, key in enumerate(new))
        return np.stack([self._known[key] for key in keys], axis=-1)


class Splits:
    """Misses of jobs side by side, remembered for each set of who runs and who stands beside whom."""

    def __init__(self) -> None:
        self._remembered = Remembered()

    def __call__(
        self,
        miss: Array,
        clusters: Sequence[tuple[Flags, float]],
        running: Flags,
        contention: Contention,
        pressing: Flags | None,
    ) -> Array:
        """`miss` with the shares of those in `clusters`: who is in each, and what one of them alone would miss."""
        lanes = np.flatnonzero(np.any([those.any(axis=0) for those, _ in clusters], axis=0))
        rows = [miss, running, *([] if pressing is None else [pressing]), *(those for those, _ in clusters)]
        asked = [row[:, lanes] for row in rows] + [np.full((1, len(lanes)), total) for _, total in clusters]

        def find(some: Positions) -> Array:
            at = lanes[some]
            press = None if pressing is None else pressing[:, at]
            there = [(those[:, at], total) for those, total in clusters]
            return self._found(miss[:, at], there, running[:, at], contention, press)

        told = miss.copy()
        told[:, lanes] = self._remembered(asked, find)
        return told

    def _found(
        self,
        miss: Array,
        clusters: Sequence[tuple[Flags, float]],
        running: Flags,
        contention: Contention,
        pressing: Flags | None,
    ) -> Array:
        largest = np.array([those.sum(axis=0) for those, _ in clusters])
        if largest.max() == 2 and (largest > 0).sum(axis=0).max() == 1:
            for those, total in clusters:
                if those.any():
                    miss = np.where(those, self._of_two(miss, those, total, running, contention, pressing), miss)
            return miss
        return self._of_more(miss, clusters, running, contention, pressing)

    def _of_two(
        self, miss: Array, those: Flags, total: float, running: Flags, contention: Contention, pressing: Flags | None
    ) -> Array:
        """Both miss all; if one is then the slower, it misses only as much, from all down, as lets it keep up."""
        pair = np.argsort(~those, axis=0, kind="stable")[:2]
        jobs, lanes = np.arange(len(those))[:, None], np.arange(those.shape[1])
        fresh = contention.afresh(EQUAL / 10)
        every = np.where(those, total, miss)
        time = fresh.solve(every, running, pressing)[0][pair, lanes]
        slow, fast = pair[time.argmax(axis=0), lanes], pair[time.argmin(axis=0), lanes]
        slow = np.where(slow == fast, pair[1], slow)
        many = np.tile(lanes, len(GRID))
        ran, press = running[:, many], None if pressing is None else pressing[:, many]

        def late(share: Array) -> Array:
            """Share by which the slower takes longer, [points, lanes], when it misses `share` of the total."""
            tried = np.where(jobs == slow[many], share.ravel() * total, every[:, many])
            found = fresh.afresh().solve(tried, ran, press)[0]
            return np.asarray(found[slow[many], many_at] / found[fast[many], many_at] - 1.0).reshape(len(share), -1)

        many_at = np.arange(len(many))
        high, low = np.ones(len(lanes)), np.zeros(len(lanes))
        for _ in range(2):
            share = high + (low - high) * GRID[:, None]
            slower = late(share)
            enough = slower <= EQUAL
            first = np.where(enough.any(axis=0), np.argmax(enough, axis=0), len(GRID) - 1)
            before = np.maximum(first - 1, 0)
            high, low = share[before, lanes], share[first, lanes]
            long, short = np.maximum(slower[before, lanes], 0.0), np.maximum(-slower[first, lanes], 0.0)
        span = long + short
        part = np.where(span > 0, long / np.where(span > 0, span, 1.0), 1.0)
        share = high + (low - high) * part
        return np.where((jobs == slow) & those, share * total, every)

    def _of_more(
        self,
        miss: Array,
        clusters: Sequence[tuple[Flags, float]],
        running: Flags,
        contention: Contention,
        pressing: Flags | None,
    ) -> Array:
        contention = contention.afresh()
        for those, _ in clusters:
            miss = np.where(those, miss / np.maximum(those.sum(axis=0), 1), miss)
        for _ in range(60):
            _, training, reading = contention.solve(miss, running, pressing)
            hot, storage = contention.stretched(reading, training, pressing)
            before = miss
            for those, total in clusters:
                if those.any():
                    miss = np.where(those, 0.5 * miss + 0.5 * doubled(contention, hot, storage, those, total), miss)
            if np.abs(miss - before).max() < 1e-7:
                break
        return miss


def doubled(contention: Contention, hot: Array, storage: Array, several: Flags, total: float) -> Array:
    """Misses of each of `several` when none waits for another's read: all miss `total`, but those that would then fall
    behind the fastest miss only as much as keeps them beside it."""
    alone = np.where(several, contention.seconds(np.full_like(hot, total), hot, storage), np.inf)
    fastest = alone.min(axis=0)
    kept = np.minimum(contention.most_misses(fastest * (1.0 + 1e-12), hot, storage), total)
    return np.where(several & (alone > fastest), kept, np.where(several, total, 0.0))
