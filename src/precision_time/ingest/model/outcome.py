"""When co-located jobs end."""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.ingest.model.rates import Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """When each job ends, for each vector of offsets.

    finish_s        [lanes, jobs] from time 0 to the end of the process
    makespan_s      [lanes] from time 0 to the last of them
    first_epoch_s   [lanes, jobs] from a job's first read to the end of its first epoch
    stall_s         [lanes, jobs] time that a job waited for data: its run time minus preparing and training
    """

    finish_s: Array
    makespan_s: Array
    first_epoch_s: Array
    stall_s: Array
