"""How far every job was at earlier moments: one row for each step, between which progress is linear."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precision_time.ingest.rates import Array

Rows = NDArray[np.int_]


class History:
    """Progress of each job at the end of every step so far; the first row is the start, 0."""

    def __init__(self, jobs: int, lanes: int) -> None:
        self._past = np.zeros((64, jobs, lanes))
        self.rows = 1
        self._lanes = np.arange(lanes)

    def accept(self, x: Array) -> None:
        """The jobs have come to x, [jobs, lanes]."""
        if self.rows == len(self._past):
            self._past = np.concatenate([self._past, np.zeros_like(self._past)])
        self._past[self.rows] = x
        self.rows += 1

    def at(self, row: Rows, now: Array) -> Array:
        """Progress in each lane's row of the past, [jobs, lanes]; `now` beyond the last."""
        found = self._past[np.minimum(row, self.rows - 1), :, self._lanes].T
        return np.asarray(np.where(row < self.rows, found, now))

    def when(self, job: int, y: Array, now: Array) -> Array:
        """Progress of all jobs when `job` was last at y, [lanes], between 0 and its progress now."""
        row = (self._past[: self.rows, job] <= y).sum(axis=0) - 1
        low, high = self.at(row, now), self.at(row + 1, now)
        length = high[job] - low[job]
        share = np.where(length > 0, (y - low[job]) / np.where(length > 0, length, 1.0), 1.0)
        return np.asarray(low + (high - low) * np.minimum(share, 1.0))
