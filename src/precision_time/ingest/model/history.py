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
