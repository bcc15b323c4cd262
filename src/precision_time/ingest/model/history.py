"""Progress of every job at earlier times: one row for each step; progress is linear between rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precision_time.ingest.model.rates import Array

Rows = NDArray[np.int_]


class History:
    """Progress of each job at the end of every step so far. The first row is the start, 0.

    One more row holds the time in question, after the last step: see `now`.
    """

    def __init__(self, jobs: int, lanes: int) -> None:
        self._past = np.zeros((64, jobs, lanes))
        self.rows = 1
        self._cells = np.arange(jobs * lanes).reshape(jobs, lanes)

    def accept(self, x: Array) -> None:
        """A step ended with progress x, [jobs, lanes]."""
        self.now(x)
        self.rows += 1
        if self.rows == len(self._past):
            self._past = np.concatenate([self._past, np.zeros_like(self._past)])

    def now(self, x: Array) -> None:
        """Set the last row to progress x, the time in question."""
        self._past[self.rows] = x

    def at(self, row: Rows) -> Array:
        """Progress in some rows of each lane [some, lanes]: [jobs, some, lanes]."""
        return self._past.take(row * self._cells.size + self._cells[:, None])
