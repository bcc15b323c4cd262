"""How jobs in one order that stand side by side and each read everything stay together, if they can.

All read what they miss, for none waits for what another reads; only a slower one finds some of what a faster was first
to read, as much as keeps it beside that one.

The split of two is the root of the difference of their times per sample, found on a grid that is drawn together; of
more, a damped fixed point. Neither depends on how far the jobs are, so a run has few splits: each is found once.
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
        """On the way from 0, where the first of two misses nothing, over 1/2, where both miss all, to 1, where the
        second does not, the first's time per sample rises and the second's falls: where are they equal?"""
        first = np.argmax(those, axis=0)
        second = len(those) - 1 - np.argmax(those[::-1], axis=0)
        jobs, lanes = np.arange(len(those))[:, None], len(first)
        is_first, is_second = those & (jobs == first), those & (jobs == second)
        fresh, all_lanes = contention.afresh(EQUAL / 10), np.arange(lanes)

        def misses(way: Array) -> Array:
            """[jobs, lanes] or, for a grid of ways [points, lanes], [jobs, points, lanes]."""
            of_first, of_second = 2.0 * way, 2.0 - 2.0 * way
            grid = (slice(None), None) if way.ndim == 2 else (slice(None),)
            found = np.where(is_first[grid], np.minimum(of_first, 1.0) * total, miss[grid])
            return np.asarray(np.where(is_second[grid], np.minimum(of_second, 1.0) * total, found))

        def lag(way: Array) -> Array:
            """Share by which the first's time is the longer."""
            flat = [
                None if flags is None else np.repeat(flags[:, None], len(way), axis=1).reshape(len(those), -1)
                for flags in (running, pressing)
            ]
            assert flat[0] is not None
            time, _, _ = fresh.afresh().solve(misses(way).reshape(len(those), -1), flat[0], flat[1])
            time = time.reshape(len(those), len(way), lanes)
            one, other = time[first, :, all_lanes].T, time[second, :, all_lanes].T
            return np.asarray((one - other) / np.maximum(one, other))

        low, high = np.zeros(lanes), np.ones(lanes)
        for _ in range(3):
            way = low + (high - low) * GRID[:, None]
            late = lag(way)
            before = np.where((late < -EQUAL).any(axis=0), (late < -EQUAL).sum(axis=0) - 1, 0)
            after = np.where((late > EQUAL).any(axis=0), len(way) - (late > EQUAL).sum(axis=0), len(way) - 1)
            after = np.maximum(after, before)
            low, high = way[before, all_lanes], way[after, all_lanes]
            short, long = -late[before, all_lanes], late[after, all_lanes]
        span = short + long
        part = np.where(span > 0, short / np.where(span > 0, span, 1.0), 0.5)
        return misses(low + (high - low) * np.clip(part, 0.0, 1.0))

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
