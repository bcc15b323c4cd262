"""What is known of jobs that share a node: how fast each runs alone, and how much they slow each other.

Every field can be measured in short windows (calibration.py) or come from a description of the loader (loader.py).
Vocabulary: a *hit* is a sample found in the cache; the *storage* is what a missed sample is read from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class JobRates:
    """One job as it runs alone. All times are seconds per sample of the whole job (all its ranks and workers).

    samples       samples of one epoch
    epochs        epochs; may be a fraction
    hot_s         time when every sample is a hit: the slower of accelerator and preparation
    storage_s     time that the storage needs for a missed sample (1 / its rate for this job)
    overlap       1: a deep prefetch queue hides reads behind training, time = max(hot, m storage);
                  0: none does, time = m max(hot, storage) + (1 - m) hot; between: linear in it
    start_up_s    from launch to the first read
    end_s         from the last sample to the end of the process
    parts         share of this job's samples that lie in each named part of the data; jobs that name the same part
                  read the same samples there. {"data": 1.0} for all jobs: they read the same data
    cached        share of its samples that are in the cache before anyone starts
    bytes_per_sample  what a missed sample weighs on the storage, for sizes of caches; None: not known
    """

    name: str
    samples: int
    epochs: float
    hot_s: float
    storage_s: float
    overlap: float = 1.0
    start_up_s: float = 0.0
    end_s: float = 0.0
    parts: Mapping[str, float] = field(default_factory=lambda: {"data": 1.0})
    cached: float = 0.0
    bytes_per_sample: float | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """How jobs slow each other, pairwise: entry [i][j] is what i suffers while j is busy all the time; 1 is nothing.

    hot        by sharing cores or an accelerator: i's `hot_s` is multiplied by 1 + sum over j of (hot[i][j] - 1) times
               the share of time that j prepares or trains
    storage    by sharing the storage: i's `storage_s` is multiplied by 1 + sum over j of (storage[i][j] - 1) times the
               share of time that j keeps the storage busy. Two readers of a storage that serves both as fast together
               as one alone: 2; with a loss eta: 2 / eta (SYSTEMS.md, section 5); a storage that does not notice: 1
    same_order the jobs read samples in one order (the same seed), so one that runs behind another finds all it needs
    """

    hot: tuple[tuple[float, ...], ...]
    storage: tuple[tuple[float, ...], ...]
    same_order: bool = False


@dataclass(frozen=True, slots=True)
class SharedCache:
    """The cache between storage and jobs.

    capacity   samples it holds (of the mean size); None: everything
    policy     "lru": a miss replaces what was used longest ago; "no-eviction": when full it stays as it is (CoorDL)
    """

    capacity: float | None = None
    policy: str = "lru"
