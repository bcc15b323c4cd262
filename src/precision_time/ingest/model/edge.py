"""How a job on the edge of what an LRU cache still holds stays there, in one order.

A job that falls behind another loses, at some distance, what that one has read. When it misses now and then, its reads
slow the other, and it falls behind no further: it misses just as much as keeps it there. Both may go on so to the end,
as the simulation shows (tests/test_fluid_simulated.py); beyond the edge, where all is missed, neither comes nearer.

What was touched since the one ahead was where the one behind is now goes from there to the one ahead, and back to where
the one behind was then. So it stays as much while the one ahead goes as fast as where the one behind was then does: at
the latter's speed now, times the relative speed of the two then. In the mean of windows that is the latter's speed; but
to get into this state it must be reached at once, and one that has just begun, and stood still then, loses all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.ingest.model.contention import Contention, Flags, Leaders
from precision_time.ingest.model.rates import Array
from precision_time.ingest.model.side_by_side import EQUAL, GRID, Positions, Remembered

BAND = 1e-5
"""Share of the cache by which a job may be beyond the edge that has just come to it."""


@dataclass(frozen=True)
class Others:
    """What all jobs do meanwhile, as Contention.solve is told it, [jobs, lanes]."""

    running: Flags
    pressing: Flags | None
    leader: Leaders | None

    def at(self, lanes: Positions) -> Others:
        """In some lanes."""
        return Others(
            self.running[:, lanes],
            None if self.pressing is None else self.pressing[:, lanes],
            None if self.leader is None else self.leader[:, lanes],
        )

    @property
    def rows(self) -> list[Array | Flags | Leaders]:
        """All that is told."""
        return [of for of in (self.running, self.pressing, self.leader) if of is not None]


class Edge:
    """Which pairs (one behind, one ahead) are on the edge, [pairs, lanes], and what the one behind misses there."""

    def __init__(self, pairs: Sequence[tuple[int, int]], lanes: int) -> None:
        self._pairs = pairs
        self.on = np.zeros((len(pairs), lanes), dtype=bool)
        self._remembered = [Remembered() for _ in pairs]

    def settle(
        self, miss: Array, rooms: Array, speeds: Callable[[], Array], others: Others, contention: Contention
    ) -> Array:
        """`miss` with the shares of those on the edge.

        rooms   for each pair, share of the cache that could be touched besides before the one behind finds nothing
        speeds  for each pair, speed of the one behind over that of the one ahead, when this was where the former is
        """
        found = rooms >= 0
        for at, (behind, ahead) in enumerate(self._pairs):
            if behind == ahead:
                continue
            elsewhere = [o for o, (job, _) in enumerate(self._pairs) if job == behind and o != at]
            those = (self.on[at] | (rooms[at] > -BAND)) & ~found[at] & ~found[elsewhere].any(axis=0)
            lanes = np.flatnonzero(those & others.running[behind])
            if not len(lanes):
                self.on[at] = False
                continue
            slower = np.where(self.on[at, lanes], 1.0, speeds()[at, lanes])
            self.on[at] = False
            # What gets a job into this state; what keeps it there.
            enters = self._misses(at, slower, miss[:, lanes], others.at(lanes), contention)
            told = self._misses(at, np.ones(len(lanes)), miss[:, lanes], others.at(lanes), contention)
            stays = np.isfinite(enters) & np.isfinite(told)
            self.on[at, lanes] = stays
            miss = miss.copy()
            miss[behind, lanes[stays]] = told[stays]
        return miss

    def _misses(self, at: int, slower: Array, miss: Array, others: Others, contention: Contention) -> Array:
        """The least share of misses with which the one ahead is no faster than `slower` times the one behind, [lanes];
        not a number if there is none."""
        fresh = contention.afresh(EQUAL / 10)

        def find(lanes: Positions) -> Array:
            return _least(self._pairs[at], slower[lanes], miss[:, lanes], others.at(lanes), fresh)

        return self._remembered[at]([miss, slower[None].round(6), *others.rows], find)


def _least(pair: tuple[int, int], slower: Array, miss: Array, others: Others, contention: Contention) -> Array:
    (behind, ahead), (jobs, lanes) = pair, miss.shape
    columns = np.arange(lanes)
    every = others.at(np.tile(columns, len(GRID)))

    def lead(share: Array) -> Array:
        """By how much the one ahead is too slow, [points, lanes], when the one behind misses `share`."""
        many = np.tile(miss, len(GRID))
        many[behind] = share.ravel()
        time, _, _ = contention.afresh().solve(many, every.running, every.pressing, leader=every.leader)
        time = np.where(every.running, time, np.inf).reshape(jobs, len(GRID), lanes)
        with np.errstate(invalid="ignore"):
            return np.asarray(slower - time[behind] / time[ahead])

    low, high = np.zeros(lanes), np.ones(lanes)
    for turn in range(2):
        share = low + (high - low) * GRID[:, None]
        leads = lead(share)
        enough = leads >= 0
        first = np.argmax(enough, axis=0)
        if turn == 0:
            none, all_hits = ~enough.any(axis=0), enough[0]
        before = np.maximum(first - 1, 0)
        low, high = share[before, columns], share[first, columns]
        short, long = -leads[before, columns], leads[first, columns]
    span = np.maximum(short + long, 1e-300)
    found = np.where(all_hits, 0.0, low + (high - low) * np.clip(short / span, 0.0, 1.0))
    return np.where(none | (found > 1.0 - EQUAL), np.nan, found)
