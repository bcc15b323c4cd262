"""The parts of the data that several jobs read: the size of each, and the jobs that read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.model.rates import Array, JobRates


@dataclass(frozen=True, slots=True)
class Parts:
    """The named parts of the data of several jobs.

    names    in order of appearance
    share    [jobs, parts] share of a job's samples that lie in the part
    size     [parts] samples
    cached   [parts] share in the cache before any job starts
    """

    names: tuple[str, ...]
    share: Array
    size: Array
    cached: Array

    @classmethod
    def of(cls, jobs: Sequence[JobRates], tolerance: float = 0.05) -> Parts:
        """Raises IngestError for jobs that give one part sizes further apart than `tolerance`."""
        names = tuple(dict.fromkeys(part for job in jobs for part in job.parts))
        share = np.array([[job.parts.get(part, 0.0) for part in names] for job in jobs])
        samples = share * np.array([[job.samples] for job in jobs])
        readers = share > 0
        size = samples.sum(0) / readers.sum(0)
        for p, part in enumerate(names):
            readers_of_part = [int(i) for i in np.flatnonzero(readers[:, p])]
            least, most = (pick(readers_of_part, key=lambda i: float(samples[i, p])) for pick in (min, max))
            if samples[most, p] > samples[least, p] * (1 + tolerance):
                raise IngestError(
                    f"Part {part!r} has {samples[least, p]:g} samples in job {jobs[least].name!r} but "
                    f"{samples[most, p]:g} in job {jobs[most].name!r}: give shares that agree, or two names."
                )
        cached = (readers * np.array([[job.cached] for job in jobs])).sum(0) / readers.sum(0)
        return cls(names, share, size, cached)
