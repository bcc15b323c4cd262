"""Alternatives to staggered starts: shared preparation, or a cache that does not evict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from precision_time.ingest.model.fluid import run
from precision_time.ingest.model.rates import JobRates, SharedCache, Slowdowns


def alone_s(job: JobRates, cache: SharedCache) -> float:
    """Makespan of one job alone, in seconds."""
    return float(run([job], Slowdowns.uniform(1), cache, [[0.0]]).makespan_s[0])


def first_epoch_s(job: JobRates, cache: SharedCache) -> float:
    """Seconds from launch to the end of the first epoch of one job alone."""
    return job.start_up_s + float(run([job], Slowdowns.uniform(1), cache, [[0.0]]).first_epoch_s[0, 0])


def shared_preparation_s(jobs: Sequence[JobRates], slowdowns: Slowdowns, cache: SharedCache) -> float | None:
    """Makespan when one loader feeds all jobs, started together; None if they do not read the same data.

    Every sample is read and prepared once an epoch, and all jobs run at the rate of the slowest (Joader, Xu et al.,
    NeurIPS 2022; coordinated preparation of CoorDL). Jobs with more epochs continue without those that have ended. The
    jobs are assumed to slow each other's `hot_s` as before, so this is an upper bound where preparation causes that.
    """
    if any(set(job.parts) != set(jobs[0].parts) for job in jobs):
        return None
    start, epochs_done = max(job.start_up_s for job in jobs), 0.0
    finish, elapsed = 0.0, start
    for epochs in sorted({job.epochs for job in jobs}):
        left = [i for i, job in enumerate(jobs) if job.epochs >= epochs]
        hot = [jobs[i].hot_s * (1.0 + sum(slowdowns.hot[i][j] - 1.0 for j in left if j != i)) for i in left]
        loader = replace(
            jobs[left[0]],
            hot_s=max(hot),
            storage_s=max(jobs[i].storage_s for i in left),
            overlap=min(jobs[i].overlap for i in left),
            start_up_s=0.0,
            end_s=0.0,
        )
        until = alone_s(replace(loader, epochs=epochs), cache)
        elapsed += until - (alone_s(replace(loader, epochs=epochs_done), cache) if epochs_done else 0.0)
        ended = [job.end_s for job in jobs if job.epochs == epochs]
        finish, epochs_done = max(finish, elapsed + max(ended)), epochs
    return finish


def no_eviction_s(
    jobs: Sequence[JobRates], slowdowns: Slowdowns, cache: SharedCache, offsets_s: Sequence[Sequence[float]]
) -> float | None:
    """Least makespan over these offsets if the cache never evicts; None if it does not evict now."""
    if cache.policy == "no-eviction" or cache.capacity is None:
        return None
    without_eviction = replace(cache, policy="no-eviction")
    return float(run(jobs, slowdowns, without_eviction, np.asarray(offsets_s)).makespan_s.min())
