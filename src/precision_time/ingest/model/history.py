"""How far every job was at earlier moments: one row for each step, between which progress is linear."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precision_time.ingest.model.rates import Array

Rows = NDArray[np.int_]


class History:
    """Progress of each job at the end of every step so far; the first row is the start, 0.

    One row more is that of the moment asked about, after the last step: `now`.
    """

    def __init__(self, jobs: int, lanes: int) -> None:
        self._past = np.zeros((64, jobs, lanes))
        self.rows = 1
        self._cells = np.arange(jobs * lanes).reshape(jobs, lanes)

    def accept(self, x: Array) -> None:
        """The jobs have come to x, [jobs, lanes]."""
        self.now(x)
        self.rows += 1
        if self.rows == len(self._past):
            self._past = np.concatenate([self._past, np.zeros_like(self._past)])

    def now(self, x: Array) -> None:
        """The jobs would be at x after the last step."""
        self._past[self.rows] = x

    def at(self, row: Rows) -> Array:
        """Progress in some rows of each lane [some, lanes]: [jobs, some, lanes]."""
        return self._past.take(row * self._cells.size + self._cells[:, None])


class Bends(History):
    """Also knows where relative speeds changed, and when a job was how far."""

    def __init__(self, jobs: int, lanes: int) -> None:
        super().__init__(jobs, lanes)
        # Lanes in which the jobs went on from a row at other relative speeds than they came to it.
        self._bends = np.zeros((64, lanes), dtype=bool)
        self._heading = np.zeros((jobs, lanes))
        self._lanes = np.arange(lanes)

    def accept(self, x: Array) -> None:
        way = x - self._past[self.rows - 1]
        length = np.sqrt((way * way).sum(axis=0))
        heading = np.where(length > 0, way / np.where(length > 0, length, 1.0), self._heading)
        self._bends[self.rows - 1] = (np.abs(heading - self._heading) > 1e-6).any(axis=0)
        self._heading = heading
        super().accept(x)
        if len(self._bends) < len(self._past):
            self._bends = np.concatenate([self._bends, np.zeros_like(self._bends)])

    def next_bend(self, jobs: Rows, y: Array) -> Array:
        """Progress at which relative speeds changed next after each of some `jobs` was at y, [some, lanes]."""
        past = self._past[: self.rows - 1, jobs]
        later = self._bends[: self.rows - 1, None] & (past > y + 1e-9)
        return np.asarray(np.where(later, past, np.inf).min(axis=0, initial=np.inf))

    def when(self, jobs: Rows, y: Array, now: Array) -> Array:
        """Progress of all when each of some `jobs` [some] was last at y [some, lanes], no further than `now`.

        [jobs, some, lanes]
        """
        self.now(now)
        size = self._cells.size
        at = self._last_cell(self._cells[jobs], y)
        begin, end = self._past.take(at), self._past.take(at + size)
        length = end - begin
        share = np.minimum((y - begin) / np.where(length > 0, length, np.inf), 1.0)
        # [jobs, some, lanes]
        every = at // size * size + self._cells[:, None]
        low = self._past.take(every)
        return np.asarray(low + (self._past.take(every + size) - low) * share)

    def _last_cell(self, first: Rows, y: Array) -> Rows:
        """Where in the table each job was last no further than y, by bisection: progress never falls."""
        size = self._cells.size
        at, last = first, first + (self.rows - 1) * size
        step = 1 << (self.rows.bit_length() - 1)
        while step:
            later = np.minimum(at + step * size, last)
            at = np.where(self._past.take(later) <= y, later, at)
            step >>= 1
        return at
