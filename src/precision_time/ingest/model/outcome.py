"""When co-located jobs end, and their progress over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.ingest.model.rates import Array


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Progress over time for one vector of offsets; a row for each time.

    times_s   [T] seconds
    progress  [T, jobs] epochs done
    miss      [T, jobs] share of misses until the next row; 0 where a job does not read
    held      [T] share of all the data that is in the cache
    """

    times_s: Array
    progress: Array
    miss: Array
    held: Array

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Array, Array, Array, Array]]) -> Trajectory:
        """From times [1], progress and misses [jobs, 1], and cached shares [1] of each moment."""
        times, progress, miss, held = zip(*rows, strict=True)
        return cls(np.concatenate(times), np.hstack(progress).T, np.hstack(miss).T, np.concatenate(held))


@dataclass(frozen=True, slots=True)
class Outcome:
    """When each job ends, for each vector of offsets.

    finish_s        [lanes, jobs] from time 0 to the end of the process
    makespan_s      [lanes] from time 0 to the last of them
    first_epoch_s   [lanes, jobs] from a job's first read to the end of its first epoch
    stall_s         [lanes, jobs] time that a job waited for data: its run time minus preparing and training
    trajectory      if requested
    """

    finish_s: Array
    makespan_s: Array
    first_epoch_s: Array
    stall_s: Array
    trajectory: Trajectory | None = None
