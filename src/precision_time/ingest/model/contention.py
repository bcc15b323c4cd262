"""Rates of several jobs at one moment, when they slow each other.

How much a job slows another depends on how much it is slowed itself: the rates are a fixed point. The
unknowns are the share of time u_j that j reads from the storage and the share g_j that it prepares or trains:

    speed of i's reads       = mean over who reads   of 1 / (1 + sum over readers j (storage[i][j] - 1))
    speed of i's preparation = mean over who prepares of 1 / (1 + sum over preparers j (hot[i][j] - 1))
    s_i = storage_i / speed of i's reads;   h_i = hot_i / speed of i's preparation   (stretched by the other jobs)
    time_i = sample_s(h_i, s_i, m_i, overlap_i);   u_i = min(1, m_i s_i / time_i);   g_i = h_i / time_i

The jobs are taken to be busy independently of each other. A mean of *speeds* over time is exact when one job reads all
the time and another some of it. More reading by one job makes the others read longer and prepare for a smaller share of
time, so iteration from "all read all the time" decreases monotonically to the busiest solution. That solution is
continuous in m where a storage with eta < 1 has several. Where jobs lose throughput both by sharing the storage (more
than 2) and by sharing cores, it may jump: by 9 % of a time with 3 and 1.5. Makespans stay continuous.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import IngestError
from precision_time.ingest.model.rates import Array, JobRates, Slowdowns

Flags = NDArray[np.bool_]
Leaders = NDArray[np.int_]
TOLERANCE, ROUGH = 1e-4, 1e-2
"""Relative change of a time, or change of a share of time, at which iteration ends; the error left is 0.1 to 0.5 of it.
`ROUGH` is used for solutions that only lead to the middle of a step."""
GROWN, ABOVE = 1.2, 0.1
"""Where misses grew by at most GROWN, iteration starts this part of the way from the last solution to all reading."""


class Contention:
    """Rates of `jobs` in many lanes at once; arrays are [jobs, lanes]. Iteration starts from the last solution."""

    def __init__(self, jobs: Sequence[JobRates], slowdowns: Slowdowns, tolerance: float = TOLERANCE) -> None:
        if len(slowdowns.hot) != len(jobs):
            raise IngestError(
                f"Together describes {len(slowdowns.hot)} jobs, but {len(jobs)} are given: give one row for each job."
            )
        self._hot = np.array([[job.hot_s] for job in jobs])
        self._storage = np.array([[job.storage_s] for job in jobs])
        self._overlap = np.array([[job.overlap] for job in jobs])
        self._shallow = 1.0 - self._overlap
        self._all_deep = bool((self._overlap == 1).all())
        self._hot_speed = _Speed(slowdowns.hot)
        self._storage_speed = _Speed(slowdowns.storage)
        self._tolerance = tolerance
        self._reading: Array | None = None
        self._training: Array | None = None
        self._miss: Array | None = None

    def solve(
        self,
        miss: Array,
        running: Flags,
        starting: Flags | None = None,
        rough: Flags | None = None,
        leader: Leaders | None = None,
    ) -> tuple[Array, Array, Array]:
        """Seconds per sample of each job, and its shares of time preparing or training, and reading.

        running    jobs that read and train
        starting   jobs that start up, which slows the others' preparation as training does
        rough      [lanes] that need only a rough solution
        leader     for each job the one that it cannot overtake, or itself
        """
        tolerance = self._tolerance if rough is None else np.where(rough, ROUGH, self._tolerance)
        reading, training = self._start(miss, running)
        active = running.astype(float)
        reads = miss * active
        time = self.seconds(miss, self._hot, self._storage)
        for _ in range(200):
            hot, storage = self.stretched(reading, training, starting)
            before, time = time, self.seconds(miss, hot, storage)
            if leader is not None:
                time = np.maximum(time, np.take_along_axis(time, leader, 0))
            reading = np.minimum(reads * storage / time, 1.0)
            # `reading` need not converge: where jobs nearly fill the storage it changes slowly and affects no time.
            moved = np.abs(time - before) / time
            if self._hot_speed.matters:
                trained, training = training, active * hot / time
                moved = np.maximum(moved, np.abs(training - trained))
            if (moved <= tolerance).all():
                break
        training = active * hot / time
        self._reading, self._training, self._miss = reading, training, miss
        return time, training, reading

    def seconds(self, miss: Array, hot: Array, storage: Array) -> Array:
        """Seconds per sample, as rates.sample_s; written out, because this is the innermost loop."""
        if self._all_deep:
            return np.asarray(np.maximum(hot, miss * storage))
        hidden = np.maximum(miss * storage - hot, 0.0) * self._overlap
        return np.asarray(hot + hidden + miss * self._shallow * np.maximum(storage - hot, 0.0))

    def stretched(self, reading: Array, training: Array, starting: Flags | None) -> tuple[Array, Array]:
        """Seconds of a hit and of the storage, when the others are busy for these shares of time."""
        hot, storage = self._hot, self._storage
        if self._hot_speed.matters:
            hot = hot / self._hot_speed.mean(training if starting is None else np.maximum(training, starting))
        if self._storage_speed.matters:
            storage = storage / self._storage_speed.mean(reading)
        return hot, storage

    def _start(self, miss: Array, running: Flags) -> tuple[Array, Array]:
        """Where iteration starts: at the last solution; somewhat above it where misses rose a little, so that iteration
        still decreases to the busiest solution; at "all read" where they rose much.
        """
        everyone = (running & (miss > 0)).astype(float)
        if self._miss is None or self._reading is None or self._training is None:
            return everyone, np.zeros_like(everyone)
        risen = (miss > self._miss).any(axis=0)
        much = ((miss > GROWN * self._miss) | (everyone > 0) & (self._reading == 0)).any(axis=0)
        above = self._reading + np.where(much, 1.0, ABOVE * risen) * (everyone - self._reading)
        return above, np.where(risen | much, 0.0, self._training)


class _Speed:
    """Mean speed of each job, 1 alone, when the others are busy for given shares of time, independently."""

    def __init__(self, stretch: tuple[tuple[float, ...], ...]) -> None:
        table = np.array(stretch, dtype=float) - 1.0
        np.fill_diagonal(table, 0.0)
        self.matters = bool(table.any())
        # Column s: who is busy, as the bits of s, the first job the lowest.
        busy = (np.arange(2 ** len(table)) >> np.arange(len(table))[:, None]) & 1
        self._of_set = 1.0 / (1.0 + table @ busy)
        # With two jobs: the share of speed that one loses while the other is busy.
        self._lost = 1.0 - np.array([[self._of_set[0, -2]], [self._of_set[-1, 1]]])

    def mean(self, busy: Array) -> Array:
        if len(busy) == 2:  # the same in two operations
            return 1.0 - self._lost * busy[::-1]
        chance = np.ones((1, busy.shape[1]))
        for share in busy:
            chance = np.concatenate([chance * (1.0 - share), chance * share])
        return np.asarray(self._of_set @ chance)
